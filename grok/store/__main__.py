"""``grok store``: the command is ``grok.cli.store``, above this floor."""

import sys

from grok.cli.store import main

if __name__ == "__main__":
    sys.exit(main())
