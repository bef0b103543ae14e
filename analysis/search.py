"""``python -m analysis.search STORE [--out DIR]``: which settings generalise soonest, and is the best one better?"""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.search import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("search", QUESTION, argv)


if __name__ == "__main__":
    sys.exit(main())
