"""What each run was for: rows are written once, survive harm, merge by their keys, and are never guessed."""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.commands.store import main
from grok.errors import StoreError
from grok.store import DamagedShardWarning, Purpose, Purposes, StoreWriter, open_store
from grok.store import writer as writer_module
from grok.store.designs import Design
from grok.store.layout import Layout
from grok.store.merge import merge, restore
from grok.store.schema import schema
from grok.store.shards import replace_table
from grok.store.upkeep import verify
from tests.store.conftest import store_of
from tests.store.contract import assert_contract, contents, example_design, example_row, example_rows, failed, read_raw

RUN_IDS = [row.result.run_id for row in example_rows(range(6))]


def one(design_id: str = "study", run_id: str = RUN_IDS[0], **purpose: Any) -> Design:
    return Purposes("search", [Purpose(**purpose)], design_id=design_id).named([run_id])


def put(path: Path, design: Design, day: int = 1, name: str = "00000000000000aa", **columns: Any) -> Path:
    """Write a shard of designs by hand, with other values in some columns; return its file."""
    table = design.table((), planned_at=datetime(2026, 11, day))
    for column, value in columns.items():
        field = schema("designs").field(column)
        values = pa.array([value] * table.num_rows, pa.int64() if column == "planned_at" else None).cast(field.type)
        table = table.set_column(table.column_names.index(column), field, values)
    replace_table(Layout(path), "designs", name, table)
    (path / "designs" / "empty.parquet").unlink(missing_ok=True)
    return path / "designs" / f"{name}.parquet"


class TestPlanning:
    def test_the_same_plan_has_the_same_name_forever(self) -> None:
        rows = [Purpose(role="child", unit={"b": 1, "a": [2]}, parent_run_id="p", redrawn=("order", "init"))] * 2
        design = Purposes("branch", rows, [("p", Purpose(role="parent"))]).named(["x", "x"])
        assert len(design.rows) == 2, "equal rows are one"
        assert design.design_id == replace(design, rows=design.rows[::-1]).design_id
        assert design.design_id == "258e3283905d1b49d3f6", "stored designs would be planned a second time"
        table = design.table({"x"}).to_pylist()
        assert (table[0]["unit"], table[0]["redrawn"], table[0]["results_seen"]) == (
            '{"a":[2],"b":1}',
            '["init","order"]',
            True,
        )

    @pytest.mark.parametrize("wrong", [{"role": "guest"}, {"choice": "lucky"}])
    def test_a_purpose_that_nobody_would_understand_is_refused(self, wrong: dict[str, str]) -> None:
        with pytest.raises(StoreError, match="expected one of"):
            Purposes("sweep", [Purpose(**wrong)]).named(["a"]).table(set())  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="kind is 'guess', expected one of sweep"):
            Purposes("guess", [Purpose()]).named(["a"]).table(set())

    @pytest.mark.parametrize(
        "wrong",
        [{"unit": {"a": [[1]]}}, {"unit": {"a": 2**63}}, {"parent_run_id": "../x"}, {"from_step": -1}],
        ids=["deep", "large", "path", "step"],
    )
    def test_a_row_that_verify_would_name_is_not_written(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with (
            StoreWriter(tmp_path / "S") as writer,
            pytest.raises(StoreError, match="design study.*" + next(iter(wrong))),
        ):
            writer.record_design(one(**wrong))
        assert_contract(tmp_path / "S")

    def test_two_purposes_of_one_key_are_refused(self, tmp_path: Path) -> None:
        both = Purposes("branch", [], [("p", Purpose(role="parent", choice=c)) for c in ("best", "drawn")]).named([])
        with StoreWriter(tmp_path / "S") as writer, pytest.raises(StoreError, match="two rows of"):
            writer.record_design(both)

    def test_many_plans_become_one_shard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer_module, "SMALL", 8)
        with StoreWriter(tmp_path / "S") as writer:
            for n in range(20):
                writer.record_design(one(unit={"trial": n}))
        assert len(Layout(tmp_path / "S").names("designs")) < 8
        assert len(read_raw(tmp_path / "S", "designs")) == 20
        assert_contract(tmp_path / "S")


