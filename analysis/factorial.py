"""``python -m analysis.factorial STORE [--out DIR]``: variance shares of split, weights, order and chaos."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.crossed import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("factorial", QUESTION, argv)


if __name__ == "__main__":
    sys.exit(main())
