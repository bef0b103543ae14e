"""The named set-ups of ``conf/``: experiments, sweeps, modes, studies, and what each one is."""

from __future__ import annotations

import itertools
import re
import textwrap
from pathlib import Path
from typing import Final

NOT_NAMED: Final = {"study": ("base",)}
"""Files that others start from."""

_END: Final = re.compile(r"(?<!\bal)(?<!\b[A-Z])[.?;](?= )")
"""The end of a sentence, which no ``et al.`` and no initial is."""


def folder() -> Path:
    """Return the folder of the settings' files: inside an installed package, else beside it in the checkout."""
    package = Path(__file__).parents[1]
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


def names(group: str) -> list[str]:
    """Return the set-ups of ``group`` as they are given (``gpt/shakespeare_char``), those of subfolders last."""
    files = sorted((folder() / group).rglob("*.yaml"), key=lambda file: (len(file.parts), file.parts))
    every = [file.relative_to(folder() / group).with_suffix("").as_posix() for file in files]
    return [name for name in every if name not in NOT_NAMED.get(group, ())]


def swept(name: str) -> list[str]:
    """Return what a named sweep of ``conf/sweep/`` sweeps over, as ``NAME=VALUES``; none for one from elsewhere."""
    file = folder() / "sweep" / f"{name}.yaml"
    if not file.is_file():
        return []
    import yaml

    params = yaml.safe_load(file.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
    return [f"{setting}={values}" for setting, values in params.items()]


def meaning(group: str, name: str, width: int = 90) -> str:
    """Return what a set-up is: the first sentence of its file's comment, behind the command that it opens with."""
    lines = (folder() / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    blocks = "\n".join(line for line in comment if not line.startswith("@package")).split("\n\n")
    block = next((block for block in blocks if block and not block.startswith(("grok ", "torchrun"))), "")
    text = " ".join(block.split()).removeprefix("Asks").strip()
    end = _END.search(text)
    return textwrap.shorten(text[: end.end()].rstrip(".;") if end else text.rstrip("."), width, placeholder=" ...")