class TestStoresWithoutDesigns:
    def test_a_lost_folder_is_said_and_nothing_is_guessed(
        self, store: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (store / "designs").rename(store / "elsewhere")
        with pytest.warns(DamagedShardWarning, match="nobody knows what the runs were for"):
            assert open_store(store).designs().empty
        assert len(open_store(store).runs()) == 6
        assert any("its folders designs/ are missing" in line for line in verify(store))
        with pytest.raises(StoreError, match="lacks its folders designs/"):
            StoreWriter(store)
        (store / "elsewhere").rename(store / "designs")
        assert_contract(store)


class TestDamage:
    def test_a_damaged_shard_goes_to_quarantine_and_planning_writes_it_again(self, store: Path) -> None:
        whole = contents(store, "designs")
        shard = sorted((store / "designs").iterdir())[0]
        runs = store / "runs" / shard.name  # a shard of runs of the same name is another shard
        sorted((store / "runs").iterdir())[0].rename(runs)
        sorted((store / "curves").iterdir())[0].rename(store / "curves" / shard.name)
        sound = shard.read_bytes()
        shard.write_bytes(sound[:-40])
        assert any(str(shard) in line for line in verify(store))
        with pytest.warns(DamagedShardWarning, match=str(shard)):
            assert len(open_store(store).designs()) == 3
        with StoreWriter(store) as writer:
            assert len(writer.recovered) == 1
            assert runs.exists()
            assert len(open_store(store).runs()) == 6 and len(open_store(store).designs()) == 3
            for first in (0, 3):
                writer.record_design(example_design(RUN_IDS[first : first + 3]))
        assert contents(store, "designs").equals(whole)
        assert restore(store).left, "a damaged file stays"
        (store / "quarantine" / f"designs-{shard.name}").write_bytes(sound)
        assert restore(store).designs == 0
        assert not list((store / "quarantine").glob("designs-*"))
        assert_contract(store)

    def test_copies_and_overlaps_count_once(self, store: Path) -> None:
        whole = contents(store, "designs")
        first = min((store / "designs").iterdir())
        shutil.copy(first, store / "designs" / "fedcba9876543210.parquet")
        put(store, example_design(RUN_IDS), name="00000000000000ff", retired="a try")  # another design
        put(store, example_design(RUN_IDS[3:]), name="00000000000000fe")  # planned earlier, says this copy
        assert verify(store)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedShardWarning)
            assert len(open_store(store).designs()) == 12
        with StoreWriter(store) as writer:
            assert len(writer.recovered) == 2 and not any(one.lost for one in writer.recovered)
        assert_contract(store)
        assert len(contents(store, "designs")) == 12
        rows = open_store(store).designs()
        rows = rows[rows["retired"].isna()]
        assert sorted(rows["run_id"]) == sorted(whole["run_id"].to_pylist())
        assert (rows["planned_at"] < datetime(2026, 11, 2)).sum() == 3, "the first plan of the three stays"
        assert not list((store / "conflicts").iterdir())


ODD: Mapping[str, Any] = {
    "unit": '{"a": [[1]]}', "role": "guest", "kind": "guess", "choice": "lucky", "origin": "dreamt",
    "choice_detail": "[" * 90_000, "redrawn": '{"a": 1}', "parent_run_id": "../../outside", "line": "a\nb",
    "donor_run_id": "x" * 300, "from_step": -3, "retired": "x" * 100_001, "planned_at": 2**62,
}  # fmt: skip
ODD_UNITS = (
    "",
    "null",
    "7",
    "[]",
    "{",
    '{"a": NaN}',
    '{"a":' * 2000,
    "1" * 5000,
    '{"a": ' + "9" * 40 + "}",
    r'{"a": "\ud800"}',
)


