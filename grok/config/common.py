"""Settings that every mode has: seeds, storage, execution, numerics."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from grok.config.fields import section, setting, settings_of
from grok.errors import ConfigError
from grok.plugins import Spec
from grok.streams import MAX_SEED, RUN_STREAMS, STREAMS, StreamSeeds

LARGEST_SWEEP: Final = 1_000_000
"""Most runs of one command. More would take hours to plan, and more memory than usual machines have."""

LARGEST_SIZE: Final = 2**20
"""Largest width, batch and so on: far above any model of this kind, and products of two of them do not overflow."""

MOST_EVALUATIONS: Final = 10_000_000
"""Most evaluations of one run. Each is a row of its curve."""

MOST_WORKERS: Final = 4096
"""Most worker processes on one machine."""

_SEED = {"minimum": 0, "maximum": MAX_SEED, "role": "none"}
# Seed settings have role "none" because identity holds the *resolved* streams instead:
# `seed=3` and `seeds.init=<what seed 3 derives>` are the same run.


CODE: Final[dict[str, Any]] = {"neutral": {}, "code": "one"}
"""Rule of a setting that names code of the user's own."""
OWN_MODEL: Final = {"doc": "Your own model: `_target_` names a torch module's class, other keys are arguments.", **CODE}
OWN_OPTIMIZER: Final = {
    "doc": "An optimiser of your own (a torch.optim.Optimizer) in place of AdamW: `_target_`, arguments.",
    **CODE,
}
OWN_INTERVENTION: Final = {
    "doc": "Your own change of gradients or weights at every step: `_target_`, arguments.",
    **CODE,
}
OWN_LOSS: Final = {"doc": "Your own loss, a function of logits and right classes: `_target_`, arguments.", **CODE}
"""Rules of the same settings of both modes."""


@dataclass(kw_only=True)
class SeedsConfig:
    """One seed per source of randomness; null derives it from the master seed."""

    split: int | None = setting(None, "Which examples are for training and which for validation.", **_SEED)
    init: int | None = setting(None, "Initial weights; each tensor is drawn separately, by its name.", **_SEED)
    order: int | None = setting(None, "Order of the training examples, a function of (seed, epoch).", **_SEED)
    dropout: int | None = setting(None, "Dropout masks and activation noise.", **_SEED)
    eval: int | None = setting(None, "Random draws of evaluations; they cannot change training.", **_SEED)
    sample: int | None = setting(None, "Text sampled from a language model.", **_SEED)
    perturb: int | None = setting(None, "Signs of the deliberate ulp-sized change of the initial weights.", **_SEED)
    layers: dict[str, int] = setting(
        {}, "Init seeds of single tensors or blocks, by name or by prefix of whole dotted components.", **_SEED
    )


@dataclass(kw_only=True)
class NumericsConfig:
    """How numbers are computed; part of the numerics tag, not of a run's identity."""

    path: str = setting(
        "auto",
        "Matrix products: chosen by processor model (auto), torch's default (plain), or oneDNN.",
        role="none",
        choices=("auto", "plain", "onednn"),
    )
    compile: bool = setting(True, "Compile the training step with torch.compile.", role="none")
    graphs: bool = setting(
        True, "Replay captured CUDA graphs of stacked lanes; false: queue every kernel, slower.", role="none"
    )
    kernels: str = setting(
        "compiled",
        "Blocks and losses of stacked lanes on a GPU: by kernels of the compiler, or written by hand (fused).",
        role="none",
        choices=("compiled", "fused"),
    )
    auto_fallback: bool = setting(False, "Continue uncompiled, with a warning, if compilation fails.", role="none")
    strict: bool = setting(False, "Refuse to resume or extend runs that have another numerics tag.", role="none")


@dataclass(kw_only=True)
class StoreConfig:
    """Where results are kept."""

    path: str = setting("results/store", "Folder of the parquet store; created if it is missing.", role="none")
    flush_seconds: float = setting(
        30.0, "Longest time a finished run waits before it is written, in seconds.", role="none", above=0, maximum=30
    )

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ConfigError(f"store.path={self.path!r} is empty: expected a folder, for example results/store")


@dataclass(kw_only=True)
class CheckpointConfig:
    """Checkpoints of runs in training (finished runs keep theirs with ``keep`` or ``keep_every``)."""

    every: int = setting(0, "Steps between checkpoints of a run; 0: by minutes only.", role="none", minimum=0)
    minutes: float = setting(10.0, "Minutes between checkpoints of a run; 0: by steps only.", role="none", minimum=0)
    keep: bool = setting(False, "Keep the last checkpoint of a finished run, so that it can be extended.", role="none")
    keep_every: int = setting(
        0, "Steps between checkpoints that are kept permanently, also after the run; 0: none.", role="none", minimum=0
    )

    keep_steps: list[int] = setting(
        [],
        "Steps of further checkpoints that are kept permanently: other runs can switch there.",
        role="none",
        minimum=1,
        steps=True,
    )


