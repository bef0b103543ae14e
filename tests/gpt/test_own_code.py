"""Code of the user's own in language models: model, optimiser, loss, intervention by import path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grok.config.gpt import GptConfig
from grok.errors import ConfigError
from grok.execute.groups import prepare_runs
from grok.execute.refusals import refuse_unusable_code
from grok.gpt import initial
from grok.gpt.initial import build_model
from grok.records import RunResult
from grok.store import open_store
from grok.text.corpus import Corpus
from tests.gpt.conftest import Build, differences, result_of, run, stopped
from tests.plugins.conftest import Write
from tests.plugins.conftest import _no_code_is_left as _no_code_is_left
from tests.plugins.conftest import write as write

MINE = """
    import torch
    from torch import nn
    from torch.nn import functional as F
    from grok.config.gpt import ModelConfig
    from grok.gpt.model import GPT

    class Same(nn.Module):
        def __init__(self, vocab_size, context):
            super().__init__()
            config = ModelConfig(layers=2, d_model=24, heads=3, context=context)
            self.gpt = GPT(config, vocab_size=vocab_size)

        def forward(self, tokens):
            return self.gpt(tokens)

    class Bigrams(nn.Module):
        def __init__(self, vocab_size, width=8, dropout=0.1):
            super().__init__()
            self.embed, self.out = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
            self.dropout = nn.Dropout(dropout)

        def forward(self, tokens):
            return self.out(self.dropout(self.embed(tokens)))

    class Counting(torch.optim.SGD):
        "The rate falls with a number that only the group has."
        def __init__(self, params, lr):
            super().__init__(params, lr=lr, momentum=0.9)
            self.param_groups[0]["count"] = 0

        def step(self, closure=None):
            group = self.param_groups[0]
            group["count"] += 1
            group["lr"] /= group["count"]
            super().step()

    class AdamW(torch.optim.AdamW):
        pass

    def cross_entropy(logits, targets):
        return F.cross_entropy(logits, targets, reduction="none")

    def first_alone(logits, targets):
        return F.cross_entropy(logits, targets)

    class Noise:
        "Adds a noise to the gradients that grows with its own count."
        def __init__(self, parameters):
            self.state = {"calls": 0, "sum": torch.zeros(())}

        def gradients(self, step, parameters, gradients):
            assert step == self.state["calls"] + 1
            self.state["calls"] += 1
            self.state["sum"] += torch.rand(())
            return {n: g + 0.01 * self.state["sum"] * torch.randn_like(g) for n, g in gradients.items()}

        def weights(self, step, parameters):
            assert step == self.state["calls"]
            parameters["out.bias"].zero_()

    class Unread(nn.Module):
        def __init__(self, vocab_size):
            super().__init__()
            self.out = nn.Linear(4, vocab_size)

        def forward(self, tokens):
            return self.out(torch.zeros(len(tokens), 4))

    class Moving(Bigrams):
        def __init__(self, vocab_size):
            super().__init__(vocab_size)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, tokens):
            self.calls += 1
            return super().forward(tokens)
