"""``python -m analysis.super_seeds STORE [--out DIR]``: the best seeds and the command that trains each again."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.census import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("super_seeds", QUESTION, argv, only=("best_seeds",))


if __name__ == "__main__":
    sys.exit(main())
