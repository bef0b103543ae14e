"""Language-model runs: loss, perplexity, spread over seeds, samples, published results."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

import numpy as np
import pandas as pd

from grok.analysis.observations import OWN_CODE, Condition, Observations, floats, in_words, varying_columns
from grok.analysis.populations import asked_unseen
from grok.analysis.proposals import rerun_command
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, mean
from grok.analysis.studies.base import Finding, Question, Study, Table
from grok.config import GptConfig
from grok.config.fields import recorded_of
from grok.errors import ConfigError
from grok.gpt.flops import count_parameters
from grok.store.provenance import stored_config
from grok.streams import CROSSED

# Further measurements of a language model's evaluations: additional validation sets, scores of tasks.


def further_tables(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Table]:
    """Return the tables of the further validation sets and of the tasks; an empty list if nothing was measured.

    ``runs`` has the columns ``condition`` and ``seed`` by ``run_id``.
    """
    values = _measured(curves[curves["run_id"].isin(runs.index)])
    sets, tasks = [], []
    for (run_id, name), group in values.groupby(["run_id", "name"], sort=True):
        kind, _, label = str(name).partition(".")
        last, best = group.iloc[-1], group.sort_values("value").iloc[0]
        own = runs.loc[str(run_id)]
        run = {"preset": own["condition"], "seed": str(own["seed"]), "run": str(run_id)[:10]}
        if kind == "val_loss":
            sets.append(
                {
                    **run,
                    "validation set": label,
                    "best loss": round(best["value"], 4),
                    "best perplexity": round(math.exp(min(best["value"], 700)), 2),
                    "at step": best["step"],
                    "last loss": round(last["value"], 4),
                }
            )
        elif kind == "task" and not label.endswith("_stderr"):
            task, _, metric = label.rpartition(".")
            same = (values["run_id"] == run_id) & (values["name"] == f"{name}_stderr")
            errors = values["value"][same & (values["step"] == last["step"])]
            tasks.append(
                {
                    **run,
                    "task": task,
                    "metric": metric,
                    "score": f"{last['value']:.4g}",
                    "standard error": f"{errors.iloc[0]:.2g}" if len(errors) else "",
                    "at step": last["step"],
                }
            )
    tables = []
    if sets:
        caption = "Further validation sets (data.validation): loss in nats per token, perplexity per token"
        tables.append(Table("validation_sets", caption, pd.DataFrame(sets), code=("run",)))
    if tasks:
        caption = "Tasks of lm-evaluation-harness (eval.tasks), as last scored during training"
        tables.append(Table("tasks", caption, pd.DataFrame(tasks), code=("run",)))
    return tables


def _measured(curves: pd.DataFrame) -> pd.DataFrame:
    """Return every measurement of ``curves.metrics``: run_id, step, name, value."""
    known = curves[curves["metrics"].notna() & (curves["metrics"] != "{}")] if "metrics" in curves else curves.iloc[:0]
    rows = [
        (run_id, step, name, value)
        for run_id, step, text in zip(known["run_id"], known["step"], known.get("metrics", ()), strict=True)
        for name, value in json.loads(text).items()
        if value is not None
    ]
    return pd.DataFrame(rows, columns=["run_id", "step", "name", "value"])


# Published language-model results for comparison with WikiText runs.
#
# All of them are on the full WikiText-103. Numbers on other text, or on a sample of it, are not comparable.

_PUBLISHED: Final = tomllib.loads(files("grok.analysis").joinpath("wikitext.toml").read_text(encoding="utf-8"))
WIKITEXT_103: Final = pd.DataFrame(_PUBLISHED["final"])
"""Final results. The steps in the GPT-2 rows are those of the Megatron reproduction."""
TRANSFORMER_XL_ON_THE_WAY: Final = pd.DataFrame(_PUBLISHED["on_the_way"])
"""Validation perplexity of the two Transformer-XL runs during training."""

WIKITEXT_PRESETS: Final = ("wikitext", "transformer_xl", "gpt2_")
"""Parts of the names of presets whose runs are shown with the published results."""

# Language-model runs: loss, perplexity, spread over seeds, samples.

CONDITION_SETTINGS: Final = (
    *(
        name
        for name, (_, rule) in recorded_of(GptConfig).items()
        if rule.role in ("result", "length") and name not in ("perturb.ulps", "resume.run")
    ),
    OWN_CODE,
)
"""Settings that define the condition of a language model: no seed, no perturbation, and not which run it left."""
MOST_CARDS: Final = 6
"""Conditions whose perplexities get a card each."""
MIXTURE: Final = "data.mixture_hashes"
LOGGED: Final = {
    "tokens": ("consumed_tokens", "max"),
    "tokens_per_second": ("tokens_per_second", "median"),
    "mfu": ("mfu", "median"),
    "peak_memory": ("peak_memory", "max"),
}
"""What a run's log of steps gives: the column, and of which of its values."""
DROPOUT: Final = [f"config.model.dropout_{place}" for place in ("embedding", "residual", "attention")]
SAMPLES = 4
"""Number of runs whose last sample is shown."""


