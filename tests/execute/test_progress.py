"""What a sweep shows, how long it is, what its rows repeat, and its store in other tools."""

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grok.commands.compose import gpt_settings
from grok.commands.store import main as store_command
from grok.commands.words import presets
from grok.config import ArithmeticConfig, GptConfig
from grok.errors import ConfigError
from grok.execute.groups import prepare_runs
from grok.execute.live import LiveFolder
from grok.execute.plan import make_plan
from grok.execute.progress import ProgressView, Standing, plan_lines
from grok.execute.retry import Totals
from grok.execute.worker import refuse_unclean
from grok.gpt.schedules import Ramp
from grok.store import Provenance, StoreWriter, open_store
from grok.store.reader import OWNER
from grok.text.corpus import Corpus, open_corpus
from grok.text.preparation import Request, prepare
from tests.doors.conftest import TINY, Door, environment
from tests.gpt.test_sinks import scalars
from tests.store.contract import example_design, example_rows


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
    now = ProgressView(live, totals, {}, grokking=True).standing()
    assert (now.finished, now.grokked, now.failed, len(now.flying)) == (4, 2, 1, 1)
    live.retract("a")
    assert ProgressView(live, totals, {}, grokking=True).standing().finished == 2


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
labels = {**{str(n): f"seed {n}" for n in range(1999)}, "abcdefgh17": "seed 17"}
for columns in map(int, sys.argv[2:]):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with readable_output(), ProgressView(LiveFolder(Path(sys.argv[1])), totals, labels, grokking=True):
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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("data") / "fables"
    prepare(Request(form="fables", inputs=("60:0",), out=out, tokenizer="char"))
    return open_corpus(out)


def planned_steps(corpus: Corpus, *words: str) -> tuple[int, str]:
    preset = [] if words and words[0].startswith("experiment=") else ["experiment=gpt/shakespeare_char"]
    (run,) = prepare_runs([gpt_settings(["mode=gpt", *preset, f"data.path={corpus.path}", *words])])
    assert isinstance(run.config, GptConfig)
    return run.config.train.steps, run.run_id


def test_an_epoch_is_every_block_once(corpus: Corpus) -> None:
    blocks = (corpus.split("train")["tokens"] - 1) // 64
    steps, run_id = planned_steps(corpus, "train.epochs=2")
    assert steps == -(-2 * blocks // 12)
    assert planned_steps(corpus, f"train.steps={steps}") == (steps, run_id)


def test_at_random_offsets_an_epoch_is_every_start_once(corpus: Corpus) -> None:
    steps, _ = planned_steps(corpus, "train.epochs=1", "data.sampling=random")
    assert steps == -(-(corpus.split("train")["tokens"] - 64) // 12)


def test_tokens_heed_the_ramp_of_the_batch(corpus: Corpus) -> None:
    assert planned_steps(corpus, "train.tokens=7680")[0] == 10
    assert planned_steps(corpus, "train.tokens=7680", "train.batch_ramp=[4,4,40]")[0] > 10


def test_a_preset_leaves_the_length_to_the_command(corpus: Corpus) -> None:
    for name in presets():
        train = gpt_settings(["mode=gpt", f"experiment=gpt/{name}"]).train
        assert (train.epochs, train.tokens) == (None, None), name
    preset = "experiment=gpt/gpt_mini_v0"
    assert planned_steps(corpus, preset, "train.steps=100")[0] == 100
    assert planned_steps(corpus, preset, "train.tokens=1e6")[0] == -(-1_000_000 // (256 * 128))


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 5), st.integers(1, 300), st.integers(1, 3000))
def test_the_steps_of_a_ramp_are_the_first_that_consume_enough(
    first: int, increment: int, increments: int, samples: int, wanted: int
) -> None:
    ramp = Ramp(first, increment, samples, first + increments * increment)
    steps = ramp.steps(wanted)
    assert ramp.consumed(steps) >= wanted > ramp.consumed(steps - 1)


SETTINGS = {
    "layers, replicate and streams": [
        "seed=3,4", "seeds.layers={head:9,blocks.0.mlp:11}", "replicate=2", "seeds.order=77", "model.dropout=0.1",
        "seeds.dropout=123456789012345678", "perturb.ulps=3", "seeds.perturb=5",
    ],
    "numbers and choices": [
        "seed=5", "task.operation=x^2+xy+y^2+x", "optim.betas=[0.8,0.95]", "optim.lr=1e-05", "precision=float64",
        "seeds.split=1", "eval.shuffle=true", "eval.passes=2", "seeds.eval=9",
    ],
    "words": ["seed=6", "task.operation='x/y if y odd else x-y'", "save=init,final", "eval.couple_order=true"],
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[pytest.mark.slow] * (name == "words"), id=name) for name, words in SETTINGS.items()],
)
def test_the_command_in_a_row_gives_its_run_again(door: Door, tmp_path: Path, words: list[str]) -> None:
    assert door("-m", *TINY, *words, "store.path=S", "executor=inline").status == 0
    rows = open_store(tmp_path / "S").runs().set_index("run_id")
    for command in rows["rerun"]:
        python, option, module, *overrides = shlex.split(command)
        assert (python, option, module) == ("python", "-m", "grok.run")
        ended = door(*overrides, "store.path=again")
        assert ended.status == 0, ended
    again = open_store(tmp_path / "again").runs().set_index("run_id")
    assert again["weights_hash"].to_dict() == rows["weights_hash"].to_dict()
    assert rows["weights_hash"].notna().all()


