"""A change in mid-run: the run equals its trunk up to the step of the switch, and has one change after it."""

from typing import Any

import pytest
import torch

from grok.arithmetic.gpu.engine import Stack
from grok.arithmetic.gpu.step import TrainingStep
from grok.arithmetic.optimizer import move_weights
from grok.arithmetic.run import Lane
from grok.arithmetic.task import BatchOrder
from grok.arithmetic.weights import parameter_shapes
from grok.config import ArithmeticConfig, identify
from grok.errors import ConfigError
from grok.records import Checkpoint, Event, Job, RunResult
from grok.runs import never
from tests.arithmetic.cases import ENGINES, Engine, curve, jobs, looped, stacked
from tests.arithmetic.cases import one_layer as tiny

OTHER = 987654321
EPOCH = 3
"""Updates of an epoch of the tiny task: 60 examples in batches of 25, 25 and 10."""


def trained(engine: Engine, config: ArithmeticConfig, resume: Checkpoint | None = None, **how: Any) -> list[Event]:
    return list(engine([Job(run_id="run", config=config, resume=resume)], **how))


def result(events: list[Event]) -> RunResult:
    (found,) = [e for e in events if isinstance(e, RunResult)]
    return found


def saved(events: list[Event]) -> dict[int, Checkpoint]:
    return {e.step: e for e in events if isinstance(e, Checkpoint)}


def batches_of(engine: Engine, config: ArithmeticConfig, monkeypatch: pytest.MonkeyPatch, **how: Any) -> list[Any]:
    """Return what each update is trained on."""
    seen: list[Any] = []
    if engine is looped:
        take = Lane.batch

        def batch(self: Lane, step: int) -> Any:
            taken = take(self, step)
            seen.append((taken.a.tolist(), taken.b.tolist()))
            return taken

        monkeypatch.setattr(Lane, "batch", batch)
    else:
        look = TrainingStep.batch

        def of_stack(self: TrainingStep) -> Any:
            taken = look(self)
            if bool(self.state.alive[0]):  # not the warm-up
                seen.append((taken.a[0].tolist(), taken.b[0].tolist()))
            return taken

        monkeypatch.setattr(TrainingStep, "batch", of_stack)
    trained(engine, config, **how)
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("at", [0, 4, 6, 7], ids=["start", "inside an epoch", "at an epoch's end", "first of an epoch"])
@ENGINES
def test_each_update_after_the_step_takes_the_other_seeds_batch(
    engine: Engine, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BatchOrder(tiny().task.train_examples(), tiny().train.batch_size, seed=0).batches_per_epoch == EPOCH
    over: dict[str, Any] = {"train": {"steps": 13}, "eval": {"every": 5}}
    own = batches_of(engine, tiny(**over), monkeypatch)
    other = batches_of(engine, tiny(**over, seeds={"order": OTHER}), monkeypatch)
    found = batches_of(engine, tiny(**over, switch={"step": at, "order": OTHER}), monkeypatch)
    assert len(found) == 13 and all(a != b for a, b in zip(own, other, strict=True))
    assert found == own[:at] + other[at:]


@pytest.mark.parametrize("at", [4, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"order": OTHER}, marks=pytest.mark.slow),
        pytest.param({"ulps": 9}, marks=pytest.mark.slow),
        {"order": OTHER, "ulps": 9},
    ],
    ids=str,
)
@ENGINES
def test_it_equals_the_trunk_to_the_bit_and_goes_on_from_any_checkpoint(
    engine: Engine, change: dict[str, int], at: int
) -> None:
    over: dict[str, Any] = {"train": {"steps": 12}, "eval": {"every": 2}}
    steps = [at - 1, at, at + 1]
    trunk = trained(engine, tiny(**over, checkpoint={"keep_steps": steps}))
    config = tiny(**over, switch={"step": at, **change}, checkpoint={"keep_steps": steps})
    events = trained(engine, config)
    whole, before = result(events), result(trunk)
    assert saved(trunk).keys() == saved(events).keys() == set(steps)
    assert [s for s in curve(before) if curve(before)[s] == curve(whole)[s]] == list(range(2, at + 1, 2))
    assert whole.weights_hash != before.weights_hash
    for name, tensor in saved(trunk)[at].tensors.items():  # at the step the move is still to come
        assert torch.equal(saved(events)[at].tensors[name], tensor), name
    from_trunk = saved(trunk)[at]
    from_trunk.run_id = "trunk"
    for checkpoint in (*saved(events).values(), from_trunk):
        resumed = result(trained(engine, config, checkpoint))
        assert resumed.weights_hash == whole.weights_hash
        assert resumed.curve == whole.curve


