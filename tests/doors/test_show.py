"""``grok.show``: one run with its seeds, events and curves, in text and as a picture."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok import run, show
from grok.show import Line, draw
from grok.store import StoreWriter, open_store
from grok.store.contract import example_row, failed
from tests.doors.conftest import TINY, Door

numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    st.lists(st.lists(numbers, min_size=1, max_size=30), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(20, 120),
)
@settings(max_examples=60, deadline=None)
def test_any_curve_fits_its_frame(curves: list[list[float]], log: bool, ascii_only: bool, width: int) -> None:
    lines = [Line("x", np.arange(len(c)) * 10.0, np.array(c)) for c in curves]
    rows = draw(lines, width=width, height=6, log=log, marks={"a": 10}, ascii_only=ascii_only)
    assert max(map(len, rows)) <= max(width, 20)
    assert not ascii_only or all(row.isascii() for row in rows)
    if any(np.isfinite(c).any() for c in curves):
        assert len(rows) == 6 + 3


def test_a_run_is_shown_whole(door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert door(*TINY, "seed=3", "seeds.order=8", "seeds.layers={head:5}", "store.path=S").status == 0
    (row,) = open_store("S").runs().to_dict("records")
    capfd.readouterr()
    assert show.main([row["run_id"][:7], "--store", "S", "--out", "pictures/run.png"]) == 0
    out = capfd.readouterr().out
    for part in (row["run_id"], row["weights_hash"], row["numerics"], row["rerun"], "head: 5", "task.modulus=7"):
        assert part in out
    assert "  order     8  (given)" in out
    assert f"  init      {row['seed_init']}\n" in out
    assert Path("pictures/run.png").read_bytes().startswith(b"\x89PNG")
    (again,) = (line for line in out.splitlines() if line.startswith("compare its bits: "))
    assert run.main(shlex.split(again.partition("grok run ")[2])) == 0, "what it proposes runs as it stands"


def test_events_are_lettered_in_their_order_and_a_failed_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [example_row(1, memorised_step=50, grokked_step=150, val_loss_peak_step=100), failed(example_row(2))]
    with StoreWriter("S") as writer:
        writer.commit(rows)
    assert show.main([rows[0].result.run_id, "--store", "S"]) == 0
    assert "a memorised 50, b val_loss_peak 100, c grokked 150" in capsys.readouterr().out
    assert show.main([rows[1].result.run_id, "--store", "S"]) == 0
    out = capsys.readouterr().out
    assert "failed (exception)" in out and "error       made up" in out and "nothing was measured" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [(["zz"], "begins with 'zz'"), (["", "--out", "x.doc"], "expected a file that ends in .png, .svg, .pdf")],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([example_row(1)])
    assert show.main([*words, "--store", str(tmp_path / "S")]) == 2
    assert says in capsys.readouterr().err
