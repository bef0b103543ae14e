"""``grok study search STORE [--out DIR]``: which settings generalise soonest, and whether the best one is better."""

from __future__ import annotations

import sys

from analysis.studies.search import QUESTION
from analysis.study import answering

main = answering(QUESTION)

if __name__ == "__main__":
    sys.exit(main())
