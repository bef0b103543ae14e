"""Settings and numbers of papers on grokking: the arms with which `papers` compares runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Arm:
    """One condition of a paper."""

    name: str
    settings: Mapping[str, str]
    """Settings that differ from the defaults, as on the command line."""
    theirs: int | None = None
    """Steps to 95% validation accuracy in the paper."""
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    """Ratio of times in the paper, by the name of a slower arm; None: the paper does not compare the two."""
    sooner_than: str | None = None
    """A slower arm, which may be another paper's, if the paper says so and has no ratio."""
    claimed: bool = True
    """Whether the paper has this setting; otherwise the steps are compared without a verdict."""
    free: tuple[str, ...] = ()
    """Settings that may take any value."""
    generalises: bool | None = None
    """Whether it generalises according to the paper, if the paper has no number."""


@dataclass(frozen=True)
class Paper:
    """The arms of one paper, and steps of the phases that its text names."""

    title: str
    arms: tuple[Arm, ...]
    phases: Mapping[str, int] = field(default_factory=dict)


def _with(base: Mapping[str, str], **changes: str) -> dict[str, str]:
    return {**base, **{name.replace("__", "."): value for name, value in changes.items()}}


ADAM: Final = '{"_target_":"torch.optim.Adam"}'
"""torch's Adam, whose weight decay is part of the gradient ("coupled"), as in the paper's code."""
TIMES_TABLE: Final = {
    "task.operation": "x*y",
    "task.modulus": "97",
    "task.sequence": "a op b =",
    "model.norm": "pre",
}
EMA: Final = _with(TIMES_TABLE, optim__grokfast="ema", optim__weight_decay="0.005")
MA: Final = _with(TIMES_TABLE, optim__grokfast="ma", optim__grokfast_lamb="5", optim__weight_decay="0.01")
NO_DECAY, SAME_DECAY, COUPLED = "no filter, no decay", "no filter, AdamW", "no filter, Adam"
GROKFAST: Final = Paper(
    "Lee et al. 2024 (Grokfast)",
    (
        Arm("EMA filter, Adam", _with(EMA, optim__plugin=ADAM), 910, {NO_DECAY: 43.8, COUPLED: None}),
        Arm("MA filter, Adam", _with(MA, optim__plugin=ADAM), 790, {NO_DECAY: 50.5}),
        Arm("EMA filter, AdamW", EMA, 910, {SAME_DECAY: None}, claimed=False),
        Arm("MA filter, AdamW", MA, 790, claimed=False),
        Arm(NO_DECAY, _with(TIMES_TABLE, optim__weight_decay="0"), 39_890),
        Arm(COUPLED, _with(TIMES_TABLE, optim__weight_decay="0.005", optim__plugin=ADAM)),
        Arm(SAME_DECAY, _with(TIMES_TABLE, optim__weight_decay="0.005")),
    ),
)
ONE_LAYER: Final = {
    "task.operation": "x+y",
    "task.modulus": "113",
    "task.sequence": "a b =",
    "model.layers": "1",
    "model.norm": "none",
    "model.final_norm": "false",
    "model.activation": "relu",
    "model.bias": "false",
    "model.init": "nanda",
}
FULL_BATCH: Final = _with(ONE_LAYER, task__train_fraction="0.4", optim__weight_decay="0", train__batch_size="5107")
PRIETO: Final = Paper(
    "Prieto et al. 2025",
    (
        Arm("softmax", FULL_BATCH, generalises=False),
        Arm("stablemax", _with(FULL_BATCH, train__loss="stablemax"), generalises=True),
        Arm("orthogonal gradients", _with(FULL_BATCH, optim__orthogonal_gradient="true"), generalises=True),
    ),
)
NANDA: Final = Paper(
    "Nanda et al. 2023",
    (
        Arm(
            "x+y mod 113",
            _with(ONE_LAYER, task__train_fraction="0.3", optim__weight_decay="1", train__batch_size="3830"),
            generalises=True,
        ),
    ),
    {"memorised": 1_400, "circuit formed": 9_400, "cleaned up": 14_000},
)
OMNIGROK: Final = Paper(
    "Liu et al. 2023 (Omnigrok)",
    (
        Arm(
            "norm kept at 0.8 of the usual start",
            _with(NANDA.arms[0].settings, optim__weight_decay="0", model__init_scale="0.8", optim__norm_clamp="1"),
            sooner_than=NANDA.arms[0].name,
        ),
    ),
)
OPENAI: Final = {
    "task.modulus": "97",
    "model.final_norm": "false",
    "model.activation": "relu",
    "model.positions": "sinusoidal",
    "model.bias": "false",
    "optim.weight_decay": "1",
}
FRACTION: Final = "task.train_fraction"
POWER: Final = Paper(
    "Power et al. 2022",
    (
        Arm("x/y mod 97", OPENAI, free=(FRACTION,)),
        Arm("products in S5", _with(OPENAI, task__operation="ab", task__modulus="120"), free=(FRACTION,)),
    ),
)
PAPERS: Final = (GROKFAST, PRIETO, POWER, NANDA, OMNIGROK)
