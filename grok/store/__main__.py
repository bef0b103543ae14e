"""``grok store``: runs the command in ``grok.cli.store``."""

import sys

from grok.cli.store import main

if __name__ == "__main__":
    sys.exit(main())
