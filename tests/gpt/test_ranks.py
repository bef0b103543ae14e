"""Several processes that share each batch equal one: DDP and FSDP2, their checkpoints, and another number of them."""

import json
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from grok import hf
from grok.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.errors import ConfigError
from grok.execute.sweep import refuse_unsharable
from grok.gpt.costs import count_parameters, layout
from grok.gpt.parts import draw_masks
from grok.gpt.schedules import pieces
from grok.gpt.training.checkpoint import from_checkpoint
from grok.processes import Rank
from grok.records import RunResult
from grok.streams import Stream
from grok.text.corpus import open_corpus
from tests.doors.conftest import environment
from tests.gpt.conftest import Build, prepare_text, result_of, run, small, stopped, text_of
from tests.gpt.faults import FAULTS, SMALL, injected, settings_of

TIMINGS = ("tokens_per_second", "mfu", "peak_memory", "data_wait")
BOTH: dict[str, Any] = {"train__micro_batch": 3, "model__dropout": 0.1, "optim__clip": 0.3}
"""Two micro-batches a step: a sum of two terms has one value, whoever adds."""
FROM_ONE = "fsdp from one"
FAULTY = ("nan_batch", "damaged_checkpoint", "corrupted_batch", "bit_flip", "stalls")
"""Failures that are also injected into two processes."""
SHARED: dict[str, Any] = {**BOTH, "train__parallel": "fsdp"}
ROLLS_BACK: dict[str, Any] = {
    **SHARED, "stability__policy": "skip_data", "stability__snapshot_every": 2, "checkpoint__every": 3,
}  # fmt: skip
"""Its checkpoints have states that a rollback may return to."""


COUNTED: dict[str, dict[str, Any]] = {
    f"{rounds} micro-batches, keeps {keeps}": {
        "train__parallel": f"fsdp-{keeps}".removesuffix("-gradients"), "train__batch_size": 4,
        "train__micro_batch": 2 // rounds, "train__steps": 3, "model__layers": 3,
    }
    for rounds in (1, 2)
    for keeps in ("nothing", "gradients", "weights")
}  # fmt: skip
"""Runs in shares whose traffic is counted: one or two micro-batches for each process."""