@dataclass(kw_only=True)
class Gpt(Study):
    """The GPT runs of a store."""

    runs: pd.DataFrame
    """One row per run: preset, seed, best and last validation loss, speed."""
    curves: pd.DataFrame
    steps: pd.DataFrame
    """Per-step training loss, thinned."""
    used: pd.DataFrame
    """What each run had used at each evaluation, by the columns of :func:`used_by`, with its ``val_loss``."""


def condition_names(rows: pd.DataFrame) -> pd.Series:
    """Return each run's preset, with the settings and the data that differ between runs of the preset."""
    names = pd.Series("", index=rows.index)
    for preset, group in rows.groupby(rows["config.experiment"].fillna(""), sort=False):
        varying = {c.removeprefix("config."): group[c] for c in varying_columns(group, CONDITION_SETTINGS)}
        data = group["data_hash"].fillna("none").str[:6]
        if data.nunique() > 1:
            varying["data"] = data
        if (mixtures := varying.pop(MIXTURE, None)) is not None:
            varying["data.mixture"] = mixtures.map(_mixture)
        for run in group.index:
            parts = [f"{name}={in_words(values[run])}" for name, values in varying.items()]
            names[run] = ", ".join([str(preset), *parts])
    return names


def conditions_of(rows: pd.DataFrame) -> list[Condition]:
    """Return the conditions of language models, the one with most runs first."""
    if rows.empty:
        return []
    groups = sorted(rows.groupby(condition_names(rows), sort=True), key=lambda pair: -len(pair[1]))
    return [Condition(str(name) if len(groups) > 1 else "", group) for name, group in groups]


def describe_language_model(row: pd.Series) -> str:
    """Return model, batch and length of a language model's run in words."""
    layers, width, heads, context, batch, steps = (
        int(row[f"config.{name}"])
        for name in ("model.layers", "model.d_model", "model.heads", "model.context", "train.batch_size", "train.steps")
    )
    dropout = row[DROPOUT].fillna(0.0).max()
    return (
        f"transformer of {layers} layer{'s' if layers > 1 else ''}, width {width:,}, {heads} heads, {context:,} "
        f"tokens{f', dropout {dropout:g}' if dropout else ''}; learning rate {row['config.optim.lr']:g}, "
        f"batch {batch:,}, {steps:,} steps"
    )


def _mixture(shares: str | None) -> str:
    """Return a mixture's shares with the beginnings of the corpora's hashes.

    >>> _mixture('{"e5acc16e6021d6f8cf31":0.25,"f00d6e6021d6f8cf31e5":0.75}')
    '0.25 of e5acc1 + 0.75 of f00d6e'
    """
    return " + ".join(f"{share:g} of {name[:6]}" for name, share in json.loads(shares or "{}").items()) or "none"


