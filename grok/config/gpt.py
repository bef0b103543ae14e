"""Settings of the GPT mode: model, text, training, stability. A run needs a preset (``experiment=gpt/NAME``)."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from grok.config import common
from grok.config.fields import defaults, planned, section, setting
from grok.errors import ConfigError, nearest

# Settings of a GPT's model.

WIDE_RATIO: Final = 256
"""Width over depth above which a warning is shown. 150 to 200 is normal for large models, 512 is bad."""


@dataclass(kw_only=True)
@defaults(layers=12, d_model=768, heads=12, d_ff=None, tied=True)
class ModelConfig(common.Transformer):
    """A GPT-2, and the options that later papers changed."""

    kv_heads: int | None = setting(
        None,
        "Heads of keys and values, each used by heads / kv_heads queries; null: as many as heads.",
        minimum=1,
        neutral=None,
    )
    context: int = setting(
        1024, "Tokens of one training sequence, and the rows of learned positions.", minimum=1, maximum=2**24
    )
    vocab_size: int | None = setting(
        None, "Rows of the token embedding; null: the corpus's vocabulary.", minimum=2, maximum=2**24
    )
    vocab_multiple: int = setting(
        1, "The embedding's rows are rounded up to a multiple of this.", minimum=1, maximum=common.LARGEST_SIZE
    )
    norm: str = setting("pre", "Position of the norms in a block.", choices=("pre", "post"))
    norm_type: str = setting("layernorm", "LayerNorm, or RMSNorm without bias.", choices=("layernorm", "rmsnorm"))
    norm_eps: float = setting(1e-5, "Number added to the variance in a norm.", above=0, neutral=1e-5)
    activation: str = setting(
        "gelu_tanh",
        "Activation of the MLP; gelu_tanh is GPT-2's, swiglu has a third matrix.",
        choices=("gelu_tanh", "gelu", "relu", "swiglu"),
    )
    positions: str = setting("learned", "Position encoding.", choices=("learned", "rotary", "alibi"))
    qk_norm: bool = setting(False, "Normalise queries and keys per head before their product.")
    qk_scaling: str = setting(
        "product",
        "Divide the product of queries and keys by sqrt(K), or scale both before it, which cannot overflow.",
        choices=("product", "operands"),
    )
    softmax: str = setting(
        "fused",
        "Softmax of attention: inside the fused kernel, as separate operations in float32, or as separate "
        "operations in the activations' precision, where bf16 and fp16 round every exponential and their sum.",
        choices=("fused", "float32", "activations"),
    )
    z_loss: float = setting(
        0.0, "Factor of the mean squared log of softmax's divisor, a term of the training loss.", minimum=0, neutral=0.0
    )
    init: str = setting(
        "0.02",
        "Standard deviation of initial matrices: 0.02 (GPT-2), 0.006 (104B), 0.004 (530B), small = sqrt(2 / (5 D)).",
        choices=("0.02", "0.006", "0.004", "small"),
    )
    init_residual: bool = setting(
        True, "Divide the standard deviation of projections to the residual by sqrt(2 layers)."
    )
    dropout: float = setting(0.0, "Dropout wherever one of the three settings below is null.", minimum=0, below=1)
    dropout_embedding: float | None = setting(None, "Dropout on embeddings; null: `dropout`.", minimum=0, below=1)
    dropout_residual: float | None = setting(None, "Dropout on block outputs; null: `dropout`.", minimum=0, below=1)
    dropout_attention: float | None = setting(
        None, "Dropout on attention weights; null: `dropout`.", minimum=0, below=1
    )
    plugin: dict[str, Any] = setting({}, **common.OWN_MODEL)

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in ("dropout_embedding", "dropout_residual", "dropout_attention"):
            if getattr(self, kind) is None:
                setattr(self, kind, self.dropout)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(
                f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}: each of them is read by the "
                "same number of queries"
            )
        if self.kv_heads == self.heads:
            self.kv_heads = None
        if self.positions == "rotary" and (self.d_model // self.heads) % 2:
            raise ConfigError(
                f"model.positions=rotary turns pairs of columns, and model.d_model={self.d_model} over "
                f"model.heads={self.heads} leaves an odd width of {self.d_model // self.heads}"
            )
        if self.d_model / self.layers > WIDE_RATIO:
            warnings.warn(
                f"model.d_model={self.d_model} over model.layers={self.layers} is {self.d_model / self.layers:.0f}: "
                f"above {WIDE_RATIO} large models train badly, 150 to 200 is usual",
                stacklevel=2,
            )

    def init_std(self) -> float:
        """Return the standard deviation of initial matrices (before ``init_residual``)."""
        return math.sqrt(2 / (5 * self.d_model)) if self.init == "small" else float(self.init)

    def usual_d_ff(self) -> int:
        """Return the default inner width of the MLP: SwiGLU's three matrices then have as many weights as two."""
        return 4 * self.d_model if self.activation != "swiglu" else -(-self.d_model // 3) * 8

    def key_heads(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    def drops_in_kernel(self, recompute: str) -> bool:
        """Return whether on one GPU the fused kernel drops attention's weights, without masks.

        ``recompute``: as ``train.recompute``; what is computed again must draw nothing.
        """
        return bool(self.dropout_attention) and self.softmax == "fused" and recompute == "none"

    def drops(self) -> bool:
        """Return whether any kind of dropout is on."""
        return any((self.dropout_embedding, self.dropout_residual, self.dropout_attention))


# Limits of what is checked while a language model trains, the policies on failures, and the names of events.

EVENTS: Final = {
    "not_finite": "the loss, the gradient, the weights or AdamW's second moments are not finite",
    "spike": "the loss is far above its recent median",
    "rising": "the smoothed loss has stayed above where it started",
    "grad_norm": "the gradient norm is far above its recent values",
    "adam_v": "AdamW's second moments are far above their recent values",
    "weight_norm": "the norm of the weights is far above its recent values",
    "grad_growth": "the gradient norm has grown many times over its lowest recent level",
    "weight_growth": "the norm of the weights has grown many times over its lowest recent level",
    "stuck": "the smoothed loss has stayed far above its lowest value",
    "stalled": "the gradient is zero, or weights and moments do not change",
    "repeated": "the same batches are repeated",
    "skipped": "the gradient overflowed in fp16, and the update was skipped",
    "skip_limit": "too many of the last updates were skipped",
    "rolled_back": "first step of a new branch",
}
"""Events of a step of a language model with their descriptions, for the log, the report and TensorBoard."""
LOSS_EVENTS: Final = frozenset({"not_finite", "spike", "rising"})
"""Events on which the policy always acts. On the others it acts with ``stability.signals=all``."""
SKIP_WINDOW: Final = 50
"""Number of last steps among which skipped updates are counted."""
PASSING: Final = frozenset({"not_finite", "spike", "grad_norm"})
"""Events that a single batch can cause, so that leaving out its update may be enough."""


@dataclass(kw_only=True)
class StabilityConfig:
    """Detection of spikes and divergence, and what happens then."""

    policy: str = setting(
        "stop",
        "On a spike or a loss that is not finite: continue (log; not finite still stops), stop, leave out the update "
        "(skip_step), or roll back and change the data order, skip the data, or cut the learning rate.",
        choices=("log", "stop", "skip_step", "new_data_seed", "skip_data", "cut_lr"),
    )
    signals: str = setting(
        "loss",
        "Events on which the policy acts. loss: spikes, rises and non-finite values of the loss. all: also outliers of "
        "norms and second moments, a stuck loss, stalled weights and repeated data. Other events are only logged. "
        "With all, a rollback searches the log for the onset and may return to each checkpoint of "
        "checkpoint.keep_every.",
        choices=("loss", "all"),
        neutral="loss",
    )
    spike: float = setting(2.0, "Rise of the loss over its recent median that counts as a spike, in nats.", above=0)
    sigma: float = setting(
        10.0, "The rise (of a norm or moment: in its logarithm) must exceed this many robust deviations.", minimum=0
    )
    factor: ClassVar[float] = 10.0
    """A norm this many times its highest value of 20 windows is an outlier; a second moment, 3.3 times as many. Values
    with heavy tails must rise further."""
    growth: ClassVar[float] = 30.0
    """Growth of the gradient or weight norm, over its lowest median of 20 windows, that is an event."""
    window: int = setting(50, "Number of steps of the recent median.", minimum=4, maximum=common.LARGEST_SIZE)
    rise: ClassVar[float] = 1.0
    """A smoothed loss that stays this far above its start ends the run, in nats."""
    rise_steps: ClassVar[int] = 200
    """Number of steps that it must stay there."""
    stuck: ClassVar[float] = 0.5
    """A smoothed loss this far above its lowest value is stuck, in nats."""
    stuck_steps: ClassVar[int] = 500
    """Number of steps that it must stay there."""
    skip_limit: ClassVar[int] = 25
    """Updates skipped (overflow in fp16, skip_step) among the last ``SKIP_WINDOW`` before the run ends."""
    least_scale: ClassVar[float] = 1.0
    """Lowest loss scale in fp16; an overflow at it counts as not finite instead of a skipped step."""
    tries: int = setting(
        3,
        "Largest number of rollbacks of one incident before the run ends. A calm stretch ends an incident: `window` "
        "steps, or the margin of its last rollback if that is more.",
        minimum=1,
        maximum=100,
    )
    snapshot_every: int = setting(100, "Steps between the states to which a rollback can return.", minimum=1)
    snapshots: ClassVar[int] = 4
    """Number of such states that are kept; each has the weights and both moments."""
    margin: int = setting(
        50, "Least number of steps from a rollback's state to the onset; doubled at each try.", minimum=0
    )
    lr_cut: ClassVar[float] = 0.5
    """Factor on the learning rate of the cut_lr policy."""
    skip_steps: int = setting(50, "Steps of data after the onset that the skip_data policy skips.", minimum=0)

    def rolls_back(self) -> bool:
        """Return whether the policy returns to an earlier state."""
        return self.policy in ("new_data_seed", "skip_data", "cut_lr")

    def acts_on(self, event: str) -> bool:
        """Return whether the policy acts on an event, or it is only logged."""
        if self.policy == "log":
            return event in ("not_finite", "rising")
        return event in LOSS_EVENTS or self.signals == "all"


# Settings of the GPT mode. A run needs a preset (``experiment=gpt/NAME``).

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
    tokenizer: str | None = planned(None, "Null; a column of before.", role="none")
    sampling: str = setting(
        "blocks",
        "Non-overlapping blocks, each once an epoch in random order (blocks), or windows at random offsets (random). "
        "stratified: blocks, and in each batch of a mixture every corpus has its share, rounded up or down.",
        choices=("blocks", "random", "stratified"),
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
    mixture_hashes: dict[str, float] = planned(
        {}, "Shares by the corpora's hashes, part of run_id; the plan sets them.", neutral={}
    )
    validation: list[str] = setting(
        [], "Further validation sets: NAME or NAME@SPLIT of a corpus (default split: val).", role="none"
    )
    validation_hashes: dict[str, str] = planned(
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
        if self.sampling == "stratified" and not self.mixture:
            raise ConfigError("data.sampling=stratified has no effect without data.mixture: give blocks, or a mixture")
        if self.mixture and not any(self.mixture.values()):
            raise ConfigError(f"data.mixture={self.mixture}: expected a weight above 0")

    def folders(self) -> dict[str, str]:
        """Return the folder of each corpus that the run reads, by name; ``main`` only where ``path`` is given."""
        read = {*self.mixture, *(name for name, _ in self.validation_sets().values())}
        main = {} if self.path is None else {MAIN: self.path}
        return main | {name: folder for name, folder in self.corpora.items() if name in read}

    def validation_sets(self) -> dict[str, tuple[str, str]]:
        """Return corpus and split of each further validation set, by its name."""
        parts = {entry: entry.partition("@") for entry in self.validation}
        return {entry: (name, split or "val") for entry, (name, _, split) in parts.items()}


@dataclass(kw_only=True)
@defaults(lr=6e-4, decay="matrices", betas=[0.9, 0.95], warmup_steps=WARMUP_STEPS)
class OptimConfig(common.AdamW):
    """AdamW and its learning-rate schedule."""

    kind: str = setting(
        "adamw",
        "AdamW, or AdamW with 8-bit moments (extra `bitsandbytes`).",
        choices=("adamw", "adamw8bit"),
        neutral="adamw",
    )
    momentum: ClassVar[float] = 0.95
    """Of an optimiser of before; in the names of its runs alone."""
    clip: float = setting(1.0, "Largest global norm of the gradient; 0: no clipping.", minimum=0)
    warmup_samples: int | None = setting(None, "Warm-up counted in sequences instead of steps.", minimum=1)
    schedule: str = setting(
        "cosine",
        "What follows the warm-up.",
        choices=("constant", "linear", "cosine", "wsd", "one_cycle"),
    )
    min_lr: float = setting(0.1, "Learning rate at the end of a decay, as a share of the peak.", minimum=0, maximum=1)
    decay_steps: int | None = setting(None, "Step at which the decay ends; null: train.steps.", minimum=1)
    plugin: dict[str, Any] = setting({}, **common.OWN_OPTIMIZER)
    intervention: dict[str, Any] = setting({}, **common.OWN_INTERVENTION)
    wsd_decay: ClassVar[float] = 0.2
    """Share of the steps, at the end, in which the wsd schedule decays."""
    cycle_rise: ClassVar[float] = 0.3
    """Share of the steps in which one_cycle rises; this and the next two are torch's."""
    cycle_start: ClassVar[float] = 0.04
    """Learning rate at the start of one_cycle, as a share of the peak."""
    cycle_end: ClassVar[float] = 4e-6
    """Learning rate at the end of one_cycle, as a share of the peak."""

    def __post_init__(self) -> None:
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps and self.warmup_samples is None:
            raise ConfigError(
                f"optim.decay_steps={self.decay_steps} ends the decay before the warm-up of "
                f"optim.warmup_steps={self.warmup_steps} is over"
            )


RAMP: Final[dict[str, Any]] = {"neutral": [], "length": 3, "minimum": 1}
SHARDING: Final = {"ddp": None, "fsdp": "gradients", "fsdp-nothing": "nothing", "fsdp-weights": "weights"}
"""What each process keeps complete between the micro-batches of a step, by ``train.parallel``; None: all, always."""


@dataclass(kw_only=True)
@defaults(steps=2000, batch_size=12)
class TrainConfig(common.Length):
    """Length, batches and early stop."""

    epochs: float | None = setting(
        None, "Length in epochs of the data; the plan computes `steps` from it.", role="none", above=0, maximum=10**6
    )
    tokens: float | None = setting(
        None, "Length in tokens; the plan computes `steps` from it.", role="none", minimum=1, maximum=10**18
    )
    hours: float | None = setting(
        None, "Hours of training after which the run leaves a checkpoint; more hours continue it.", role="none", above=0
    )
    micro_batch: int | None = setting(
        None, "Sequences computed at once, with accumulated gradients; null: the whole batch.", role="none", minimum=1
    )
    batch_ramp: list[int] = setting(
        [], "Ramp of the batch: first size, increment, and sequences over which it grows; empty: none.", **RAMP
    )
    context_ramp: list[int] = setting(
        [], "Ramp of the sequence length: first length, increment, and sequences over which it grows.", **RAMP
    )
    threads: int | None = setting(
        None, "Threads on a CPU, part of the numerics tag; null: all cores.", role="none", minimum=1, maximum=4096
    )
    parallel: str = setting(
        "ddp",
        "Each process holds all weights and moments (ddp), or a share of them (fsdp). Between the micro-batches of a "
        "step it keeps gradients complete, which are then summed once a step (fsdp), nothing (fsdp-nothing: least "
        "memory), or also weights, which are then gathered once (fsdp-weights: least traffic).",
        role="none",
        choices=tuple(SHARDING),
    )
    recompute: str = setting(
        "none",
        "Activations that the backward pass recomputes instead of storing: none, attention, or whole blocks.",
        role="none",
        choices=("none", "attention", "blocks"),
    )
    loss_plugin: dict[str, Any] = setting({}, **common.OWN_LOSS)
    early_stop: int = setting(
        0, "Stop after this many evaluations without a better validation loss; 0: never.", role="schedule", minimum=0
    )

    @property
    def keeps(self) -> str | None:
        """Return what a process of a sharded model keeps complete, see :data:`SHARDING`."""
        return SHARDING[self.parallel]

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
    first, increment, _ = ramp
    if first > full or (full - first) % increment:
        raise ConfigError(
            f"{name}={ramp}: from {first} in steps of {increment} it never meets {full_name}={full}; "
            "the difference must be a whole number of increments"
        )


@dataclass(kw_only=True)
@defaults(every=250)
class EvalConfig(common.Evaluations):
    """When a run is evaluated, and on which text. Evaluations never change a run."""

    # A result setting, although it cannot move a weight: two runs of one trajectory must
    # show the same validation loss at common steps.
    windows: int | None = setting(
        240, "Validation windows, evenly spaced over the validation text; null: all of it.", minimum=1
    )
    sample_tokens: int = setting(
        120, "Tokens sampled at each evaluation; 0: none.", role="none", minimum=0, maximum=common.LARGEST_SIZE
    )
    prompt: str = setting("\n", "Text that the samples continue.", role="none")
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
        role="schedule",
        neutral=0.2,
        minimum=0,
        below=1,
    )
    average_points: ClassVar[int] = 10
    """Number of evenly spaced points of that average."""


@dataclass(kw_only=True)
class LogConfig(common.SinksConfig):
    """Logs of a language model beside the store; none of them changes a run."""

    profile: str | None = setting(
        None, "Folder for a trace and a table of five steps, after three warm-up steps.", role="none"
    )
    profile_steps: ClassVar[int] = 5
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
class GptConfig(common.RunConfig):
    """A GPT on text."""

    data: DataConfig = section(DataConfig)
    model: ModelConfig = section(ModelConfig)
    optim: OptimConfig = section(OptimConfig)
    train: TrainConfig = section(TrainConfig)
    eval: EvalConfig = section(EvalConfig)
    perturb: common.PerturbConfig = section(common.PerturbConfig)
    stability: StabilityConfig = section(StabilityConfig)
    log: LogConfig = section(LogConfig)
    resume: ResumeConfig = section(ResumeConfig)
    target: TargetConfig = section(TargetConfig)
    init_from: str | None = setting(
        None,
        "Folder of a Hugging Face GPT-2: the run starts with its weights and uses its model settings.",
        role="none",
    )
    init_hash: str | None = planned(None, "Hash of those weights, part of run_id; the plan sets it.", neutral=None)

    def __post_init__(self) -> None:
        if self.precision == "tf32x3":
            raise ConfigError("precision=tf32x3: for mode=gpt expected one of float32, float64, tf32, bf16, fp16")
        _check_ramp("train.context_ramp", self.train.context_ramp, "model.context", self.model.context)
        common.refuse_too_many_evaluations(self.train.steps, self.eval.every)
        if self.model.d_ff != self.model.usual_d_ff() and self.target.params is not None:
            warnings.warn(
                f"model.d_ff={self.model.d_ff} is not {self.model.usual_d_ff()}, the usual one of model.d_model="
                f"{self.model.d_model}: the parameter count moves away from the preset's",
                stacklevel=2,
            )

        self._refuse_unfit_code()
        idle = [f"optim.warmup_steps={self.optim.warmup_steps}"] * (self.optim.warmup_steps not in (0, WARMUP_STEPS))
        idle += [f"optim.warmup_samples={self.optim.warmup_samples}"] * (self.optim.warmup_samples is not None)
        if self.optim.schedule == "one_cycle" and idle:
            warnings.warn(
                f"{' and '.join(idle)} does nothing beside optim.schedule=one_cycle, whose "
                f"rise, {self.optim.cycle_rise:.0%} of the steps, is its warm-up",
                stacklevel=2,
            )

    def _refuse_unfit_code(self) -> None:
        """Refuse what the user's own code cannot go with.

        Raises:
            ConfigError: names both settings.
        """
        beside = {
            f"train.parallel={self.train.parallel}": self.train.keeps is not None,
            "data.document_mask=true": self.data.document_mask and bool(self.model.plugin),
            f"init_from={self.init_from}": self.init_from is not None and bool(self.model.plugin),
        }
        named = [name for name in self.plugins() if name != "train.loss_plugin"]
        if named and (unfit := [words for words, on in beside.items() if on]):
            raise ConfigError(f"{named[0]} does not go with {unfit[0]}: leave one of them out")

    def constants(self) -> dict[str, Any]:
        return dict(IN_EVERY_HASH)

    def live_streams(self) -> frozenset[str]:
        """Return the streams that can change training: no split (the corpus has its own), others if used."""
        drawn = {"init"} if self.init_from is None else set()
        noise = {"dropout"} if self.model.drops() or self.plugins() else set()
        return frozenset({"order"} | drawn | noise | ({"perturb"} if self.perturb.ulps > 0 else set()))

    def length_is_free(self) -> bool:
        """Return whether a shorter run is a prefix of a longer one: only if no schedule ends with the run."""
        return self.optim.schedule == "constant" or self.optim.decay_steps is not None

    def coupled_schedule(self) -> dict[str, object]:
        """Return the checkpoints' spacing where a rollback may return to them: it then decides where to."""
        stability, every = self.stability, self.checkpoint.keep_every
        coupled = stability.rolls_back() and stability.signals == "all" and every > 0
        return {"checkpoint.keep_every": every} if coupled else {}


def _constants(group: type, prefix: str, *names: str) -> dict[str, Any]:
    return {f"{prefix}.{name}": getattr(group, name) for name in names}


IN_EVERY_HASH: Final = {
    **_constants(OptimConfig, "optim", "wsd_decay", "cycle_rise", "cycle_start", "cycle_end"),
    **_constants(StabilityConfig, "stability", "rise", "rise_steps", "snapshots", "lr_cut"),
}
"""Settings of earlier versions that are constants now, at the place that they had in every ``run_id``."""

IN_NO_HASH: Final = {
    **_constants(OptimConfig, "optim", "momentum"),
    **_constants(StabilityConfig, "stability", "factor", "growth", "stuck", "stuck_steps", "skip_limit", "least_scale"),
}
"""The same of settings that were in a ``run_id`` only with another value."""


def require_preset(config: GptConfig) -> None:
    """Refuse settings that start from no preset: no model is trained by accident.

    Raises:
        ConfigError: ``experiment`` is null.
    """
    if config.experiment is None and config.init_from is None:
        raise ConfigError(
            "mode=gpt starts from a preset, so that no model is trained by accident: give experiment=gpt/NAME; "
            "`grok run mode=gpt --help` lists the names"
        )
