"""Asking the Hugging Face hub what a repository holds, and finding the token that opens gated ones."""

from __future__ import annotations

import asyncio
import logging
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from router.catalog.hub import HubFile, Listing, Reference, check_listing
from router.errors import Forbidden, NotFound, RouterError, Unavailable
from router.fetch import LONGEST_WAIT_S, RETRY_PAUSES_S, seconds_of
from router.settings import keyring as keyrings
from router.settings.keyring import SecretStore, system_keyring
from router.version import __version__

T = TypeVar("T")

log = logging.getLogger(__name__)

HUB: Final = "https://huggingface.co"
#: Under which name a token for the hub is kept in the system's keyring.
TOKEN_NAME: Final = "huggingface-token"

_ANSWER_S: Final = 20.0
_TRUE: Final = {"1", "on", "yes", "true"}


class Hub:
    """The hub that the environment names.

    Args:
        environ: `HF_ENDPOINT`, `HF_HUB_OFFLINE` and `HF_TOKEN` are looked at.
        find_keyring: the system's keyring, asked for a token only where one is needed.
        pauses_s: seconds before each further try.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        find_keyring: Callable[[], SecretStore | None] = system_keyring,
        pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        self.endpoint = (environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")
        self._environ = environ
        self._find_keyring = find_keyring
        self._pauses_s = tuple(pauses_s)

    @property
    def is_offline(self) -> bool:
        """The user wants no traffic with the hub."""
        named = self._environ.get("HF_HUB_OFFLINE") or self._environ.get("TRANSFORMERS_OFFLINE") or ""
        return named.strip().lower() in _TRUE

    def page(self, repo: str) -> str:
        """Where people read about a repository, and accept its conditions."""
        return f"{self.endpoint}/{repo}"

    def address(self, listing: Listing, file: HubFile) -> str:
        """Where a file is fetched from: at its commit, so that it never changes."""
        return f"{self.page(listing.repo)}/resolve/{listing.commit}/{urllib.parse.quote(file.path)}"

    async def look(self, reference: Reference) -> tuple[Listing, str]:
        """What the repository holds, and the token that files of it are asked for with, "" for none.

        The keyring is asked only if the repository is not open to everybody.

        Raises:
            NotFound: there is no such repository or revision, or it is private.
            Forbidden: it is gated, or the token is refused; the message has the page to open.
            RouterError: the hub cannot be reached, or wants to be asked later.
        """
        if self.is_offline:
            raise Unavailable(
                "The hub is not asked, since HF_HUB_OFFLINE is set.",
                code="offline",
                hint="Unset it, and start Lemon Tray again.",
            )
        token = await apart(self._open_token)
        try:
            listing = await self._ask_patiently(reference, token)
        except (Forbidden, NotFound):
            kept = "" if token else await apart(self._kept_token)
            if not kept:
                raise
            return check_listing(await self._ask_patiently(reference, kept)), kept
        if listing.gated and not token:
            token = await apart(self._kept_token)
        return check_listing(listing), token

    def refused(self, repo: str, status: int, token: str) -> Forbidden:
        """The error for a repository that is not open to whoever asks."""
        page = self.page(repo)
        if not token:
            return Forbidden(
                f"{repo} is not open to everybody: its owner wants to know who fetches it. Accept its "
                f"conditions at {page}, and give Lemon Tray a token of your account.",
                code="gated_repo",
                param="model_name",
                hint=f"Make a token at {self.endpoint}/settings/tokens, then: lemon-tray hub login",
            )
        if status == 401:
            return Forbidden(
                f"The hub does not take the token for {repo}: it may have been revoked, or be incomplete.",
                code="hub_token_refused",
                param="model_name",
                hint="It is that of HF_TOKEN, hf auth login or lemon-tray hub login, the first of these.",
            )
        return Forbidden(
            f"Your account has no access to {repo}. Accept its conditions at {page}; some owners take a "
            "while to answer.",
            code="gated_repo",
            param="model_name",
            hint="A fine-grained token must allow reading gated repositories.",
        )

    async def _ask_patiently(self, reference: Reference, token: str) -> Listing:
        """Ask again where the hub wants it, or the way to it is bad."""
        for number, pause_s in enumerate((*self._pauses_s, None)):
            try:
                return await apart(lambda: self._ask(reference, token))
            except RouterError as error:
                wait_s = error.retry_after_s
                is_passing = error.code in ("hub_unreachable", "hub_busy")
                if pause_s is None or not is_passing or (wait_s or 0.0) > LONGEST_WAIT_S:
                    raise
                log.info("%s Trying again (%d).", error.message, number + 1)
                await asyncio.sleep(max(pause_s, wait_s or 0.0))
        raise AssertionError("unreachable")

    # In a thread of their own

    def _open_token(self) -> str:
        """The token that is there without asking anybody."""
        for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            token = self._environ.get(variable, "").strip()
            if token:
                return token
        if self._environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").strip().lower() in _TRUE:
            return ""
        from huggingface_hub import get_token

        try:
            return get_token() or ""
        except Exception as error:  # It may renew a login over the network, or find its file unreadable.
            log.warning("The token of hf auth login cannot be used: %s", error)
            return ""

    def _kept_token(self) -> str:
        return keyrings.get(self._find_keyring(), TOKEN_NAME) or ""

    def _ask(self, reference: Reference, token: str) -> Listing:
        # Half a second of imports, for those who pull only.
        from huggingface_hub import constants
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
        from huggingface_hub.hf_api import HfApi

        # Else it asks the hub for a list of programs that it may be used by, to tell which one asks.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        # It has a line for each request, with the address.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        api = HfApi(self.endpoint, token or False, library_name="lemon-tray", library_version=__version__)
        repo, revision = reference.repo, reference.revision
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_ANSWER_S)
        except GatedRepoError as error:
            raise self.refused(repo, 403, token) from error
        except RevisionNotFoundError as error:
            raise NotFound(
                f"{repo} has no revision {revision}.", code="no_such_revision", param="model_name"
            ) from error
        except RepositoryNotFoundError as error:
            # Without a token the hub does not tell what is private from what does not exist.
            raise NotFound(
                f"The hub has no repository {repo}, or it is private.",
                code="no_such_repository",
                param="model_name",
                hint="A private one needs a token that may read it: lemon-tray hub login"
                if not token
                else None,
            ) from error
        except OfflineModeIsEnabled as error:
            raise Unavailable("The hub is not asked, since HF_HUB_OFFLINE is set.", code="offline") from error
        except HfHubHTTPError as error:
            raise self._answered(
                reference, error.response.status_code, error.response.headers, token
            ) from error
        except Exception as error:  # Whatever its HTTP client raises, which is another one every few years.
            log.debug("Asking the hub failed", exc_info=error)
            raise RouterError(
                f"The hub at {self._shown} could not be asked about {repo}: {_words(error)}.",
                code="hub_unreachable",
                status=502,
                hint="Look at the network, or at HF_ENDPOINT if that is set.",
            ) from error
        files = tuple(
            HubFile(
                sibling.rfilename,
                (sibling.lfs.size if sibling.lfs else sibling.size) or 0,
                (sibling.lfs.sha256 if sibling.lfs else "").lower(),
            )
            for sibling in info.siblings or ()
        )
        return Listing(repo, info.sha or "", files, gated=bool(info.gated))

    def _answered(
        self, reference: Reference, status: int, headers: Mapping[str, str], token: str
    ) -> RouterError:
        if status in (401, 403):
            return self.refused(reference.repo, status, token)
        if status in (429, 500, 502, 503, 504):
            wait_s = seconds_of(headers.get("Retry-After", ""))
            return RouterError(
                f"The hub at {self._shown} has too much to do (it answered {status}).",
                code="hub_busy",
                status=503,
                retry_after_s=wait_s,
                hint="Those who log in may ask more often: lemon-tray hub login" if not token else None,
            )
        return RouterError(
            f"The hub at {self._shown} answered {status} about {reference.repo}.",
            code="download_failed",
            status=502,
        )

    @property
    def _shown(self) -> str:
        parts = urllib.parse.urlsplit(self.endpoint)
        return parts.netloc.rpartition("@")[2] or self.endpoint


def _words(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200].rstrip(".")


async def apart(work: Callable[[], T]) -> T:
    """The result of `work`, run in a thread that nobody waits for at the end.

    A keyring that waits for its password, or a hub that says nothing, must not hold up quitting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only if that is what `work` gave

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="hub", daemon=True).start()
    return await future