def perplexity(loss: float) -> float:
    """Return exp(``loss``), with the loss in nats per token; infinite if it overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def analyse(observations: Observations) -> Gpt:
    """Return the answer for all GPT runs.

    Raises:
        NotEnoughData: no GPT run has an evaluation.
    """
    rows = observations.gpt
    curves = observations.curves_of(rows.index)
    scored = curves.dropna(subset=["val_loss"])
    if scored.empty:
        raise NotEnoughData("a GPT run with at least one evaluation")
    best = scored.loc[scored.groupby("run_id")["val_loss"].idxmin()].set_index("run_id")
    last = scored.groupby("run_id").last()
    log = observations.steps
    empty = pd.DataFrame(columns=["run_id", *(column for column, _ in LOGGED.values())])
    mine = empty if log is None else log[log["run_id"].isin(rows.index)]
    logged = mine.groupby("run_id").agg(**LOGGED).reindex(rows.index)
    summary = pd.DataFrame(
        {
            "preset": rows["config.experiment"].fillna("").to_numpy(),
            "condition": condition_names(rows).to_numpy(),
            "seed": rows["seed"].to_numpy(),
            "data": rows["data_hash"].fillna("").str[:10].to_numpy(),
            "config_id": rows["config_id"].to_numpy(),
            "status": rows["status"].to_numpy(),
            "steps": rows["steps"].to_numpy(),
            **{name: floats(logged[name]) for name in LOGGED},
            "best_step": floats(best["step"].reindex(rows.index)),
            "best_loss": floats(best["val_loss"].reindex(rows.index)),
            "last_loss": floats(last["val_loss"].reindex(rows.index)),
        },
        index=rows.index,
    ).dropna(subset=["best_loss"])
    study = Gpt(
        lead="loss_curves",
        runs=summary,
        curves=curves,
        steps=thinned(mine),
        used=scored[["run_id", "step", "val_loss"]].merge(used_by(mine, rows), on=["run_id", "step"]),
    )
    study.tables.append(_run_table(summary, rows))
    study.tables += further_tables(summary, curves)
    _one_card(study, _spread(study, rows, asked_unseen(observations)))
    _events(study, observations, mine)
    _samples(study, curves)
    _references(study)
    return study


def used_by(log: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each run had used after each step: ``tokens``, ``samples``, ``flops`` of its blocks, ``hours``.

    The FLOPs leave out the head, whose size a store does not have. The hours are those of its steps, without
    evaluations. A model of the user's own has no FLOPs.
    """
    if log.empty:
        return pd.DataFrame({"run_id": [], "step": []})
    log = log.sort_values(["run_id", "step"])
    before = log.groupby("run_id")[["consumed_tokens", "consumed_samples"]].shift(fill_value=0)
    tokens = log["consumed_tokens"] - before["consumed_tokens"]
    context = tokens / (log["consumed_samples"] - before["consumed_samples"])
    blocks = {run: _flops_of_blocks(row) for run, row in rows.iterrows()}
    each, slope = (log["run_id"].map({run: pair[i] for run, pair in blocks.items()}) for i in (0, 1))
    hours = tokens / log["tokens_per_second"] / 3600
    per_step = pd.DataFrame({"flops": tokens * (each + slope * context), "hours": hours})
    return pd.concat(
        [
            log[["run_id", "step"]],
            log["consumed_tokens"].rename("tokens"),
            log["consumed_samples"].rename("samples"),
            per_step.groupby(log["run_id"]).cumsum(),
        ],
        axis=1,
    )


def _flops_of_blocks(row: pd.Series) -> tuple[float, float]:
    """Return FLOPs of the blocks for a token (forward and backward), and for each token of its context."""
    items = ((str(name), value) for name, value in row.items())
    plain = {name: None if pd.isna(v) else v.item() if isinstance(v, np.generic) else v for name, v in items}
    try:
        model = stored_config(plain).model  # type: ignore[attr-defined]
    except ConfigError:  # code of the user's own, or settings of another version
        return math.nan, math.nan
    return 6.0 * count_parameters(model, 1).blocks, 12.0 * model.layers * model.d_model


