"""Initial weights of a run from a folder of ``transformers``: ``init_from=FOLDER``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor

from grok.config.gpt import GptConfig
from grok.config.gpt_model import ModelConfig
from grok.config.values import literal
from grok.errors import CheckpointError, ConfigError
from grok.gpt.hf.folder import load_hf_folder
from grok.gpt.model import GPT
from grok.runs import weights_hash

TRAINING: Final = frozenset(
    {"dropout", "dropout_embedding", "dropout_residual", "dropout_attention", "init", "init_residual", "qk_scaling",
     "softmax", "vocab_multiple"}
)  # fmt: skip
"""Settings of the model that do not depend on its weights: the command decides them."""


@dataclass(frozen=True, slots=True)
class Source:
    """A folder's model: its settings and the hash of its weights."""

    model: ModelConfig
    sha256: str


def read_source(folder: str) -> tuple[Source, GPT]:
    """Return settings and hash of the model in ``folder``, and the model in float32 on the CPU.

    Raises:
        CheckpointError: the folder has no GPT-2, or it is damaged.
    """
    model = load_hf_folder(folder)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    settings = replace(model.config, vocab_size=model.vocab_size)
    return Source(settings, weights_hash(weights)), model


def with_source(config: GptConfig, source: Source) -> GptConfig:
    """Return ``config`` with the model of ``source``: settings that the command does not give are the folder's.

    Raises:
        ConfigError: the command or its preset gives another value to a setting of the model.
    """
    usual, model = ModelConfig(), config.model
    wrong, taken = [], {}
    for name in (f.name for f in fields(ModelConfig) if f.name not in TRAINING):
        own, theirs = getattr(model, name), getattr(source.model, name)
        shorter = name == "context" and own < theirs and own != usual.context
        if own == theirs or shorter:
            continue
        if config.experiment is None and own == getattr(usual, name):
            taken[name] = theirs
            if name == "context" and own < theirs:
                warnings.warn(
                    f"init_from={config.init_from}: model.context={theirs} is the folder's; {own} is the default and "
                    "counts as not given, so a shorter context must be another number",
                    stacklevel=2,
                )
        else:
            wrong.append(f"model.{name}={literal(own)} (the folder's: {literal(theirs)})")
    if wrong:
        whose = "" if config.experiment is None else f" and experiment={config.experiment}"
        raise ConfigError(
            f"init_from={config.init_from}{whose}: the command describes another model, {', '.join(wrong)}; leave out "
            "these settings and experiment=... (model.context may be shorter)"
        )
    if config.seeds.layers:
        raise ConfigError(
            f"seeds.layers with init_from={config.init_from}: no weights are drawn; leave one of them out"
        )
    if config.init_hash not in (None, source.sha256):
        raise ConfigError(
            f"init_from={config.init_from} holds weights {source.sha256[:12]}, expected "
            f"init_hash={config.init_hash[:12]}: give the folder that has them"
        )
    return replace(
        config,
        experiment=config.experiment or "gpt/imported",
        model=replace(model, **taken),
        init_hash=source.sha256,
    )


def initial_weights(config: GptConfig, model: GPT) -> dict[str, Tensor]:
    """Return the weights in the folder ``config.init_from`` by name, in the shapes of ``model``.

    ``model`` may be on the meta device. A shorter context takes the first positions. Rows that pad the
    vocabulary are 0.

    Raises:
        CheckpointError: the weights are missing, or changed after the run was named.
    """
    assert config.init_from is not None
    source, theirs = read_source(config.init_from)
    if source.sha256 != config.init_hash:
        raise CheckpointError(
            f"init_from={config.init_from} holds other weights ({source.sha256[:12]}) than when this run was named "
            f"({str(config.init_hash)[:12]}): put the folder back, or give the command again"
        )
    weights, fitting = dict(theirs.named_parameters()), {}
    for name, p in model.named_parameters():
        own = weights[name].detach()
        fitting[name] = torch.zeros(p.shape, dtype=own.dtype)
        rows = min(len(own), len(p))
        fitting[name][:rows] = own[:rows]
    return fitting
