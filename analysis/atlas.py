"""``grok atlas build DIR``: stores as one public data set that pandas, Polars, DuckDB and ``datasets`` read.

A store becomes a split. Every split has a table of runs, one of curves and one of designs, with the store's columns.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from jinja2 import Environment, StrictUndefined
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from grok.commands.command import Parser, command
from grok.errors import ConfigError, StoreError, one_line
from grok.files import disk_errors
from grok.store import Store, open_store
from grok.store.schema import TABLES, describe, schema
from grok.version import __version__

KINDS: Final = [kind for kind in TABLES if kind != "steps"]
"""The tables of the data set."""
_MOMENT: Final = re.compile(r"weights-(?P<moment>\w+)|\d+-step-(?P<step>\d+)")
"""Names of the folders of kept weights and of checkpoints."""


@command()
def main(argv: list[str]) -> int:
    """Build a data set."""
    arguments = parser().parse_args(argv)
    with disk_errors(f"grok atlas {arguments.out}"):
        build(arguments.out, [Path(text) for text in arguments.stores] or sorted(Path().glob("results/*/store")))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(prog="grok atlas", description="Stores as one data set, with a card and checksums.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    building = commands.add_parser("build", help="build it")
    building.add_argument("out", type=Path, metavar="DIR", help="a new folder for the data set")
    building.add_argument("stores", nargs="*", metavar="STORE", help="default: the stores in results/")
    return parser


def build(out: Path, stores: Sequence[Path]) -> None:
    """Write the data set of ``stores`` into the new folder ``out``.

    Raises:
        ConfigError: there are no stores, two of one name, or ``out`` exists.
        StoreError: a store cannot be read.
    """
    splits = {split_name(path): path for path in stores}
    if len(splits) < len(stores) or not stores:
        found = ", ".join(map(str, stores)) or "none (by default results/*/store)"
        raise ConfigError(f"stores: {found}: expected at least one, each of another name")
    if out.exists():
        raise ConfigError(f"{out} exists: expected a new folder")
    rows = {split: _write(out, split, open_store(path)) for split, path in splits.items()}
    weights = {split: _write_weights(out, split, open_store(path)) for split, path in splits.items()}
    columns = {kind: describe(kind) for kind in KINDS}
    questions = {split: question(path) for split, path in splits.items()}
    card = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = files("grok.analysis").joinpath("atlas.md.j2").read_text(encoding="utf-8")
    page = card.from_string(text).render(
        kinds=KINDS, rows=rows, weights=weights, questions=questions, columns=columns, version=__version__
    )
    (out / "README.md").write_text(page, encoding="utf-8")
    written = [file for file in sorted(out.rglob("*")) if file.is_file()]
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(out)}\n" for file in written]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print(f"{sum(counts['runs'] for counts in rows.values()):,} runs of {len(rows)} stores are in {out}")


def split_name(store: Path) -> str:
    """Return the name of a store's split: that of its folder, or of the one around ``store``.

    >>> split_name(Path("results/quickstart-census/store"))
    'quickstart_census'
    """
    name = store.parent.name if store.name == "store" and store.parent.name else store.name
    return re.sub(r"\W", "_", name)


def question(store: Path) -> str:
    """Return the title of the page beside a store, or the store's name."""
    page = store.parent / "README.md"
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), split_name(store))


def _write(out: Path, split: str, store: Store) -> Mapping[str, int]:
    """Write the tables of a store; return how many rows each has."""
    counts = {}
    for kind in KINDS:
        table = store.designs_table() if kind == "designs" else store.table(kind, None, None)
        table = table.select([name for name in schema(kind).names if name in table.column_names])
        (out / kind).mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata(), out / kind / f"{split}.parquet", compression="zstd")
        counts[kind] = table.num_rows
    return counts


def _write_weights(out: Path, split: str, store: Store) -> Mapping[str, list[str]]:
    """Write what a store kept of its arithmetic runs' weights; return the moments of each run."""
    moments: dict[str, list[str]] = {}
    runs = store.runs(["run_id", "mode"])
    for run_id in sorted(runs["run_id"][runs["mode"] == "arithmetic"]):
        for folder in sorted((store.layout.checkpoints / run_id).glob("*")):
            if (kept := _MOMENT.fullmatch(folder.name)) is None:
                continue
            try:
                of_run = load_file(folder / "tensors.safetensors")
            except (OSError, SafetensorError) as error:
                raise StoreError(f"{folder} is damaged ({one_line(error)}): `grok store verify` says more") from error
            prefix = "parameters." if kept["step"] else ""  # a checkpoint has the optimiser's state, too
            tensors = {name.removeprefix(prefix): t for name, t in of_run.items() if name.startswith(prefix)}
            moment = kept["step"] or kept["moment"]
            (out / "weights" / split).mkdir(parents=True, exist_ok=True)
            save_file(tensors, out / "weights" / split / f"{run_id}-{moment}.safetensors")
            moments.setdefault(run_id, []).append(moment)
    return moments


if __name__ == "__main__":
    sys.exit(main())