def thinned(log: pd.DataFrame, points: int = 300) -> pd.DataFrame:
    """Return the training loss averaged over at most ``points`` equal intervals of steps per run."""
    if log.empty or "train_loss" not in log:
        return pd.DataFrame({"run_id": [], "step": [], "train_loss": []})
    width = (log.groupby("run_id")["step"].transform("max") / points).clip(lower=1)
    bins = (log["step"] / width).astype(int)
    return log.groupby(["run_id", bins.rename("bin")], as_index=False)[["step", "train_loss"]].mean()


def _run_table(summary: pd.DataFrame, rows: pd.DataFrame) -> Table:
    shown = summary.sort_values(["preset", "best_loss"])
    frame = pd.DataFrame(
        {
            "preset": shown["condition"],
            "seed": shown["seed"].astype(str),
            "run": [r[:10] for r in shown.index],
            "data": shown["data"],
            "steps": shown["steps"],
            "tokens": shown["tokens"],
            "best val loss": shown["best_loss"].round(4),
            "best perplexity": [round(perplexity(x), 2) for x in shown["best_loss"]],
            "at step": shown["best_step"],
            "last val loss": shown["last_loss"].round(4),
            "tokens/s": shown["tokens_per_second"].round(),
            "MFU": shown["mfu"].round(3),
            "peak GB": (shown["peak_memory"] / 1e9).round(2),
            "run it again": [rerun_command(rows.loc[r]) for r in shown.index],
        }
    ).dropna(axis="columns", how="all")  # logs of older versions have neither MFU nor memory
    caption = "Every run: validation loss in nats per token, perplexity per token; data by the hash of its manifest"
    if "peak GB" in frame:
        caption += "; peak GB: of tensors on a GPU, of the process on a CPU"
    return Table("runs", caption, frame, code=("run", "data", "run it again"))


def shares_seeds(rows: pd.DataFrame) -> bool:
    """Return whether runs of one condition share a seed: in a crossed design, a scan, or repeats of one seed.

    A dropout seed that all share can be one that no run draws from.
    """
    init, order, dropout = (rows[f"seed_{stream}"].nunique() for stream in CROSSED["gpt"])
    return min(init, order) < len(rows) or 1 < dropout < len(rows)


def _spread(study: Gpt, rows: pd.DataFrame, asked: set[str]) -> list[float]:
    """Tell the best perplexity of each condition: of the runs that were asked for before their results, if any were.

    Return the mean best losses, lowest first, as the conditions are told.
    """
    groups = []
    for _, every in study.runs.groupby(["preset", "config_id", "data"], sort=True):
        group = every[every.index.isin(list(asked))]
        others = len(every) - len(group) if len(group) else 0
        group = group if len(group) else every
        groups.append((float(group["best_loss"].mean()), others, len(every), group))
    for _, others, n_every, group in sorted(groups, key=lambda of: of[0]):
        best = group["best_loss"].to_numpy(dtype=float)
        n, condition, data = len(group), str(group["condition"].iloc[0]), str(group["data"].iloc[0])
        name = f"{condition} on data {data}" if data and "data=" not in condition else condition
        left = f" Left out of {n_every} runs: {others} that results may have chosen." if others else ""
        values = np.array([perplexity(x) for x in best])
        estimate = None
        if n == 1:
            shown = f"{values[0]:,.2f}"
            text = f"{shown} per token at step {group['best_step'].iloc[0]:,.0f}. One seed: no interval."
        elif not group.index.isin(list(asked)).all() or shares_seeds(rows.loc[group.index]):
            shown = f"{values.min():.2f} to {values.max():.2f}"
            why = (
                "They share seeds"
                if group.index.isin(list(asked)).all()
                else "No plan asked for them before their results"
            )
            text = f"{shown} per token in {n} runs. {why}, so their spread gives no interval over seeds."
        else:
            # on the scale of the loss: with few seeds the other one reaches below 0
            loss, middle = mean(best), float(values.mean())
            wide = perplexity(loss.high - loss.value)
            estimate = Estimate(middle, middle / wide, middle * wide, n, "t over seeds, of the loss")
            shown = estimate.plain(2)
            sd = f"{values.std(ddof=1):.3f}" if np.isfinite(values).all() else "infinite"
            text = f"{shown} per token over {n} seeds; standard deviation between seeds {sd}."
        text = f"{name}: best validation perplexity {text}{left}"
        study.tell(f"{condition}: best perplexity", shown, text, estimate, headline=True)
    return sorted(loss for loss, *_ in groups)