@dataclass(kw_only=True)
class SinksConfig:
    """Logs beside the store; none of them changes a run."""

    tensorboard: str | None = setting(None, "Folder for TensorBoard files.", role="none")
    wandb: str | None = setting(
        None, "Weights & Biases project; offline, unless W&B's own WANDB_MODE says online.", role="none"
    )
    plugin: dict[str, Any] = setting(
        {}, "A log of your own: `_target_` names a class that takes a run's numbers.", role="none", **CODE
    )


@dataclass(kw_only=True)
class Transformer:
    """The settings that the models of both modes share."""

    layers: int = setting(2, "Number of blocks.", minimum=1, maximum=256)
    d_model: int = setting(128, "Model width.", minimum=1, maximum=LARGEST_SIZE)
    heads: int = setting(4, "Attention heads; must divide d_model.", minimum=1)
    d_ff: int | None = setting(
        512,
        "Inner width of the MLP; null: 4 times d_model, or 8/3 for swiglu, in multiples of 8.",
        minimum=1,
        maximum=LARGEST_SIZE,
    )
    bias: bool = setting(True, "Biases in linear layers, and in a language model's norms.")
    tied: bool = setting(False, "The head shares the token embedding's weights.")

    def __post_init__(self) -> None:
        if self.d_ff is None:
            self.d_ff = self.usual_d_ff()
        if self.d_model % self.heads:
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(divisors, key=lambda h: abs(h - self.heads))[:4])
            raise ConfigError(
                f"model.heads={self.heads} does not divide model.d_model={self.d_model}: "
                f"heads near it that do are {', '.join(map(str, near))}"
            )

    def usual_d_ff(self) -> int:
        """Return the default inner width of the MLP."""
        return 4 * self.d_model


@dataclass(kw_only=True)
class AdamW:
    """The settings of AdamW that both modes share."""

    lr: float = setting(1e-3, "Peak learning rate, after the warm-up.", above=0)
    weight_decay: float = setting(0.1, "Decoupled weight decay.", minimum=0)
    decay: str = setting("all", "Which parameters decay.", choices=("all", "matrices"))
    betas: list[float] = setting([0.9, 0.98], "Decay rates of AdamW's two moments.", length=2, minimum=0, below=1)
    eps: float = setting(1e-8, "AdamW's epsilon.", above=0)
    warmup_steps: int = setting(
        10,
        "Steps of linear warm-up; update k uses lr * k / warmup_steps. A language model's one_cycle does not use it.",
        minimum=0,
    )


@dataclass(kw_only=True)
class Length:
    """The length of a run and of its batches, in both modes."""

    steps: int = setting(3000, "Number of updates.", role="length", minimum=1)
    batch_size: int = setting(
        512,
        "Examples (or sequences of text) of an update; an epoch's last batch may be smaller.",
        minimum=1,
        maximum=2**24,
    )


@dataclass(kw_only=True)
class Evaluations:
    """When a run is evaluated, in both modes."""

    every: int = setting(
        100, "Steps between evaluations; the last step is always evaluated.", role="schedule", minimum=1
    )


@dataclass(kw_only=True)
class PerturbConfig:
    """A deliberate tiny change of the initial weights, to distinguish a seed's effect from chaos."""

    ulps: int = setting(
        0,
        "Change every drawn initial weight by up to this many units in the last place.",
        minimum=0,
        maximum=2**20,
        neutral=0,
    )


def refuse_too_many_runs(count: int, what: str) -> None:
    """Refuse a plan of too many runs, before it is made.

    Raises:
        ConfigError: ``count`` is above :data:`LARGEST_SWEEP`. ``what`` names the words that give so many.
    """
    if count > LARGEST_SWEEP:
        shown = f"{count:,}" if count < 10**15 else f"about {float(count):.0e}" if count < 10**300 else "endlessly many"
        raise ConfigError(f"{what}: {shown} runs are too many for one command, expected at most {LARGEST_SWEEP:,}")


