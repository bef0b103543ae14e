"""What lies in a store names nothing outside, leads nowhere along links, and deletes no row; over every command."""

import itertools
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.analysis.show import main as show
from grok.checkpoints import load_weights, remove_checkpoints, run_folder, save_checkpoint, save_weights
from grok.errors import CheckpointError, StoreError
from grok.files import exchange
from grok.records import Checkpoint
from grok.run import main as run
from grok.store import StoreWriter, open_store, shards
from grok.store.layout import Layout
from grok.store.merge import merge, restore
from grok.store.rows import with_partners
from grok.store.schema import KINDS, TABLES, schema
from grok.store.shards import concat, read_shard, read_whole, write_parquet
from grok.store.upkeep import verify
from grok.untrusted import is_plain, plain_name, read_json
from tests.store.contract import assert_contract, contents, example_rows
from tests.store.hostile import COMMANDS, FEW, every_command, fill, outside_state, precious, with_texts

pytestmark = pytest.mark.filterwarnings(
    "ignore::grok.store.DamagedShardWarning", "ignore::grok.store.ForeignFileWarning"
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "S")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return precious(tmp_path / "outside")


@pytest.mark.parametrize("name", ["../x", ".", "", "/etc", "a\\b", "x\n", "x" * 129, "x.tmp-1", "\udcff", None, 7])
def test_one_function_decides_what_a_plain_name_is(name: object) -> None:
    assert not is_plain(name)
    with pytest.raises(StoreError, match="expected a name of letters") as refused:
        plain_name(name, "run_id")
    assert str(refused.value).encode() and "\n" not in str(refused.value)


PARTS = ("tmp", "live", "lock", "leases", "checkpoints", "search", "sweeps", "conflicts", "quarantine")
HOW_MANY = (FEW, pytest.param(tuple(COMMANDS), marks=pytest.mark.slow))


