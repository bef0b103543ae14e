"""``python -m analysis.regimes STORE`` is ``grok report STORE --only regimes``."""

import sys

from grok.analysis.report import main

if __name__ == "__main__":
    sys.exit(main(["--only", "regimes", *sys.argv[1:]]))
