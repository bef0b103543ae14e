"""docs/internals.md says what the code says: its modules and floors."""

import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
NAMES = sorted({*re.findall(r"\bgrok(?:\.[A-Za-z_]\w*)+", PAGE)})
"""What the page names in full."""


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_in_the_code(name: str) -> None:
    pkgutil.resolve_name(name)


def test_the_floors_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (floors,) = [c for c in settings["contracts"] if c.get("containers") == ["grok"]]
    assert "```\n" + "\n".join(floors["layers"]) + "\n```" in PAGE


def test_every_contract_on_hydra_or_circles_names_all_of_grok() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (floors,) = [c for c in settings["contracts"] if c.get("containers") == ["grok"]]
    at_the_door = floors["layers"].index("commands") + 1
    below = {name for layer in floors["layers"][at_the_door:] for name in layer.split(" | ")}
    (hydra,) = [c for c in settings["contracts"] if "hydra" in c.get("forbidden_modules", ())]
    assert {f"grok.{name}" for name in below} <= set(hydra["source_modules"])
    (circles,) = [c for c in settings["contracts"] if c["type"] == "acyclic_siblings"]
    assert "grok" in circles["ancestors"]
