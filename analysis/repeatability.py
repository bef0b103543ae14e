"""``grok study repeatability STORE [--out DIR]``: whether fast seeds stay fast under other conditions."""

from __future__ import annotations

import sys

from analysis.studies.repeatability import QUESTION
from analysis.study import answering

main = answering(QUESTION)

if __name__ == "__main__":
    sys.exit(main())
