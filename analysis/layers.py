"""``python -m analysis.layers STORE [--out DIR]``: which layers' initial weights carry a seed's speed."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.layers import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("layers", QUESTION, argv)


if __name__ == "__main__":
    sys.exit(main())
