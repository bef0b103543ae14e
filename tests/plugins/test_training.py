"""Runs that name code of the user's own equal what they must equal, bit by bit where that is promised."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from grok.arithmetic.engine import seat
from grok.arithmetic.run import ArithmeticRun
from grok.arithmetic.task import examples_of, split_table
from grok.arithmetic.user import initial_of_module, tokens_of
from grok.errors import ConfigError, GrokError
from grok.records import Checkpoint, Job, RunResult
from grok.streams import Stream
from grok.user import own_code_of
from tests.arithmetic.cases import curve, events, results, resumed, tiny
from tests.plugins.conftest import Write
from tests.plugins.mine import MINE, PLAIN, own


@pytest.fixture(autouse=True)
def _mine(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mine=MINE)
    monkeypatch.chdir(tmp_path)


def test_an_operation_of_ones_own_has_the_bits_of_the_built_in_one() -> None:
    sequence = {"sequence": "a b =", "modulus": 11}
    (built_in,) = results(tiny(task={"operation": "x+y", **sequence}))
    (mine,) = results(own(task={"plugin": {"_target_": "mine.addition"}, **sequence}))
    assert (mine.weights_hash, curve(mine)) == (built_in.weights_hash, curve(built_in))


def test_a_module_of_ones_own_walks_the_lanes_trajectory() -> None:
    (lane,) = results(tiny(precision="float64"))
    config = own(precision="float64", model={"plugin": {"_target_": "mine.Same"}})
    (first,) = [e for e in events(tiny(precision="float64", save="init")) if isinstance(e, RunResult)]
    from grok.arithmetic import user

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user, "initial_of_module", lambda c, d: {n: t.clone() for n, t in first.tensors["init"].items()})
        (module,) = results(config)
    for ours, theirs in zip(curve(module).values(), curve(lane).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_plain_module_trains_as_a_loop_of_its_own_would() -> None:
    config = own(**PLAIN, train={"steps": 9, "batch_size": 10}, optim={"warmup_steps": 0}, precision="float64")
    (found,) = results(config)
    table = examples_of(config.task)
    assert table is not None
    seeds = config.stream_seeds()
    train_set, val_set = split_table(config.task, seeds.split, table, table.classes)
    inputs, answers = tokens_of(train_set, config.task, torch.float64)
    weights = {n: p.requires_grad_() for n, p in initial_of_module(config, torch.float64).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.98))

    def forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, weights["hidden.weight"], weights["hidden.bias"]).relu()
        return F.linear(hidden, weights["head.weight"], weights["head.bias"])

    done = 0
    for epoch in range(3):
        order = torch.from_numpy(Stream("order", seeds.order).at(epoch).permutation(len(train_set)))
        for rows in order.split(10)[: 9 - done]:
            optimizer.zero_grad()
            F.cross_entropy(forward(inputs[rows]), answers[rows]).backward()
            optimizer.step()
            done += 1
    x, right = tokens_of(val_set, config.task, torch.float64)
    assert found.curve[-1].val_loss == pytest.approx(float(F.cross_entropy(forward(x), right).detach()), rel=1e-12)


CASES: dict[str, dict[str, Any]] = {
    "plain module": PLAIN,
    "transformer on a table of tokens": {"task": {"plugin": {"_target_": "mine.parity", "floats": False}}},
    "module on equations, dropout": {"task": {"plugin": {"_target_": "mine.parity"}},
                                     "model": {"plugin": {"_target_": "mine.Perceptron", "dropout": 0.3}}},
    "optimiser": {"optim": {"plugin": {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": True}}},
    "optimiser that counts in its groups": {"optim": {"plugin": {"_target_": "mine.Counting"}}},
    "optimiser with counters": {"optim": {"plugin": {"_target_": "torch.optim.NAdam"}}},
    "intervention": {"optim": {"intervention": {"_target_": "mine.Doubled"}}},
    "intervention that counts": {"optim": {"intervention": {"_target_": "mine.InPlace"}}},
    "loss and metric": {"train": {"loss_plugin": {"_target_": "mine.mean_loss", "power": 2.0}},
                        "eval": {"metric_plugins": {"norm": {"_target_": "mine.norm"}}}},
    "intervention that draws": {"optim": {"intervention": {"_target_": "mine.Noise"}}},
    "optimiser that draws": {"optim": {"plugin": {"_target_": "mine.NoisySgd"}}},
    "loss that draws": {"train": {"loss_plugin": {"_target_": "mine.noisy_loss"}}},
    "module that draws in evaluation": {"model": {"plugin": {"_target_": "mine.Always"}}},
}  # fmt: skip
FEW = ("plain module", "transformer on a table of tokens")


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(case: str) -> None:
    config = own(**CASES[case], checkpoint={"every": 10})
    whole = events(config)
    (result,) = [e for e in whole if isinstance(e, RunResult)]
    middle = next(e for e in whole if isinstance(e, Checkpoint) and e.step == 10)
    again = resumed(config, middle)
    assert (again.weights_hash, curve(again)) == (result.weights_hash, curve(result))


def test_dropout_is_drawn_anew_at_each_step() -> None:
    lane = seat(Job(run_id="run0", config=own(**CASES["module on equations, dropout"])), {})
    assert len({lane.batch(step).seed for step in (1, 2, 3)}) == 3


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in FEW)) for case in CASES])
def test_a_run_does_not_depend_on_its_neighbours(case: str) -> None:
    torch.manual_seed(1)
    first, second = (own(**CASES[case], seed=seed) for seed in (1, 2))
    (alone,) = results(second)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    beside = results(first, second, lanes=2)[1]
    assert (beside.weights_hash, curve(beside)) == (alone.weights_hash, curve(alone))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left as it was"


def test_adamw_of_torch_is_the_built_in_optimiser() -> None:
    (lane,) = results(tiny(precision="float64"))
    (mine,) = results(own(precision="float64", optim={"plugin": {"_target_": "torch.optim.AdamW"}}))
    np.testing.assert_allclose(mine.curve[-1].val_loss, lane.curve[-1].val_loss, rtol=1e-9)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ("{chr(0xd800): 1.0}", "mine.odd returned a number under a name that is not valid Unicode ('odd_"),
        ("{'n' * 10**7: 1.0}", "under a name of 10,000,004 characters, expected at most 200 ('odd_nnn"),
        ("{i: 1.0 for i in range(400_000)}", "measured 400,000 metrics: expected at most 10,000"),
        ("{1: 1.0, '1': 2.0}", "returned a number twice ('odd_1')"),
        ("torch.zeros(3)", "odd=mine.odd returned a Tensor of the shape (3,): expected a number"),
        ("np.zeros((2, 1))", "odd=mine.odd returned a ndarray of the shape (2, 1): expected a number"),
        ("{'fine': 1, 'deep': {'x': 1}}", "odd=mine.odd returned a dict under the key 'deep': expected a number"),
        ("{'wide': torch.zeros(2)}", "odd=mine.odd returned a Tensor of the shape (2,) under the key 'wide'"),
        ("None", "odd=mine.odd returned a NoneType: expected a number"),
    ],
)
def test_a_metric_that_no_reader_takes_is_refused(measured: str, said: str, write: Write) -> None:
    write(mine=f"import numpy as np\nimport torch\n\ndef odd(moment):\n    return {measured}")
    with pytest.raises(ConfigError, match=re.escape(said)):
        results(own(eval={"metric_plugins": {"odd": {"_target_": "mine.odd"}}}))


def test_a_metric_changes_nothing_and_is_right() -> None:
    (without,) = results(tiny())
    (found,) = results(own(eval={"every": 8, "metric_plugins": {"norm": {"_target_": "mine.norm", "scale": 2.0}}}))
    assert found.weights_hash == without.weights_hash
    last = found.curve[-1]
    assert last.metrics["norm_two"] == pytest.approx(2 * last.weight_norm_all, rel=1e-5)
    assert last.metrics["norm_hits"] == pytest.approx(last.val_acc)


def test_gradients_are_measured_as_they_were_before_an_intervention_in_place() -> None:
    measured = {"train": {"steps": 3}, "eval": {"every": 3, "metrics": ["gradient"]}}
    (without,), (changed,) = (
        results(own(**measured | over))
        for over in ({"optim": {"lr": 1e-30}}, {"optim": {"lr": 1e-30, "intervention": {"_target_": "mine.InPlace"}}})
    )
    assert changed.curve[0].metrics["gradient_norm"] == without.curve[0].metrics["gradient_norm"] > 0


def test_layers_of_a_module_are_drawn_by_their_own_seeds() -> None:
    one, other = (initial_of_module(own(**PLAIN, seeds={"init": 1, "layers": layers}), torch.float32)
                  for layers in ({}, {"head": 5}))  # fmt: skip
    same = {name for name in one if torch.equal(one[name], other[name])}
    assert same == {"hidden.weight", "hidden.bias"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": {"plugin": {"_target_": "mine.Perceptron", "length": 2, "classes": 2}}}, "grok.plugins.Operation"),
        ({"task": {"plugin": {"_target_": "mine.addition", "n": 13}}}, "set task.modulus=13"),
        ({"task": {"plugin": {"_target_": "mine.parity"}}}, "has float inputs"),
        ({"model": {"plugin": {"_target_": "mine.parity"}}}, "expected a torch.nn.Module"),
        ({**PLAIN, "model": {"plugin": {"_target_": "mine.Batchnorm"}}}, "changes its buffer"),
        ({**PLAIN, "model": {"plugin": {"_target_": "mine.RandomBuffer"}}}, "'features' is drawn at random"),
        ({**PLAIN, "model": {"plugin": {"_target_": "mine.Frozen"}}}, "'head.bias' .* register it as a buffer"),
        ({**PLAIN, "model": {"plugin": {"_target_": "mine.Perceptron", "depth": 3}}}, "refuses its arguments"),
        ({"train": {"loss_plugin": {"_target_": "mine.scalar_loss"}}}, "expected one loss for each"),
        ({"optim": {"plugin": {"_target_": "mine.norm"}}}, "refuses its arguments|a trial step fails|expected a"),
        ({"optim": {"intervention": {"_target_": "mine.norm"}}}, "a trial step fails|neither"),
        ({"optim": {"intervention": {"_target_": "mine.InPlace", "state": "past"}}},
         "the intervention's state 'past' is a list: expected a tensor or a number"),
        ({**PLAIN, "train": {"batch_size": 60}}, "the 32 training examples of 'mine.parity' at"),
        ({"task": {"plugin": {"_target_": "os.getcwd"}}}, "expected a grok.plugins.Operation"),
    ],
)  # fmt: skip
def test_code_that_does_not_fit_is_refused_before_anything_is_trained(settings: dict[str, Any], said: str) -> None:
    from grok.execute.refusals import refuse_unusable_code

    with pytest.raises(GrokError, match=said):
        refuse_unusable_code([own(**settings)])


RUDE = """
def rude(moment):
    for tensors in (moment.parameters, moment.gradients):
        for tensor in tensors.values():
            tensor.data.zero_()
    for one in (moment.train_set, moment.val_set):
        one.answers[:] = 0
        moment.classes(one).zero_()
    return float(moment.logits(moment.val_set).abs().sum())

