"""Settings of the arithmetic mode; the defaults are the diary's regime."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from grok.config import common
from grok.config.fields import canonical_json, section, setting
from grok.errors import ConfigError, GrokError, nearest
from grok.plugins import Examples, Operation, Spec, Training, build, label, load, own_place
from grok.streams import MAX_SEED

MODULAR_OPERATIONS = (
    "x+y",
    "x-y",
    "x*y",
    "x/y",
    "x^2+y^2",
    "x^2+xy+y^2",
    "x^2+xy+y^2+x",
    "x^3+xy",
    "x^3+xy^2+y",
    "x/y if y odd else x-y",
)
PERMUTATION_OPERATIONS = ("ab", "aba^-1", "aba")
OPERATIONS = MODULAR_OPERATIONS + PERMUTATION_OPERATIONS
DIVISIONS = ("x/y", "x/y if y odd else x-y")
"""Operations that need a prime modulus."""
NEVER_BY_ZERO = ("x/y",)
"""Operations whose right operand is never 0."""
S5_ORDER = 120
METRICS = ("fourier", "head", "rank", "neurons", "circuit", "logits", "gradient")
"""See ``grok.arithmetic.measures``."""


def is_prime(n: int) -> bool:
    """Return whether ``n`` is prime, by trial division."""
    return n >= 2 and all(n % d for d in range(2, int(n**0.5) + 1))


@dataclass(kw_only=True)
class TaskConfig:
    """The table of equations and how it is shown to the model."""

    operation: str = setting("x/y", f"The operation of the table: {', '.join(OPERATIONS)} (`**` may be typed for `^`).")
    modulus: int = setting(223, "Modulus of the operation; 120 for products in S5.", minimum=2, maximum=4096)
    train_fraction: float = setting(0.5, "Share of the table that is trained on.", above=0, below=1)
    label_noise: float = setting(
        0.0, "Share of training answers replaced by random ones.", minimum=0, maximum=1, neutral=0.0
    )
    sequence: str = setting(
        "eos a op b =",
        "Tokens of one example; the model predicts the answer at the last one.",
        choices=("eos a op b =", "a op b =", "a b ="),
    )
    plugin: dict[str, Any] = setting(
        {},
        "Your own task: `_target_` names a function that returns its table, other keys are arguments.",
        **common.CODE,
    )

    def __post_init__(self) -> None:
        if self.plugin:
            self.operation = label(self.plugin)  # what tables and figures call it; its sizes need its code
            return
        self.operation = self.operation.replace("**", "^")
        if self.operation not in OPERATIONS:
            known = nearest(self.operation, OPERATIONS)
            raise ConfigError(
                f"task.operation={self.operation!r} is not known{known}: expected one of {', '.join(OPERATIONS)}; "
                "one of your own is task.plugin._target_=MODULE.NAME"
            )
        if self.operation in DIVISIONS and not is_prime(self.modulus):
            raise ConfigError(
                f"task.modulus={self.modulus}: {self.operation!r} divides, which needs a prime modulus "
                f"(for example {next(n for n in count(self.modulus + 1) if is_prime(n))})"
            )
        if self.operation in PERMUTATION_OPERATIONS and self.modulus != S5_ORDER:
            raise ConfigError(
                f"task.modulus={self.modulus}: {self.operation!r} multiplies the {S5_ORDER} permutations of S5, "
                f"set task.modulus={S5_ORDER}"
            )
        self.refuse_empty_sets()

    def refuse_empty_sets(self) -> None:
        """Refuse a share of the table that leaves no example to train on, or none to validate.

        Raises:
            ConfigError: says how many there are of each.
        """
        if not 1 <= self.train_examples() < self.examples():
            raise ConfigError(
                f"task.train_fraction={self.train_fraction} of {self.examples()} examples leaves "
                f"{self.train_examples()} to train and {self.examples() - self.train_examples()} to validate: "
                "at least one of each is needed"
            )

    def examples(self) -> int:
        """Return the number of equations in the table.

        Raises:
            ConfigError: The task is the user's own, and this command does not name its code.
        """
        if self.plugin:
            return size_of(self.plugin, self.modulus)
        return self.modulus * len(self.right_operands())

    def right_operands(self) -> range:
        """Return the values of the right operand: without 0 where the operation divides by it."""
        return range(1 if self.operation in NEVER_BY_ZERO else 0, self.modulus)

    def is_of_another_form(self) -> bool:
        """Return whether this is the user's own table and not an operation of two operands."""
        return bool(self.plugin) and not isinstance(table_of(self.plugin), Operation)

    def trains_itself(self) -> bool:
        """Return whether a function of the user's own trains the run as a whole."""
        return bool(self.plugin) and isinstance(table_of(self.plugin), Training)

    def train_examples(self) -> int:
        """Return the number of training examples: the fraction of the table, rounded down."""
        return int(self.train_fraction * self.examples())


