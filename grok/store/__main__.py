"""``grok store``: runs the command in ``grok.commands.store``."""

import sys

from grok.commands.store import main

if __name__ == "__main__":
    sys.exit(main())
