"""``python -m analysis.regimes STORE`` is ``grok study regimes STORE``."""

import sys

from grok.analysis.study import main

if __name__ == "__main__":
    sys.exit(main(["regimes", *sys.argv[1:]]))
