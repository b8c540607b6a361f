"""``python -m agentpipe.cli``."""

from __future__ import annotations

import sys

from agentpipe.cli._main import main

if __name__ == "__main__":
    sys.exit(main())
