"""``grok store {status|verify|compact|merge|migrate|restore|retire|export} STORE``.

Exit status 0: done, all well; 1: something is wrong with the store, or stores disagree;
2: refused.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Final

from grok.commands.command import Parser, add_store, command, store_of
from grok.config.common import SinksConfig
from grok.errors import ConfigError, StoreError
from grok.files import disk_errors, is_unfinished
from grok.plugins import TARGET, name_code
from grok.processes import is_stopped
from grok.store.designs import TRAINED
from grok.store.layout import Layout, is_current, orphans, read_marker, refuse_missing, strangers
from grok.store.leases import Leases
from grok.store.merge import merge, restore
from grok.store.reader import DamagedShardWarning, Store, open_store
from grok.store.recovery import Recovered, conflict_files, unfinished_compactions
from grok.store.schema import TABLES
from grok.store.upkeep import compact, migrate, unreadable_records, verify
from grok.store.writer import StoreWriter
from grok.terminal import size
from grok.untrusted import is_folder

_EXAMPLES: Final = """\
examples:
  grok store status results/store
  grok store merge results/store other/store --into results/both
"""


@command()
def main(argv: list[str]) -> int:
    """Run one command."""
    arguments = parser().parse_args(argv)
    with warnings.catch_warnings(record=True, action="always") as noticed:
        try:
            with disk_errors(f"{arguments.command} {arguments.store}"):
                status = _run(arguments)
            damaged = any(issubclass(warning.category, DamagedShardWarning) for warning in noticed)
            return 1 if damaged and arguments.command == "merge" else status  # the result lacks their runs
        finally:
            for warning in noticed:
                if issubclass(warning.category, DeprecationWarning):
                    continue  # of packages that a log uses: it tells their authors, not users
                print(f"warning: {warning.message}", file=sys.stderr)


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok store",
        description="Inspect and maintain a store of runs.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    of = {}
    for name, meaning in (
        ("status", "summarise the store and list what needs attention; writes nothing"),
        ("verify", "read every byte of the tables and checkpoints and check every guarantee; writes nothing"),
        ("compact", "merge small shards into large ones; readers see every row once meanwhile"),
        ("migrate", "bring a store of an older version to the current columns"),
        ("restore", "restore the runs of whole shards in quarantine/"),
        ("export", "write every finished run that is not there to TensorBoard or Weights & Biases, with its curve"),
        ("retire", "mark a design as abandoned: its runs that are not stored no longer count as missing"),
        ("merge", "merge stores; runs that must have equal bits and differ are reported and not copied"),
    ):
        of[name] = commands.add_parser(name, help=meaning, description=meaning)
        if name != "merge":
            add_store(of[name])
    exporting, retiring, merging = of["export"], of["retire"], of["merge"]
    exporting.add_argument("--tensorboard", metavar="DIR", help="one folder below it for each run")
    exporting.add_argument("--wandb", metavar="PROJECT", help="offline unless WANDB_MODE=online")
    exporting.add_argument("--sink", metavar="MODULE.NAME", help="a log of your own (docs/plugins.md)")
    exporting.add_argument("--plugin-path", metavar="DIR", default=".", help="folder of that module (default: .)")
    retiring.add_argument("design", metavar="DESIGN", help="a design_id or its first characters (`grok store status`)")
    retiring.add_argument("--why", metavar="TEXT", required=True, help="kept beside the rows, and said by the report")
    merging.add_argument("store", type=Path, metavar="A", help="store that receives the others' runs (without --into)")
    merging.add_argument("others", type=Path, metavar="B", nargs="*", help="stores to add")
    merging.add_argument("--into", type=Path, metavar="STORE", help="a new or another store that receives all of them")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "merge":
        return _merge(arguments.store, arguments.others, arguments.into)
    path = str(store_of(arguments))
    if arguments.command == "export":
        return _export(path, arguments)
    if arguments.command == "retire":
        return _retire(path, arguments.design, arguments.why)
    commands = {"status": _status, "verify": _verify, "compact": _compact, "migrate": _migrate, "restore": _restore}
    return commands[arguments.command](path)


def _export(path: str, arguments: argparse.Namespace) -> int:
    from grok.execute.export import export, openers
    from grok.execute.refusals import refuse_unusable_logs

    store = open_store(path)
    own = {TARGET: arguments.sink} if arguments.sink else {}
    if own:
        name_code(arguments.plugin_path, [arguments.sink])
    log = SinksConfig(tensorboard=arguments.tensorboard, wandb=arguments.wandb, plugin=own)
    refuse_unusable_logs([log])
    if not (opened := openers(log)):
        raise ConfigError("export: expected at least one of --tensorboard DIR, --wandb PROJECT, --sink MODULE.NAME")

    def tell(number: int, of: int) -> None:
        if number % 100 == 0 and number < of:
            print(f"{number:,} of {of:,} runs", flush=True)

    written, runs = export(store, list(opened.values()), tell)
    print(f"{written:,} runs written" + (f", {runs - written:,} were there already" if written < runs else ""))
    return 0


def _status(path: str) -> int:
    store = open_store(path)
    layout, marker = store.layout, read_marker(store.layout)
    refuse_missing(layout)
    table = store.table("runs", None, ["mode", "status", "numerics"])
    print(f"{path}: {table.num_rows} runs, schema {marker['schema_version']}")
    for mode in sorted(set(table["mode"].to_pylist())):
        statuses = Counter(row["status"] for row in table.to_pylist() if row["mode"] == mode).most_common()
        print(f"  {mode}: {', '.join(f'{count} {status}' for status, count in statuses)}")
    tags = Counter(str(row["numerics"]) for row in table.to_pylist() if row["numerics"])
    for tag, count in tags.most_common():
        print(f"  numerics {tag}: {count}")
    for kind in TABLES:
        files = [layout.shard(kind, name) for name in layout.names(kind)]
        print(f"  {kind}/: {len(files)} shards, {size(sum(f.stat().st_size for f in files))}")
    stored = store.run_ids()
    _print_designs(store, stored)
    for folder, what in ((layout.checkpoints, "runs with checkpoints or weights"), (layout.sweeps, "sweeps recorded")):
        print(f"  {folder.name}/: {_entries(folder)} {what}")
    folders = layout.checkpoints.glob("*")
    if unfinished_runs := sum(
        folder.name not in stored and not is_unfinished(folder) and any(folder.glob("*-step-*")) for folder in folders
    ):
        print(
            f"  {unfinished_runs} runs have a checkpoint and no row: in training, interrupted or paused (train.hours)"
        )
    words = {True: "alive", False: "dead, its runs are free", None: "on another machine, or before a reboot"}
    for owner, runs, alive in Leases(layout).owners():
        print(f"  {runs} runs leased to {owner}: {'stopped' if is_stopped(owner) else words[alive]}")
    attention = []
    if not is_current(marker):
        attention.append(f"columns of an older version: run `grok store migrate {path}`")
    if unfinished_compactions(layout):
        attention.append("a compaction was interrupted: the next command that writes finishes it")
    if unfinished := len(orphans(layout)):
        attention.append(f"{unfinished} unfinished commits: the next command that writes moves them to quarantine")
    if kept := _entries(layout.quarantine, ".json"):
        attention.append(
            f"{kept} shards in quarantine/, each with its reason in a JSON file; `grok store restore {path}` "
            "restores those that are whole"
        )
    if failed := table["status"].to_pylist().count("failed"):
        attention.append(f"{failed} failed: their column error says why; retry_failed=true trains them again")
    for kind in TABLES:
        attention += [
            f"{file} is ignored: not a parquet file, or a broken link" for file in strangers(layout.table(kind))
        ]
    attention += [f"{file}: {reason}" for file, reason in unreadable_records(layout)]
    attention += [
        f"{file} records a conflict: the bits of two runs differ, or two rows of a design"
        for file in conflict_files(layout)
    ]
    print("\n".join(f"  attention: {line}" for line in attention) or "  nothing needs attention")
    return 0


MISSING_DESIGNS: Final = 5
"""Most designs with missing runs that ``status`` names, the newest first."""


def _print_designs(store: Store, stored: set[str]) -> None:
    """Print how many designs and planned runs there are, and how many planned runs each design lacks."""
    rows = store.designs()
    if rows.empty:
        return
    designs, retired = {}, 0
    for design_id, own in rows.groupby("design_id", sort=False):  # in the order of planning
        designs[design_id] = set(own["run_id"][own["retired"].isna() & own["role"].isin(TRAINED)])
        retired += bool(own["retired"].notna().all())
    runs = set().union(*designs.values())
    abandoned = f", {retired} designs abandoned" if retired else ""
    print(f"  {len(designs)} designs: {len(runs)} runs planned, {len(runs - stored)} of them missing{abandoned}")
    first = rows.drop_duplicates("design_id").set_index("design_id")
    lacking = [(name, runs, runs - stored) for name, runs in reversed(designs.items()) if runs - stored]
    for name, runs, missing in lacking[:MISSING_DESIGNS]:
        about = f"{first['kind'][name]}, planned {first['planned_at'][name]:%Y-%m-%d %H:%M} UTC"
        print(f"    design {name} ({about}): {len(missing)} of {len(runs)} runs missing")


def _retire(path: str, design: str, why: str) -> int:
    open_store(path)  # refused where there is none: opening one for writing would make it
    with StoreWriter(path) as writer:
        _print_recovered(writer.recovered)
        design_id, marks = writer.retire_design(design, why)
    print(f"{path}: design {design_id}: " + (f"{marks} rows marked as abandoned" if marks else "already abandoned"))
    return 0


def _verify(path: str) -> int:
    problems = verify(path) + _damaged_checkpoints(Layout(Path(path)))
    for problem in problems:
        print(problem)
    print(f"{path}: {len(problems)} problems" if problems else f"{path}: every guarantee holds")
    return 1 if problems else 0


def _damaged_checkpoints(layout: Layout) -> list[str]:
    """Return one line for each checkpoint of the store that is damaged, or of another run than its folder's."""
    patterns = ("*/*-step-*", "*/weights-*")
    folders = {path.parent for p in patterns for path in layout.checkpoints.glob(p) if is_folder(path)}
    folders = {folder for folder in folders if is_folder(folder) and not is_unfinished(folder)}
    if not folders:
        return []
    from grok.checkpoints import Origin, damaged_checkpoints  # imports torch

    names = [folder.name for folder in folders]
    rows = open_store(layout.root).table("runs", names, ["run_id", "trajectory_id", "numerics"]).to_pylist()
    origins = {row["run_id"]: Origin(**row) for row in rows}
    return [
        problem for folder in sorted(folders) for problem in damaged_checkpoints(folder, of=origins.get(folder.name))
    ]


