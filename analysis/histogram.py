"""``grok study census STORE [--out DIR]``: shares of super, fast and normal seeds, and histograms."""

from __future__ import annotations

import sys

from analysis.studies.census import QUESTION
from analysis.study import answering

main = answering(QUESTION, only=("shares", "conditions"))

if __name__ == "__main__":
    sys.exit(main())
