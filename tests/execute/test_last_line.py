"""The last line of a sweep names all that the user has to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grok.execute.retry import Totals
from grok.execute.sweep import Sweep


def test_a_paused_sweep_names_its_failures_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store: Any = SimpleNamespace(
        statuses=lambda: {"a": "failed"}, layout=SimpleNamespace(checkpoints=tmp_path / "checkpoints")
    )
    shared: Any = SimpleNamespace(store=SimpleNamespace(path="S"), save="none")
    plan: Any = SimpleNamespace(requested=("a", "b"), stored={}, to_train=())
    sweep = Sweep(shared, plan, cast(Any, None), store, cast(Any, None), ())
    totals = Totals(finished={"a": "failed"}, failed={"a": "too large"}, paused={"b": "train.hours=2 is used"})
    assert sweep.conclude(totals).exit_status == 1
    (line,) = (text for text in capsys.readouterr().out.splitlines() if text.startswith("Paused: "))
    assert "Of run b, train.hours=2 is used." in line
    assert line.endswith("1 failed: too large. The same command with retry_failed=true tries them again.")
