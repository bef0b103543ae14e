"""Settings of the GPT mode. A run needs a preset (``experiment=gpt/NAME``)."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Final

from grok.config.common import LARGEST_SIZE, PerturbConfig, RunConfig, SinksConfig, refuse_too_many_evaluations
from grok.config.fields import section, setting
from grok.config.gpt_model import ModelConfig
from grok.config.stability import StabilityConfig
from grok.errors import ConfigError, nearest

PRESETS: Final = (
    "gpt2_117m",
    "gpt2_345m",
    "gpt3_small",
    "gpt3_small_char",
    "gpt_580m",
    "gpt_mini_v0",
    "shakespeare_char",
    "shakespeare_char_gpu",
    "tinystories_1m",
    "tinystories_28m",
    "tinystories_33m",
    "tinystories_3m",
    "tinystories_8m",
    "tinystories_sample",
    "transformer_xl_base",
    "transformer_xl_large",
    "wikitext103_353m",
    "wikitext_sample",
)
"""The presets of ``conf/experiment/gpt``; a test compares both lists."""

MAIN: Final = "main"
"""The corpus of ``data.path`` in a mixture."""

WARMUP_STEPS: Final = 100
"""Default steps of warm-up."""


@dataclass(kw_only=True)
class DataConfig:
    """The corpus of `grok prepare`, and how batches are drawn from it."""

    path: str | None = setting(
        None, "Folder that `grok prepare` wrote; run_id depends on its manifest, not on its path.", role="none"
    )
    tokenizer: str | None = setting(
        None, "Code of your own (MODULE.NAME) that made the corpus's tokens, for samples as text.", role="none"
    )
    sampling: str = setting(
        "blocks",
        "Non-overlapping blocks, each once an epoch in random order, or windows at random offsets.",
        choices=("blocks", "random"),
    )
    corpora: dict[str, str] = setting(
        {}, "Further prepared corpora, name and folder; `main` is data.path. All have one tokeniser.", role="none"
    )
    mixture: dict[str, float] = setting(
        {},
        "Share of each named corpus in the training sequences; empty: data.path alone.",
        role="none",
        minimum=0,
        maximum=1e12,
    )
    mixture_hashes: dict[str, float] = setting(
        {}, "Shares by the corpora's hashes, part of run_id; the plan sets them.", neutral={}
    )
    validation: list[str] = setting(
        [], "Further validation sets: NAME or NAME@SPLIT of a corpus (default split: val).", role="none"
    )
    validation_hashes: dict[str, str] = setting(
        {}, "Hashes of those corpora, part of run_id; the plan sets them.", role="schedule", neutral={}
    )
    document_mask: bool = setting(
        False, "Attention, positions and loss end at <|endoftext|>: each document is a separate text.", neutral=False
    )

    def __post_init__(self) -> None:
        if MAIN in self.corpora:
            raise ConfigError(f"data.corpora.{MAIN}={self.corpora[MAIN]}: {MAIN} is the corpus of data.path")
        known = [MAIN, *self.corpora]
        for name in self.corpora:
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ConfigError(f"data.corpora: {name!r} is no name: expected letters, digits, _ and -")
        for name in [*self.mixture, *(entry.partition("@")[0] for entry in self.validation)]:
            if name not in known:
                raise ConfigError(
                    f"data.{'mixture' if name in self.mixture else 'validation'} names the corpus {name!r}, which "
                    f"data.corpora does not have{nearest(name, known)}: expected one of {', '.join(known)}"
                )
        if self.mixture and not any(self.mixture.values()):
            raise ConfigError(f"data.mixture={self.mixture}: expected a weight above 0")

    def folders(self) -> dict[str, str]:
        """Return the folder of each corpus that the run reads, by name; ``main`` only where ``path`` is given."""
        read = {*self.mixture, *(name for name, _ in self.validation_sets().values())}
        main = {} if self.path is None else {MAIN: self.path}
        return main | {name: folder for name, folder in self.corpora.items() if name in read}

    def validation_sets(self) -> dict[str, tuple[str, str]]:
        """Return corpus and split of each further validation set, by its name."""
        sets = {}
        for entry in self.validation:
            name, _, split = entry.partition("@")
            sets[entry] = (name, split or "val")
        return sets


@dataclass(kw_only=True)
class OptimConfig:
    """AdamW and its learning-rate schedule."""

    kind: str = setting(
        "adamw",
        "AdamW, AdamW with 8-bit moments (extra `bitsandbytes`), or Muon for the blocks' matrices with AdamW.",
        choices=("adamw", "adamw8bit", "muon"),
        neutral="adamw",
    )
    lr: float = setting(6e-4, "Peak learning rate.", above=0)
    weight_decay: float = setting(0.1, "Decoupled weight decay.", minimum=0)
    decay: str = setting("matrices", "Which parameters decay.", choices=("all", "matrices"))
    betas: list[float] = setting([0.9, 0.95], "Decay rates of AdamW's two moments.")
    eps: float = setting(1e-8, "AdamW's epsilon.", above=0)
    momentum: float = setting(0.95, "Muon's momentum.", minimum=0, below=1, neutral=0.95)
    clip: float = setting(1.0, "Largest global norm of the gradient; 0: no clipping.", minimum=0)
    warmup_steps: int = setting(
        WARMUP_STEPS,
        "Steps of linear warm-up; update k uses lr * k / warmup_steps; one_cycle does not use it.",
        minimum=0,
    )
    warmup_samples: int | None = setting(None, "Warm-up counted in sequences instead of steps.", minimum=1)
    schedule: str = setting(
        "cosine",
        "What follows the warm-up.",
        choices=("constant", "linear", "cosine", "wsd", "one_cycle"),
    )
    min_lr: float = setting(0.1, "Learning rate at the end of a decay, as a share of the peak.", minimum=0, maximum=1)
    decay_steps: int | None = setting(None, "Step at which the decay ends; null: train.steps.", minimum=1)
    wsd_decay: float = setting(
        0.2, "Share of the steps, at the end, in which the wsd schedule decays.", above=0, maximum=1
    )
    cycle_rise: float = setting(0.3, "Share of the steps in which one_cycle rises.", above=0, below=1)
    cycle_start: float = setting(
        0.04, "Learning rate at the start of one_cycle, as a share of the peak.", above=0, maximum=1
    )
    cycle_end: float = setting(
        4e-6, "Learning rate at the end of one_cycle, as a share of the peak.", minimum=0, maximum=1
    )

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ConfigError(f"optim.betas={self.betas}: expected two numbers, each at least 0 and below 1")
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps and self.warmup_samples is None:
            raise ConfigError(
                f"optim.decay_steps={self.decay_steps} ends the decay before the warm-up of "
                f"optim.warmup_steps={self.warmup_steps} is over"
            )


@dataclass(kw_only=True)
class TrainConfig:
    """Length, batches and early stop."""

    steps: int = setting(2000, "Number of updates.", role="length", minimum=1)
    epochs: float | None = setting(
        None, "Length in epochs of the data; the plan computes `steps` from it.", role="none", above=0, maximum=10**6
    )
    tokens: float | None = setting(
        None, "Length in tokens; the plan computes `steps` from it.", role="none", minimum=1, maximum=10**18
    )
    hours: float | None = setting(
        None, "Hours of training after which the run leaves a checkpoint; more hours continue it.", role="none", above=0
    )
    batch_size: int = setting(12, "Sequences per update.", minimum=1, maximum=2**24)
    micro_batch: int | None = setting(
        None, "Sequences computed at once, with accumulated gradients; null: the whole batch.", role="none", minimum=1
    )
    batch_ramp: list[int] = setting(
        [], "Ramp of the batch: first size, increment, and sequences over which it grows; empty: none.", neutral=[]
    )
    context_ramp: list[int] = setting(
        [], "Ramp of the sequence length: first length, increment, and sequences over which it grows.", neutral=[]
    )
    threads: int | None = setting(
        None, "Threads on a CPU, part of the numerics tag; null: all cores.", role="none", minimum=1, maximum=4096
    )
    devices: int = setting(
        1,
        "Required number of processes; 1: any number that torchrun starts. The number is in the numerics tag.",
        role="none",
        minimum=1,
    )
    parallel: str = setting(
        "ddp",
        "Each process holds all weights and moments (ddp), or a share of them (fsdp).",
        role="none",
        choices=("ddp", "fsdp"),
    )
    fsdp_keeps: str = setting(
        "gradients",
        "What each process of fsdp keeps complete between the micro-batches of a step: nothing (least memory), "
        "gradients, which are then summed once a step, or also weights, which are then gathered once (least traffic).",
        role="none",
        choices=("nothing", "gradients", "weights"),
    )
    recompute: str = setting(
        "none",
        "Activations that the backward pass recomputes instead of storing: none, attention, or whole blocks.",
        role="none",
        choices=("none", "attention", "blocks"),
    )
    early_stop: int = setting(
        0, "Stop after this many evaluations without a better validation loss; 0: never.", role="schedule", minimum=0
    )

    def __post_init__(self) -> None:
        _check_ramp("train.batch_ramp", self.batch_ramp, "train.batch_size", self.batch_size)
        if self.epochs is not None and self.tokens is not None:
            raise ConfigError(f"train.epochs={self.epochs} and train.tokens={self.tokens}: give one of them")
        if (self.epochs or self.tokens) and self.context_ramp:
            raise ConfigError(
                f"train.context_ramp={self.context_ramp} changes the tokens of a step: give train.steps instead of "
                f"train.{'epochs' if self.epochs else 'tokens'}"
            )
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise ConfigError(
                f"train.micro_batch={self.micro_batch} is larger than train.batch_size={self.batch_size}: "
                f"at most {self.batch_size}, or null"
            )


def _check_ramp(name: str, ramp: list[int], full_name: str, full: int) -> None:
    if not ramp:
        return
    if len(ramp) != 3 or min(ramp) < 1:
        raise ConfigError(f"{name}={ramp}: expected three positive whole numbers (first, increment, sequences), or []")
    first, increment, _ = ramp
    if first > full or (full - first) % increment:
        raise ConfigError(
            f"{name}={ramp}: from {first} in steps of {increment} it never meets {full_name}={full}; "
            "the difference must be a whole number of increments"
        )


@dataclass(kw_only=True)
class EvalConfig:
    """When a run is evaluated, and on which text. Evaluations never change a run."""

    every: int = setting(
        250, "Steps between evaluations; the last step is always evaluated.", role="schedule", minimum=1
    )
    # A result setting, although it cannot move a weight: two runs of one trajectory must
    # show the same validation loss at common steps.
    windows: int | None = setting(
        240, "Validation windows, evenly spaced over the validation text; null: all of it.", minimum=1
    )
    sample_tokens: int = setting(
        120, "Tokens sampled at each evaluation; 0: none.", role="none", minimum=0, maximum=LARGEST_SIZE
    )
    prompt: str = setting("\n", "Text that the samples continue.", role="none")
    temperature: float = setting(
        0.8, "Temperature of the samples; 0: always the most likely token.", role="none", minimum=0
    )
    top_k: int | None = setting(
        50, "Samples draw from this many most likely tokens; null: from all.", role="none", minimum=1
    )
    tasks: list[str] = setting(
        [], "Tasks of lm-evaluation-harness that evaluations score: names, or YAML files.", role="none"
    )
    tasks_every: int = setting(1, "Evaluations between two scores of the tasks.", role="none", minimum=1)
    task_documents: int | None = setting(
        None, "Documents of each task that are scored; null: all.", role="none", minimum=1
    )
    average_share: float = setting(
        0.2,
        "Share of the steps, at the end, whose weights are averaged if `save` keeps weights.",
        role="none",
        minimum=0,
        below=1,
    )
    average_points: int = setting(
        10, "Number of evenly spaced points of that average.", role="none", minimum=1, maximum=10_000
    )


@dataclass(kw_only=True)
class LogConfig(SinksConfig):
    """Logs of a language model beside the store; none of them changes a run."""

    profile: str | None = setting(None, "Folder for a trace and a table of a few steps.", role="none")
    profile_steps: int = setting(5, "Number of steps profiled, after three warm-up steps.", role="none", minimum=1)
    quiet: bool = setting(
        False, "Print nothing about the model, its data and its evaluations, unless a run diverges.", role="none"
    )


@dataclass(kw_only=True)
class ResumeConfig:
    """Continuation from another run's checkpoint under changed settings, as a new run."""

    run: str | None = setting(
        None, "run_id of the run in store.path from whose checkpoint this run continues.", neutral=None
    )
    step: int | None = setting(None, "Step of that checkpoint.", minimum=0, neutral=None)
    changes: list[str] = setting([], "Settings that may differ from the checkpoint's.", role="none")

    def __post_init__(self) -> None:
        if (self.run is None) != (self.step is None):
            raise ConfigError("resume.run and resume.step go together: the run to go on from, and the step it is at")
        if self.changes and self.run is None:
            raise ConfigError(f"resume.changes={self.changes} without resume.run: nothing is resumed")