def test_rows_that_cannot_be_understood_are_named_and_left_out(store: Path) -> None:
    cases = [*ODD.items(), *(("unit", text) for text in ODD_UNITS)]
    for n, (column, odd) in enumerate(cases):
        put(store, one(f"odd-{n}"), name=f"{n:016x}", **{column: odd})
    problems = verify(store)
    for n, (column, _) in enumerate(cases):
        (problem,) = [line for line in problems if f"design odd-{n}: {column} is " in line]
        assert "\n" not in problem and len(problem) < 400
    with pytest.warns(DamagedShardWarning, match=f"left out {len(cases)} rows of "):
        assert len(open_store(store).designs()) == 6
    with StoreWriter(store) as writer:  # it is not for this version to throw away
        assert writer.recovered == []
    assert main(["status", str(store)]) == 0
    assert pq.read_table(store / "designs").num_rows == 6 + len(cases)


@pytest.mark.parametrize("role", ["parent", "candidate", "control"])
def test_a_run_that_is_chosen_and_neither_stored_nor_planned_is_named_once(store: Path, role: str) -> None:
    child = Purpose(role="child", parent_run_id="lost", redrawn=(), line="lost")
    chosen = Purposes("branch", [child], [("lost", Purpose(role=role, choice="best", line="lost"))])
    with StoreWriter(store) as writer:
        writer.record_design(chosen.named(RUN_IDS[:1]))
        (problem,) = verify(store)
        assert "lost is neither stored nor planned" in problem
        writer.record_design(one("b", run_id="lost"))
    assert_contract(store)


@pytest.mark.parametrize("column", ["parent_run_id", "donor_run_id", "line"])
def test_a_run_that_is_neither_stored_nor_planned_is_named(store: Path, column: str) -> None:
    with StoreWriter(store) as writer:
        writer.record_design(one("a", role="child", **{column: "planned"}))
        assert verify(store) == [f"designs: the {column} planned is neither stored nor planned"]
        writer.record_design(one("b", run_id="planned"))
    assert_contract(store)


