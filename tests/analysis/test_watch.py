"""The page of a growing store: written anew when there is something new, whole at every moment, ended by Ctrl-C."""

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from grok.analysis import report
from grok.errors import StoreError
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
    assert report.main([str(store), "--out", str(tmp_path / "out"), "--watch", "--every", "7"]) == 0
    assert ["2 trajectories" in text for text in pages] == [True, False]
    assert "4 trajectories" in pages[1]
    assert all('data-reload="7"' in text for text in pages)
    assert "data-reload" not in page.read_text()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5, said  # what it does, two pages, the line that Ctrl-C breaks, the last words
    assert said[-1].startswith("stopped: 4 runs in ")
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.name.startswith(".")) == []


def test_a_store_that_is_being_merged_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write(census(2, np.random.default_rng(0)), tmp_path / "store")
    read, failures = report.Observations.read, iter([StoreError("a shard is gone"), StoreError("a shard is gone")])

    def flaky(path: Path) -> object:
        error = next(failures, None)
        if error:
            raise error
        return read(path)

    monkeypatch.setattr(report.Observations, "read", flaky)
    monkeypatch.setattr(report.time, "sleep", sleeping(lambda: None, lambda: None, lambda: None))
    assert report.main([str(store), "--out", str(tmp_path / "out"), "--watch"]) == 0
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_page_of_a_growing_store_is_served_with_title_notes_and_standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(truth) for truth in census(5, np.random.default_rng(0))]
    store, notes, pages = tmp_path / "S", tmp_path / "notes.txt", list[str]()
    page = tmp_path / "out" / "report.html"
    notes.write_text("Two <b>of them</b>.\n\nAnd why.")
    with StoreWriter(store) as writer:
        writer.record_design(Purposes("sweep", [Purpose()] * 5).named([r.result.run_id for r in rows]))
        writer.commit(rows[:3])

    def look() -> None:
        address = capsys.readouterr().out.splitlines()[0].removeprefix("serving ")
        pages.append(urlopen(address).read().decode())
        open_to = {one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
        assert open_to == {"127.0.0.1"}, "to this machine alone"

    def begin() -> None:
        (store / "live" / "sweep").mkdir(parents=True)
        (store / "live" / "sweep" / "group.json").write_text('{"flying": {"run": [1, 2, null]}}')

    monkeypatch.setattr(report.time, "sleep", sleeping(look, begin, lambda: pages.append(page.read_text())))
    words = ["--out", str(tmp_path / "out"), "--serve", "--title", "Is it so?", "--notes", str(notes)]
    assert report.main([str(store), *words]) == 0
    assert "<h1>Is it so?</h1>" in pages[0] and "3 of 5 runs stored" in pages[0]
    assert "3 of 5 runs stored, 1 in flight" in pages[1], "nothing was stored since, but a run began"
    assert report.main([str(store), "--notes", str(tmp_path / "nothing")]) == 2


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert report.main([str(tmp_path / "S"), "--serve", str(taken.getsockname()[1])]) == 2