@dataclass(kw_only=True)
class TargetConfig:
    """Size of the preset's model; a run with other settings prints its own beside it."""

    params: int | None = setting(
        None, "Number of parameters of the preset's model (its source may count another one).", role="none", minimum=1
    )
    vocab_size: int | None = setting(None, "Vocabulary size of that count.", role="none", minimum=2)


@dataclass(kw_only=True)
class GptConfig(RunConfig):
    """A GPT on text."""

    data: DataConfig = section(DataConfig)
    model: ModelConfig = section(ModelConfig)
    optim: OptimConfig = section(OptimConfig)
    train: TrainConfig = section(TrainConfig)
    eval: EvalConfig = section(EvalConfig)
    perturb: PerturbConfig = section(PerturbConfig)
    stability: StabilityConfig = section(StabilityConfig)
    log: LogConfig = section(LogConfig)
    resume: ResumeConfig = section(ResumeConfig)
    target: TargetConfig = section(TargetConfig)
    init_from: str | None = setting(
        None,
        "Folder of a Hugging Face GPT-2: the run starts with its weights and uses its model settings.",
        role="none",
    )
    init_hash: str | None = setting(
        None, "Hash of those weights, part of run_id; null: computed from the folder.", neutral=None
    )

    def __post_init__(self) -> None:
        if self.init_hash is not None and self.init_from is None:
            raise ConfigError(f"init_hash={self.init_hash[:12]} without init_from: no weights are read")
        _check_ramp("train.context_ramp", self.train.context_ramp, "model.context", self.model.context)
        refuse_too_many_evaluations(self.train.steps, self.eval.every)
        if self.model.d_ff != self.model.usual_d_ff() and self.target.params is not None:
            warnings.warn(
                f"model.d_ff={self.model.d_ff} is not {self.model.usual_d_ff()}, the usual one of model.d_model="
                f"{self.model.d_model}: the parameter count moves away from the preset's",
                stacklevel=2,
            )

        idle = [f"optim.warmup_steps={self.optim.warmup_steps}"] * (self.optim.warmup_steps not in (0, WARMUP_STEPS))
        idle += [f"optim.warmup_samples={self.optim.warmup_samples}"] * (self.optim.warmup_samples is not None)
        if self.optim.schedule == "one_cycle" and idle:
            warnings.warn(
                f"{' and '.join(idle)} does nothing beside optim.schedule=one_cycle, whose "
                "rise is its warm-up: give optim.cycle_rise, the share of the steps that it takes",
                stacklevel=2,
            )

    def live_streams(self) -> frozenset[str]:
        """Return the streams that can change training: no split (the corpus has its own), others if used."""
        drawn = {"init"} if self.init_from is None else set()
        noise = ({"dropout"} if self.model.drops() else set()) | ({"perturb"} if self.perturb.ulps > 0 else set())
        return frozenset({"order"} | drawn | noise)

    def length_is_free(self) -> bool:
        """Return whether a shorter run is a prefix of a longer one: only if no schedule ends with the run."""
        return self.optim.schedule == "constant" or self.optim.decay_steps is not None

    def coupled_schedule(self) -> dict[str, object]:
        """Return the checkpoints' spacing where a rollback may return to them: it then decides where to."""
        stability, every = self.stability, self.checkpoint.keep_every
        coupled = stability.rolls_back() and stability.signals == "all" and every > 0
        return {"checkpoint.keep_every": every} if coupled else {}


def require_preset(config: GptConfig) -> None:
    """Refuse settings that start from no preset: no model is trained by accident.

    Raises:
        ConfigError: ``experiment`` is null.
    """
    if config.experiment is None and config.init_from is None:
        raise ConfigError(
            "mode=gpt starts from a preset, so that no model is trained by accident: give experiment=gpt/NAME, "
            f"with NAME one of {', '.join(PRESETS)}"
        )