@pytest.mark.usefixtures("no_png")
@pytest.mark.parametrize("commands", HOW_MANY)
@pytest.mark.parametrize("part", PARTS)
def test_a_link_in_the_place_of_a_stores_own_is_never_followed(
    store: Path, outside: Path, tmp_path: Path, part: str, commands: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    target = store / part
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    target.symlink_to(outside / "file" if part == "lock" else outside)
    before, runs = outside_state(outside), open_store(store).run_ids()
    with pytest.raises(StoreError, match=f"{part} is a link to .*links are not followed"):
        StoreWriter(store)
    for name, status in every_command(store, tmp_path / "room", commands):
        said = capsys.readouterr()
        assert status in (0, 1) if name in ("status", "verify", "report", "merge from", "export") else status == 2, name
        if status == 2:
            assert said.err.count("\n") == 1 and f"{part} is a link" in said.err
    assert outside_state(outside) == before
    assert open_store(store).run_ids() == runs


def test_a_table_that_is_a_link_is_never_written(store: Path, tmp_path: Path) -> None:
    (store / "runs").rename(tmp_path / "elsewhere")
    (store / "runs").symlink_to(tmp_path / "elsewhere")
    before = outside_state(tmp_path / "elsewhere")
    assert len(open_store(store).runs()) == 4  # read as ever
    with pytest.raises(StoreError, match="runs is a link"):
        StoreWriter(store)
    assert outside_state(tmp_path / "elsewhere") == before


RUN_IDS = ["../../outside/run-1", "../outside", "/etc", "..", "a\nb", ".hidden"]


@pytest.mark.parametrize("commands", HOW_MANY)
@pytest.mark.parametrize("run_id", RUN_IDS)
def test_a_run_id_never_becomes_a_path(
    store: Path, outside: Path, tmp_path: Path, run_id: str, commands: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with_texts(store, None, "run_id", [run_id])
    before = outside_state(outside)
    for name, status in every_command(store, tmp_path / "room", commands):
        said = capsys.readouterr()
        if name == "merge from":
            assert status == 2 and "expected a name of letters" in said.err
    assert outside_state(outside) == before
    assert not [p for p in tmp_path.rglob("precious.txt") if outside not in p.parents]
    with pytest.raises(CheckpointError, match="expected a name of letters"):
        run_folder(store, run_id)


def test_links_are_not_copied_by_what_they_point_to(store: Path, outside: Path, tmp_path: Path) -> None:
    row = example_rows([0])[0]
    folder = run_folder(store, row.result.run_id)
    save_weights(folder, "final", {})
    (folder / "weights-final" / "more").symlink_to(outside / "secret")
    (folder / "stolen").symlink_to(outside / "file")
    other = run_folder(store, example_rows([1])[0].result.run_id)
    other.symlink_to(outside / "secret")
    (store / "search" / "two.journal").symlink_to(outside / "x.json")
    (store / "sweeps" / "three.json").symlink_to(outside / "x.json")
    report = merge(store, [], into=tmp_path / "T")
    assert (report.added, report.checkpoints, report.studies) == (4, 1, ["one"])
    copies = [
        p
        for p in (tmp_path / "T").rglob("*")
        if p.is_symlink() or b"precious" in (p.read_bytes() if p.is_file() else b"")
    ]
    assert copies == []
    assert load_weights(run_folder(tmp_path / "T", row.result.run_id), "final") == {}


READY = ['{"runs": [], "curves": [], "steps": []}', "garbage", "[1]", "{}", "[" * 100_000, "null", '{"runs": ["x"]}']


def test_what_lies_in_tmp_is_believed_in_nothing(store: Path, outside: Path) -> None:
    other = fill(store.parent / "other", range(10, 14))
    before, runs = outside_state(outside), open_store(store).run_ids()
    for ready, inside in itertools.product(READY, ["nothing", "empty", "another store's", "links"]):
        folder = store / "tmp" / "compaction.0123"
        folder.mkdir()
        for kind in ("runs", "curves", "steps"):
            if inside == "another store's":
                shutil.copytree(other / kind, folder / kind)
            elif inside == "empty":
                (folder / kind).mkdir()
            elif inside == "links":
                (folder / kind).symlink_to(outside)
        (folder / "ready.json").write_text(ready)
        with StoreWriter(store, thorough=False) as writer:
            assert writer.recovered == []
        assert open_store(store).run_ids() == runs
        assert not folder.exists()
    assert outside_state(outside) == before
    assert_contract(store)


def test_a_compaction_that_was_cut_short_is_finished_without_its_note(store: Path) -> None:
    """Half of the tables exchanged, and what the note says is of no use: the rows tell where they belong."""
    whole = {kind: contents(store, kind) for kind in TABLES}
    names = sorted(path.stem for path in (store / "runs").iterdir())
    folder = store / "tmp" / "compaction.0123"
    for kind in KINDS:
        shutil.copytree(store / kind, folder / kind)
    merged = concat([read_whole(Layout(store), name) for name in names])
    for kind in KINDS:
        for name in names:
            (folder / kind / f"{name}.parquet").unlink(missing_ok=True)
    with (folder / "curves" / "00000000000000aa.parquet").open("w+b") as file:
        write_parquet(merged.curves, file)
    with (folder / "runs" / "00000000000000aa.parquet").open("w+b") as file:
        write_parquet(with_partners(merged.runs, merged), file)
    (folder / "ready.json").write_text("garbage")
    exchange(folder / "curves", store / "curves")
    with StoreWriter(store) as writer:
        assert writer.recovered == []
    assert_contract(store)
    assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)


def test_what_a_compaction_left_that_fits_nowhere_is_kept(store: Path) -> None:
    other = fill(store.parent / "other", range(10, 14))
    folder = store / "tmp" / "compaction.0123"
    for kind in KINDS:
        shutil.copytree(other / kind, folder / kind)
    (folder / "ready.json").write_text("{}")
    sorted((store / "runs").iterdir())[0].unlink()  # the tables are out of step, and the folder is of no help
    with StoreWriter(store) as writer:
        assert len(writer.recovered) == 3
    assert_contract(store)
    assert len(restore(store).runs) == 4, "the rows that were in tmp/"


def test_checkpoints_are_never_written_or_removed_along_a_link(store: Path, outside: Path) -> None:
    before = outside_state(outside)
    folder = run_folder(store, "run-2")
    folder.symlink_to(outside)
    with pytest.raises(CheckpointError, match="is a link"):
        save_checkpoint(folder, Checkpoint(run_id="run-2", step=1, tensors={}, state={}))
    remove_checkpoints(folder)
    assert outside_state(outside) == before


@pytest.mark.usefixtures("no_png")
def test_the_report_is_not_written_along_a_link(store: Path, outside: Path) -> None:
    from grok.analysis.report import main as report

    before = outside_state(outside)
    (store / "report").symlink_to(outside)
    assert report([str(store)]) == 2
    (store / "report").unlink()
    (store / "report" / "figures").mkdir(parents=True)
    (store / "report" / "report.html").symlink_to(outside / "file")
    (store / "report" / "tables").symlink_to(outside)
    assert report([str(store)]) == 2
    (store / "report" / "tables").unlink()
    assert report([str(store)]) == 0
    assert not (store / "report" / "report.html").is_symlink()
    assert outside_state(outside) == before


def test_json_is_read_from_files_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("[" * 200_000)
    (tmp_path / "digits").write_text("1" * 10_000)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("deep", "digits"):
        with pytest.raises(ValueError):
            read_json(tmp_path / name)
    for name in ("link", "folder", "pipe", "nothing"):
        with pytest.raises(OSError):
            read_json(tmp_path / name)


ODD = [
    '{"a\\ud800": 1.0}', "[" * 100_000, '{"a": ' + "[" * 500 + "]" * 500 + "}", "[1,2]", "no JSON", '{"a": "text"}', "",
    '{"a": true}', "{" + ",".join(f'"{i}":1' for i in range(20_000)) + "}", '{"' + "n" * 2_000_000 + '":1}', "null",
    '{"a":1' + "0" * 400 + "}", '{"a":{"b":1}}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "column"),
    [("curves", "metrics"), ("runs", "layers"),
     *(pytest.param(*names, marks=pytest.mark.slow) for names in (
         ("curves", "block_norms"), ("runs", "own_code"), ("runs", "config.eval.metrics"),
         ("runs", "config.eval.metric_plugins")))],
)  # fmt: skip
def test_odd_json_in_a_sealed_shard_ends_nothing(
    store: Path, kind: str, column: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rows are what no version writes, and whole: readers leave them out and say so, `verify` names each."""
    good = set(open_store(store).run_ids())
    valid = {"own_code": ODD[5:6], "config.eval.metric_plugins": [*ODD[5:6], *ODD[7:8], *ODD[11:]]}.get(column, [])
    odd = [text for text in ODD if text not in valid]
    with_texts(store, kind, column, odd)
    said = "\n".join(verify(store))
    named = {run_id for run_id in open_store(store).run_ids() - good if run_id in said}
    assert len(named) == len(odd)
    for run_id in sorted(named)[:4]:
        shown = show([run_id, "--store", str(store)]), run(["--again", run_id, "--store", str(store), "dry_run=true"])
        assert "Traceback" not in capfd.readouterr().err
        assert shown[0] == (2 if kind == "runs" else 0)
    frame = open_store(store).runs() if kind == "runs" else open_store(store).curves()
    assert set(frame["run_id"]) == (good if kind == "runs" else good | named)
    assert kind == "runs" or frame[frame["run_id"].isin(named)][column].isna().all()
    assert frame[frame["run_id"].isin(good)][column].notna().any() or column not in ("layers", "block_norms")


LONG = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * (1 << 20)]))


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [
        ("curves", "sample", LONG),
        ("runs", "error", LONG),
        ("designs", "unit", LONG),
        ("curves", "sample", pa.array(["x" * 20_000] * 200)),
        ("curves", "val_loss", pa.nulls(100_000, pa.float64())),
        ("runs", "config.eval.metrics", pa.array([["x"]] * 4)),
    ],
    ids=["repeated", "repeated in runs", "repeated in designs", "compressed", "nulls", "lists"],
)
def test_a_shard_of_few_bytes_never_fills_the_memory(
    store: Path, monkeypatch: pytest.MonkeyPatch, kind: str, column: str, values: pa.Array
) -> None:
    if values is not LONG:
        monkeypatch.setattr(shards, "MOST_UNPACKED", 1 << 20)
    before = {name: open_store(store).table(name, None, None).num_rows for name in TABLES}
    one = sorted((store / kind).iterdir())[0]
    table = read_shard(one, kind)
    if kind == "curves":  # without a shard of runs of its name nobody reads it
        before["curves"] -= table.num_rows
    table = table.take(pa.array([row % table.num_rows for row in range(len(values))]))
    table = table.set_column(table.column_names.index(column), pa.field(column, values.type), values)
    bomb = one if kind == "curves" else one.with_name("00000000000000fd.parquet")
    with bomb.open("w+b") as file:
        options = {"use_dictionary": [column] if values is LONG else False, "dictionary_pagesize_limit": 1 << 24}
        bare = table.replace_schema_metadata(None)
        with pq.ParquetWriter(file, bare.schema, store_schema=False, compression="zstd", **options) as writer:
            writer.write_table(bare)
            writer.add_key_value_metadata({**schema(kind).metadata, shards.SEAL_KEY: shards.BLANK})
        shards.seal(file)
    assert any(re.search(r"parquet: not a shard .*(would become|lists)", line) for line in verify(store))
    assert {name: open_store(store).table(name, None, None).num_rows for name in TABLES} == before
    with StoreWriter(store):
        assert bomb.exists()


def test_a_file_of_nothing_but_a_hole_is_not_read_whole(store: Path) -> None:
    with (store / "runs" / "00000000000000fd.parquet").open("wb") as file:
        file.truncate(1 << 40)
    with StoreWriter(store) as writer:
        assert ["does not end like a parquet file" in str(repair) for repair in writer.recovered] == [True]
    assert len(open_store(store).runs()) == 4


def test_secrets_are_kept_nowhere(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        path = writer.record_sweep(
            "s",
            ["study.storage=postgresql://me:se/cr@t@host/db", "x=mysql://h/d?user=a&password=se/cr@t"],
            {"settings": {"log.wandb": "https://ghp_0123456789abcdefghijkl@host/x?api_key=se/cr@t"}},
        )
    text = path.read_text()
    assert "cr@t" not in text and "ghp_" not in text and "postgresql://me:***@host/db" in text
