"""Code of one's own on the command line: planned, trained, changed, trained anew, read by others."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grok.analysis import show
from grok.analysis.answers import compile_report
from grok.analysis.observations import Observations
from grok.config import identify
from grok.config.arithmetic import METRICS
from grok.execute.groups import prepare_runs
from grok.plugins import Code, activate
from grok.store import open_store
from grok.sweeps import repeat
from tests.arithmetic.cases import tiny
from tests.doors.conftest import TINY, Door
from tests.plugins.conftest import Write
from tests.plugins.test_training import MINE

RUN = (*TINY[2:], "task.plugin._target_=mine.parity", "model.plugin._target_=mine.Perceptron", "task.plugin.bits=6",
       "eval.metric_plugins.norm._target_=mine.norm", "train.batch_size=12", "store.path=S")  # fmt: skip


@pytest.fixture(autouse=True)
def _mine(write: Write) -> None:
    write(mine=MINE)


def test_code_is_part_of_what_a_run_is_called(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = tiny()
    assert prepare_runs([plain])[0].identity == identify(plain)
    measured = tiny(eval={"metric_plugins": {"norm": {"_target_": "mine.norm"}}})
    moved = tiny(optim={"intervention": {"_target_": "mine.Doubled"}})
    before = [run.identity for run in prepare_runs([plain, measured, moved])]
    assert before[0].trajectory_id == before[1].trajectory_id, "a metric moves no weight"
    assert len({name.run_id for name in before}) == 3
    write(mine=MINE + "\n# changed")
    after = [run.identity for run in prepare_runs([plain, measured, moved])]
    assert before[0] == after[0]
    assert (before[1].run_id != after[1].run_id) and (before[1].trajectory_id == after[1].trajectory_id)
    assert before[2].trajectory_id != after[2].trajectory_id


def test_an_executor_of_ones_own_carries_the_groups(door: Door, write: Write) -> None:
    write(
        here="""
        from grok.execute.executors.base import InlineExecutor

        class Counting(InlineExecutor):
            def __init__(self, settings, workers, environment):
                super().__init__(settings)
            def submit(self, group, slot):
                print(f"group of {len(group.runs)}")
                return super().submit(group, slot)
        """
    )
    ended = door(*RUN, "-m", "seed=0,1", "executor=here.Counting")
    assert ended.status == 0, ended
    assert "group of " in ended.out
    assert "there is no module 'absent'" in door(*RUN, "seed=5", "executor=absent.Counting").err


def test_changed_code_trains_anew_and_says_why(door: Door, write: Write) -> None:
    assert door(*RUN, "executor=inline").status == 0
    write(mine=MINE.replace("width=16", "width=17"))
    ended = door(*RUN, "executor=inline")
    assert "1 planned, 0 stored, 0 duplicates, 1 to train" in ended.out
    assert "1 of them are stored with other code and train anew: changed is mine.Perceptron" in ended.out
    assert (
        "Plain path for 1 run: a table, a torch module or a function of your own is trained one lane at a time"
        in ended.out
    )
    assert len(open_store("S").run_ids()) == 2
    write(mine=MINE.replace("width=16", "width=18"))
    planned = door(*RUN, "executor=inline", "dry_run=true").out
    (line,) = [line for line in planned.splitlines() if "stored with other code" in line]
    assert re.search(r"^1 of them are stored .* mine\.Perceptron \(\w+ or \w+, now \w+\), mine\.norm \(\w+ or", line), (
        line
    )


def test_other_own_code_in_the_same_store_is_no_change(door: Door, write: Write) -> None:
    assert door(*RUN, "executor=inline").status == 0
    mask = "optim.intervention._target_=other.Keep"
    write(
        other="""
        class Keep:
            def __init__(self, parameters):
                self.state = {}

            def gradients(self, step, parameters, gradients):
                return gradients
        """
    )
    ended = door(*RUN, mask, "executor=inline", "dry_run=true")
    assert ended.status == 0 and "1 planned, 0 stored" in ended.out and "other code" not in ended.out


def test_a_longer_run_takes_no_curve_of_other_metrics(door: Door, write: Write) -> None:
    """Its weights would be the same, but its curve would have two measures under one name, or one from the joint on."""
    write(measure="def norm(moment): return {'two': 2.0}")
    words = (*TINY[2:], "eval.metric_plugins.norm._target_=measure.norm", "store.path=S", "checkpoint.keep=true")
    assert door(*words, "executor=inline").status == 0
    longer = (*words, "train.steps=40", "dry_run=true")
    assert "from the end of a shorter run" in door(*longer).out
    assert "from the end of a shorter run" not in door(*longer, f"eval.metrics=[{METRICS[0]}]").out
    write(measure="def norm(moment): return {'two': 3.0}")
    assert "from the end of a shorter run" not in door(*longer).out


@pytest.mark.parametrize(
    ("setting", "function", "status", "said"),
    [
        ("eval.metric_plugins.m", "if 1:", 2, "your own code would end the process at bye.py:4"),
        ("optim.intervention", "def bye(p):", 2, "your own code would end the process at bye.py:4"),
        ("log.plugin", "def bye(i, s):", 0, "log.plugin failed and is left out from here on (your own"),
        ("eval.metric_plugins.m", "def bye(m):", 1, "Stopped: eval.metric_plugins.m=bye.bye fails at bye.py:4, "),
    ],
)  # fmt: skip
def test_own_code_that_ends_the_process_is_an_error(
    door: Door, write: Write, setting: str, function: str, status: int, said: str
) -> None:
    write(bye=f"import sys\nif sys.argv:\n  {function}\n    sys.exit(0)")
    ended = door(*TINY, "-m", "seed=3,4", f"{setting}._target_=bye.bye", "store.path=S", "executor=inline")
    assert ended.status == status and said in ended.out + ended.err, ended


def test_a_crash_of_own_code_names_its_line(write: Write, tmp_path: Path) -> None:
    write(crash="import ctypes\ndef crash():\n    ctypes.string_at(0)")
    code = "from grok.commands.command import command; import crash; command()(lambda words: crash.crash())([])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV and 'crash.py", line 3 in crash' in ended.stderr


def test_a_store_is_read_where_the_code_is_missing_and_asks_to_train(
    door: Door, write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert door(*RUN, "executor=inline").status == 0
    (tmp_path / "mine.py").rename(tmp_path / "away.py")
    activate(Code())
    (run_id,) = open_store("S").run_ids()
    report = compile_report(Observations.read("S"))
    assert "mine.parity(bits=6)" in report.heading[0].text or report.provenance.runs == 1
    write(trap="raise SystemExit('imported')")
    for word in ((), ("task.plugin._target_=trap.f",)):
        ended = door("--again", run_id, "--store", "S", *word)
        assert ended.status == 2
        assert "name it again, task.plugin._target_=mine.parity model.plugin._target_=mine.Perceptron" in ended.err
    assert show.main([run_id, "--store", "S"]) == 0
    out = capfd.readouterr().out
    (tmp_path / "away.py").rename(tmp_path / "mine.py")
    (again,) = (line for line in out.splitlines() if line.startswith("compare its bits: "))
    assert door(*shlex.split(again.partition("grok run ")[2])).status == 0, "what it proposes runs as it stands"


def test_a_run_is_trained_again_where_its_code_is_named_again(door: Door, write: Write) -> None:
    assert door(*RUN, "executor=inline").status == 0
    (run_id,) = open_store("S").run_ids()
    named = [word for word in RUN if "_target_" in word]
    ended = door("--again", run_id, "--store", "S", *named)
    assert (ended.status, ended.last) == (0, "same bits: 2 evaluations and the hash of the final weights"), ended
    write(mine=MINE.replace("width=16", "width=17"))
    ended = door("--again", run_id, "--store", "S", *named)
    assert ended.status == 1
    assert "code of your own has changed since" in ended.out


def test_an_unfit_setting_is_refused_in_one_line(door: Door) -> None:
    for word, said in (
        ("task.plugin.bits=3", "names no code: expected task.plugin._target_=MODULE.NAME"),
        ("task.plugin=knot.knot", "your own code is named by task.plugin._target_=knot.knot"),
        ("eval.metric_plugins=knot.bits", "named by eval.metric_plugins.NAME._target_=knot.bits"),
        ("eval.metric_plugins.x=3", "expected eval.metric_plugins.NAME._target_=MODULE.NAME"),
        ("model.plugin._target_=mine.absent", "mine has no 'absent'"),
    ):
        ended = door(word, "dry_run=true")
        assert ended.status == 2 and said in ended.err and ended.err.count("\n") == 1, ended


def test_only_runs_of_this_code_are_repeated(write: Write, door: Door, capfd: pytest.CaptureFixture[str]) -> None:
    assert door(*RUN, "-m", "seed=0,1,2,3", "executor=inline").status == 0
    words = ["--best", "1", "--controls", "1", "store.path=S", "task.plugin={_target_:mine.parity,bits:6}",
             "model.plugin={_target_:mine.Perceptron}",
             "eval.metric_plugins={norm:{_target_:mine.norm}}", "dry_run=true"]  # fmt: skip
    assert repeat.main(words) == 0
    assert "1 candidates" in capfd.readouterr().out
    write(mine=MINE + "\n# changed")
    assert repeat.main(words) == 2
    assert "trained with other code under the same name" in capfd.readouterr().err
