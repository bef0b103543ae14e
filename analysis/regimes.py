"""``python -m analysis.regimes STORE [--out DIR]``: slow and fast generalisation, told apart from the curves."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.regimes import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("regimes", QUESTION, argv)


if __name__ == "__main__":
    sys.exit(main())