def polite(moment):
    return float(sum(p.abs().sum() for p in moment.parameters.values()))
"""


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["lanes", "module"])
def test_what_a_metric_does_to_its_argument_changes_neither_training_nor_measurements(
    settings: dict[str, Any], write: Write
) -> None:
    write(rude=RUDE)
    measured = {name: {"_target_": f"rude.{name}"} for name in ("polite", "rude", "last")}
    measured["last"] = {"_target_": "rude.polite"}
    (without,) = results(own(**settings))
    (found,) = results(own(**settings, eval={"metric_plugins": measured}))
    assert found.weights_hash == without.weights_hash
    for a, b in zip(found.curve, without.curve, strict=True):
        assert (a.train_acc, a.val_loss, a.val_acc) == (b.train_acc, b.val_loss, b.val_acc)
        assert a.metrics["polite"] == a.metrics["last"] > 0


RAISING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, length, classes):
        super().__init__()
        self.head, self.calls = nn.Linear(length, classes), 0
    def forward(self, x):
        if not self.training:
            raise ValueError("evaluated")
        return self.head(x)

calls = []

def loss(logits, answer):
    calls.append(0)
    if len(calls) > 2:
        raise ValueError("too often")
    return torch.nn.functional.cross_entropy(logits, answer, reduction="none")

class Third:
    def __init__(self, parameters):
        pass
    def weights(self, step, parameters):
        if step == 3:
            helper()

def helper():
    raise KeyError("three")

def keyless():
    return {}["a"]

def refuses():
    raise ValueError("n is odd")
"""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": {"plugin": {"_target_": "raising.keyless"}}}, "keyless fails at raising.py:33 (KeyError: 'a')"),
        ({"task": {"plugin": {"_target_": "raising.refuses"}}}, "refuses its arguments at raising.py:36: n is odd"),
        ({"optim": {"intervention": {"_target_": "raising.Third"}}},
         "optim.intervention=raising.Third fails at raising.py:30, at step 3 of the run with seed 0 (KeyError: "),
        ({"optim": {"intervention": {"_target_": "raising.Third"}, "plugin": {"_target_": "torch.optim.SGD"}}},
         "optim.intervention=raising.Third fails at raising.py:30, at step 3"),
        ({"task": {"plugin": {"_target_": "mine.parity"}}, "model": {"plugin": {"_target_": "raising.Model"}}},
         "model.plugin=raising.Model fails at raising.py:11, at step 4 of"),
        ({**PLAIN, "train": {"loss_plugin": {"_target_": "raising.loss"}, "batch_size": 12}},
         "train.loss_plugin=raising.loss fails at raising.py:19, at step 3 of"),
    ],
)  # fmt: skip
def test_own_code_that_raises_is_named_with_step_and_seed(settings: dict[str, Any], said: str, write: Write) -> None:
    write(raising=RAISING)
    with pytest.raises(ConfigError, match=re.escape(said)):
        results(own(**{"eval": {"every": 4}, "numerics": {"compile": False}, **settings}))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_an_error_of_the_machine_is_no_fault_of_own_code(error: RuntimeError) -> None:
    run = ArithmeticRun(Job(run_id="0", config=own(eval={"metric_plugins": {"rude": {"_target_": "mine.rude"}}})))
    with pytest.raises(type(error), match=re.escape(str(error))), own_code_of(run, "eval.metric_plugins.rude"):
        raise error
