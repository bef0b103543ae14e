"""The data dictionary: each column's meaning, its unit, and when it is null.

The settings themselves describe the ``config.*`` columns (:mod:`grok.config`). A test compares this dictionary with
the schema; the documentation's page *Columns* is made from it (``python -m docs.generate``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grok.config import MODES
from grok.config.fields import settings_of, takes_null
from grok.config.stability import EVENTS
from grok.store.schema import CONFIG, schema


@dataclass(frozen=True, slots=True)
class Column:
    """The description of one column."""

    meaning: str
    unit: str = ""
    """Empty: a name, a text or a flag."""
    null: str = ""
    """When the value is null; empty: never."""


NATS, SHARE, STEP, SEED, COUNT, SECONDS, NORM = "nats", "0 to 1", "step", "63-bit integer", "count", "s", "L2 norm"
_FAILED: Final = "the run failed before its first evaluation"
_GPT_ONLY: Final = "mode=arithmetic"
_NOT_SEEN: Final = "the event did not happen within the run, or mode=gpt"
_OLDER: Final = "; older stores"

RUNS: Final[Mapping[str, Column]] = {
    "run_id": Column("Identifier of the run: a hash of everything that decides its result and its evaluations."),
    "trajectory_id": Column(
        "Identifier of the sequence of weights: a hash of the same without length, evaluation schedule and "
        "`replicate`. Equal trajectory and equal `numerics` mean equal bits at common steps."
    ),
    "config_id": Column(
        "Identifier of the settings without any seed: equal for all seeds of one condition and length."
    ),
    "parent_run_id": Column(
        "The run from which this run branched off, after a rollback, by `resume.run`, or by `switch.step`: then it is "
        "the trunk, the same settings without `switch`, which may not be stored.",
        null="the run is not a branch",
    ),
    "branch_step": Column("Step at which this run branched off its parent.", STEP, "the run is not a branch"),
    "mode": Column("`arithmetic` or `gpt`."),
    "seed": Column("Master seed.", SEED),
    "seed_split": Column("Resolved seed of the stream `split`: which examples train.", SEED),
    "seed_init": Column("Resolved seed of the stream `init`: the initial weights.", SEED),
    "seed_order": Column("Resolved seed of the stream `order`: the mini-batches.", SEED),
    "replicate": Column("Number of a deliberate repetition; 0: the first one.", COUNT),
    "status": Column(
        "`completed`; `diverged`: loss or weights became infinite or NaN, or the loss rose and did not recover; "
        "`failed`: an error; `rolled_back`: the abandoned branch of a language model's run."
    ),
    "stop_reason": Column(
        "`steps`: all planned steps were made; `generalised`, `early_stop`: the run's settings stopped it early; "
        "`exception`: the run failed; `not_finite`, `spike`, `rising` or another event of a step: the reason why the "
        "run diverged or was rolled back."
    ),
    "error": Column("The error message.", null="the run did not fail"),
    "steps": Column("Number of updates made.", COUNT),
    "train_loss": Column("Loss of the last step's mini-batch before its update.", NATS, _FAILED),
    "train_acc": Column("Accuracy on the same mini-batch before the update.", SHARE, _FAILED),
    "val_loss": Column("Loss on the validation set at the last evaluation.", NATS, _FAILED),
    "val_acc": Column("Accuracy on the validation set at the last evaluation.", SHARE, _FAILED),
    "weight_norm": Column("Norm of all parameters except token and position embeddings, at the end.", NORM, _FAILED),
    "weight_norm_all": Column("Norm of all parameters, at the end.", NORM, _FAILED),
    "weights_hash": Column("SHA-256 of the names and bytes of all final parameters.", null="the run failed"),
    "memorised_step": Column(
        "First of two evaluations in a row with a training accuracy of 0.95 or more.", STEP, _NOT_SEEN
    ),
    "grokked_step": Column(
        "First of two evaluations in a row with a validation accuracy of 0.95 or more: the run generalised.",
        STEP,
        _NOT_SEEN,
    ),
    "val_loss_peak_step": Column(
        "Step of the highest validation loss; it counts once a later loss is 10% lower.", STEP, _NOT_SEEN
    ),
    "weight_norm_peak_step": Column(
        "Step of the highest weight norm; it counts once a later norm is 1% lower.", STEP, _NOT_SEEN
    ),
    "seconds": Column(
        "Time spent on this run alone, summed over all its sessions.",
        SECONDS,
        "the run failed before its training began",
    ),
    "host": Column("Machine that finished the run."),
    "device": Column("`cpu` or `cuda`."),
    "numerics": Column(
        "Numerics tag: device and model, product path, compilation, precision, threads, lane width on a GPU, torch "
        "version. If the run was resumed under another tag: all its tags, joined by ` | `.",
        null="the run failed before it started",
    ),
    "git_commit": Column("Commit of the code, or all commits that trained the run, joined by ` | `.", null="no git"),
    "git_dirty": Column("Whether the code had changes that were not committed.", null="no git"),
    "torch_version": Column("Version of torch.", null="torch is not installed"),
    "started_at": Column("Time at which training began.", "UTC, without a zone", "the run failed before it started"),
    "memorised_loss_step": Column(
        "First of two evaluations in a row with a training loss of 0.2 or less.", STEP, _NOT_SEEN + _OLDER
    ),
    "grokked_for_good_step": Column(
        "First evaluation from which every later one has a validation accuracy of 0.95 or more.",
        STEP,
        _NOT_SEEN + _OLDER,
    ),
    "val_acc_dips": Column(
        "Number of times that validation accuracy fell below 0.95 after `grokked_step`.", COUNT, "mode=gpt" + _OLDER
    ),
    "weight_norm_fall_step": Column(
        "First evaluation after the peak at which the weight norm is 1% below it.", STEP, _NOT_SEEN + _OLDER
    ),
    "seed_dropout": Column("Resolved seed of the stream `dropout`.", SEED),
    "seed_eval": Column("Resolved seed of the stream `eval`.", SEED),
    "seed_sample": Column("Resolved seed of the stream `sample`.", SEED),
    "seed_perturb": Column("Resolved seed of the stream `perturb`.", SEED),
    "layers": Column("Seeds of the initial weights by tensor name or prefix (`seeds.layers`), a JSON map; `{}`: none."),
    "data_hash": Column("Hash of the prepared text.", null=_GPT_ONLY),
    "sweep_id": Column(
        "Identifier of the command that trained the run; `sweeps/<sweep_id>.json` has its words and settings.",
        null="trained without a sweep",
    ),
    "lane_width": Column("Number of lanes in one batched product.", COUNT, "each lane is computed alone (CPU)"),
    "numerics_version": Column("`NUMERICS_VERSION` of the code.", COUNT),
    "grok_version": Column("Version of this package."),
    "python_version": Column("Version of Python."),
    "numpy_version": Column("Version of NumPy.", null="NumPy's metadata is missing"),
    "rerun": Column("Command that trains this run again; it sets the seed of every stream."),
    "own_code": Column(
        "Version and hash of each piece of the user's own code that the run uses, as a JSON map by import path.",
        null="the run uses none",
    ),
}

CURVES: Final[Mapping[str, Column]] = {
    "run_id": Column("The run."),
    "step": Column("Number of updates before this evaluation.", STEP),
    "train_loss": Column("Loss of the mini-batch of update `step`, before that update.", NATS, "step 0"),
    "train_acc": Column("Accuracy on the same mini-batch before the update.", SHARE, "step 0"),
    "val_loss": Column("Loss on the validation set after update `step`.", NATS, "the loss is not a number"),
    "val_acc": Column("Accuracy on the validation set after update `step`.", SHARE, "the loss is not a number"),
    "weight_norm": Column("Norm of all parameters except token and position embeddings.", NORM, "not a number"),
    "lr": Column("Learning rate of update `step`.", "1", "step 0 of a language model"),
    "weight_norm_all": Column("Norm of all parameters.", NORM, "not a number"),
    "block_norms": Column("Norm of each component, as a JSON map: `blocks.0`, `head` and so on.", NORM, "not measured"),
    "metrics": Column(
        "Further measurements by name, as a JSON map.", null="eval.metrics, data.validation and eval.tasks name none"
    ),
    "sample": Column("Text that the model generated.", null=_GPT_ONLY + ", or eval.sample_tokens=0"),
}

STEPS: Final[Mapping[str, Column]] = {
    "run_id": Column("The run, of mode=gpt."),
    "step": Column("The update.", STEP),
    "train_loss": Column("Mean loss of the batch before the update.", NATS, "the loss is not a number"),
    "lr": Column("Learning rate of the update.", "1"),
    "grad_norm": Column("Norm of the gradient before clipping.", NORM, "not a number"),
    "param_norm": Column("Norm of all parameters after the update.", NORM, "not a number"),
    "adam_v_l1": Column("Sum of AdamW's second moments.", "1", "every update so far was skipped"),
    "adam_v_max": Column("Largest of AdamW's second moments.", "1", "every update so far was skipped"),
    "loss_scale": Column("Factor by which the loss is multiplied (`precision=fp16`); 1 otherwise.", "1"),
    "skipped_steps": Column("Number of updates skipped so far.", COUNT),
    "nan_steps": Column("Number of updates skipped so far because the loss or the gradient was not finite.", COUNT),
    "zeros_in_grads": Column("Share of the gradient's elements that are exactly 0.", SHARE, "not a number"),
    "consumed_samples": Column("Number of sequences trained on so far.", COUNT),
    "consumed_tokens": Column("Number of tokens trained on so far.", COUNT),
    "tokens_per_second": Column("Speed of this step.", "tokens/s"),
    "mfu": Column(
        "FLOPs of the model in this step (forward and backward, without recomputation) as a share of the devices' peak "
        "in the run's precision, by data sheet.",
        SHARE,
        "the device is a CPU or not in the table of peaks, or the log is of an older version",
    ),
    "peak_memory": Column(
        "On a GPU the most memory that tensors took so far, on a CPU the peak resident memory (RSS) of the process; of "
        "several processes that of rank 0.",
        "bytes",
        "the log is of an older version",
    ),
    "data_wait": Column("Share of the step's time spent waiting for data.", SHARE),
    "event": Column(
        "Event of this step: " + "; ".join(f"`{name}`: {words}" for name, words in EVENTS.items()) + ".",
        null="no event",
    ),
}

MEASUREMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "fourier_top5": ("share of the embedding's power in its five strongest frequencies", "fourier"),
    "fourier_gini": ("Gini coefficient of the embedding's power over frequencies: 0 equal, 1 a single one", "fourier"),
    "restricted_loss": ("loss over all equations with only the five strongest frequencies of this step", "circuit"),
    "excluded_loss": ("loss over all equations without the five strongest frequencies of this step", "circuit"),
    "final_restricted_loss": (
        "loss over all equations with only the final weights' key frequencies",
        "circuit, with save=final and checkpoint.keep_every",
    ),
    "final_excluded_loss": (
        "training loss without the final weights' key frequencies",
        "circuit, with save=final and checkpoint.keep_every",
    ),
    "logit_scale": ("standard deviation of an equation's logits, mean over the training examples", "logits"),
    "softmax_collapse": (
        "share of training examples whose softmax, after rounding, gives one token the probability 1",
        "logits",
    ),
    "gradient_norm": ("norm of the mini-batch's gradient", "gradient"),
}
"""The entries of ``curves.metrics`` by name: the meaning, and the settings that measure it (``eval.metrics``)."""

DESIGNS: Final[Mapping[str, Column]] = {
    "design_id": Column("Identifier of the design: a hash of its kind and rows; of a search, its study."),
    "kind": Column(
        "`sweep`: runs as asked; `crossed`: the seeds of streams crossed; `branch`: runs that share streams with a "
        "parent; `repeat`: the same run again; `layers`: tensors of one run with those of another; `search`: trials "
        "over settings; `extend`: stored runs made longer."
    ),
    "run_id": Column("Identifier of the run, which may not be stored yet. Several designs may name one run."),
    "role": Column(
        "What the run is for in the design: `member` of a population; `parent` or `child`; `candidate` or `control` "
        "of repeats; `cell` of a crossed design or an exchange of layers; `recipient` or `donor` of an exchange; "
        "`trial` of a search."
    ),
    "unit": Column("The run's place in the design, as JSON: its seeds as asked, the cell, the trial, the repeat."),
    "parent_run_id": Column("The run whose streams this one keeps, or which it repeats.", null="no parent"),
    "donor_run_id": Column("The run whose layers this one takes.", null="no donor"),
    "redrawn": Column("Streams or layers that are not the parent's, as a JSON list; `[]`: none.", null="no parent"),
    "choice": Column(
        "How the run, or its parent, came into the design. `given`: the command lists its seeds; `drawn`: at random; "
        "`best`: by results; `named`: by its `run_id`; `unstated`: nobody said."
    ),
    "choice_detail": Column(
        "By what, at which step and among how many runs it was chosen, as JSON.", null="not chosen by results"
    ),
    "from_step": Column("The run differs from its parent from this step on.", STEP, "from the start, or no parent"),
    "line": Column("First ancestor of the parent, or the parent itself if it has none.", null="no parent"),
    "origin": Column(
        "`planned`: written when the plan was made; `reconstructed`: later, from recorded commands or the runs."
    ),
    "results_seen": Column("A result of this condition and these streams was stored when the plan was made."),
    "planned_at": Column("Time when the plan was first made, UTC."),
    "retired": Column(
        "Why the design was abandoned (`grok store retire STORE DESIGN --why TEXT`).", null="not abandoned"
    ),
}

TABLES: Final = {"runs": RUNS, "curves": CURVES, "steps": STEPS, "designs": DESIGNS}
"""The description of every column by table, without ``config.*``."""


def describe(kind: str) -> dict[str, Column]:
    """Return the description of every column of table ``kind``, in the table's order, ``config.*`` included."""
    described = dict(TABLES[kind])
    if kind == "runs":
        settings = {mode: settings_of(config) for mode, config in MODES.items()}
        for name in (column.removeprefix(CONFIG) for column in schema(kind).names if column.startswith(CONFIG)):
            having = {mode: settings[mode][name] for mode in settings if name in settings[mode]}
            meaning = " / ".join(dict.fromkeys(rule.doc for _, rule in having.values()))
            nulls = [f"mode={mode}" for mode in settings if mode not in having]
            nulls += ["the setting is null"] if any(takes_null(hint) for hint, _ in having.values()) else []
            described[CONFIG + name] = Column(meaning, null="; ".join(nulls))
    return {name: described[name] for name in schema(kind).names}
