"""The documented commands, end to end, with the real engine and the real store; and the same from Python."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import grok
from grok.checkpoints import checkpoint_steps, load_weights, run_folder, save_checkpoint
from grok.commands.compose import values_of
from grok.config import RunConfig
from grok.execute import Outcome, worker
from grok.gpt.hf import load_hf_folder
from grok.gpt.training.engine import GptRun
from grok.gpt.training.stability import abandoned_id
from grok.records import Checkpoint
from grok.run import _as_words
from grok.store import open_store
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from tests.analysis.simulate import census, write
from tests.doors.conftest import SMALL_MODEL, TINY, Door, environment, lose_rows
from tests.doors.test_refusals import refused
from tests.execute.content import raw_run_ids
from tests.gpt.conftest import prepare_text, text_of
from tests.gpt.test_hf import their_model
from tests.gpt.test_stability import dirty as dirty  # the corpus with a spike in it

INLINE = "executor=inline"
FACTS = ["run_id", "trajectory_id", "config_id", "seed", "seed_init", "status", "steps", "weights_hash", "val_loss"]
"""Columns of a run that do not depend on where and when it was trained."""


def runs(store: Path) -> pd.DataFrame:
    return open_store(store).runs()


def rows(store: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return what the store says about its runs, times and hosts aside, and all curves."""
    opened = open_store(store)
    curves = opened.curves().drop(columns=["seconds"], errors="ignore")
    return opened.runs()[FACTS].to_dict("records"), json.loads(curves.to_json(orient="records", double_precision=15))


def test_a_single_run_is_stored(door: Door, tmp_path: Path) -> None:
    ended = door(*TINY, "seed=3")
    assert ended.status == 0, ended
    assert ended.last == "1 run stored in results/store (1 new). Report: grok report results/store"
    (row,) = runs(tmp_path / "results" / "store").to_dict("records")
    assert (row["seed"], row["status"], row["steps"]) == (3, "completed", 6)
    curve = open_store(tmp_path / "results" / "store").curves()
    assert curve["step"].tolist() == [3, 6]
    assert {entry.name for entry in tmp_path.iterdir()} == {"results"}, "no outputs/, no multirun/, no logs"


def test_a_sweep_twice_trains_once(door: Door, tmp_path: Path) -> None:
    words = ["-m", "seed=range(0,5)", *TINY, INLINE, "store.path=S"]
    first, before = door(*words), runs(tmp_path / "S")
    files = sorted((tmp_path / "S").rglob("*"))
    second = door(*words)
    assert (first.status, second.status) == (0, 0)
    assert first.out.startswith("5 planned, 0 stored, 0 duplicates, 5 to train")
    assert second.out.startswith("5 planned, 5 stored, 0 duplicates, 0 to train")
    assert second.last.startswith("5 runs stored in S (0 new).")
    pd.testing.assert_frame_equal(runs(tmp_path / "S"), before)
    assert sorted((tmp_path / "S").rglob("*")) == files, "a command that trains nothing writes nothing"
    assert sorted(raw_run_ids(tmp_path / "S")) == sorted(set(before["run_id"]))


@pytest.mark.parametrize("how", [(INLINE, "lanes=3"), pytest.param(("workers=2",), marks=pytest.mark.slow)])
def test_where_and_how_runs_are_trained_changes_nothing(door: Door, tmp_path: Path, how: tuple[str, ...]) -> None:
    sweep = ["-m", "seed=range(0,4)", *TINY]
    assert door(*sweep, *how, "store.path=S").status == 0
    assert door(*sweep, INLINE, "store.path=inline").status == 0
    assert rows(tmp_path / "S") == rows(tmp_path / "inline")


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        (["seeds.layers.head=range(0,16)"], [{"head": i} for i in range(16)]),
        (["seeds.layers.blocks.0.mlp=3,4"], [{"blocks.0.mlp": i} for i in (3, 4)]),
        (["seeds.layers.head=1,2", "seeds.layers.blocks.0=5"], [{"head": i, "blocks.0": 5} for i in (1, 2)]),
    ],
)
def test_a_layers_seed_is_ranged_by_its_name(
    door: Door, monkeypatch: pytest.MonkeyPatch, words: list[str], maps: list[dict[str, int]]
) -> None:
    asked: list[RunConfig] = []

    def take(configs: Sequence[RunConfig], *, argv: Sequence[str]) -> Outcome:
        asked.extend(configs)
        return Outcome(("run",) * len(configs), {}, {}, 0)

    monkeypatch.setattr("grok.execute.execute", take)
    assert door("-m", *TINY, *words).status == 0
    assert [config.seeds.layers for config in asked] == maps


