"""``python -m analysis.repeatability STORE`` is ``grok study repeatability STORE``."""

import sys

from grok.analysis.study import main

if __name__ == "__main__":
    sys.exit(main(["repeatability", *sys.argv[1:]]))
