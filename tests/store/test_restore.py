"""What quarantine holds and is whole comes back; what is not stays."""

import json
import shutil
from pathlib import Path

import pytest

from grok.commands.store import main
from grok.records import StepPoint
from grok.store import StoreWriter, open_store
from grok.store.contract import assert_contract, contents, example_row, example_rows, failed, with_other_bits
from grok.store.merge import restore
from grok.store.schema import TABLES


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six runs in two shards, one with a step log."""
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit(example_rows(range(3)))
        writer.commit([*example_rows(range(3, 5)), example_row(5, step_log=[StepPoint(step=1)])])
    return tmp_path / "S"


def put_aside(store: Path) -> list[str]:
    """Do what an earlier version did to good shards."""
    names = sorted({path.stem for path in (store / "runs").iterdir()})
    for name in names:
        for kind in TABLES:
            path = store / kind / f"{name}.parquet"
            if path.exists():
                path.rename(store / "quarantine" / f"{kind}-{name}.parquet")
        (store / "quarantine" / f"{name}.json").write_text(json.dumps({"shard": name, "reason": "no thread"}))
    return names


def test_everything_comes_back(store: Path) -> None:
    whole = {kind: contents(store, kind) for kind in TABLES}
    put_aside(store)
    assert open_store(store).run_ids() == set()
    done = restore(store)
    assert (len(done.runs), done.stored, done.left, done.conflicts) == (6, 0, [], [])
    assert_contract(store)
    assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
    assert not list((store / "quarantine").iterdir())
    assert restore(store).runs == []


def test_what_is_damaged_or_lacks_its_points_stays(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_aside(store)
    (step_log,) = (store / "quarantine").glob("steps-*")
    second = step_log.stem.removeprefix("steps-")
    (first,) = {path.stem for path in (store / "quarantine").glob("*.json")} - {second}
    damaged = store / "quarantine" / f"curves-{first}.parquet"
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-30])
    assert main(["restore", str(store)]) == 0
    said = capsys.readouterr().out
    assert "3 runs restored, 0 already stored, 2 files left" in said
    assert f"curves-{first}.parquet" in said and "the points of 3 of its runs are missing" in said
    assert {p.name for p in (store / "quarantine").iterdir()} == {
        f"runs-{first}.parquet", f"curves-{first}.parquet", f"{first}.json",
    }  # fmt: skip
    assert second not in said
    assert_contract(store)
    damaged.write_bytes(sound)  # from a backup
    assert len(restore(store).runs) == 3
    assert len(open_store(store).run_ids()) == 6
    assert_contract(store)


def test_a_shard_whose_tables_were_named_apart(store: Path) -> None:
    whole = {kind: contents(store, kind) for kind in TABLES}
    name = sorted(path.stem for path in (store / "runs").iterdir())[0]
    (store / "runs" / f"{name}.parquet").rename(store / "runs" / "0123456789abcdef.parquet")
    with StoreWriter(store) as writer:
        assert len(writer.recovered) == 2
    assert len(open_store(store).run_ids()) == 3
    assert len(restore(store).runs) == 3
    assert_contract(store)
    assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)


def test_what_is_stored_is_compared(store: Path) -> None:
    put_aside(store)
    rows = example_rows(range(3))
    with StoreWriter(store) as writer:
        writer.commit([failed(rows[0]), rows[1], with_other_bits(rows[2], 50)])
    done = restore(store)
    assert (len(done.runs), done.stored) == (4, 1)  # the failed one is replaced
    (conflict,) = done.conflicts
    assert conflict.run_id == rows[2].result.run_id
    assert list((store / "quarantine").glob("runs-*")), "the other bits are kept"
    shutil.rmtree(store / "conflicts")
    assert_contract(store)