def test_a_diverged_run_is_stored_and_counts_as_done(door: Door, tmp_path: Path) -> None:
    words = ["-m", "optim.lr=1e30,1e-3", *TINY, "optim.warmup_steps=0", INLINE, "store.path=S"]
    assert door(*words).status == 0
    assert sorted(runs(tmp_path / "S")["status"]) == ["completed", "diverged"]
    assert "2 stored (1 diverged)" in door(*words).out


def test_the_sweep_is_recorded_beside_the_data(door: Door, tmp_path: Path) -> None:
    door("-m", "seed=0,1", *TINY, INLINE, "store.path=S")
    (record,) = [json.loads(file.read_text()) for file in (tmp_path / "S" / "sweeps").glob("*.json")]
    assert record["argv"][:5] == ["python", "-m", "grok.run", "-m", "seed=0,1"]
    assert record["config"]["settings"]["train.steps"] == 6
    assert record["config"]["varying"] == ["seed"] and "seed" not in record["config"]["settings"]
    assert set(runs(tmp_path / "S")["sweep_id"]) == {record["sweep_id"]}


def test_two_thousand_seeds_are_planned_in_seconds_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from grok import run; "
        "assert run.main(['-m', 'seed=range(0,2000)', 'dry_run=true']) == 0; "
        "assert not {'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules), 'heavy imports'"
    )
    words, begun = [sys.executable, "-c", code], time.perf_counter()
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2000 planned, 0 stored, 0 duplicates, 2000 to train")
    assert time.perf_counter() - begun < 60  # 1.4 s on a free core; Hydra's own way takes more than 190


def test_a_run_killed_between_its_last_checkpoint_and_its_row_is_stored(door: Door, tmp_path: Path) -> None:
    words = ["seed=4", *TINY, "checkpoint.keep=true"]
    door(*words, "store.path=S")
    before = runs(tmp_path / "S")
    lose_rows("S")
    assert door(*words, "store.path=S").status == 0
    assert runs(tmp_path / "S")["weights_hash"].tolist() == before["weights_hash"].tolist()


def test_importing_it_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import grok; dir(grok); print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith("grok")] == ["grok", "grok.version"]
    assert not {"torch", "numpy", "pandas", "hydra"} & set(done.stdout.split())


def test_run_gives_the_row_that_the_command_stores(door: Door, tmp_path: Path) -> None:
    row = grok.run(*TINY, seed=3, store="mine, and only mine")
    assert (row["seed"], row["status"], row["steps"]) == (3, "completed", 6)
    assert door(*TINY, "seed=3", "store.path=command").status == 0
    stored = grok.open_store("command").runs().iloc[0]
    assert row["run_id"] == stored["run_id"]
    assert row["weights_hash"] == stored["weights_hash"]
    again = grok.run(*TINY, seed=3, store="mine, and only mine")
    pd.testing.assert_series_equal(again, row)


