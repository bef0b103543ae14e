"""``python -m analysis.factorial STORE`` is ``grok report STORE --only crossed``."""

import sys

from grok.analysis.report import main

if __name__ == "__main__":
    sys.exit(main(["--only", "crossed", *sys.argv[1:]]))
