"""What a packaged Lemon Tray starts with."""

import os
import ssl
import sys

# The Python inside looks for certificates where its builder's system has them; others have them elsewhere.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def trust() -> None:
    """Have TLS find the system's certificates; a choice of the user's stands."""
    if sys.platform == "win32" or "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
        return
    usual = ssl.get_default_verify_paths()
    if usual.cafile is None and usual.capath is None:
        found = next((path for path in BUNDLES if os.path.exists(path)), None)
        if found is not None:
            os.environ["SSL_CERT_FILE"] = found


if __name__ == "__main__":
    trust()

    from lemon_tray.__main__ import main

    sys.exit(main())
