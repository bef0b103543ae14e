"""``grok examples [DIR]``: the modules of ``examples/``, listed, or written into a folder to be changed there."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Final

from grok.commands.command import Parser, command
from grok.files import disk_errors

EXAMPLES: Final = Path(__file__).parents[1] / "examples"


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok examples",
        description="Code of your own to start from: tasks, models, optimisers, metrics, figures (docs/plugins.md).",
    )
    parser.add_argument("out", nargs="?", type=Path, metavar="DIR", help="a folder: those that it lacks are written")
    return parser


@command()
def main(argv: list[str]) -> int:
    """List the examples, or write them into a folder."""
    out: Path | None = parser().parse_args(argv).out
    files = sorted(EXAMPLES.glob("*.py"))
    with disk_errors(f"grok examples {out}"):
        for file in files:
            meaning = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]
            if out is None:
                print(f"{file}: {meaning}")
            elif (out / file.name).exists():
                print(f"{out / file.name} is kept as it is")
            else:
                out.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, out / file.name)
                print(f"{out / file.name}: {meaning}")
    return 0
