"""Where the settings are, for every command that composes them."""

from __future__ import annotations

from pathlib import Path


def conf_source() -> str:
    """Return where the settings are: inside an installed package, else beside it in the checkout."""
    package = Path(__file__).parents[1]
    return "pkg://grok.conf" if (package / "conf").is_dir() else str(package.parent / "conf")
