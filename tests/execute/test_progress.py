"""What a running sweep shows, and what its workers say to each other."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyte
import pytest

from grok.execute.live import LiveFolder
from grok.execute.progress import ProgressView, Standing
from grok.execute.retry import Totals
from grok.store.reader import OWNER
from tests.doors.conftest import environment


def standing(finished: int, *flying: tuple[int, int], total: int = 10, seconds: float = 60.0) -> Standing:
    lanes = [(f"r{i}", step, steps, None) for i, (step, steps) in enumerate(flying)]
    return Standing(total=total, finished=finished, grokked=1, failed=0, flying=lanes, seconds=seconds)


def test_runs_in_flight_count_by_their_share() -> None:
    assert standing(0, (25, 100), (75, 100)).done() == pytest.approx(1.0)
    assert "not known yet" in standing(0).left()


def test_time_before_the_first_step_is_no_measure_of_what_is_left() -> None:
    now = replace(standing(6, seconds=100.0), begun=(90.0, 1.0))  # five runs in ten seconds, after ninety of compiling
    assert now.left() == "about 8 s left"
    assert replace(standing(1, seconds=100.0), begun=(99.0, 1.0)).left() == "time left not known yet"


def test_the_view_adds_what_is_reported_to_what_is_in_flight(tmp_path: Path) -> None:
    live = LiveFolder.create(tmp_path, "sweep")
    live.publish("a", {"flying": {"r1": (5, 10, 0.5)}, "finished": 2, "grokked": 1})
    live.publish("b", {"flying": {}, "finished": 1, "grokked": 0})
    totals = Totals(finished={"x": "completed"}, grokked=1, failed={"y": "boom"})
    now = ProgressView(live, totals, 8).standing()
    assert (now.finished, now.grokked, now.failed, len(now.flying)) == (4, 2, 1, 1)
    live.retract("a")
    assert ProgressView(live, totals, 8).standing().finished == 2


def test_a_sweep_that_lives_keeps_its_folder_whatever_the_clock_says(tmp_path: Path) -> None:
    mine = LiveFolder.create(tmp_path, "mine")
    dead = LiveFolder.create(tmp_path, "dead")
    (dead.path / OWNER).write_text("{}")
    far = LiveFolder.create(tmp_path, "far")
    (far.path / OWNER).write_text("{}")
    for folder in (mine, dead, far):
        os.utime(folder.path, (0, 0))
    far.keep()  # on another machine, and nothing but its jobs in a queue
    LiveFolder.create(tmp_path, "next")
    assert sorted(p.name for p in (tmp_path / "live").iterdir()) == ["far", "mine", "next"]


def test_a_request_to_stop_is_heard_where_the_folder_was_cleared(tmp_path: Path) -> None:
    live = LiveFolder.create(tmp_path, "sweep")
    shutil.rmtree(live.path.parent)
    live.request_stop()
    assert live.stop_requested()


SHOWN = """
import fcntl, struct, sys, termios
from pathlib import Path
from grok.execute.live import LiveFolder
from grok.execute.progress import ProgressView
from grok.execute.retry import Totals
from grok.terminal import readable_output
totals = Totals(finished={f"r{i}": "completed" for i in range(20)}, grokked=7, failed={"x": "boom"})
for columns in map(int, sys.argv[2:]):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with readable_output(), ProgressView(LiveFolder(Path(sys.argv[1])), totals, 2000, labels={"abcdefgh17": "seed 17"}):
        print("a line beside the view \\x1b[2J", flush=True)
        print("postgresql://me:secret@host/db", file=sys.stderr, flush=True)
        sys.stdin.readline()
    print("\\x1bc", end="", flush=True)
    sys.stdin.readline()
"""


def test_the_whole_status_is_on_the_screen_at_every_width(tmp_path: Path) -> None:
    """A real terminal of 80, 120 and 140 columns: the count, what generalised, the time left, and lanes by seed."""
    live = LiveFolder.create(tmp_path, "sweep")
    live.publish("a", {"flying": {"abcdefgh17": (250, 1000, 0.125)}, "finished": 3, "grokked": 1})
    widths = (80, 120, 140)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SHOWN, str(live.path), *map(str, widths)]
    terminal = {**environment(), "TERM": "xterm"}
    with subprocess.Popen(command, env=terminal, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdin is not None
        for width in widths:
            screen = pyte.Screen(width, 24)
            stream = pyte.ByteStream(screen)
            while "val acc" not in "".join(screen.display) or "host/db" not in "".join(screen.display):
                stream.feed(os.read(ours, 65536))
            shown = " ".join(" ".join(screen.display).split())
            assert "23/2000 runs, 8 generalised, 1 failed, 1 in flight, " in shown
            assert re.search(r"runs/h, (about .* left|time left not known yet)", shown)
            assert re.search(r"seed 17 \S+ 250/1000 val acc 0\.125", shown)
            assert "a line beside the view \\x1b[2J postgresql://me:***@host/db " in shown
            process.stdin.write(b"\n")
            process.stdin.flush()
            while "val acc" in "".join(screen.display):  # the view takes its lines back
                stream.feed(os.read(ours, 65536))
            process.stdin.write(b"\n")
            process.stdin.flush()
    os.close(ours)
    assert process.returncode == 0
