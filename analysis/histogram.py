"""``python -m analysis.histogram STORE`` is ``grok report STORE --only census``."""

import sys

from grok.analysis.report import main

if __name__ == "__main__":
    sys.exit(main(["--only", "census", *sys.argv[1:]]))