def test_sweep_gives_a_row_a_run_in_the_order_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = grok.sweep(*TINY, INLINE, seed=range(0, 3), optim__lr=[1e-3, 2e-3], optim__betas=[0.9, 0.95], store="S")
    assert rows["seed"].tolist() == [0, 0, 1, 1, 2, 2]
    assert rows["config.optim.lr"].tolist() == [1e-3, 2e-3] * 3
    assert set(rows["config.optim.betas"]) == {"[0.9,0.95]"}
    part = grok.sweep(*TINY, INLINE, "seed=2,1", "optim.lr=2e-3", "optim.betas=[0.9,0.95]", store=Path("S"))
    assert part["run_id"].tolist() == [rows["run_id"][5], rows["run_id"][3]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sed": 3}, "did you mean 'seed'"),
        ({"seed": []}, "seed=.* is empty"),
        ({"seed": object()}, "expected a number, text, or a list of them, not object"),
        ({"store": ""}, "store.path='' is empty"),
    ],
)
def test_what_the_command_refuses_is_refused(
    settings: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(grok.GrokError, match=message):
        grok.run(**settings)
    assert not list(tmp_path.iterdir())


def test_text_stays_text_and_numbers_may_be_given_as_text() -> None:
    given = {"store": "2024_11", "eval__prompt": ["1e3", "true", "x\\d+"], "optim__lr": "1e-3", "seed": "7"}
    words = _as_words({**given, "resume__run": "12345e67", "task__plugin": {"_target_": "a.b", "size": "1e3"}})
    assert values_of([word for word in words if "eval.prompt" not in word]) == {
        "store.path": "2024_11", "optim.lr": 1e-3, "seed": 7, "resume.run": "12345e67",
        "task.plugin": {"_target_": "a.b", "size": "1e3"},
    }  # fmt: skip
    assert words[1] == 'eval.prompt="1e3","true","x\\d+"'
    others = {
        "data__path": "my data",
        "seeds__layers": {"head": 1},
        "resume__run": None,
        "eval__metrics": [["a"], []],
    }
    assert _as_words(others) == [
        'data.path="my data"',
        "seeds.layers={head:1}",
        "resume.run=null",
        "eval.metrics=[a],[]",
    ]


def test_studies_of_a_store_are_data_frames(tmp_path: Path) -> None:
    studies = grok.studies(write(census(30, np.random.default_rng(5), steps=20_000, every=500), tmp_path / "S"))
    assert len(studies["census"].table("best_seeds")) > 0
    findings = studies["census"].findings.dropna(subset="value")
    assert ((findings["low"] <= findings["value"]) & (findings["value"] <= findings["high"])).all()
    assert set(studies.findings["study"]) >= {"census", "survival"}
    assert studies.overview.set_index("study")["answered"]["census"]
    assert studies["census"].table("no_such_table").empty


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    out = tmp_path / "fables"
    prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))
    return (*SMALL_MODEL, "train.steps=6", "train.batch_size=2", "eval.every=2", "save=none", f"data.path={out}")


def test_a_run_that_has_used_its_hours_continues_with_more(
    door: Door, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(GptRun, "seconds", lambda self: 3600.0 * self.step)
        for hours, step in ((2, 2), (2, 2), (5, 5)):
            paused = door(*words, f"train.hours={hours}", "store.path=S")
            assert paused.status == 1
            assert (
                f"train.hours={hours} is used at step {step} of 6: the same command with more train.hours" in paused.out
            )
            assert paused.out.splitlines()[-1].startswith("Paused: 0 of 1 run stored in S (0 new). Of run ")
            store = open_store(tmp_path / "S")
            (folder,) = store.layout.checkpoints.iterdir()
            assert len(store.runs()) == 0 and checkpoint_steps(folder)[0] == step
        assert door(*words, "store.path=S").status == 0
    assert door(*words, "train.hours=1000", "store.path=T").status == 0
    (ours,), (theirs,) = (open_store(tmp_path / s).runs().to_dict("records") for s in "ST")
    assert (ours["run_id"], ours["weights_hash"], ours["steps"]) == (theirs["run_id"], theirs["weights_hash"], 6)
    assert not checkpoint_steps(run_folder(tmp_path / "S", ours["run_id"]))


SHORT = ("optim.lr=1e-3", "train.steps=3", "train.batch_size=2", "train.threads=1", "eval.every=3", "eval.windows=2",
         "eval.sample_tokens=0", "numerics.compile=false", "log.quiet=true", "save=init,final")  # fmt: skip


@pytest.fixture
def from_hf(tmp_path: Path) -> tuple[str, ...]:
    """A command that goes on from the model in ``hf``, made by transformers; one of its options is unusual."""
    their_model(tmp_path / "hf", layer_norm_epsilon=1e-3)
    (tmp_path / "text").mkdir()
    corpus = prepare_text(tmp_path / "text", text_of(600))
    return ("mode=gpt", "init_from=hf", f"data.path={corpus.path}", "store.path=S", *SHORT)


def test_a_run_begins_with_their_weights(door: Door, tmp_path: Path, from_hf: tuple[str, ...]) -> None:
    assert door(*from_hf).status == 0
    (row,) = open_store("S").runs().to_dict("records")
    assert (row["config.model.layers"], row["config.model.context"], row["config.model.norm_eps"]) == (3, 32, 1e-3)
    theirs = dict(load_hf_folder(tmp_path / "hf").named_parameters())
    kept = load_weights(run_folder("S", row["run_id"]), "init")
    assert all(torch.equal(kept[name], w) for name, w in theirs.items())
    moved = load_weights(run_folder("S", row["run_id"]), "final")
    assert not torch.equal(moved["token_embedding.weight"], theirs["token_embedding.weight"])
    shutil.copytree("hf", "elsewhere")
    assert "1 stored" in door(*from_hf, "init_from=elsewhere", "dry_run=true").out
    assert door("--again", row["run_id"], "--store", "S").last.startswith("same bits")
    shutil.rmtree("hf")
    with torch.random.fork_rng():
        their_model(tmp_path / "hf", layer_norm_epsilon=1e-3, scale_attn_by_inverse_layer_idx=True)
    assert "0 stored" in door(*from_hf, "dry_run=true").out, "other weights under the same settings"


def test_fewer_positions_and_a_padded_vocabulary(door: Door, tmp_path: Path, from_hf: tuple[str, ...]) -> None:
    assert door(*from_hf, "model.context=16", "model.vocab_multiple=64").status == 0
    kept = load_weights(run_folder("S", open_store("S").runs().run_id[0]), "init")
    theirs = dict(load_hf_folder(tmp_path / "hf").named_parameters())
    assert torch.equal(kept["position_embedding.weight"], theirs["position_embedding.weight"][:16])
    assert kept["token_embedding.weight"].shape == (64, 64) and not kept["token_embedding.weight"][50:].any()


PRESET = ("mode=gpt", "experiment=gpt/shakespeare_char")


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpora") / "small_corpus"
    return prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))[0].path


