"""What a packaged Lemon Tray starts with."""

import sys

from lemon_tray.__main__ import main

sys.exit(main())
