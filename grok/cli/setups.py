"""The named set-ups of ``conf/``: experiments, sweeps, modes, studies, and what each one is."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
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


def own_folders(words: Sequence[str]) -> list[Path]:
    """Return the folders of the user's own settings that a command line names.

    >>> own_folders(["--config-dir", "mine", "seed=1", "hydra.searchpath=[file:///a,pkg://b,file://c]"])
    [PosixPath('mine'), PosixPath('/a'), PosixPath('c')]
    """
    named = [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    named += [folder for option, folder in itertools.pairwise(words) if option in ("--config-dir", "-cd")]
    for word in words:
        if word.lstrip("+").startswith("hydra.searchpath="):
            named += re.findall(r"file://([^,\]\s]+)", word)
    return [Path(text) for text in named]


def names(group: str, own: Sequence[Path] = ()) -> list[str]:
    """Return the set-ups of ``group`` as they are given (``gpt/shakespeare_char``), those of subfolders last.

    Behind them those of the user's ``own`` folders.
    """
    listed: dict[str, None] = {}
    for root in (folder(), *own):
        files = sorted((root / group).rglob("*.yaml"), key=lambda file: (len(file.parts), file.parts))
        listed |= dict.fromkeys(file.relative_to(root / group).with_suffix("").as_posix() for file in files)
    return [name for name in listed if name not in NOT_NAMED.get(group, ())]


def swept(name: str, own: Sequence[Path] = ()) -> list[str]:
    """Return what a named sweep sweeps over, as ``NAME=VALUES``; none where no file of ``conf/`` or ``own`` has it."""
    files = [root / "sweep" / f"{name}.yaml" for root in (folder(), *own)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return []
    import yaml

    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    params = content.get("hydra", {}).get("sweeper", {}).get("params") or {}
    return [f"{setting}={values}" for setting, values in params.items()]


def meaning(group: str, name: str, width: int = 90, own: Sequence[Path] = ()) -> str:
    """Return what a set-up is: the first sentence of its file's comment, behind the command that it opens with.

    Of two files of one name that of the user's ``own`` folder counts less, as for Hydra.
    """
    file = next(file for root in (folder(), *own) if (file := root / group / f"{name}.yaml").is_file())
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = [line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    blocks = "\n".join(line for line in comment if not line.startswith("@package")).split("\n\n")
    block = next((block for block in blocks if block and not block.startswith(("grok ", "torchrun"))), "")
    text = " ".join(block.split()).removeprefix("Asks").strip()
    end = _END.search(text)
    return textwrap.shorten(text[: end.end()].rstrip(".;") if end else text.rstrip("."), width, placeholder=" ...")
