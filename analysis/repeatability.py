"""``python -m analysis.repeatability STORE [--out DIR]``: whether fast seeds stay fast under other conditions."""

from __future__ import annotations

import sys

from analysis.command import answer
from analysis.studies.repeatability import QUESTION


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return answer("repeatability", QUESTION, argv)


if __name__ == "__main__":
    sys.exit(main())
