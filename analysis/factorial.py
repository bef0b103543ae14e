"""``python -m analysis.factorial STORE`` is ``grok study crossed STORE``."""

import sys

from grok.analysis.study import main

if __name__ == "__main__":
    sys.exit(main(["crossed", *sys.argv[1:]]))