@ENGINES
def test_a_stop_at_the_step_loses_and_doubles_no_move(engine: Engine) -> None:
    config = tiny(train={"steps": 12}, eval={"every": 4}, switch={"step": 8, "ulps": 50})
    whole = result(trained(engine, config))
    for stop_after in (7, 8, 9):
        asked = iter([False] * stop_after)
        left = saved(trained(engine, config, stop=lambda asked=asked: next(asked, True)))
        for checkpoint in left.values():
            assert result(trained(engine, config, checkpoint)).weights_hash == whole.weights_hash


def test_ulps_move_all_tensors_at_an_address_of_their_own() -> None:
    def moved(**switch: int) -> dict[str, torch.Tensor]:
        weights = {n: t.clone() for n, t in start.items()}
        move_weights(weights, tiny(switch=switch))
        return weights

    start = {n: torch.full((64,), 1.0 + i) for i, n in enumerate(parameter_shapes(tiny()))}
    at_8 = moved(step=8, ulps=3)
    for name, tensor in start.items():
        units = (at_8[name].view(torch.int32) - tensor.view(torch.int32)).tolist()
        assert set(units) == set(range(-3, 4)), name
    assert all(torch.equal(moved(step=8, ulps=3)[n], t) for n, t in at_8.items())
    assert not any(torch.equal(moved(step=9, ulps=3)[n], t) for n, t in at_8.items())


def test_switched_and_plain_lanes_share_a_stack() -> None:
    configs = [tiny(seed=s, train={"steps": 9 + s}, switch={"step": s, "order": OTHER, "ulps": s}) for s in (1, 4, 7)]
    configs += [tiny(seed=9), tiny(seed=10, switch={"step": 23, "ulps": 1})]
    stack = Stack(jobs(*configs), lanes=3, device=torch.device("cpu"))
    before = {name: tensor.data_ptr() for name, tensor in stack.state.tensors()}
    found = {e.run_id: e for e in stack.train(never) if isinstance(e, RunResult)}
    assert {name: tensor.data_ptr() for name, tensor in stack.state.tensors()} == before, "refilling moves no buffer"
    for i, config in enumerate(configs):
        alone = result(trained(stacked, config))
        assert found[f"run{i}"].weights_hash == alone.weights_hash
        assert found[f"run{i}"].curve == alone.curve


@ENGINES
def test_a_trunk_of_other_numerics_is_not_gone_on_from(engine: Engine) -> None:
    over: dict[str, Any] = {"train": {"steps": 8}, "eval": {"every": 2}}
    config = tiny(**over, switch={"step": 4, "order": OTHER})
    trunk = saved(trained(engine, tiny(**over, checkpoint={"keep_steps": [4]})))[4]
    trunk.run_id = "trunk"
    trunk.state["numerics"] = ["another"]
    trunk.tensors = {n: t + 1 for n, t in trunk.tensors.items()}
    with pytest.warns(UserWarning, match="a checkpoint to switch from was computed by 'another'"):
        found = result(trained(engine, config, trunk))
    whole = result(trained(engine, config))
    assert found.weights_hash == whole.weights_hash and found.numerics == whole.numerics


def test_names() -> None:
    plain = identify(tiny())
    one, two = (identify(tiny(switch={"step": 4, "order": order})) for order in (5, 6))
    assert one.config_id == two.config_id != plain.config_id
    assert len({plain.trajectory_id, one.trajectory_id, two.trajectory_id}) == 3
    assert identify(tiny(switch={"step": 5, "order": 5})).trajectory_id != one.trajectory_id
    assert identify(tiny(switch={"step": 4, "order": 5}, train={"steps": 99})).trajectory_id == one.trajectory_id
    moved = tiny(switch={"step": 4, "ulps": 1})
    assert "perturb" in moved.live_streams() and "perturb" not in tiny().live_streams()
    other = tiny(switch={"step": 4, "ulps": 1}, seeds={"perturb": 3})
    assert identify(other).trajectory_id != identify(moved).trajectory_id
    assert identify(other).config_id == identify(moved).config_id
    trunk, step = moved.trunk() or (None, None)
    assert trunk is not None and identify(trunk) == plain and step == 4 and tiny().trunk() is None


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"switch": {"order": 5}}, r"switch\.order=5 needs the step .* switch\.step=T"),
        ({"switch": {"ulps": 5}}, r"switch\.ulps=5 needs the step"),
        ({"switch": {"step": 5}}, r"switch\.step=5 changes nothing .* switch\.order=SEED or switch\.ulps=N"),
        ({"switch": {"step": 24, "ulps": 5}}, r"switch\.step=24: .*train\.steps=24, expected at most 23"),
        (
            {"switch": {"step": 4, "order": 5}, "eval": {"couple_order": True}},
            r"switch\.step=4 with eval\.couple_order",
        ),
        ({"switch": {"step": -1, "order": 5}}, r"switch\.step=-1 is out of range"),
        ({"switch": {"step": 1, "order": -5}}, r"switch\.order=-5 is out of range"),
        (
            {"checkpoint": {"keep_steps": [0]}},
            r"keep_steps\[0\]=0 is out of range: expected a whole number, at least 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(over: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny(**over)
