"""``python -m analysis.histogram STORE`` is ``grok study census STORE``."""

import sys

from grok.analysis.study import main

if __name__ == "__main__":
    sys.exit(main(["census", *sys.argv[1:]]))