"""


def code(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"mine.{name}", **arguments}


ALL: dict[str, Any] = {
    "model__plugin": code("Bigrams", width=6), "optim__plugin": code("Counting"), "optim__intervention": code("Noise"),
    "train__loss_plugin": code("cross_entropy"), "train__micro_batch": 3, "optim__lr": 0.5,
}  # fmt: skip


@pytest.fixture
def own(settings: Build, write: Write, tmp_path: Path) -> Build:
    """Build small settings that name code of ``mine.py``, which can be imported from then on."""
    write(mine=MINE)

    def build(**changes: Any) -> GptConfig:
        (planned,) = prepare_runs([settings(plugin_path=str(tmp_path), **changes)])
        assert isinstance(planned.config, GptConfig)
        return planned.config

    return build


def losses(result: RunResult) -> list[float]:
    return [v for p in result.curve for v in (p.train_loss, p.val_loss, p.val_acc)]


def test_the_models_own_module_walks_the_same_trajectory(own: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = result_of(run(own(precision="float64", save="init")))
    weights = {f"gpt.{name}": tensor for name, tensor in built_in.tensors["init"].items()}
    monkeypatch.setattr(initial, "drawn_weights", lambda *_: weights)
    mine = result_of(run(own(precision="float64", model__plugin=code("Same"))))
    np.testing.assert_allclose(losses(mine), losses(built_in), rtol=1e-9)
    assert "compiled=no" in mine.numerics and mine.curve[-1].sample is not None


@pytest.mark.parametrize(
    "changes", [{"optim__plugin": code("AdamW")}, {"train__loss_plugin": code("cross_entropy")}], ids=["optim", "loss"]
)
def test_the_built_in_ones_under_another_name_give_the_same_run(own: Build, changes: dict[str, Any]) -> None:
    same = {"precision": "float64", "optim__decay": "all", "stability__policy": "log", "model__dropout": 0.1}
    built_in, mine = (result_of(run(own(**same, **more))) for more in ({}, changes))
    np.testing.assert_allclose(losses(mine), losses(built_in), rtol=1e-9)


def test_own_code_is_part_of_the_runs_names(settings: Build, write: Write, tmp_path: Path) -> None:
    def names(**changes: Any) -> tuple[str, str]:
        (planned,) = prepare_runs([settings(plugin_path=str(tmp_path), **changes)])
        return planned.identity.run_id, planned.identity.trajectory_id

    write(mine=MINE)
    found = {names(), *(names(**{name: value}) for name, value in ALL.items() if isinstance(value, dict))}
    found.add(names(model__plugin=code("Bigrams")))
    found.add(names(model__plugin=code("Bigrams"), seeds__dropout=5))
    write(mine=MINE + "\n    changed = 1\n")
    found.add(names(model__plugin=code("Bigrams")))
    assert len({run_id for run_id, _ in found}) == len({trajectory for _, trajectory in found}) == 8


def test_stopped_and_resumed_is_never_stopped(own: Build) -> None:
    config = own(**ALL)
    whole = result_of(run(config))
    half = stopped(config, 5)
    assert differences(whole, result_of(run(config, half))) == []
    other = result_of(run(own(**ALL, seeds__dropout=11)))
    assert other.weights_hash != whole.weights_hash
    more = result_of(run(own(**ALL, eval__every=2)))
    assert more.weights_hash == whole.weights_hash, "evaluations move nothing"


def test_initial_weights_follow_the_seeds(own: Build) -> None:
    def weights(**changes: Any) -> dict[str, Any]:
        config = own(model__plugin=code("Bigrams"), **changes)
        model = build_model(config, vocab_size=9, device=torch.device("cpu"), dtype=torch.float32)
        return dict(model.named_parameters())

    def moved(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
        return [n for n in a if not a[n].equal(b[n])]

    plain = weights()
    assert moved(plain, weights()) == [] and set(plain) == {"embed.weight", "out.weight", "out.bias"}
    assert moved(plain, weights(seeds__init=5)) == list(plain)
    assert moved(plain, weights(seeds__layers={"embed": 5})) == ["embed.weight"]
    near = weights(perturb__ulps=1)
    assert moved(plain, near) and all(near[n].allclose(plain[n], rtol=1e-6) for n in plain)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__plugin": code("Unread")}, "expected logits"),
        ({"model__plugin": code("Moving")}, "buffer 'calls'"),
        ({"model__plugin": code("Bigrams", width="wide")}, "model.plugin=mine.Bigrams|refuses its arguments"),
        ({"train__loss_plugin": code("first_alone")}, "expected one loss for each"),
        ({"optim__plugin": code("Bigrams")}, "optim.plugin=mine.Bigrams|refuses its arguments"),
        ({"optim__intervention": code("Bigrams")}, "mine.Bigrams"),
        ({"train__loss_plugin": code("missing")}, "has no 'missing'"),
    ],
)
def test_unfit_code_is_refused_before_a_run(own: Build, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_unusable_code([own(**changes)])


@pytest.mark.parametrize(
    "changes",
    [
        {"model__plugin": code("Bigrams"), "data__document_mask": True},
        {"optim__plugin": code("AdamW"), "train__parallel": "fsdp"},
        {"model__plugin": code("Bigrams"), "init_from": "somewhere"},
    ],
)
def test_what_does_not_go_with_own_code_is_refused(settings: Build, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="does not go with"):
        settings(**changes)


def test_an_error_names_the_setting_the_line_and_the_step(own: Build, write: Write) -> None:
    write(mine=MINE.replace('assert step == self.state["calls"]\n', "assert step < 3\n"))
    with pytest.raises(ConfigError, match=r"optim.intervention=mine.Noise fails at mine.py:\d+, at step 3 "):
        run(own(**ALL))


WORDS = [
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.context=16", "train.steps=6", "train.batch_size=6",
    "train.micro_batch=3", "train.threads=1", "eval.every=3", "eval.windows=4", "eval.sample_tokens=4",
    "numerics.compile=false", "log.quiet=true", "save=final", "model.plugin._target_=mine.Bigrams",
    "model.plugin.dropout=0.0", "optim.plugin._target_=mine.Counting", "train.loss_plugin._target_=mine.cross_entropy",
    "optim.intervention._target_=mine.Noise", "optim.lr=0.5",
]  # fmt: skip


def command(folder: Path, words: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.slow
def test_executors_and_processes_train_the_same_weights(corpus: Corpus, write: Write, tmp_path: Path) -> None:
    write(mine=MINE)
    run_words = ["-m", "grok.run", *WORDS, f"data.path={corpus.path}"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d"]
    torchrun.append("--rdzv-endpoint=localhost:0")
    hashes = {}
    for name, words in {"loky": [*run_words, "executor=loky"], "two": [*torchrun, *run_words]}.items():
        command(tmp_path, [*words, f"store.path={tmp_path / name}"])
        (row,) = open_store(tmp_path / name).runs().to_dict("records")
        assert row["status"] == "completed" and "mine.Counting" in row["own_code"]
        hashes[name] = row["weights_hash"]
    assert len(set(hashes.values())) == 1, hashes
    named = [row["run_id"], "--store", name, "--model", "mine.Bigrams"]
    assert "perplexity" in command(tmp_path, ["-m", "grok.evaluate", *named])
    assert command(tmp_path, ["-m", "grok.generate", *named, "--prompt", "a", "--tokens", "3"])
