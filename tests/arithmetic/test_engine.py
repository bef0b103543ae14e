"""What must hold of every run: its bits depend on its own settings and on nothing beside it."""

import functools
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from grok.arithmetic.model import Transformer
from grok.arithmetic.run import ArithmeticRun
from grok.arithmetic.task import FIRST_NUMBER, Vocabulary, split
from grok.arithmetic.weights import initial_parameters
from grok.config import ArithmeticConfig
from grok.errors import CheckpointError
from grok.records import Checkpoint, Progress, RunResult
from grok.streams import STREAMS
from tests.arithmetic import cases


def plain_torch_run(config: ArithmeticConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train the readable model with torch.optim.AdamW: every step's loss, and the final parameters."""
    vocabulary = Vocabulary.of(config.task)
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    model = Transformer(config.model, vocab_size=vocabulary.size, length=vocabulary.length).to(dtype)
    model.load_state_dict(initial_parameters(config, dtype))
    optim = config.optim
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=tuple(optim.betas), weight_decay=optim.weight_decay, eps=optim.eps
    )
    train_set, _ = split(config.task, config.stream_seeds().split)
    order = ArithmeticRun(cases.jobs(config)[0]).order
    losses = []
    for step in range(1, config.train.steps + 1):
        index = order.batch(step)
        numbers = {"a": train_set.a[index] + FIRST_NUMBER, "b": train_set.b[index] + FIRST_NUMBER}
        columns = [
            torch.from_numpy(numbers[w]) if isinstance(w, str) else torch.full((len(index),), w)
            for w in vocabulary.layout
        ]
        logits = model(torch.stack(columns, 1))[:, -1]
        loss = F.cross_entropy(logits, torch.from_numpy(train_set.answer[index]) + FIRST_NUMBER)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = optim.lr * min(1.0, step / max(optim.warmup_steps, 1))
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: p.detach() for n, p in model.named_parameters()}


@pytest.mark.parametrize("over", [{}, {"optim": {"warmup_steps": 0, "weight_decay": 1.0}}, {"model": {"norm": "pre"}}])
def test_a_run_equals_the_plain_loop_in_float64(over: dict[str, Any]) -> None:
    config = cases.tiny(precision="float64", save="final", eval={"every": 1}, **over)
    (found,) = cases.results(config)
    losses, parameters = plain_torch_run(config)
    assert [p.train_loss for p in found.curve] == pytest.approx(losses, rel=1e-10, abs=1e-12)
    for name, expected in parameters.items():
        assert (found.tensors["final"][name] - expected).abs().max() < 1e-9


@functools.cache
def run_alone() -> RunResult:
    return cases.results(cases.tiny(seed=9))[0]


neighbours = st.lists(st.integers(0, 20), min_size=0, max_size=3)


@given(
    neighbours=neighbours,
    lanes=st.integers(1, 4),
    every=st.integers(1, 40),
    schedule=st.sampled_from(["every", "log"]),
    passes=st.integers(1, 2),
    shuffle=st.booleans(),
    sample=st.integers(0, 5),
    place=st.integers(0, 3),
)
@settings(max_examples=8, deadline=None)
def test_nothing_beside_a_run_moves_its_bits(
    neighbours: list[int], lanes: int, every: int, schedule: str, passes: int, shuffle: bool, sample: int, place: int
) -> None:
    alone = run_alone()
    looked_at = cases.tiny(
        seed=9,
        seeds={"eval": sample, "sample": sample},
        eval={"every": every, "schedule": schedule, "passes": passes, "shuffle": shuffle},
    )
    others = [cases.tiny(seed=s, train={"steps": 5 + s}) for s in neighbours]
    place = min(place, len(others))
    found = cases.results(*others[:place], looked_at, *others[place:], lanes=lanes)[place]
    assert found.weights_hash == alone.weights_hash
    expected, seen = cases.curve(alone), cases.curve(found)
    assert 24 in seen
    for step in expected.keys() & seen.keys():
        assert seen[step] == expected[step]


def test_a_stream_moves_a_run_that_reads_it_and_no_other() -> None:
    seeds: list[dict[str, int]] = [{}, *({stream: 1} for stream in STREAMS)]
    plain, drawing = (
        [result.weights_hash for result in cases.results(*[cases.tiny(seeds=one, **over) for one in seeds])]
        for over in ({}, {"model": {"dropout": 0.2}, "perturb": {"ulps": 1}})
    )
    moved = [{s for s, end in zip(STREAMS, ends[1:], strict=True) if end != ends[0]} for ends in (plain, drawing)]
    assert moved == [{"split", "init", "order"}, set(STREAMS) - {"eval", "sample"}]


def test_no_global_generator_is_used(no_global_randomness: None) -> None:
    over: dict[str, Any] = {"model": {"dropout": 0.1}, "eval": {"shuffle": True}, "perturb": {"ulps": 1}}
    assert len(cases.results(cases.tiny(task={"label_noise": 0.1}, **over), cases.tiny(seed=1, **over))) == 2


RESUMED: list[dict[str, Any]] = [
    {},
    {"model": {"dropout": 0.2}},
    {"optim": {"grokfast": "ema"}},
    {"precision": "float64"},
    {"train": {"stop_when_generalised": True, "stop_horizon": 4, "stop_every": 4}, "task": {"train_fraction": 0.9}},
    {"optim": {"grokfast": "ma", "grokfast_window": 5}},  # which no stack does
]


@functools.cache
def whole_and_stops(engine: cases.Engine, over: str) -> tuple[RunResult, dict[int, Checkpoint]]:
    """Return a run that was never stopped, and its checkpoints by step; ``over`` is JSON."""
    (whole,) = cases.results(cases.tiny(**json.loads(over)), engine=engine)
    stops = cases.checkpoints(cases.tiny(checkpoint={"every": 1}, **json.loads(over)), engine=engine)
    return whole, {checkpoint.step: checkpoint for checkpoint in stops}