class TestMerge:
    @pytest.fixture
    def stores(self, tmp_path: Path) -> list[Path]:
        paths = [tmp_path / "A", tmp_path / "B"]
        for path in paths:
            StoreWriter(path).close()
        return paths

    def test_rows_come_with_their_ids_and_the_first_plan_and_every_retirement_stay(self, stores: list[Path]) -> None:
        a, b = stores
        put(a, one(), 2, results_seen=True)
        put(a, one("own"), 3, name="00000000000000ab", retired="own words")
        put(b, one(choice_detail={"of": 12}), 1, origin="reconstructed")
        put(b, one("own"), 4, name="00000000000000ab", retired="other words")
        put(b, one("new"), 5, name="00000000000000ac")
        put(a, one("theirs"), 6, name="00000000000000ad")
        put(b, one("theirs"), 7, name="00000000000000ad", retired="elsewhere")
        assert merge(a, [b]).designs == 1
        assert merge(a, [b]).designs == 0
        rows = open_store(a).designs().set_index("design_id")
        assert rows["planned_at"].dt.day.to_dict() == {"study": 1, "own": 3, "new": 5, "theirs": 6}
        assert rows["retired"].dropna().to_dict() == {"own": "own words", "theirs": "elsewhere"}
        assert (rows["origin"]["study"], rows["results_seen"]["study"]) == ("reconstructed", False)
        assert_contract(a)
        assert len(open_store(b).designs()) == 4

    @pytest.mark.parametrize("into", [0, 1])
    def test_a_plan_after_the_end_of_a_result_in_another_store_knows_it(self, stores: list[Path], into: int) -> None:
        """Run 0 was in A; of run 3 a shorter one. Run 1 is a copy, from a machine whose clock is late; run 5 failed."""
        first, late = (datetime(2026, 11, day).timestamp() for day in (2, 3))
        longer = example_row(3, steps=400, started_at=late)
        in_a = [*example_rows((0, 3), started_at=first), example_row(1, started_at=late), failed(example_row(5))]
        in_b = [*example_rows((0, 1, 2, 5), started_at=late), longer]
        for path, rows in zip(stores, (in_a, in_b), strict=True):
            store_of(path, rows)
        put(stores[1], example_design([row.result.run_id for row in in_b]), 4)
        assert merge(stores[into], [stores[1 - into]], into=stores[0].parent / "C").late == 2
        for _ in range(2):  # the second time every run is stored, and the row of the design that arrives knows nothing
            merge(stores[into], [stores[1 - into]])
            seen = open_store(stores[into]).designs().set_index("run_id")["results_seen"]
            assert set(seen[seen].index) == {RUN_IDS[0], longer.result.run_id} and len(seen) == 5
            assert_contract(stores[into])

    def test_a_copy_of_a_row_knows_no_result_of_the_store_that_it_is_from(self, stores: list[Path]) -> None:
        """As after a merge that was killed between designs and runs, where the clock of the runs' machine was late."""
        store_of(stores[1], example_rows((0, 1), started_at=datetime(2026, 11, 2).timestamp()))
        for path in stores:
            put(path, example_design(RUN_IDS[:2]), 4)
        for into in (0, 1, 0):
            assert merge(stores[into], [stores[1 - into]]).late == 0
            assert not open_store(stores[into]).designs()["results_seen"].any()

    @pytest.mark.parametrize("into", [False, True])
    def test_other_facts_of_one_key_are_a_conflict(
        self, stores: list[Path], into: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        a, b = stores
        put(a, one(choice="given"), 2)
        put(b, one(choice="best"), 1)
        target = tmp_path / "C" if into else a
        assert main(["merge", str(a), str(b), *(["--into", str(target)] if into else [])]) == 1
        said = capsys.readouterr().out
        assert "choice in design study as member {} is 'best' in one and 'given' in the other" in said
        assert "planned after" not in said, "a row that is in a conflict is no late one"
        assert open_store(target).designs()["choice"].tolist() == ([] if into else ["given"])
        (record,) = (target / "conflicts").iterdir()
        sides = json.loads(record.read_text())["sides"].values()
        assert {(side["choice"], side["source"]) for side in sides} == {("given", str(a)), ("best", str(b))}
        assert {side["planned_at"] for side in sides} == {"2026-11-01 00:00:00.000000", "2026-11-02 00:00:00.000000"}
        record.unlink()
        assert_contract(target)

    def test_a_name_that_is_a_path_is_refused_before_anything_is_written(self, stores: list[Path]) -> None:
        put(stores[1], one(), design_id="../x")
        with pytest.raises(StoreError, match=r"designs: design_id='\.\./x': expected a name"):
            merge(stores[0], [stores[1]])


def test_what_is_planned_and_missing_is_counted_until_the_design_is_retired(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter(store) as writer:
        writer.record_design(one("study-1", run_id="not-yet"))
        writer.record_design(one("study-2", run_id=RUN_IDS[0]))
    assert main(["status", str(store)]) == 0
    said = capsys.readouterr().out
    assert "4 designs: 7 runs planned, 1 of them missing\n" in said
    assert "design study-1 (search, planned 20" in said and "1 of 1 runs missing" in said
    for wrong, why in (("study", "2 designs begin with 'study' (study-1, study-2)"), ("x", "no design in")):
        assert main(["retire", str(store), wrong, "--why", "a try"]) == 2
        assert why in capsys.readouterr().err
    assert main(["retire", str(store), "study-1", "--why", " "]) == 2
    assert main(["retire", str(store / "no"), "study-1", "--why", "a try"]) == 2
    assert not (store / "no").exists()
    assert main(["retire", str(store), "study-1", "--why", "a  try\n"]) == 0
    assert main(["retire", "study-1", "--store", str(store), "--why", "other words"]) == 0
    assert "already abandoned" in capsys.readouterr().out
    assert open_store(store).designs()["retired"].dropna().tolist() == ["a try"]
    assert main(["status", str(store)]) == 0
    assert "4 designs: 6 runs planned, 0 of them missing, 1 designs abandoned\n" in capsys.readouterr().out
    with StoreWriter(store) as writer:
        writer.record_design(Purposes("layers", [], [("no", Purpose(role="donor"))], design_id="d").named([]))
        writer.record_design(one("study-1", run_id="another"))  # the search goes on
    assert main(["status", str(store)]) == 0
    assert "5 designs: 8 runs planned, 2 of them missing\n" in capsys.readouterr().out
    assert_contract(store)
