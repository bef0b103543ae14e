"""The words of the report, each defined once. ``python -m analysis.glossary`` prints them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Final

_WORDS: Final = tomllib.loads(files("grok.analysis").joinpath("terms.toml").read_text(encoding="utf-8"))
TERMS: Final[dict[str, str]] = _WORDS["terms"]
AXES: Final[dict[str, str]] = _WORDS["axes"]
"""The letters in comments on shapes, such as ``x  # [L, R, D]``."""
EVERYDAY: Final = frozenset("run seed step store sweep split stream epoch lane study trial shard checkpoint".split())
"""Frequent words: the glossary defines them, but the page shows no tooltip for them."""


def markdown() -> str:
    """Return all words as a Markdown page."""
    ordered = sorted(TERMS.items(), key=lambda item: item[0].lower())
    entries = "\n\n".join(f"**{term}**: {meaning}" for term, meaning in ordered)
    axes = "\n".join(f"| {letter} | {axis} |" for letter, axis in AXES.items())
    return f"# Glossary\n\n{entries}\n\n## Letters of the axes\n\n| letter | axis |\n|---|---|\n{axes}\n"


if __name__ == "__main__":
    print(markdown(), end="")
