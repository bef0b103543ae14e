"""A folder of code of one's own, as a user has it."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from grok.plugins import Code, activate
from tests.doors.conftest import door as door

Write = Callable[..., None]


@pytest.fixture(autouse=True)
def _no_code_is_left() -> Iterator[None]:
    yield
    activate(Code())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write modules into the test's folder: ``write(name=text)``, or ``write({"package/name": text})``."""

    def to_folder(files: Mapping[str, str] | None = None, **modules: str) -> None:
        for name, text in {**(files or {}), **modules}.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")

    return to_folder
