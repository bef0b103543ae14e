"""``grok atlas build DIR``: stores as one public data set that pandas, Polars, DuckDB and ``datasets`` read.

A store becomes a split. Every split has a table of runs, one of curves and one of designs, with the store's columns.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

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
LICENSE: Final = "https://opensource.org/license/mit"
CROISSANT: Final = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/", "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/", "dct": "http://purl.org/dc/terms/", "conformsTo": "dct:conformsTo",
    "citeAs": "cr:citeAs", "column": "cr:column", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract", "field": "cr:field", "fileProperty": "cr:fileProperty", "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet", "format": "cr:format", "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath", "key": "cr:key", "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path",
    "recordSet": "cr:recordSet", "references": "cr:references", "regex": "cr:regex", "repeated": "cr:repeated",
    "replace": "cr:replace", "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField",
    "transform": "cr:transform",
}  # fmt: skip
"""The context that Croissant 1.0 asks for (https://docs.mlcommons.org/croissant/docs/croissant-spec.html)."""
TYPES: Final = {"int": "sc:Integer", "double": "sc:Float", "bool": "sc:Boolean", "timestamp": "sc:DateTime"}
"""Types of Arrow columns, by how they begin; all others are texts."""

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
    parser = Parser(
        prog="grok atlas", description="Stores as one data set, with a card, checksums and Croissant metadata."
    )
    building = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser(
        "build", help="build it"
    )
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
    sums = {str(file.relative_to(out)): _sha256(file) for file in sorted(out.rglob("*.parquet"))}
    (out / "croissant.json").write_text(json.dumps(croissant(sums), indent=1), encoding="utf-8")
    others = ["README.md", "croissant.json", *(str(f.relative_to(out)) for f in sorted(out.rglob("*.safetensors")))]
    sums |= {name: _sha256(out / name) for name in others}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="utf-8")
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


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def croissant(sums: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata in Croissant's form; ``sums`` are the SHA-256 of the parquet files by path."""
    return {
        "@context": CROISSANT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "seed-atlas",
        "description": "Runs of small transformers, one source of randomness changed at a time.",
        "license": LICENSE,
        "citeAs": f"grok-lab {__version__}, with the commits in git_commit (CITATION.cff)",
        "version": __version__,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path,
                "name": path,
                "contentUrl": path,
                "encodingFormat": "application/x-parquet",
                "sha256": digest,
            }
            for path, digest in sums.items()
        ],
        "recordSet": [_records(path) for path in sums],
    }


def _records(path: str) -> dict[str, Any]:
    """Return the record set of one file: its columns, with their meanings."""
    kind, name = Path(path).parent.name, Path(path).with_suffix("").as_posix()
    columns = describe(kind)
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{field.name}",
            "name": f"{name}/{field.name}",
            "description": columns[field.name].meaning,
            "dataType": next((to for begin, to in TYPES.items() if str(field.type).startswith(begin)), "sc:Text"),
            "source": {"fileObject": {"@id": path}, "extract": {"column": field.name}},
        }
        for field in schema(kind)
    ]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}


if __name__ == "__main__":
    sys.exit(main())
