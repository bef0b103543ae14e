"""``grok study seeds STORE [--out DIR]``: the best seeds and the command that trains each again."""

from __future__ import annotations

import sys

from analysis.studies.census import QUESTION
from analysis.study import answering

main = answering(QUESTION, only=("best_seeds",))

if __name__ == "__main__":
    sys.exit(main())
