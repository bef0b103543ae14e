"""Plain models: any torch module that is no lane model, trained one lane at a time without compilation.

n or B examples, T tokens of an example, V classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grok.arithmetic.initial import Parameters, initial_parameters
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.model import Transformer
from grok.arithmetic.table import Equations, Shapes, examples_of, shapes_of
from grok.arithmetic.vocabulary import FIRST_NUMBER, Vocabulary
from grok.config.arithmetic import ArithmeticConfig, TaskConfig
from grok.errors import ConfigError
from grok.numerics.ulps import move_by_ulps
from grok.plugins import Examples, build, label, load
from grok.streams import Stream, layer_seeds


def tokens_of(examples: Equations | Examples, task: TaskConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (inputs [n, T], right classes [n]) of a set; float inputs are converted to ``dtype``."""
    if isinstance(examples, Examples):
        inputs = torch.from_numpy(examples.inputs)
        return (inputs.to(dtype) if inputs.is_floating_point() else inputs), torch.from_numpy(examples.answers)
    columns = {"a": torch.from_numpy(examples.a) + FIRST_NUMBER, "b": torch.from_numpy(examples.b) + FIRST_NUMBER}
    n = len(examples)
    layout = Vocabulary.of(task).layout
    row = [columns[word] if isinstance(word, str) else torch.full((n,), word) for word in layout]
    return torch.stack(row, 1), torch.from_numpy(examples.answer) + FIRST_NUMBER


def lane_class(config: ArithmeticConfig) -> type[LaneModel] | None:
    """Return the class of the user's own lane model, a subclass of ``LaneModel``, or None."""
    if not config.model.plugin:
        return None
    own = load(config.model.plugin)
    return own if isinstance(own, type) and issubclass(own, LaneModel) else None


def is_plain(config: ArithmeticConfig) -> bool:
    """Return whether a run takes the plain path: one lane at a time, every row computed, uncompiled."""
    return examples_of(config.task) is not None or (bool(config.model.plugin) and lane_class(config) is None)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed torch's generator, the only one that own code can draw from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed those of GPUs
        yield


def make_module(config: ArithmeticConfig, seed: int) -> nn.Module:
    """Return the module, with the initial weights that its own code draws from torch's generator under ``seed``.

    Raises:
        ConfigError: the code refuses its arguments, or returns no module with parameters.
    """
    shapes = shapes_of(config.task)
    if not config.model.plugin:
        if not shapes.vocab_size:
            raise ConfigError(
                f"{config.task.operation} has float inputs, which the transformer does not accept: name a model, "
                "model.plugin._target_=MODULE.NAME"
            )
        with drawing(seed):
            return Transformer(config.model, vocab_size=shapes.tokens, length=shapes.length)
    with drawing(seed):
        module = build(config.model.plugin, **_wanted(load(config.model.plugin), shapes))
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        raise ConfigError(
            f"model.plugin={label(config.model.plugin)} returned a {type(module).__name__}: expected a torch.nn.Module "
            "with parameters"
        )
    return module


def refuse_unseeded(config: ArithmeticConfig, module: nn.Module) -> None:
    """Refuse a module with what no seed of the run decides: all runs share its buffers, and all parameters train.

    Args:
        config: the run's settings.
        module: made under seed 0.

    Raises:
        ConfigError: a parameter that is frozen, or a buffer that is drawn at random.
    """
    named = label(config.model.plugin)
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise ConfigError(
            f"model.plugin={named}: its parameter {frozen[0]!r} has requires_grad=False, and every parameter trains: "
            "register it as a buffer, with values that are drawn from a torch.Generator of a fixed seed, if at random"
        )
    another = dict(make_module(config, 1).named_buffers())
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer.nan_to_num(), another[name].nan_to_num()):  # NaN is not equal to itself
            raise ConfigError(
                f"model.plugin={named}: its buffer {name!r} is drawn at random, and all runs would share one draw: "
                "make it a parameter, or draw it from a torch.Generator of a fixed seed"
            )


def _wanted(code: Any, shapes: Shapes) -> dict[str, int]:
    """Return the shapes for which ``code`` has a parameter, by the parameter's name."""
    known = {"vocab_size": shapes.vocab_size, "length": shapes.length, "classes": shapes.classes}
    try:
        taken = inspect.signature(code).parameters
    except (TypeError, ValueError):
        return {}
    return {name: size for name, size in known.items() if name in taken}


def initial_of_module(config: ArithmeticConfig, dtype: torch.dtype) -> Parameters:
    """Return a plain module's initial weights: its own code draws them under the init stream's seed.

    A tensor with a seed in ``seeds.layers`` comes from a module that is drawn under that seed. ``model.init_scale``
    multiplies every tensor with two axes or more.
    """
    if not config.model.plugin:
        return initial_parameters(config, dtype)
    init = config.stream_seeds().init
    names = [name for name, _ in make_module(config, 0).named_parameters()]
    seeds = layer_seeds(names, config.seeds.layers, init)
    drawn = {seed: dict(make_module(config, draw(seed)).named_parameters()) for seed in {init, *seeds.values()}}
    weights = {}
    for name in names:
        tensor = drawn[seeds[name]][name].detach().to(dtype).clone()
        weights[name] = tensor * config.model.init_scale if tensor.ndim > 1 else tensor
    return perturbed(weights, config)


def perturbed(parameters: Parameters, config: ArithmeticConfig) -> Parameters:
    """Return the weights changed by ``perturb.ulps`` units in the last place; constant tensors stay."""
    ulps, seed = config.perturb.ulps, config.stream_seeds().perturb
    if not ulps:
        return parameters
    return {
        n: t if bool((t == t.flatten()[0]).all()) else move_by_ulps(t, ulps, Stream("perturb", seed).at(n))
        for n, t in parameters.items()
    }


def draw(seed: int) -> int:
    """Return the seed of torch's generator that belongs to the init seed ``seed``."""
    return Stream("init", seed).at("module").seed64()