@dataclass(kw_only=True)
class ModelConfig(common.Transformer):
    """The decoder-only transformer."""

    norm: str = setting("post", "Position of LayerNorm in a block.", choices=("post", "pre", "none"))
    final_norm: bool = setting(True, "LayerNorm before the head.")
    activation: str = setting("gelu", "Activation of the MLP.", choices=("gelu", "relu"))
    positions: str = setting("learned", "Position embedding.", choices=("learned", "sinusoidal"))
    init: str = setting(
        "torch",
        "Initialisation: torch's defaults, transformer-lens's normals (nanda), or N(0, 0.02) (gpt2).",
        choices=("torch", "nanda", "gpt2"),
    )
    init_scale: float = setting(1.0, "Factor on every initial weight matrix and embedding.", above=0, neutral=1.0)
    dropout: float = setting(0.0, "Dropout on embeddings, attention and MLP outputs.", minimum=0, below=1)
    plugin: dict[str, Any] = setting({}, **common.OWN_MODEL)


@dataclass(kw_only=True)
class OptimConfig(common.AdamW):
    """AdamW as in the diary."""

    grokfast: str = setting(
        "none",
        "Amplify the slow part of the gradient: moving average (ma) or exponential (ema); Lee et al. 2024.",
        choices=("none", "ema", "ma"),
        neutral="none",
    )
    grokfast_alpha: float = setting(0.98, "Momentum of the EMA filter.", minimum=0, below=1, neutral=0.98)
    grokfast_lamb: float = setting(2.0, "Strength of the filter.", minimum=0, neutral=2.0)
    grokfast_window: int = setting(
        100, "Window of the MA filter, in steps.", minimum=1, maximum=common.LARGEST_SIZE, neutral=100
    )

    orthogonal_gradient: bool = setting(
        False, "Remove the gradient's component along the weights; Prieto et al. 2025.", neutral=False
    )
    norm_clamp: float | None = setting(
        None, "Keep the norm of all parameters at this multiple of its start; Liu et al. 2023.", above=0, neutral=None
    )
    plugin: dict[str, Any] = setting({}, **common.OWN_OPTIMIZER)
    intervention: dict[str, Any] = setting({}, **common.OWN_INTERVENTION)


@dataclass(kw_only=True)
class TrainConfig(common.Length):
    """Length, batches and early stop."""

    loss: str = setting(
        "softmax",
        "Cross-entropy over softmax, or over stablemax; Prieto et al. 2025.",
        choices=("softmax", "stablemax"),
        neutral="softmax",
    )
    loss_plugin: dict[str, Any] = setting({}, **common.OWN_LOSS)
    stop_when_generalised: bool = setting(
        False,
        "Stop a run that is generalised at two early-stop decisions in a row, not before `stop_horizon`.",
        role="schedule",
    )
    stop_horizon: int = setting(
        3000, "Step at which seeds are judged; no run stops before it.", role="schedule", minimum=1
    )
    stop_every: int = setting(
        100,
        "Steps between early-stop decisions, independent of the evaluation schedule.",
        role="schedule",
        minimum=1,
    )


