"""The real program, with one change: the model `slow` is read from a pipe that nobody writes to.

The real engine then stays inside its load, with Python's lock held, for as long as it lives. The environment
variable names the pipe.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from msgspec import structs

from lemon_tray.__main__ import main
from router.engines.base import WorkerSpec
from router.service.placing import Placing

PIPE = "LEMON_TEST_PIPE"


class SlowPlacing(Placing):
    def spec(self, *given: Any) -> WorkerSpec:
        spec = super().spec(*given)
        return structs.replace(spec, path=os.environ[PIPE]) if spec.model == "slow" else spec


if __name__ == "__main__":
    import router.service.wiring as service

    service.Placing = SlowPlacing
    sys.exit(main(sys.argv[1:]))
