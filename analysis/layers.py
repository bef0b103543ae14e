"""``python -m analysis.layers STORE`` is ``grok study layers STORE``."""

import sys

from grok.analysis.study import main

if __name__ == "__main__":
    sys.exit(main(["layers", *sys.argv[1:]]))
