"""``python -m analysis.layers STORE`` is ``grok report STORE --only layers``."""

import sys

from grok.analysis.report import main

if __name__ == "__main__":
    sys.exit(main(["--only", "layers", *sys.argv[1:]]))