def test_code_that_is_not_committed_is_refused_where_that_is_asked() -> None:
    """Also by a worker, which may run other code than its sweep; and where nobody can tell."""
    here, asked = Provenance.collect(), ArithmeticConfig(require_clean=True)
    plan = make_plan(prepare_runs([ArithmeticConfig()]), None)
    noted = [sum("git_dirty" in s for s in plan_lines(plan, None, replace(here, git_dirty=d))) for d in (True, False)]
    assert noted == [1, 0], "the plan says it before it trains"
    refuse_unclean(replace(here, git_commit="0" * 40, git_dirty=False), asked)
    for dirty, says in ((True, "not committed"), (None, "no git checkout")):
        with pytest.raises(ConfigError, match=says):
            refuse_unclean(replace(here, git_dirty=dirty), asked)
        refuse_unclean(replace(here, git_dirty=dirty), ArithmeticConfig())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with StoreWriter("S") as writer:
        written = writer.commit(example_rows(range(3))).written
        writer.record_design(example_design(written[1:], kind="branch", parent=written[0]))
    return "S"


def test_a_second_export_to_tensorboard_adds_only_what_is_missing(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    words = ["export", store, "--tensorboard", "tb"]
    assert store_command(words) == 0
    assert capsys.readouterr().out == "3 runs written\n"
    files = {file: file.read_bytes() for file in Path("tb").glob("*/*")}
    first, *others = sorted(files)
    before = scalars(first.parent)
    assert store_command(words) == 0
    assert capsys.readouterr().out == "0 runs written, 3 were there already\n"
    assert {file: file.read_bytes() for file in Path("tb").glob("*/*")} == files
    shutil.rmtree(first.parent)
    assert store_command(words) == 0
    assert capsys.readouterr().out == "1 runs written, 2 were there already\n"
    assert scalars(first.parent) == before and all(file.read_bytes() == files[file] for file in others)


def test_tensorboard_has_settings_seeds_outcome_and_the_store(store: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert store_command(["export", store, "--tensorboard", "tb"]) == 0
    curves = open_store(store).curves().set_index(["run_id", "step"])["val_loss"]
    children = set(open_store(store).designs().query("role == 'child'")["run_id"])
    for row in open_store(store).table("runs", None, None).to_pylist():
        events = EventAccumulator(f"tb/seed={row['seed']}-{row['run_id']}")
        events.Reload()
        settings = events.Tensors("run/settings/text_summary")[0].tensor_proto.string_val[0].decode()
        for name, value in (
            ("optim.lr", 0.001),
            ("seed", row["seed"]),
            ("seed_init", row["seed_init"]),
            ("store", Path(store).resolve()),
        ):
            assert f"| {name} | {value} |" in settings
        assert f"| design | {'branch child' if row['run_id'] in children else 'unknown'} |" in settings
        assert {e.step: e.value for e in events.Scalars("val/loss")} == pytest.approx(curves[row["run_id"]].to_dict())
        outcome = events.Tensors("run/outcome/text_summary")[0].tensor_proto.string_val[0].decode()
        assert "| status | completed |" in outcome and f"| seconds | {row['seconds']} |" in outcome
        if row["grokked_step"] is not None:
            assert events.Scalars("outcome/grokked_step")[0].value == row["grokked_step"]