def together(folder: Path, runs: list[dict[str, Any]], processes: int = 2) -> dict[str, Any]:
    """Train ``runs`` by ``processes`` processes of torchrun's agent; return their results by name."""
    listed, out = folder / "runs.json", folder / "results.json"
    listed.write_text(json.dumps([{**r, "config": asdict(r["config"])} for r in runs]))
    command = [sys.executable, "-m", "tests.gpt.together", str(listed), str(out), str(processes)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    results: dict[str, Any] = json.loads(out.read_text())
    return results


def described(result: RunResult) -> dict[str, Any]:
    curve, log = ([asdict(p) for p in points] for points in (result.curve, result.step_log))
    return {"weights_hash": result.weights_hash, "curve": curve, "step_log": log}


def to_the_bit(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two runs are equal in all but wall time."""

    def without_times(run: dict[str, Any]) -> str:
        log = [{n: v for n, v in p.items() if n not in TIMINGS} for p in run["step_log"]]
        return repr((run["weights_hash"], run["curve"], log))

    return without_times(a) == without_times(b)


def to_rounding(a: dict[str, Any], b: dict[str, Any], rel: float = 1e-4) -> bool:
    """Return whether two runs saw the same data with losses, norms and scores equal to rounding."""
    assert [p["step"] for p in a["step_log"]] == [p["step"] for p in b["step_log"]]
    for p, q in zip(a["step_log"], b["step_log"], strict=True):
        for name in ("train_loss", "grad_norm", "param_norm", "adam_v_l1", "adam_v_max"):
            assert q[name] == pytest.approx(p[name], rel=rel), (name, p["step"])
        assert (p["consumed_samples"], p["event"], p["lr"]) == (q["consumed_samples"], q["event"], q["lr"])
    for p, q in zip(a["curve"], b["curve"], strict=True):
        assert q["val_loss"] == pytest.approx(p["val_loss"], rel=rel)
        assert q["block_norms"] == pytest.approx(p["block_norms"], rel=rel)
    return True


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build small settings for a whole module."""
    corpus = prepare_text(tmp_path_factory.mktemp("text"), text_of(4000))
    return lambda **changes: small(corpus.path, **{"eval__sample_tokens": 4, "save": "final", **changes})


@pytest.fixture(scope="module")
def results(build: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs of two processes, all in one launch, and a checkpoint of one process that they go on from."""
    folder = tmp_path_factory.mktemp("together")
    save_checkpoint(folder / "one", stopped(build(**BOTH), 5))
    runs: list[dict[str, Any]] = [
        {"name": "ddp, first half", "config": build(**BOTH), "stop_at": 5, "checkpoint": str(folder / "ddp")},
        {"name": "ddp", "config": build(**BOTH), "resume": str(folder / "ddp")},
        {"name": "fsdp, first half", "config": build(**SHARED), "stop_at": 5, "checkpoint": str(folder / "fsdp")},
        {"name": "fsdp", "config": build(**SHARED), "resume": str(folder / "fsdp")},
        {"name": "ddp from fsdp", "config": build(**BOTH), "resume": str(folder / "fsdp")},
        {"name": "parts, first half", "config": build(**ROLLS_BACK), "stop_at": 7, "checkpoint": str(folder / "parts")},
        {
            "name": "parts",
            "config": build(**ROLLS_BACK),
            "resume": str(folder / "parts"),
            "checkpoint": str(folder / "parts, second half"),
        },
    ]
    return {**together(folder, runs), "folder": folder}


@pytest.fixture(scope="module")
def more_results(build: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs of two processes whose paths the runs of ``results`` take in part: those of slow tests."""
    folder = tmp_path_factory.mktemp("together, slow")
    save_checkpoint(folder / "one", stopped(build(**BOTH), 5))
    runs: list[dict[str, Any]] = [
        {"name": "documents, ddp", "config": documents(build, folder / "ddp data")},
        {"name": "documents, fsdp", "config": documents(build, folder / "fsdp data", train__parallel="fsdp")},
        {"name": FROM_ONE, "config": build(**SHARED), "resume": str(folder / "one")},
        {"name": "one micro-batch", "config": build(model__dropout=0.1)},
        {"name": "corrupted_batch, fsdp", "config": faulty(build, "corrupted_batch", parallel="fsdp")},
    ]
    runs += [{"name": name, "config": build(**changes), "count": True} for name, changes in COUNTED.items()]
    for name in FAULTY:
        (folder / name / "checkpoints").mkdir(parents=True)
        fault = {"store": str(folder / name), "damaged": FAULTS[name].damaged}
        runs.append({"name": name, "config": faulty(build, name, micro_batch=2), **fault})
    return together(folder, runs)


def faulty(build: Build, name: str, **train: Any) -> Any:
    """Return the settings of a run into which the failure ``name`` is injected."""
    settings = settings_of(name, str(build().data.path))
    settings["train"] |= train
    return load_config(settings)


def documents(build: Build, folder: Path, **changes: Any) -> GptConfig:
    """Return settings that mix two corpora of short documents, masked, with a validation set more."""
    corpora = []
    for seed in (1, 2):
        (folder / str(seed)).mkdir(parents=True)
        text = "<|endoftext|>".join(text_of(n, seed + 10 * n) for n in range(3, 60))
        corpora.append(str(prepare_text(folder / str(seed), text, tokenizer="byte").path))
    data = {"path": corpora[0], "corpora": {"other": corpora[1]}, "mixture": {"main": 1, "other": 3},
            "validation": ["other"], "document_mask": True}  # fmt: skip
    return build(**{f"data__{name}": value for name, value in data.items()}, train__micro_batch=3, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_mixture_of_documents_is_that_of_one_process(
    build: Build, more_results: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    alone = described(result_of(run(documents(build, tmp_path))))
    both = more_results[f"documents, {kind}"]
    assert to_rounding(alone, both)
    for ours, theirs in zip(alone["curve"], both["curve"], strict=True):
        assert theirs["metrics"] == pytest.approx(ours["metrics"], rel=1e-4)
        assert ours["metrics"].keys() == {"val_loss.other", "val_acc.other"}


def test_two_processes_equal_one_to_the_bit(build: Build, results: dict[str, Any]) -> None:
    alone = result_of(run(build(**BOTH)))
    both = results["ddp"]
    assert to_the_bit(described(alone), both)
    assert both["numerics"] == alone.numerics.replace("micro=3", "micro=3;devices=2")
    assert both["kept"] == {moment: sorted(tensors) for moment, tensors in alone.tensors.items()}


@pytest.mark.slow
def test_the_rows_of_one_micro_batch_are_shared_with_their_dropout(build: Build, more_results: dict[str, Any]) -> None:
    alone = described(result_of(run(build(model__dropout=0.1))))
    assert to_rounding(alone, more_results["one micro-batch"])


@pytest.mark.parametrize("name", ["fsdp", "ddp from fsdp", "parts", pytest.param(FROM_ONE, marks=pytest.mark.slow)])
def test_shares_equal_the_whole(build: Build, request: pytest.FixtureRequest, name: str) -> None:
    alone = described(result_of(run(build(**BOTH))))
    made = request.getfixturevalue("more_results" if name == FROM_ONE else "results")[name]
    assert to_rounding(alone, made)
    assert made["kept"].keys() == {"final", "best", "average"}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_the_planner_knows_the_traffic_of_shares(more_results: dict[str, Any], build: Build, name: str) -> None:
    config = build(**COUNTED[name])
    vocab_size = open_corpus(str(config.data.path)).vocab_size
    micro_batch, n = config.train.micro_batch or 0, count_parameters(config.model, vocab_size)
    planned = layout(config, n, 2, micro_batch, on_cpu=True)
    made = more_results[name]
    assert made["sent"] == pytest.approx([planned.traffic] * 3, rel=0.01)  # an odd vocabulary is padded
    assert to_rounding(described(result_of(run(config))), made)


@pytest.mark.slow
def test_a_rollback_in_shares_is_that_of_one_process(build: Build, more_results: dict[str, Any]) -> None:
    with injected():
        alone = result_of(run(faulty(build, "corrupted_batch", parallel="fsdp")))
    assert to_rounding(described(alone), more_results["corrupted_batch, fsdp"])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_two_processes_survive_a_fault(more_results: dict[str, Any], name: str) -> None:
    fault, end = FAULTS[name], more_results[name]
    assert (end["status"], end["steps"]) == ("completed", SMALL["train"]["steps"])
    *abandoned, own = end["branches"]
    assert [reason for reason, _ in abandoned] == [fault.event] * fault.rollbacks and own == ["steps", None]
    if fault.back_to is not None:
        assert abandoned[-1][1] == fault.back_to


def test_a_checkpoint_in_shares_is_read_by_one_process(build: Build, results: dict[str, Any]) -> None:
    folder = results["folder"] / "fsdp"
    assert len(list(folder.glob("*-step-5/shards/*.safetensors"))) == 2
    checkpoint, ours = load_checkpoint(folder), load_checkpoint(results["folder"] / "one")
    assert {n: (t.dtype, t.shape) for n, t in checkpoint.tensors.items()} == {
        n: (t.dtype, t.shape) for n, t in ours.tensors.items()
    }
    went_on = described(result_of(run(build(**BOTH), checkpoint)))
    assert to_rounding(described(result_of(run(build(**BOTH)))), went_on)


def test_torch_opens_a_checkpoint_in_shares(results: dict[str, Any], tmp_path: Path) -> None:
    folder = results["folder"] / "fsdp"
    assert hf.main(["export", str(folder), "--for", "torch", "--out", str(tmp_path / "dcp")]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that only one process reads
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "one.pt")
    opened = torch.load(tmp_path / "one.pt", weights_only=True)
    now, _ = from_checkpoint(load_checkpoint(folder))
    assert opened.keys() == now.tensors.keys() and any(name.startswith("optim.exp_avg.") for name in opened)
    assert all(torch.equal(opened[name], tensor) for name, tensor in now.tensors.items())


def test_checkpoints_in_shares_have_their_common_states_once(build: Build, results: dict[str, Any]) -> None:
    folder = results["folder"] / "parts"
    assert checkpoint_steps(folder) == [7, 6, 3]
    files = list(folder.glob("*/part-*/shard-*.safetensors"))
    assert len(files) == 2 * (4 + 3 + 2) and len({path.stat().st_ino for path in files}) == 2 * 4
    checkpoint = load_checkpoint(folder)
    alone = stopped(build(**ROLLS_BACK | {"train__parallel": "ddp"}), 7)
    (now, kept), (now_alone, kept_alone) = map(from_checkpoint, (checkpoint, alone))
    for ours, theirs in zip([now, *kept], [now_alone, *kept_alone], strict=True):
        assert ours.step == theirs.step
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(torch.allclose(t, theirs.tensors[n], atol=1e-5) for n, t in ours.tensors.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"train__micro_batch": 1},
        {"train__batch_ramp": [4, 1, 40], "train__micro_batch": 2},
        {"train__micro_batch": 2, "numerics__compile": True, "train__batch_size": 8},
        {"train__micro_batch": 2, "numerics__compile": True, "train__batch_size": 8, "train__parallel": "fsdp"},
        {"train__micro_batch": 2, "train__parallel": "fsdp", "model__positions": "rotary", "model__tied": False},
    ],
    ids=["more micro-batches", "ramp", "compiled", "compiled in shares", "in shares, rotary"],
)
def test_four_processes_equal_one_to_rounding(build: Build, tmp_path: Path, changes: dict[str, Any]) -> None:
    alone = described(result_of(run(build(model__dropout=0.1, **changes))))
    runs = [{"name": "four", "config": build(model__dropout=0.1, **changes)}]
    assert to_rounding(alone, together(tmp_path, runs, 4)["four"])


@pytest.mark.slow
def test_three_processes_resume_to_equal_bits(build: Build, tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "ddp": {}, "ddp, two micro-batches each": {"train__micro_batch": 1}, "fsdp": {"train__parallel": "fsdp"},
        "fsdp, two micro-batches each": {"train__micro_batch": 1, "train__parallel": "fsdp"},
    }  # fmt: skip
    runs: list[dict[str, Any]] = []
    for name, changes in kinds.items():
        config = build(model__dropout=0.1, model__d_model=48, **changes)
        runs += [
            {"name": f"{name}, whole", "config": config},
            {"name": f"{name}, half", "config": config, "stop_at": 5, "checkpoint": str(tmp_path / name)},
            {"name": name, "config": config, "resume": str(tmp_path / name)},
        ]
    made = together(tmp_path, runs, 3)
    assert [name for name in kinds if not to_the_bit(made[f"{name}, whole"], made[name])] == []
    sums = {name: made[name]["numerics"].partition("sums=")[2].partition(";")[0] for name in kinds}
    assert list(sums.values()) == ["fixed", "fixed", "", "once"]


@given(rows=st.integers(1, 40), micro=st.integers(1, 40), ranks=st.integers(1, 9))
def test_pieces_are_the_batch(rows: int, micro: int, ranks: int) -> None:
    cut = pieces(rows, micro, ranks)
    assert [row for piece in cut for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(piece.rows > 0 for piece in cut)
    assert all(piece.micro.start <= piece.start < piece.stop <= piece.micro.stop for piece in cut)
    assert len(cut) >= min(ranks, rows)
    assert [p.micro for p in pieces(rows, micro)] == [slice(p.start, p.stop) for p in pieces(rows, micro)]


def test_masks_of_rows_are_those_of_the_whole(build: Build) -> None:
    config, stream = build(model__dropout=0.3).model, Stream("dropout", 3).at(1, 0)
    device = torch.device("cpu")
    whole = draw_masks(config, 6, 16, stream=stream, device=device)
    part = draw_masks(config, 6, 16, stream=stream, device=device, rows=slice(2, 5))
    assert all(torch.equal(part[name], mask[2:5]) for name, mask in whole.items())


@pytest.mark.parametrize(
    ("changes", "rank", "said"),
    [
        ({}, Rank(0, 8), "train.batch_size of 6 cannot be shared by 8 processes"),
        ({"train__batch_ramp": [2, 1, 10]}, Rank(1, 4), "first batch of 2 cannot be shared by 4"),
        ({**SHARED, "optim__kind": "adamw8bit"}, Rank(0, 2), "bitsandbytes cannot shard its moments"),
    ],
)
def test_what_processes_cannot_share_is_refused(build: Build, changes: dict[str, Any], rank: Rank, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_unsharable([build(**changes)], rank)
