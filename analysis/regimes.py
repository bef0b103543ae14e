"""``grok study regimes STORE [--out DIR]``: slow and fast generalisation, classified from the curves."""

from __future__ import annotations

import sys

from analysis.studies.regimes import QUESTION
from analysis.study import answering

main = answering(QUESTION)

if __name__ == "__main__":
    sys.exit(main())
