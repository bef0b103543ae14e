"""What ``grok.run`` says and refuses in ``mode=gpt``: how far a command goes from its preset, data it cannot use."""

import re
from pathlib import Path

import pytest

from grok.checkpoints import checkpoint_steps, run_folder, save_checkpoint
from grok.execute import worker
from grok.gpt.training.stability import abandoned_id
from grok.records import Checkpoint
from grok.store import open_store
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from tests.doors.conftest import Door
from tests.doors.test_refusals import refused
from tests.gpt.test_stability import dirty as dirty  # the corpus with a spike in it

PRESET = ("mode=gpt", "experiment=gpt/shakespeare_char")


@pytest.fixture(scope="module")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))[0].path


def test_the_effective_difference_is_said(door: Door, fables: Path) -> None:
    """What the runs have that their preset has not, derived settings included, sweeps and paths left short."""
    planned = ("dry_run=true", f"data.path={fables}")
    assert door(*PRESET, *planned).out.splitlines()[0] == "gpt/shakespeare_char as the preset has it"
    changed = door(*PRESET, *planned, "optim.lr=2e-3", "model.dropout=0.1", "train.threads=1").out.splitlines()[0]
    assert changed == (
        "gpt/shakespeare_char with model.dropout=0.1 (preset 0.0), model.dropout_embedding=0.1 (preset 0.0), "
        "model.dropout_residual=0.1 (preset 0.0), model.dropout_attention=0.1 (preset 0.0), "
        "optim.lr=0.002 (preset 0.001), train.threads=1 (preset null)"
    )
    sweep = door(*PRESET, *planned, "-m", "seed=range(0,8)", "model.bias=true,false").out.splitlines()[0]
    assert sweep == "gpt/shakespeare_char with seed=8 values (preset 0), model.bias=true,false (preset false)"


def test_the_length_that_is_said_is_the_one_that_is_trained(door: Door, fables: Path, tmp_path: Path) -> None:
    planned = (*PRESET, "dry_run=true", f"data.path={fables}")
    said = door(*planned, "train.tokens=7680").out.splitlines()[0]
    assert "train.steps=10 (preset " in said and "train.tokens=7680" in said
    for length in ("train.tokens=7680", "train.epochs=0.01"):
        refused(door(*planned, "train.steps=7", length), says=["train.steps=7 and " + length], folder=tmp_path)


@pytest.mark.slow
def test_an_abandoned_branch_is_stored_before_a_checkpoint_forgets_it(
    door: Door, dirty: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed at any moment after a rollback leaves both branches, however late its store is flushed."""
    seen = []

    def look_and_keep(store: str, checkpoint: Checkpoint, keep: int) -> None:
        stored = open_store(store).run_ids()
        for number in range(1, checkpoint.state["tries"] + 1):
            seen.append(abandoned_id(checkpoint.run_id, number) in stored)
        save_checkpoint(Path(store) / "checkpoints" / checkpoint.run_id, checkpoint)

    monkeypatch.setattr(worker, "keep_checkpoint", look_and_keep)
    ended = door(
        *PRESET, f"data.path={dirty.path}", "store.path=S", "store.flush_seconds=30", "checkpoint.every=1",
        "model.layers=2", "model.d_model=24", "model.heads=3", "model.context=16", "optim.lr=1e-2",
        "optim.schedule=constant", "optim.warmup_steps=4", "train.steps=250", "train.batch_size=2", "train.threads=1",
        "eval.every=250", "eval.sample_tokens=0", "stability.policy=cut_lr", "stability.spike=0.8",
        "stability.sigma=4", "stability.window=16", "stability.snapshot_every=8", "stability.margin=4",
        "stability.tries=1", "log.quiet=true",
    )  # fmt: skip
    assert ended.status == 0 and len(seen) > 0 and all(seen)
    assert {"rolled_back"} < set(open_store("S").statuses().values())


@pytest.mark.slow
def test_a_shorter_run_is_gone_on_from_only_where_that_leaves_no_trace(door: Door, fables: Path) -> None:
    """Kept weights are those of a run from its start: the best of its own evaluations, the average of its own steps."""
    words = (
        *PRESET, f"data.path={fables}", "store.path=S", "model.layers=1", "model.d_model=16", "model.heads=2",
        "model.context=16", "optim.schedule=constant", "train.batch_size=2", "train.threads=1", "eval.windows=2",
        "eval.sample_tokens=0", "checkpoint.keep=true", "log.quiet=true",
    )  # fmt: skip

    def goes_on(steps: int, every: int, *more: str) -> bool:
        planned = door(*words, f"train.steps={steps}", f"eval.every={every}", "dry_run=true", *more).out
        assert "1 to train" in planned
        return "from the end of a shorter run" in planned

    for every in (4, 5):
        assert door(*words, "train.steps=12", f"eval.every={every}").status == 0
    assert goes_on(60, 4)
    assert not goes_on(60, 5)  # its evaluation at step 12 is none of the longer run's
    assert goes_on(60, 5, "save=none")  # and leaves no trace where no weights are kept
    assert not goes_on(14, 4)  # whose average begins before step 12
    assert goes_on(14, 4, "eval.average_share=0")
    assert not goes_on(60, 5, "train.early_stop=3", "save=none")


def test_a_run_that_diverged_is_gone_on_from_under_another_rate(door: Door, fables: Path) -> None:
    """The good steps before a divergence are not lost, and its last words say how to use them."""
    words = (
        *PRESET, f"data.path={fables}", "store.path=S", "model.layers=1", "model.d_model=16", "model.heads=2",
        "model.context=16", "optim.schedule=constant", "optim.warmup_steps=100", "train.steps=200",
        "train.batch_size=4", "train.threads=1", "eval.every=200", "eval.windows=2", "eval.sample_tokens=0",
        "log.quiet=true",
    )  # fmt: skip
    diverging = (*words, "optim.lr=10", "checkpoint.every=10")
    ended = door(*diverging)
    (run,) = open_store("S").runs().to_dict("records")
    assert (run["status"], run["stop_reason"]) == ("diverged", "spike")
    said = re.search(r"its checkpoints of step (\d+) and (\d+) are kept: go on with (\S+) (\S+) and", ended.err)
    assert said is not None
    assert f"diverged (spike) after {run['steps']} steps" in ended.err  # quiet or not
    first, last, *words_to_use = said.groups()
    assert 10 < int(first) + 10 == int(last) <= run["steps"]
    assert words_to_use == [f"resume.run={run['run_id']}", f"resume.step={first}"]

    assert door(*diverging).status == 0  # the same command again takes nothing away
    assert checkpoint_steps(run_folder("S", run["run_id"])) == [int(last), int(first)]
    again = (*words, "optim.lr=0.1", *words_to_use)
    assert "optim.lr: checkpoint 10.0, now 0.1" in door(*again).err + door(*again).out
    assert door(*again, "resume.changes=[optim.lr]").status == 0
    runs = open_store("S").runs().set_index("status")
    branch = runs.loc["completed"]
    assert (branch.parent_run_id, branch.branch_step, branch.steps) == (run["run_id"], int(first), 200)
