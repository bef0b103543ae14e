"""``grok study layers STORE [--out DIR]``: which layers' initial weights carry a seed's speed."""

from __future__ import annotations

import sys

from analysis.studies.layers import QUESTION
from analysis.study import answering

main = answering(QUESTION)

if __name__ == "__main__":
    sys.exit(main())
