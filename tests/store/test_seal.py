"""A shard's seal: whatever byte of it changes, that is noticed before anything else reads it."""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grok.store import DamagedShardWarning, StoreWriter, open_store
from grok.store.contract import assert_contract, example_rows
from grok.store.schema import schema
from grok.store.shards import SEAL_KEY, SealBroken, check_seal
from grok.store.upkeep import verify


def footer_of(whole: bytes) -> int:
    """Return where the footer starts."""
    return len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")


def intact(path: Path) -> bool:
    try:
        return check_seal(path, thorough=True)
    except SealBroken:
        return False


@pytest.mark.parametrize("apart", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_counts(store: Path, apart: int) -> None:
    """The fast form changes each byte of the footer and every ninth of the rest."""
    victim = sorted((store / "curves").iterdir())[0]
    whole = victim.read_bytes()
    assert intact(victim)
    noticed = []
    footer = footer_of(whole)
    for at in [*range(0, footer, apart), *range(footer, len(whole))]:
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        noticed.append(not intact(victim))
    assert all(noticed)
    for length in random.Random(0).sample(range(len(whole)), 100):
        victim.write_bytes(whole[:length])
        assert not intact(victim)


@pytest.mark.parametrize("what", [b"val_acc", b"grok.schema_version\x18\x012", b"config.seeds.init"])
def test_a_changed_footer_costs_its_shard_and_no_other(store: Path, what: bytes) -> None:
    """A column or a version by another name was once taken for a store of another version, and all of it refused."""
    victim = sorted((store / "runs").iterdir())[0]
    whole = victim.read_bytes()
    at = whole.index(what, footer_of(whole)) + len(what) - 1
    victim.write_bytes(whole[:at] + bytes([whole[at] ^ 3]) + whole[at + 1 :])
    with pytest.warns(DamagedShardWarning, match=victim.name):
        assert len(open_store(store).runs()) == 3
    assert any(victim.name in problem for problem in verify(store))
    with StoreWriter(store, thorough=False) as writer:
        (recovered,) = writer.recovered
        assert recovered.name == victim.stem
        assert len(writer.commit(example_rows(range(6))).written) == 3
    assert_contract(store)


def test_rows_that_a_changed_statistic_would_hide(store: Path) -> None:
    """A reader of a few runs skips what the footer says they cannot be in."""
    victim = sorted((store / "curves").iterdir())[0]
    run_ids = sorted(set(pq.read_table(victim)["run_id"].to_pylist()))
    whole = victim.read_bytes()
    least = run_ids[0].encode()
    at = whole.index(least, footer_of(whole))
    victim.write_bytes(whole[:at] + b"z" + whole[at + 1 :])
    with pytest.warns(DamagedShardWarning, match=victim.name):
        open_store(store).curves([run_ids[0]])


def test_shards_of_before_have_no_seal_and_are_read_as_they_are(store: Path) -> None:
    before = open_store(store).runs()
    for kind in ("runs", "curves"):
        for path in (store / kind).iterdir():
            with pq.ParquetFile(path) as file:
                table, notes = file.read(), dict(file.metadata.metadata)
            del notes[SEAL_KEY]
            with pq.ParquetWriter(path, schema(kind).remove_metadata(), store_schema=False) as writer:
                writer.write_table(table.replace_schema_metadata(None))
                writer.add_key_value_metadata(notes)
            assert not check_seal(path, thorough=True)
    with StoreWriter(store) as writer:
        assert writer.recovered == []
    assert open_store(store).runs().equals(before)
    assert_contract(store)