@dataclass(kw_only=True)
class EvalConfig(common.Evaluations):
    """When a run is evaluated. Evaluations never change a run."""

    schedule: str = setting(
        "every",
        "Evaluate every n steps, or at about `points` log-spaced steps.",
        role="schedule",
        choices=("every", "log"),
    )
    points: int = setting(
        100, "Evaluations of the log schedule.", role="schedule", minimum=2, maximum=common.MOST_EVALUATIONS
    )
    steps: list[int] = setting(
        [],
        "Steps of further evaluations, for example dense ones at the start; 0: the initial weights. A run with them "
        "can be extended.",
        role="schedule",
        neutral=[],
        minimum=0,
        steps=True,
    )
    passes: int = setting(
        1,
        "Passes over the validation set per evaluation.",
        role="none",
        minimum=1,
        maximum=1000,
    )
    shuffle: bool = setting(
        False, "Read the validation set in a random order, drawn from the eval stream.", role="none"
    )
    couple_order: bool = setting(
        False,
        "The bug of the diary's code: each pass over the validation set advances the order stream.",
        neutral=False,
    )
    metrics: list[str] = setting(
        [],
        f"Further measurements at each evaluation: {', '.join(METRICS)}; they do not change training.",
        role="none",
        choices=METRICS,
    )
    metric_plugins: dict[str, Any] = setting(
        {},
        "Your own measurements, by name: `_target_` and arguments of each.",
        role="schedule",
        neutral={},
        code="named",
    )


@dataclass(kw_only=True)
class SwitchConfig:
    """A change in mid-run: up to its step the run equals its trunk, the same settings without ``switch``."""

    step: int | None = setting(
        None,
        "Step after which the change applies; evaluation and checkpoint of this step come before it.",
        minimum=0,
        neutral=None,
    )
    order: int | None = setting(
        None,
        "Order seed of all updates after `switch.step`; null: the run's own.",
        minimum=0,
        maximum=MAX_SEED,
        role="none",
        neutral=None,
    )
    ulps: int = setting(
        0,
        "Move every weight once, after `switch.step`, by up to this many units in the last place.",
        minimum=0,
        maximum=2**20,
        neutral=0,
    )

    def __post_init__(self) -> None:
        if self.step is None and (self.order is not None or self.ulps):
            change = f"switch.order={self.order}" if self.order is not None else f"switch.ulps={self.ulps}"
            raise ConfigError(f"{change} needs the step after which it applies: give switch.step=T")
        if self.step is not None and self.order is None and not self.ulps:
            raise ConfigError(
                f"switch.step={self.step} changes nothing by itself: give switch.order=SEED or switch.ulps=N too"
            )

    def to_order(self) -> tuple[int, int] | None:
        """Return (step, order seed) of the switch, or None."""
        return None if self.step is None or self.order is None else (self.step, self.order)