def _one_card(study: Gpt, losses: list[float]) -> None:
    """Tell the best perplexities of several conditions by their range first; of many no condition has a card."""
    cards = [finding for finding in study.findings if finding.headline]
    if len(cards) < 2:
        return
    shown = f"{perplexity(losses[0]):,.2f} to {perplexity(losses[-1]):,.2f}"
    text = (
        f"{len(cards)} conditions: the perplexity of the mean best validation loss is {shown} per token, from "
        f"{cards[0].label.partition(':')[0]} to {cards[-1].label.partition(':')[0]}."
    )
    many = len(cards) > MOST_CARDS
    quiet = [replace(finding, headline=False) if many and finding in cards else finding for finding in study.findings]
    study.findings = [Finding(f"best perplexity, over {len(cards)} conditions", shown, text, headline=True), *quiet]


def _events(study: Gpt, observations: Observations, log: pd.DataFrame) -> None:
    if len(log) and "event" in log:
        events = log.dropna(subset=["event"])
        if len(events):
            counts = ", ".join(f"{n} {kind}" for kind, n in events["event"].value_counts().items())
            study.notes.append(f"Events during training: {counts}.")
    every = observations.all_runs
    branches = every[(every["mode"] == "gpt") & (every["status"] == "rolled_back")]
    if len(branches):
        frame = branches[["run_id", "parent_run_id", "branch_step", "steps", "stop_reason"]].astype(str)
        study.tabulate("branches", "Branches that ended with a rollback; the store keeps them", frame, open=False)


def _samples(study: Gpt, curves: pd.DataFrame) -> None:
    texts = curves.dropna(subset=["sample"]) if "sample" in curves else curves.iloc[:0]
    texts = texts.groupby("run_id").last()
    chosen = [r for r in study.runs.sort_values("best_loss").index if r in texts.index][:SAMPLES]
    if chosen:
        frame = pd.DataFrame(
            {
                "run": [r[:10] for r in chosen],
                "seed": [str(study.runs.loc[r, "seed"]) for r in chosen],
                "step": [int(texts.loc[r, "step"]) for r in chosen],
                "sample": [str(texts.loc[r, "sample"]) for r in chosen],
            }
        )
        study.tabulate("samples", "Generated text: the last sample of the best runs", frame, code=("run", "sample"))


def _references(study: Gpt) -> None:
    if not any(part in preset for preset in study.runs["preset"] for part in WIKITEXT_PRESETS):
        return
    study.tabulate("published", "Published results on the full WikiText-103, for comparison", WIKITEXT_103, open=False)
    study.tabulate(
        "published_on_the_way",
        "Transformer-XL on WikiText-103 during training",
        TRANSFORMER_XL_ON_THE_WAY,
        open=False,
    )
    study.notes.append(
        "The published numbers are on the full WikiText-103, per word or per token of a BPE (column `per`). A run of "
        "this store is comparable "
        "only if its data hash is that of the full WikiText-103; a run on a sample of it is not a WikiText-103 result. "
        "Perplexities per token of different tokenisers are not comparable."
    )


QUESTION = Question(
    "gpt",
    "Language models",
    "How well do the language models predict text?",
    "",  # a corpus comes first: `grok prepare`
    analyse,
    lambda observations: bool(len(observations.gpt)),
    any_task=False,
)
