"""``grok study crossed STORE [--out DIR]``: variance shares of split, weights, order and chaos."""

from __future__ import annotations

import sys

from analysis.studies.crossed import QUESTION
from analysis.study import answering

main = answering(QUESTION)

if __name__ == "__main__":
    sys.exit(main())