@dataclass(kw_only=True)
class ArithmeticConfig(common.RunConfig):
    """A small transformer on a table of equations."""

    task: TaskConfig = section(TaskConfig)
    model: ModelConfig = section(ModelConfig)
    optim: OptimConfig = section(OptimConfig)
    train: TrainConfig = section(TrainConfig)
    eval: EvalConfig = section(EvalConfig)
    perturb: common.PerturbConfig = section(common.PerturbConfig)
    switch: SwitchConfig = section(SwitchConfig)

    def __post_init__(self) -> None:
        self.refuse_impossible_switch()
        if not self.task.plugin:
            self.refuse_large_batch()
        if self.eval.schedule == "every":
            common.refuse_too_many_evaluations(self.train.steps, self.eval.every)
        if self.precision == "fp16":
            raise ConfigError("precision=fp16: for mode=arithmetic expected one of float32, float64, tf32, bf16")
        if self.precision == "tf32x3" and self.numerics.kernels != "fused":
            raise ConfigError("precision=tf32x3 is one of kernels written by hand: expected numerics.kernels=fused too")

    def refuse_large_batch(self) -> None:
        """Refuse a batch of more examples than there are to train on.

        Raises:
            ConfigError: says how many there are.
        """
        n = self.task.train_examples()
        if self.train.batch_size > n:
            modulus = "" if self.task.is_of_another_form() else f" mod {self.task.modulus}"
            raise ConfigError(
                f"train.batch_size={self.train.batch_size} is larger than the {n} training examples of "
                f"{self.task.operation!r}{modulus} at fraction {self.task.train_fraction}: at most {n}"
            )

    def refuse_impossible_switch(self) -> None:
        """Refuse a switch that the run does not reach, or that is not at one place in a coupled order.

        Raises:
            ConfigError: names both settings.
        """
        step = self.switch.step
        if step is not None and step >= self.train.steps:
            raise ConfigError(
                f"switch.step={step}: the run ends at train.steps={self.train.steps}, expected at most "
                f"{self.train.steps - 1}"
            )
        if step is not None and self.eval.couple_order:
            raise ConfigError(
                f"switch.step={step} with eval.couple_order=true: evaluations move the order there; leave one out"
            )

    def trunk(self) -> tuple[common.RunConfig, int] | None:
        if self.switch.step is None:
            return None
        plain = replace(self, switch=SwitchConfig())
        if "perturb" not in plain.live_streams():  # it was for the switch: every plain run has its master's
            plain = replace(plain, seeds=replace(plain.seeds, perturb=None))
        return plain, self.switch.step

    def switched_streams(self) -> dict[str, int]:
        return {} if self.switch.order is None else {"switch.order": self.switch.order}

    def live_streams(self) -> frozenset[str]:
        """Return the streams that can change training: noise and perturbation only where they are on."""
        draws = self.model.plugin or self.optim.plugin or self.optim.intervention or self.train.loss_plugin
        noise = {"dropout"} if self.model.dropout > 0 or draws else set()
        perturb = {"perturb"} if self.perturb.ulps > 0 or self.switch.ulps > 0 else set()
        return super().live_streams() | noise | perturb

    def coupled_schedule(self) -> dict[str, object]:
        """Return the evaluation settings that change training: none, except for the coupling of the diary's bug."""
        if not self.eval.couple_order:
            return {}
        names = ["every", "schedule", "points", "passes"] + ["steps"] * bool(self.eval.steps)
        return {name: getattr(self.eval, name) for name in names}

    def measures_kept_weights(self) -> bool:
        """Return whether a run's curve gets measurements of the weights that it keeps on the way, when it has ended."""
        return "circuit" in self.eval.metrics and self.checkpoint.keep_every > 0 and "final" in self.save

    def length_is_free(self) -> bool:
        # a log schedule is laid over the whole length, and under the coupling it moves training
        coupled = self.eval.couple_order and self.eval.schedule == "log"
        return not (coupled or self.task.trains_itself())

    def only_on_cpu(self) -> list[str]:
        used = {
            **{name: True for name in self.plugins() if name != "task.plugin"},
            "a task.plugin of another form than an operation": self.task.is_of_another_form(),
            "optim.grokfast=ma": self.optim.grokfast == "ma",
            "eval.metrics=[circuit] of kept weights": self.measures_kept_weights(),
        }
        return [name for name, on in used.items() if on]


# The table of the user's own task: built once, cached while its code is the same.


def table_of(spec: Spec) -> Operation | Examples | Training:
    """Return the task that the user's own code builds.

    Raises:
        ConfigError: the command does not name that code, or it returns another type.
    """
    return _table(canonical_json(dict(spec)), load(spec))


@functools.lru_cache(maxsize=16)
def _table(text: str, code: Callable[..., Any]) -> Operation | Examples | Training:
    if Training.is_one(code):
        return Training(code)
    spec = json.loads(text)
    try:
        made = build(spec)
    except (GrokError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"task.plugin={label(spec)} fails{own_place(error)} ({reason})") from error
    if not isinstance(made, (Operation, Examples)):
        raise ConfigError(
            f"task.plugin={label(spec)} returned a {type(made).__name__}: expected a grok.plugins.Operation or Examples"
        )
    return made


def size_of(spec: Spec, modulus: int) -> int:
    """Return the number of examples of the user's own task.

    Raises:
        ConfigError: see :func:`table_of`; or ``task.modulus`` is not the number of the operation's elements.
    """
    table = table_of(spec)
    if isinstance(table, Training):
        raise ConfigError(f"{label(spec)} trains by itself: this command needs a table of examples")
    if isinstance(table, Examples):
        return len(table)
    if len(table.table) != modulus:
        raise ConfigError(
            f"task.modulus={modulus}: {label(spec)} is an operation on {len(table.table)} elements, "
            f"set task.modulus={len(table.table)}"
        )
    return modulus * modulus
