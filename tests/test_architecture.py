"""docs/architecture.md says what the code says: modules, names, parameters, floors.

A code span with a parameter list is a signature. It is looked up in the module named last before it in full, or it
stands in full itself; ``...`` stands for further parameters.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("grok", "analysis", "sweeps")
IN_FULL = rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+"
SIGNATURE = re.compile(rf"({IN_FULL}|[A-Za-z]\w*(?:\.\w+)*)(\(.*\))(?: -> .+)?")


def resolve(dotted: str) -> Any:
    """Return the module, or what is in one, of a name in full."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            assert error.name is not None and dotted.startswith(error.name), error
            continue
        for name in parts[cut:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(f"there is no {dotted}")


def mentions() -> Iterator[tuple[str, str | None]]:
    """Yield every name in full of the page with its parameter list, where it has one."""
    module = ""
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL):
        yield from ((name, parameters or None) for name, parameters in re.findall(rf"({IN_FULL})(\(.*?\))?", block))
    for span in re.findall(r"`([^`]+)`", prose):
        signature = SIGNATURE.fullmatch(span)
        if signature is not None:
            name, parameters = signature.groups()
            yield name if re.fullmatch(IN_FULL, name) else f"{module}.{name}", parameters
        elif re.fullmatch(IN_FULL, span):
            if inspect.ismodule(resolve(span)):
                module = span
            yield span, None


MENTIONS = sorted({*mentions()}, key=str)


def parameters_of(thing: Any) -> list[inspect.Parameter]:
    everything = list(inspect.signature(thing).parameters.values())
    return everything[1:] if everything and everything[0].name == "self" else everything


def test_the_page_names_what_it_is_about() -> None:
    names = {name for name, parameters in MENTIONS if parameters}
    assert {"grok.execute.worker.run_group", "grok.arithmetic.engine.train", "grok.streams.Stream.at"} <= names
    assert len(names) > 40


@pytest.mark.parametrize(("name", "parameters"), MENTIONS)
def test_it_is_in_the_code_as_written(name: str, parameters: str | None) -> None:
    thing = resolve(name)
    if parameters is None:
        return
    open_ended = parameters.endswith("...)")
    text = re.sub(r",?\s*\.\.\.\)$", ")", parameters)
    written = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(written, ast.FunctionDef)
    arguments = written.args
    listed = [*arguments.args, *([arguments.vararg] if arguments.vararg else []), *arguments.kwonlyargs]
    names = [a.arg for a in [*listed, *([arguments.kwarg] if arguments.kwarg else [])]]
    actual = parameters_of(thing)
    known = [p.name for p in actual]
    assert names == (known[: len(names)] if open_ended else known)
    for argument, default in zip(arguments.args[::-1], arguments.defaults[::-1], strict=False):
        (parameter,) = [p for p in actual if p.name == argument.arg]
        if isinstance(default, ast.Name):
            assert parameter.default.__name__ == default.id
        else:
            assert parameter.default == ast.literal_eval(default)


def test_the_floors_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (floors,) = [c for c in settings["contracts"] if c.get("containers") == ["grok"]]
    assert "```\n" + "\n".join(floors["layers"]) + "\n```" in PAGE


def test_every_contract_on_hydra_or_circles_names_all_of_grok() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (floors,) = [c for c in settings["contracts"] if c.get("containers") == ["grok"]]
    at_the_door = floors["layers"].index("cli") + 1
    below = {name for layer in floors["layers"][at_the_door:] for name in layer.split(" | ")}
    (hydra,) = [c for c in settings["contracts"] if "hydra" in c.get("forbidden_modules", ())]
    assert {f"grok.{name}" for name in below} <= set(hydra["source_modules"])
    (circles,) = [c for c in settings["contracts"] if c["type"] == "acyclic_siblings"]
    assert "grok" in circles["ancestors"]