@pytest.mark.parametrize("at", [7, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 16))])
@pytest.mark.parametrize(
    ("engine", "over"),
    [
        pytest.param(engine, over, marks=[pytest.mark.slow] * (n > 2))
        for engine, kinds in ((cases.looped, RESUMED), (cases.stacked, RESUMED[:-1]))
        for n, over in enumerate(kinds)
    ],
)
def test_resuming_equals_never_having_stopped(engine: cases.Engine, over: dict[str, Any], at: int) -> None:
    whole, stops = whole_and_stops(engine, json.dumps(over))
    event = cases.resumed(cases.tiny(**over), stops[at], engine=engine)
    assert event.weights_hash == whole.weights_hash
    assert event.curve == whole.curve
    assert event.stop_reason == whole.stop_reason


@cases.ENGINES
def test_a_resumed_run_keeps_its_early_stop_and_its_clock(engine: cases.Engine) -> None:
    config = cases.tiny(**cases.STOPS_AT_40, checkpoint={"every": 30})
    checkpoint = cases.checkpoints(config, engine=engine)[0]
    assert checkpoint.step == 30
    checkpoint.state["seconds"] = 5000.0
    (whole,), event = cases.results(config, engine=engine), cases.resumed(config, checkpoint, engine=engine)
    for found in (whole, event):
        assert (found.stop_reason, found.steps) == ("generalised", 40)
    assert 5000 < event.seconds < 6000


@pytest.mark.parametrize(("engine", "looks"), [(cases.looped, 40), (cases.stacked, 1)])
def test_a_stop_yields_a_checkpoint_of_every_run_in_flight(engine: cases.Engine, looks: int) -> None:
    asked = iter([False] * looks)
    configs = [cases.tiny(seed=seed) for seed in range(3)]
    found = cases.events(*configs, engine=engine, lanes=2, stop=lambda: next(asked, True))
    last = {e.run_id: e for e in found if not isinstance(e, Progress)}
    assert set(last) == {"run0", "run1"}
    for config, (run_id, checkpoint) in zip(configs, last.items(), strict=False):
        assert isinstance(checkpoint, Checkpoint) and 0 < checkpoint.step < 24
        (whole,), event = cases.results(config, engine=engine), cases.resumed(config, checkpoint, run_id, engine)
        assert event.weights_hash == whole.weights_hash and event.curve == whole.curve


@cases.ENGINES
def test_a_run_that_is_not_finite_is_diverged_and_its_neighbours_go_on(engine: cases.Engine) -> None:
    plain: dict[str, Any] = {"model": {"norm": "none", "final_norm": False}}
    found, neighbour = cases.results(
        cases.tiny(optim={"lr": 1e30, "warmup_steps": 0}, **plain), cases.tiny(**plain), engine=engine
    )
    assert (found.status, found.stop_reason) == ("diverged", "not_finite")
    assert found.steps < 24 and found.curve[-1].step == found.steps
    (alone,) = cases.results(cases.tiny(**plain), engine=engine)
    assert neighbour.weights_hash == alone.weights_hash


@pytest.mark.slow
def test_early_stop_is_for_good_and_never_before_the_horizon() -> None:
    stopping = {"stop_when_generalised": True, "stop_horizon": 500, "stop_every": 50}
    easy: dict[str, Any] = {
        "seed": 2,
        "task": {"modulus": 31, "train_fraction": 0.6, "sequence": "a b ="},
        "model": {"layers": 1, "d_model": 48, "d_ff": 192, "norm": "none", "final_norm": False, "init": "nanda"},
        "optim": {"lr": 5e-3, "weight_decay": 1.0},
        "train": {"steps": 900, "batch_size": 256} | stopping,
    }
    a, b = cases.results(cases.tiny(**easy, eval={"every": 100}), cases.tiny(**easy, eval={"every": 900}))
    assert a.stop_reason == b.stop_reason == "generalised"
    assert 500 <= a.steps < 900
    assert (a.steps, a.weights_hash) == (b.steps, b.weights_hash)
    assert a.grokked_step is not None and a.curve[-1].val_acc >= 0.95


def test_an_update_that_breaks_the_weights_is_a_divergence() -> None:
    (found,) = cases.results(cases.tiny(optim={"lr": 1e38, "warmup_steps": 0}, train={"steps": 1}))
    assert (found.status, found.stop_reason) == ("diverged", "not_finite")
    assert found.val_loss_peak_step is None and found.weight_norm_peak_step is None


def test_a_resumed_run_says_what_computed_it_and_strict_refuses_another() -> None:
    own, other = {"path": "plain"}, {"path": "onednn"}  # what a machine takes by itself depends on its processor
    saved = cases.checkpoints(cases.tiny(checkpoint={"every": 8}, numerics=own))[0]
    first, second = cases.resumed(cases.tiny(numerics=other), saved).numerics.split(" | ")
    assert "products=plain" in first and "products=onednn" in second
    with pytest.raises(CheckpointError, match=r"numerics\.strict"):
        cases.resumed(cases.tiny(numerics={**other, "strict": True}), saved)
    assert " | " not in cases.resumed(cases.tiny(numerics={**own, "strict": True}), saved).numerics


def test_bf16_is_bf16_on_every_path() -> None:
    hashes = {
        path: cases.results(cases.tiny(precision="bf16", numerics={"path": path}))[0].weights_hash
        for path in ("plain", "onednn")
    }
    (single,) = cases.results(cases.tiny())
    assert hashes["plain"] == hashes["onednn"] != single.weights_hash
