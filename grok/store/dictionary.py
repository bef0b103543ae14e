"""What every column of a store means: its meaning, its unit, and when it is null.

``config.*`` columns are described by the settings themselves (:mod:`grok.config`). A test holds this
dictionary to the schema; ``docs/reference/columns.md`` is made of it.
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
    """One column in words."""

    meaning: str
    unit: str = ""
    """Empty: a name, a text or a flag."""
    null: str = ""
    """When it has no value; empty: never."""


NATS, SHARE, STEP, SEED, COUNT, SECONDS, NORM = "nats", "0 to 1", "step", "63-bit integer", "count", "s", "L2 norm"
_FAILED: Final = "the run failed before its first evaluation"
_GPT_ONLY: Final = "mode=arithmetic"
_NOT_SEEN: Final = "it did not happen within the run, or mode=gpt"
_OLDER: Final = "; older stores"

RUNS: Final[Mapping[str, Column]] = {
    "run_id": Column("Name of the run: a hash of everything that decides its result and its evaluations."),
    "trajectory_id": Column(
        "Name of the sequence of weights: the same without length, evaluation schedule and `replicate`. Equal "
        "trajectory and equal `numerics` mean equal bits at common steps."
    ),
    "config_id": Column("Name of the settings without any seed: equal for the seeds of one condition."),
    "parent_run_id": Column("The run that this branch left.", null="the run is no branch"),
    "branch_step": Column("Step at which the branch left its parent.", STEP, "the run is no branch"),
    "mode": Column("`arithmetic` or `gpt`."),
    "seed": Column("Master seed.", SEED),
    "seed_split": Column("Resolved seed of the stream `split`: which examples train.", SEED),
    "seed_init": Column("Resolved seed of the stream `init`: the initial weights.", SEED),
    "seed_order": Column("Resolved seed of the stream `order`: the mini-batches.", SEED),
    "replicate": Column("Number of a deliberate repetition; 0: the first one.", COUNT),
    "status": Column(
        "`completed`; `diverged`: loss or weights stopped being finite, or the loss rose for good; `failed`: an "
        "error; `rolled_back`: the abandoned branch of a language model's run."
    ),
    "stop_reason": Column(
        "`steps`: all planned steps were made; `generalised`, `early_stop`: stopped early by its settings; "
        "`exception`: it failed; `not_finite`, `spike`, `rising` or another event of a step: why it diverged or was "
        "rolled back."
    ),
    "error": Column("The error message.", null="the run did not fail"),
    "steps": Column("Updates made.", COUNT),
    "train_loss": Column("Loss of the last step's mini-batch before its update.", NATS, _FAILED),
    "train_acc": Column("Accuracy on the same mini-batch.", SHARE, _FAILED),
    "val_loss": Column("Loss on the validation set at the last evaluation.", NATS, _FAILED),
    "val_acc": Column("Accuracy on the validation set at the last evaluation.", SHARE, _FAILED),
    "weight_norm": Column("Norm of all parameters except token and position embeddings, at the end.", NORM, _FAILED),
    "weight_norm_all": Column("Norm of all parameters, at the end.", NORM, _FAILED),
    "weights_hash": Column("SHA-256 of the names and bytes of all final parameters.", null="the run failed"),
    "memorised_step": Column(
        "First of two evaluations in a row with a training accuracy of 0.95 or more.", STEP, _NOT_SEEN
    ),
    "grokked_step": Column(
        "First of two evaluations in a row with a validation accuracy of 0.95 or more: the run has generalised.",
        STEP,
        _NOT_SEEN,
    ),
    "val_loss_peak_step": Column(
        "Evaluation with the highest validation loss, once the loss has fallen 10% below it.", STEP, _NOT_SEEN
    ),
    "weight_norm_peak_step": Column(
        "Evaluation with the highest weight norm, once the norm has fallen 1% below it.", STEP, _NOT_SEEN
    ),
    "seconds": Column("Time spent on this run alone, over all its sessions.", SECONDS, "the run failed at once"),
    "host": Column("Machine that finished the run."),
    "device": Column("`cpu` or `cuda`."),
    "numerics": Column(
        "Numerics tag: device and model, product path, compilation, precision, threads, lane width on a GPU, torch "
        "version. Several tags, joined by ` | `, if the run was resumed under another one.",
        null="the run failed before it started",
    ),
    "git_commit": Column("Commit of the code, or all commits that trained the run, joined by ` | `.", null="no git"),
    "git_dirty": Column("Whether the code had changes that were not committed.", null="no git"),
    "torch_version": Column("Version of torch.", null="torch is not installed"),
    "started_at": Column("When training began.", "UTC, without a zone", "the run failed before it started"),
    "memorised_loss_step": Column(
        "First of two evaluations in a row with a training loss of 0.2 or less.", STEP, _NOT_SEEN + _OLDER
    ),
    "grokked_for_good_step": Column(
        "First evaluation from which every later one has a validation accuracy of 0.95 or more.",
        STEP,
        _NOT_SEEN + _OLDER,
    ),
    "val_acc_dips": Column(
        "How often validation accuracy fell below 0.95 after `grokked_step`.", COUNT, "mode=gpt" + _OLDER
    ),
    "weight_norm_fall_step": Column(
        "First evaluation after the peak at which the weight norm is 1% below it.", STEP, _NOT_SEEN + _OLDER
    ),
    "seed_dropout": Column("Resolved seed of the stream `dropout`.", SEED),
    "seed_eval": Column("Resolved seed of the stream `eval`.", SEED),
    "seed_sample": Column("Resolved seed of the stream `sample`.", SEED),
    "seed_perturb": Column("Resolved seed of the stream `perturb`.", SEED),
    "layers": Column("Init seeds of single tensors by name or prefix, as a JSON map; `{}`: none."),
    "data_hash": Column("Hash of the prepared text.", null=_GPT_ONLY),
    "sweep_id": Column("The command that trained it: `sweeps/<sweep_id>.json`.", null="trained without a sweep"),
    "lane_width": Column("Lanes side by side in batched products.", COUNT, "each lane is a program of its own (CPU)"),
    "numerics_version": Column("`NUMERICS_VERSION` of the code.", COUNT),
    "grok_version": Column("Version of this package."),
    "python_version": Column("Version of Python."),
    "numpy_version": Column("Version of NumPy.", null="NumPy's metadata is missing"),
    "rerun": Column("Command that trains this run again, every stream seed pinned."),
    "own_code": Column(
        "Version and hash of each piece of the user's own code that the run names, as a JSON map by import path.",
        null="the run names none",
    ),
}

CURVES: Final[Mapping[str, Column]] = {
    "run_id": Column("The run."),
    "step": Column("Updates made before this evaluation.", STEP),
    "train_loss": Column("Loss of the mini-batch of update `step`, before that update.", NATS, "step 0"),
    "train_acc": Column("Accuracy on the same mini-batch.", SHARE, "step 0"),
    "val_loss": Column("Loss on the validation set after update `step`.", NATS, "the loss is not a number"),
    "val_acc": Column("Accuracy on the validation set after update `step`.", SHARE, "the loss is not a number"),
    "weight_norm": Column("Norm of all parameters except token and position embeddings.", NORM, "not a number"),
    "lr": Column("Learning rate of update `step`.", "1", "step 0 of a language model"),
    "weight_norm_all": Column("Norm of all parameters.", NORM, "not a number"),
    "block_norms": Column("Norm of each component, as a JSON map: `blocks.0`, `head` and so on.", NORM, "not measured"),
    "metrics": Column("Further measurements by name, as a JSON map (`eval.metrics`).", null="none was asked for"),
    "sample": Column("Text that the model generated.", null=_GPT_ONLY + ", or eval.sample_tokens=0"),
}

STEPS: Final[Mapping[str, Column]] = {
    "run_id": Column("The run, of mode=gpt."),
    "step": Column("The update.", STEP),
    "train_loss": Column("Mean loss of the batch before the update.", NATS, "the loss is not a number"),
    "lr": Column("Learning rate of the update.", "1"),
    "grad_norm": Column("Norm of the gradient before clipping.", NORM, "not a number"),
    "param_norm": Column("Norm of all parameters after the update.", NORM, "not a number"),
    "adam_v_l1": Column("Sum of AdamW's second moments.", "1", "before the first update that was made"),
    "adam_v_max": Column("Largest of AdamW's second moments.", "1", "before the first update that was made"),
    "loss_scale": Column("Factor on the loss (`precision=fp16`); 1 otherwise.", "1"),
    "skipped_steps": Column("Updates left out so far.", COUNT),
    "nan_steps": Column("Those of them whose loss or gradient was not finite.", COUNT),
    "zeros_in_grads": Column("Share of the gradient's elements that are exactly 0.", SHARE, "not a number"),
    "consumed_samples": Column("Sequences trained on so far.", COUNT),
    "consumed_tokens": Column("Tokens trained on so far.", COUNT),
    "tokens_per_second": Column("Speed of this step.", "tokens/s"),
    "data_wait": Column("Share of the step's time spent waiting for data.", SHARE),
    "event": Column(
        "What was noticed in this step: " + "; ".join(f"`{name}`: {words}" for name, words in EVENTS.items()) + ".",
        null="nothing happened",
    ),
}

MEASUREMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "fourier_top5": ("share of the embedding's power in its five strongest frequencies", "fourier"),
    "fourier_gini": ("how unevenly the embedding's power is spread over frequencies", "fourier"),
    "restricted_loss": ("loss over all equations with the five strongest frequencies of that moment alone", "circuit"),
    "excluded_loss": ("loss over all equations without the five strongest frequencies of that moment", "circuit"),
    "final_restricted_loss": (
        "loss over all equations with the final weights' key frequencies alone",
        "circuit, with save=final and checkpoint.keep_every",
    ),
    "final_excluded_loss": (
        "training loss without the final weights' key frequencies",
        "circuit, with save=final and checkpoint.keep_every",
    ),
    "logit_scale": ("spread of the logits", "logits"),
    "softmax_collapse": ("share of training examples whose softmax has collapsed", "logits"),
    "gradient_norm": ("norm of the mini-batch's gradient", "gradient"),
}
"""What is in ``curves.metrics``: its meaning, and what ``eval.metrics`` must ask for."""

TABLES: Final = {"runs": RUNS, "curves": CURVES, "steps": STEPS}
"""The description of every column by table, ``config.*`` left out."""


def describe(kind: str) -> dict[str, Column]:
    """Return every column of table ``kind`` in its order, described; settings included."""
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