def test_the_effective_difference_is_said(door: Door, small_corpus: Path) -> None:
    planned = ("dry_run=true", f"data.path={small_corpus}")
    assert door(*PRESET, *planned).out.splitlines()[0] == "gpt/shakespeare_char as the preset has it"
    changed = door(*PRESET, *planned, "optim.lr=2e-3", "model.dropout=0.1", "train.threads=1").out.splitlines()[0]
    assert changed == (
        "gpt/shakespeare_char with model.dropout=0.1 (preset 0.0), model.dropout_embedding=0.1 (preset 0.0), "
        "model.dropout_residual=0.1 (preset 0.0), model.dropout_attention=0.1 (preset 0.0), "
        "optim.lr=0.002 (preset 0.001), train.threads=1 (preset null)"
    )
    sweep = door(*PRESET, *planned, "-m", "seed=range(0,8)", "model.bias=true,false").out.splitlines()[0]
    assert sweep == "gpt/shakespeare_char with seed=8 values (preset 0), model.bias=true,false (preset false)"


def test_the_length_that_is_said_is_the_one_that_is_trained(door: Door, small_corpus: Path, tmp_path: Path) -> None:
    planned = (*PRESET, "dry_run=true", f"data.path={small_corpus}")
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
def test_a_shorter_run_is_gone_on_from_only_where_that_leaves_no_trace(door: Door, small_corpus: Path) -> None:
    """Kept weights are those of a run from its start: the best of its own evaluations, the average of its own steps."""
    words = (
        *SMALL_MODEL, f"data.path={small_corpus}", "store.path=S", "optim.schedule=constant", "train.batch_size=2",
        "checkpoint.keep=true",
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
    assert not goes_on(60, 4, "eval.average_share=0.1")  # which keeps another average
    assert not goes_on(60, 5, "train.early_stop=3", "save=none")


def test_a_run_that_diverged_is_gone_on_from_under_another_rate(door: Door, small_corpus: Path) -> None:
    """The good steps before a divergence are not lost, and its last words say how to use them."""
    words = (
        *SMALL_MODEL, f"data.path={small_corpus}", "store.path=S", "optim.schedule=constant", "optim.warmup_steps=100",
        "train.steps=200", "train.batch_size=4", "eval.every=200",
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
    assert door(*diverging, *words_to_use, "seeds.order=5", "resume.changes=[seeds.order]").status == 0
    children = open_store("S").designs().query("role == 'child'")
    assert children["redrawn"].tolist() == ["[]", '["order"]'] and set(children["from_step"]) == {int(first)}