def refuse_too_many_evaluations(steps: int, every: int) -> None:
    """Refuse a curve of more than :data:`MOST_EVALUATIONS` rows.

    Raises:
        ConfigError: names both settings.
    """
    if steps // every > MOST_EVALUATIONS:
        raise ConfigError(
            f"eval.every={every} gives {steps // every:,} evaluations in train.steps={steps}: too many, expected at "
            f"most {MOST_EVALUATIONS:,} (eval.every of at least {steps // MOST_EVALUATIONS + 1})"
        )


@dataclass(kw_only=True)
class RunConfig:
    """Settings of every run, in each mode."""

    mode: str = setting("arithmetic", "What is trained.", choices=("arithmetic", "gpt"))
    experiment: str | None = setting(None, "Name of the experiment file these settings started from.", role="none")
    seed: int = setting(0, "Master seed; streams without a seed of their own derive from it.", **_SEED)
    seeds: SeedsConfig = section(SeedsConfig)
    replicate: int = setting(
        0, "Number of a deliberate repetition of a run; 0: the run itself.", role="schedule", minimum=0
    )
    save: str = setting(
        "none",
        "Which weights to keep as safetensors.",
        role="none",
        choices=("none", "final", "init", "init,final"),
    )
    device: str = setting("auto", "Where to train.", role="none", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "float32",
        "Arithmetic of the training step.",
        choices=("float32", "float64", "tf32", "tf32x3", "bf16", "fp16"),
    )
    numerics: NumericsConfig = section(NumericsConfig)
    workers: int | None = setting(
        None, "Worker processes; null: one per core, as memory allows.", role="none", minimum=1, maximum=MOST_WORKERS
    )
    lanes: int | None = setting(
        None, "Runs trained together in one worker; null: chosen by device.", role="none", minimum=1, maximum=2**16
    )
    executor: str = setting(
        "loky",
        "Where groups of runs execute.",
        role="none",
        choices=("inline", "loky", "dask", "ray", "slurm"),
        own=True,
    )
    plugin_path: str = setting(
        ".", "Folder that is searched first for your own code (`_target_: MODULE.NAME`).", role="none"
    )
    store: StoreConfig = section(StoreConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    log: SinksConfig = section(SinksConfig)
    dry_run: bool = setting(False, "Print the plan and train nothing.", role="none")
    retry_failed: bool = setting(False, "Also train runs again that are stored as failed.", role="none")
    force: bool = setting(False, "Train stored runs again, as their next replicate.", role="none")
    require_clean: bool = setting(False, "Refuse to train from uncommitted code.", role="none")

    def stream_seeds(self) -> StreamSeeds:
        """Return the resolved seed of every stream."""
        return StreamSeeds.derive(self.seed, {name: getattr(self.seeds, name) for name in STREAMS})

    def live_streams(self) -> frozenset[str]:
        """Return the streams that can change training under these settings."""
        return frozenset(RUN_STREAMS)

    def constants(self) -> dict[str, Any]:
        """Return the settings of earlier versions that are constants now: every hash has them, as it had."""
        return {}

    def trunk(self) -> tuple[RunConfig, int] | None:
        """Return the settings of the run that this one equals up to a step, and that step; None: it is its own."""
        return None

    def switched_streams(self) -> dict[str, int]:
        """Return the seeds that take the place of streams in mid-run, by setting."""
        return {}

    def length_is_free(self) -> bool:
        """Return whether a shorter run is a prefix of a longer one: no schedule looks at ``train.steps``."""
        return True

    def plugins(self) -> dict[str, Spec]:
        """Return the user's own code that these settings name, by setting: all that can change a run's numbers."""
        named: dict[str, Spec] = {}
        cls: Any = type(self)
        for name, kind in _code_settings(cls):
            value = attrgetter(name)(self)
            named |= {f"{name}.{key}": spec for key, spec in value.items()} if kind == "named" else {name: value}
        return {name: spec for name, spec in named.items() if spec}

    def measuring_plugins(self) -> frozenset[str]:
        """Return the settings among :meth:`plugins` whose code only measures and changes no weight."""
        return frozenset(name for name in self.plugins() if name.startswith("eval.metric_plugins."))

    def only_on_cpu(self) -> list[str]:
        """Return the settings in use that only the CPU's engine supports."""
        return []

    def coupled_schedule(self) -> dict[str, object]:
        """Return the evaluation settings that change training: none, unless a subclass says otherwise."""
        return {}


@functools.cache
def _code_settings(cls: Any) -> list[tuple[str, str]]:
    """Return the settings that name code of the user's own, with what of it: ``one`` or several, ``named``."""
    return [(n, rule.code) for n, (_, rule) in settings_of(cls).items() if rule.code != "none" and rule.role != "none"]
