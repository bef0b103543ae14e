"""``python -m analysis.histogram STORE [--out DIR]``: shares of super, fast and normal seeds, and histograms."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.census import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("histogram", QUESTION, argv, only=("shares", "conditions"))


if __name__ == "__main__":
    sys.exit(main())
