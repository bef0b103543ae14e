"""The page of a growing store: written anew when there is something new, whole at every moment, ended by Ctrl-C."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grok.analysis import report
from grok.store import Purpose, Purposes, StoreWriter
from tests.analysis.simulate import census, row, write

pytestmark = pytest.mark.usefixtures("no_png")


def sleeping(*acts: Callable[[], object]) -> Callable[[float], None]:
    """Return a ``sleep`` that does one act a call, then Ctrl-C."""
    left = list(acts)

    def sleep(seconds: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    return sleep


def test_a_page_follows_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truths = census(4, np.random.default_rng(0))
    store, page = tmp_path / "store", tmp_path / "out" / "report.html"
    pages: list[str] = []
    acts = [
        lambda: write(truths[:2], store),
        lambda: pages.append(page.read_text()),
        lambda: write(truths, store),
        lambda: pages.append(page.read_text()),
    ]
    monkeypatch.setattr(report.time, "sleep", sleeping(*acts))
    assert report.main([str(store), "--out", str(tmp_path / "out"), "--watch"]) == 0
    assert ["2 trajectories" in text for text in pages] == [True, False]
    assert "4 trajectories" in pages[1]
    assert all('data-reload="10"' in text for text in pages)
    assert "data-reload" not in page.read_text()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5, said  # what it does, two pages, the line that Ctrl-C breaks, the last words
    assert said[-1].startswith("stopped: 4 runs in ")


def test_the_page_of_a_growing_store_has_its_standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(truth) for truth in census(5, np.random.default_rng(0))]
    store, pages, opened, page = tmp_path / "S", list[str](), list[str](), tmp_path / "out" / "report.html"
    with StoreWriter(store) as writer:
        writer.record_design(Purposes("sweep", [Purpose()] * 5).named([r.result.run_id for r in rows]))
        writer.commit(rows[:3])

    def begin() -> None:
        pages.append(page.read_text())
        (store / "live" / "sweep").mkdir(parents=True)
        (store / "live" / "sweep" / "group.json").write_text('{"flying": {"run": [1, 2, null]}}')

    monkeypatch.setattr(report.time, "sleep", sleeping(begin, lambda: pages.append(page.read_text())))
    monkeypatch.setattr(report.webbrowser, "open", lambda address: opened.append(address) or True)
    assert report.main([str(store), "--out", str(tmp_path / "out"), "--watch", "--open"]) == 0
    assert "3 of 5 runs stored" in pages[0] and opened == [page.as_uri()]
    assert "3 of 5 runs stored, 1 in flight" in pages[1], "nothing was stored since, but a run began"
