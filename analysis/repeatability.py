"""``python -m analysis.repeatability STORE`` is ``grok report STORE --only repeatability``."""

import sys

from grok.analysis.report import main

if __name__ == "__main__":
    sys.exit(main(["--only", "repeatability", *sys.argv[1:]]))