def _compact(path: str) -> int:
    done = compact(path)
    _print_recovered(done.recovered)
    print(f"{path}: {done}")
    return 0


def _migrate(path: str) -> int:
    done = migrate(path)
    _print_recovered(done.recovered)
    print(f"{path}: from schema {done.from_version}, {done.shards} files rewritten")
    return 0


def _restore(path: str) -> int:
    done = restore(path)
    _print_recovered(done.recovered)
    for line in done.left:
        print(f"left in quarantine: {line}")
    for conflict in done.conflicts:
        print(f"conflict: {conflict}")
    designs = f"{done.designs} rows of designs restored, " if done.designs else ""
    runs = f"{len(done.runs)} runs restored, {done.stored} already stored"
    print(f"{path}: {runs}, {designs}{len(done.left)} files left")
    return 1 if done.conflicts else 0


def _merge(first: Path, others: list[Path], into: Path | None) -> int:
    if into is None and others and not first.exists():
        raise StoreError(f"no store at {first} (it does not exist): for a new one give --into {first}")
    done = merge(first, others, into)
    for conflict in done.conflicts:
        print(f"conflict: {conflict}")
    print(
        f"{done.into}: {done.added} runs added, {done.replaced} failed runs replaced, {done.duplicates} already there, "
        f"{done.checkpoints} with checkpoints or weights, {done.designs} rows of designs added"
    )
    if done.late:
        print(
            f"{done.late} runs were planned after another of these stores had a result of theirs: results may have "
            "chosen them (results_seen in designs/)"
        )
    if done.studies:
        print(f"searches copied: {', '.join(done.studies)}")
    if done.studies_left:
        print(
            f"searches left out: {', '.join(done.studies_left)}: {done.into} has others of these names "
            "(their runs are merged; give one of them another study.name)"
        )
    if done.conflicts:
        print(f"{len(done.conflicts)} conflicts, recorded in {done.into / 'conflicts'}: nothing was chosen")
    return 1 if done.conflicts else 0


def _print_recovered(recovered: list[Recovered]) -> None:
    for line in recovered:
        print(line)


def _entries(folder: Path, suffix: str = "") -> int:
    if not folder.is_dir():
        return 0
    return sum(e.name.endswith(suffix) and not e.name.startswith(".") for e in folder.iterdir())  # glob hides an error
