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
from numpy.typing import NDArray

from grok.analysis.observations import OWN_CODE, Condition, Observations, floats, how_many, in_words, varying_columns
from grok.analysis.proposals import rerun_commands
from grok.analysis.purposes import asked_unseen
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, holm, mean
from grok.analysis.studies.base import ALARM, MOST_CARDS, Finding, Question, Study, Table, one_by_one, otherwise
from grok.analysis.studies.conditions import ratio_of_means
from grok.analysis.studies.mechanism import measured
from grok.config import GptConfig
from grok.config.fields import recorded_of
from grok.errors import ConfigError
from grok.gpt.costs import count_parameters
from grok.store.provenance import stored_config
from grok.streams import CROSSED

# Further measurements of a language model's evaluations: additional validation sets, scores of tasks.


def further_tables(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Table]:
    """Return the tables of the further validation sets and of the tasks; an empty list if nothing was measured.

    ``runs`` has the columns ``condition`` and ``seed`` by ``run_id``.
    """
    mine = curves[curves["run_id"].isin(runs.index)]
    wide = mine[["run_id", "step"]].join(measured(mine), how="inner")
    values = wide.melt(["run_id", "step"], var_name="name").dropna()
    errors = values.set_index(["run_id", "name", "step"])["value"]
    sets, tasks = [], []
    for (run_id, name), group in values.groupby(["run_id", "name"], sort=True):
        kind, _, label = str(name).partition(".")
        last, best = group.iloc[-1], group.sort_values("value").iloc[0]
        own = runs.loc[str(run_id)]
        run = {"preset": own["condition"], "seed": str(own["seed"]), "run": str(run_id)[:10]}
        if kind == "val_loss":
            run |= {"validation set": label, "best loss": round(best["value"], 4)}
            run |= {"best perplexity": round(perplexity(best["value"]), 2), "at step": best["step"]}
            sets.append(run | {"last loss": round(last["value"], 4)})
        elif kind == "task" and not label.endswith("_stderr"):
            task, _, metric = label.rpartition(".")
            error = errors.get((run_id, f"{name}_stderr", last["step"]))
            run |= {"task": task, "metric": metric, "score": f"{last['value']:.4g}"}
            tasks.append(run | {"standard error": "" if error is None else f"{error:.2g}", "at step": last["step"]})
    captions = {
        "validation_sets": "Further validation sets (data.validation): loss in nats per token, perplexity per token",
        "tasks": "Tasks of lm-evaluation-harness (eval.tasks), as last scored during training",
    }
    found = zip(captions.items(), (sets, tasks), strict=True)
    return [Table(name, caption, pd.DataFrame(rows), code=("run",)) for (name, caption), rows in found if rows]


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
WIDE: Final = 1e5
"""A perplexity from which on two digits are shown."""
FEWEST_SEEDS: Final = 3
"""Smallest number of seeds of a condition that is compared with another, and of pairs."""
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
    lost: pd.Series
    """The condition of each run that failed or has no finite loss."""
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
    of = {str(name).removeprefix("config."): value for name, value in row.items()}
    dropout = row[DROPOUT].fillna(0.0).max()
    return (
        f"transformer of {how_many(int(of['model.layers']), 'layer')}, width {of['model.d_model']:,.0f}, "
        f"{how_many(int(of['model.heads']), 'head')}, {of['model.context']:,.0f} tokens"
        f"{f', dropout {dropout:g}' if dropout else ''}; learning rate {of['optim.lr']:g}, "
        f"batch {of['train.batch_size']:,.0f}, {of['train.steps']:,.0f} steps"
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
    scored = curves[np.isfinite(floats(curves["val_loss"]))]
    if scored.empty:
        raise NotEnoughData("a GPT run with at least one evaluation")
    models = observations.all_runs[observations.all_runs["mode"] == "gpt"].set_index("run_id")
    models = models[(models["status"] == "failed") | models.index.isin(rows.index)]
    named = condition_names(models)
    best = scored.loc[scored.groupby("run_id")["val_loss"].idxmin()].set_index("run_id")
    last = scored.groupby("run_id").last()
    log = observations.steps
    empty = pd.DataFrame(columns=["run_id", *(column for column, _ in LOGGED.values())])
    mine = empty if log is None else log[log["run_id"].isin(rows.index)]
    logged = mine.groupby("run_id").agg(**LOGGED).reindex(rows.index)
    summary = pd.DataFrame(
        {
            "preset": rows["config.experiment"].fillna("").to_numpy(),
            "condition": named[rows.index].to_numpy(),
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
        counted=summary.index,
        runs=summary,
        curves=curves,
        steps=thinned(mine),
        lost=named[~models.index.isin(summary.index)],
        used=scored[["run_id", "step", "val_loss"]].merge(used_by(mine, rows), on=["run_id", "step"]),
    )
    study.tables.append(_run_table(summary, rows))
    study.tables += further_tables(summary, curves)
    every = told(study, rows, asked_unseen(observations))
    study.notes += one_by_one(observations, pd.Index([run for one in every if one.asked for run in one.runs.index]))
    if len(study.lost):
        study.notes.append(
            f"{len(study.lost):,} more runs failed or have no finite validation loss: they are left out."
        )
    _spread(study, every)
    _one_card(study, every, _compared(study, rows, every))
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
    used = log[["run_id", "step"]].assign(tokens=log["consumed_tokens"], samples=log["consumed_samples"])
    return used.join(per_step.groupby(log["run_id"]).cumsum())


def _flops_of_blocks(row: pd.Series) -> tuple[float, float]:
    """Return FLOPs of the blocks for a token (forward and backward), and for each token of its context."""
    items = ((str(name), value) for name, value in row.items())
    plain = {name: None if pd.isna(v) else v.item() if isinstance(v, np.generic) else v for name, v in items}
    try:
        model = stored_config(plain).model  # type: ignore[attr-defined]
    except ConfigError:  # code of the user's own, or settings of another version
        return math.nan, math.nan
    return 6.0 * count_parameters(model, 1).blocks, 12.0 * model.layers * model.d_model


def thinned(log: pd.DataFrame) -> pd.DataFrame:
    """Return the training loss averaged over at most 300 equal intervals of steps per run."""
    if log.empty or "train_loss" not in log:
        return pd.DataFrame({"run_id": [], "step": [], "train_loss": []})
    width = (log.groupby("run_id")["step"].transform("max") / 300).clip(lower=1)
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
            "run it again": rerun_commands(rows.loc[shown.index]),
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


@dataclass(frozen=True)
class Told:
    """The runs of one condition that count: those that were asked for before their results, if any were."""

    runs: pd.DataFrame
    """Those of ``Gpt.runs``."""
    left: int
    """Runs that results may have chosen."""
    lost: int
    """Runs that failed, or have no finite loss."""
    asked: bool
    independent: bool
    """Whether they were asked for, and no two share a seed."""

    @property
    def name(self) -> str:
        """The condition."""
        return str(self.runs["condition"].iloc[0])

    @property
    def data(self) -> str:
        """The beginning of the data's hash."""
        return str(self.runs["data"].iloc[0])

    @property
    def losses(self) -> NDArray[np.float64]:
        """The best validation losses (n,)."""
        return floats(self.runs["best_loss"])


def told(study: Gpt, rows: pd.DataFrame, asked: set[str]) -> list[Told]:
    """Return the conditions, the one with the lowest mean loss first."""
    made = []
    for _, every in study.runs.groupby(["condition", "data"], sort=True):
        runs = every[every.index.isin(list(asked))]
        were, left = len(runs) > 0, len(every) - len(runs)
        runs = runs if were else every
        lost = int((study.lost == every["condition"].iloc[0]).sum())
        made.append(Told(runs, left * were, lost, were, were and not shares_seeds(rows.loc[runs.index])))
    return sorted(made, key=lambda one: float(one.losses.mean()))


def _diverged(one: Told) -> int:
    return int((one.runs["status"] == "diverged").sum())


def _spread(study: Gpt, every: list[Told]) -> None:
    """Tell the best perplexity of each condition."""
    for one in every:
        n, values = len(one.runs), np.exp(np.minimum(one.losses, 700))
        estimate = None
        if n == 1:
            shown = f"{values[0]:,.2f}"
            text = f"{shown} per token at step {one.runs['best_step'].iloc[0]:,.0f}. One seed: no interval."
        elif not one.independent:
            shown = f"{values.min():.2f} to {values.max():.2f}"
            why = "They share seeds" if one.asked else "Results of their settings and seeds came before their plan"
            text = f"{shown} per token in {n} runs. {why}, so their spread gives no interval over seeds."
        else:
            loss = mean(one.losses, method="t over seeds, of the loss")
            low, value, high = (perplexity(x) for x in (loss.low, loss.value, loss.high))
            estimate = replace(loss, value=value, low=low, high=high)
            shown = estimate.plain(2) if estimate.high < WIDE else estimate.short()
            text = (
                f"{shown} per token over {n} seeds, of their mean loss; from {values.min():.2f} to {values.max():.2f}."
            )
        if diverged := _diverged(one):
            text += f" {diverged} of {n} diverged: what counts is the best loss before."
        text += f" {one.lost} more failed, or have no finite loss." * bool(one.lost)
        text += f" Left out of {n + one.left} runs: {one.left} that results may have chosen." * bool(one.left)
        on = f" on data {one.data}" if one.data and "data=" not in one.name else ""
        text = f"{one.name}{on}: best validation perplexity {text}"
        study.tell(f"{one.name}: best perplexity", shown, text, estimate, headline=True)


def _compared(study: Gpt, rows: pd.DataFrame, every: list[Told]) -> str:
    """Tell the ratio of each condition's perplexity to that of the one with most seeds; return how many differ."""
    usable = [one for one in every if one.independent and len(one.runs) >= FEWEST_SEEDS]
    if not usable:
        return ""
    reference = max(sorted(usable, key=lambda one: one.name), key=lambda one: len(one.runs))  # no result breaks a tie
    usable = [one for one in usable if one is not reference and one.data == reference.data]
    if not usable:
        return ""
    seeds, records, said = [f"seed_{stream}" for stream in CROSSED["gpt"]], [], ""

    def over(mine: pd.DataFrame, base: pd.DataFrame) -> tuple[Estimate, float, int]:
        """Return the ratio of these runs' perplexities, its p-value, and the number of pairs (0: two groups)."""
        mine, base = (rows.loc[runs.index, seeds].assign(loss=floats(runs["best_loss"])) for runs in (mine, base))
        pairs = mine.merge(base, on=seeds)
        paired = len(pairs) >= FEWEST_SEEDS
        ours, theirs = (pairs["loss_x"], pairs["loss_y"]) if paired else (mine["loss"], base["loss"])
        return *ratio_of_means(floats(ours), floats(theirs), paired), len(pairs) * paired

    for one in usable:
        ratio, p, pairs = over(one.runs, reference.runs)
        records.append({"condition": one.name, "seeds": len(one.runs), "over the reference's": f"×{ratio.plain(3)}",
                        "pairs of seeds": pairs or "none", "p (Holm)": p})  # fmt: skip
        ended = [of.runs[of.runs["status"] != "diverged"] for of in (one, reference)]
        if _diverged(one) + _diverged(reference) and min(map(len, ended)) >= FEWEST_SEEDS:
            ratio, p, _ = over(*ended)  # a loss of before a divergence is far from the others, and hides a difference
            said += f" {one.name}, without runs that diverged: ×{ratio.plain(3)}, p = {p:.2g} (not adjusted)."
        words = otherwise(rows.loc[one.runs.index], rows.loc[reference.runs.index], reference.name)
        said += f" {one.name}: {words}." * bool(words)
    frame = pd.DataFrame(records)
    frame["p (Holm)"] = holm(frame["p (Holm)"].tolist())
    clear = int((frame["p (Holm)"] < ALARM).sum())
    caption = f"Best perplexity over that of {reference.name} ({len(reference.runs)} seeds), 95% intervals"
    study.tabulate("perplexities", caption, frame.assign(**{"p (Holm)": frame["p (Holm)"].map("{:.2g}".format)}))
    verb = "differs" if len(usable) == 1 else "differ"
    return (
        f" {clear} of {len(usable)} {verb} from {reference.name} beyond chance (t tests, Holm-adjusted p below 0.05)."
        + said
    )


def _one_card(study: Gpt, every: list[Told], compared: str) -> None:
    """Tell the best perplexities of several conditions by their range first; of many no condition has a card."""
    if len(every) < 2:
        return
    first, last = every[0], every[-1]
    shown = f"{perplexity(first.losses.mean()):,.2f} to {perplexity(last.losses.mean()):,.2f}"
    ends = [
        f"{f.shown if f.estimate else f'{perplexity(one.losses.mean()):,.2f}'} with {one.name}"
        for f, one in ((study.findings[0], first), (study.findings[-1], last))
    ]
    brackets = " (brackets: 95%, over seeds)" * bool(study.findings[0].estimate or study.findings[-1].estimate)
    text = (
        f"{len(every)} conditions: the perplexity of the mean best validation loss, per token, is from "
        f"{' to '.join(ends)}{brackets}.{compared}"
    )
    if diverged := [f"{k} of {len(one.runs)} with {one.name}" for one in every if (k := _diverged(one))]:
        text += f" Diverged, and counted with the best loss before: {'; '.join(diverged)}."
    if study.runs["data"].nunique() > 1:
        text += " Of other data, or by another tokeniser, perplexities per token do not compare."
    many = len(every) > MOST_CARDS
    quiet = [replace(f, headline=False) if many and f.headline else f for f in study.findings]
    study.findings = [Finding(f"best perplexity, over {len(every)} conditions", shown, text, headline=True), *quiet]


def _events(study: Gpt, observations: Observations, log: pd.DataFrame) -> None:
    if len(log) and "event" in log:
        events = log.dropna(subset=["event"])
        if len(events):
            counts = ", ".join(how_many(n, str(kind)) for kind, n in events["event"].value_counts().items())
            study.notes.append(f"Events that training logged: {counts}.")
    every = observations.all_runs
    branches = every[(every["mode"] == "gpt") & (every["status"] == "rolled_back")]
    if len(branches):
        frame = branches[["run_id", "parent_run_id", "branch_step", "steps", "stop_reason"]].astype(str)
        study.tabulate("branches", "Branches that ended with a rollback; the store keeps them", frame, open=False)


def _samples(study: Gpt, curves: pd.DataFrame) -> None:
    texts = curves.dropna(subset=["sample"]) if "sample" in curves else curves.iloc[:0]
    best = study.runs.sort_values("best_loss")[["seed"]].astype(str)
    shown = best.join(texts.groupby("run_id")[["step", "sample"]].last(), how="inner").head(SAMPLES)
    if len(shown):
        shown.insert(0, "run", shown.index.str[:10])
        study.tabulate("samples", "Generated text: the last sample of the best runs", shown, code=("run", "sample"))


def _references(study: Gpt) -> None:
    if not any(part in preset for preset in study.runs["preset"] for part in WIKITEXT_PRESETS):
        return
    study.tabulate("published", "Published results on the full WikiText-103, for comparison", WIKITEXT_103, open=False)
    on_the_way = "Transformer-XL on WikiText-103 during training"
    study.tabulate("published_on_the_way", on_the_way, TRANSFORMER_XL_ON_THE_WAY, open=False)
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
