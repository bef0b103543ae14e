"""Loss spikes of language models: which runs spiked, when, and which norms rose with the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.observations import Observations, as_text, floats, how_many, varying_columns
from grok.analysis.purposes import asked_unseen
from grok.analysis.statistics.estimate import LEVEL, NotEnoughData, generator, holm
from grok.analysis.statistics.excursions import NOISE, RISE, SMOOTH, excursions, heights, smoothed, threshold
from grok.analysis.statistics.proportions import heterogeneity, share
from grok.analysis.studies.base import Question, Study, otherwise
from grok.analysis.studies.gpt import CONDITION_SETTINGS

FEWEST: Final = 8
"""Runs below which there is no comparison of settings."""
JUMP: Final = 2.0
"""Nats of a single step above the lowest loss so far that no batch is hard enough for."""
BEFORE: Final = 20
"""Steps before the lowest loss whose median gradient norm is the usual one."""
GROWN: Final = {"weights": ("weights", 1.5), "gradient norm": ("gradient", 3.0)}
"""Column: whose norm it is, and how many times its level before it must reach, between lowest loss and peak."""


@dataclass(kw_only=True)
class Spikes(Study):
    """The spikes of runs with a log of their steps."""

    runs: pd.DataFrame
    """One row per run, indexed by run_id: values of the settings that differ, its largest rise, its last loss."""
    spikes: pd.DataFrame
    """One row per spike, indexed by run_id."""
    factors: list[str]
    """Columns of ``runs`` with the settings that differ; settings that vary together are one column."""
    curves: pd.DataFrame
    """Smoothed training loss: run_id, step, loss."""


def analyse(observations: Observations) -> Spikes:
    """Return the answer for the language models with a log that a design asked for before any result.

    Raises:
        NotEnoughData: there are fewer than ``FEWEST`` of them.
    """
    log, every = observations.steps, observations.gpt
    logs = {} if log is None else {str(run): steps.sort_values("step") for run, steps in log.groupby("run_id")}
    rows = observations.measured(sorted(asked_unseen(observations) & set(logs)), "gpt")
    if len(rows) < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} language models with a log that a plan asked for before any result")
    factors = _factors(rows)
    last = observations.curves_of(rows.index).sort_values("step").groupby("run_id")["val_loss"].last()
    diverged = rows["status"] == "diverged"
    spikes = pd.concat([_spikes(logs[str(run)], str(run), bool(diverged[run])) for run in rows.index])
    runs = pd.DataFrame(factors, index=rows.index).assign(
        seed=rows["seed"].astype(str),
        spiked=rows.index.isin(spikes.index),
        rise=spikes["rise"].groupby(level=0).max().reindex(rows.index),
        highest=[float(heights(logs[str(run)]["train_loss"]).max()) for run in rows.index],
    )
    # the last loss of a diverged run is that of an earlier step than its partners'
    runs["last_loss"] = np.where(diverged, math.nan, floats(last.reindex(rows.index)))
    curves = pd.concat([logs[str(run)][["run_id", "step"]] for run in rows.index], ignore_index=True)
    losses = [smoothed(logs[str(run)]["train_loss"], bool(diverged[run])) for run in rows.index]
    order = runs.assign(seed=rows["seed"]).sort_values([*factors, "seed"], kind="stable").index
    curves["loss"] = np.concatenate(losses)
    study = Spikes(counted=rows.index, runs=runs.loc[order], spikes=spikes, factors=list(factors), curves=curves)
    _answer(study)
    _by_setting(study, rows)
    _tables(study)
    others = int((every.index.isin(logs) & ~every["trajectory_id"].isin(rows["trajectory_id"])).sum())
    if others:
        study.notes.append(f"{others} more runs are not counted: no plan asked for them before any result.")
    study.notes.append(
        f"A spike: the training loss, a running median of {SMOOTH} steps, rises above its lowest value so far by "
        f"{RISE} nats, or by {NOISE:g} standard deviations of the loss of single steps if that is more. It ends within "
        "half of that. Last validation losses are of runs that did not diverge."
    )
    return study


def _factors(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return each run's value, as text, of the settings and the data that differ; those that vary together are joined.

    The data's value is the beginning of its hash.
    """
    together: dict[tuple[int, ...], list[str]] = {}
    rows = rows.assign(**{"config.data": rows["data_hash"].fillna("none").str[:6]})
    for column in varying_columns(rows, (*CONDITION_SETTINGS, "data")):
        codes = tuple(int(code) for code in pd.factorize(rows[column].map(as_text))[0])
        together.setdefault(codes, []).append(column)
    factors = {}
    for columns in together.values():
        # the MLP's width is left out if it follows from the model's width
        named = [c for c in columns if c != "config.model.d_ff" or "config.model.d_model" not in columns]
        name = " and ".join(c.removeprefix("config.") for c in named)
        every = zip(*(rows[c].map(as_text) for c in named), strict=True)
        factors[name] = [" and ".join(dict.fromkeys(values)) for values in every]  # three dropouts of 0 are one 0
    return factors


def _spikes(log: pd.DataFrame, run: str, diverged: bool) -> pd.DataFrame:
    """Return the spikes of a run in their order, one row each, indexed by ``run``."""
    steps, rates = log["step"].to_numpy(), floats(log["lr"])
    gradient, weights = floats(log["grad_norm"]), floats(log["param_norm"])
    records = []
    for spike in excursions(log["train_loss"], threshold(log["train_loss"]), diverged=diverged):
        span = slice(spike.low, spike.peak + 1)
        usual = float(np.median(gradient[max(0, spike.low - BEFORE) : spike.low + 1]))
        records.append(
            {
                "step": int(steps[spike.onset]),
                "rise": spike.rise,
                "back_after": math.nan if spike.back is None else float(steps[spike.back] - steps[spike.onset]),
                "rate": float(rates[spike.onset] / rates.max()),
                "rising": bool(spike.onset <= int(np.argmax(rates)) and rates[0] < rates.max()),
                "gradient norm": float(np.max(gradient[span]) / usual) if usual > 0 else math.nan,
                "weights": float(np.max(weights[span]) / weights[spike.low]) if weights[spike.low] > 0 else math.nan,
            }
        )
    return pd.DataFrame(records, [run] * len(records), ["step", "rise", "back_after", "rate", "rising", *GROWN])


def _answer(study: Spikes) -> None:
    n, k, spikes = len(study.runs), int(study.runs["spiked"].sum()), study.spikes
    every = len(spikes)
    study.scope = f"{n} runs. They differ in {', '.join(study.factors) or 'their seeds alone'}."
    text = f"{k} of {n} runs spiked"
    if k:
        back = spikes["back_after"].dropna()
        text += (
            f", {how_many(every, 'time')} in all, {_rises(spikes['rise'])}. {len(back):,} of the {every:,} came back "
        )
        text += "before the run ended"
        text += f", after {back.median():,.0f} steps in the median (at most {back.max():,.0f})" if len(back) else ""
    study.tell("runs that spiked", f"{k} of {n}", f"{text}.", headline=True)
    if k:
        first, middle, last = (f"{of:,.0f}" for of in spikes["step"].quantile([0, 0.5, 1]))
        study.tell(
            "steps of all spikes",
            f"{middle} (first {first}, last {last})",
            f"{how_many(every, 'spike')} of {how_many(k, 'run')} began at step {middle} in the median, the first at "
            f"{first}, the last at {last}; {int(spikes['rising'].sum()):,} while the learning rate still rose.",
        )
        grown = [
            f"the norm of the {name} reached {times:g} times its level before in "
            f"{int((spikes[key] >= times).sum()):,} of {how_many(every, 'spike')} "
            f"(median {spikes[key].median():.1f} times)"
            for key, (name, times) in GROWN.items()
        ]
        study.tell(
            "what rose with the loss",
            "; ".join(f"{name} ×{spikes[key].median():.1f}" for key, (name, _) in GROWN.items()),
            f"Between the lowest loss and the peak {', '.join(grown)}.",
        )


def _finite(values: pd.Series) -> pd.Series:
    return values[np.isfinite(values.astype(float))]


def _middle(values: pd.Series, digits: int) -> str:
    """Return the median of the finite values."""
    finite = _finite(values)
    return f"{finite.median():.{digits}f}" if len(finite) else "none"


def _rises(rises: pd.Series) -> str:
    """Return the words for how far the loss rose in the spikes."""
    finite = _finite(rises)
    words = [f"{n} of them to a loss that is not finite"] if (n := len(rises) - len(finite)) else []
    by = f"by {finite.median():.1f} nats in the median (at most {finite.max():.1f})"
    return ", the others ".join([*words, *[by] * bool(len(finite))])


def _nats(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def _by_setting(study: Spikes, rows: pd.DataFrame) -> None:
    """Compare the values of each setting over runs that agree in all other settings and the seed."""
    p, spiked = {}, study.runs["spiked"].to_numpy(bool)
    for factor in study.factors:
        block = study.runs.groupby([*(f for f in study.factors if f != factor), "seed"]).ngroup().to_numpy()
        groups = pd.factorize(study.runs[factor])[0]
        with suppress(NotEnoughData):
            p[factor] = heterogeneity(spiked, groups, generator(f"spikes {factor}"), 20_000, [block]).p
    adjusted = dict(zip(p, map(float, holm(list(p.values()))), strict=True))
    records = []
    for factor in study.factors:
        values = sorted(study.runs[factor].unique(), key=_number)
        counted = []
        for value in values:
            here = study.runs[study.runs[factor] == value]
            k, n = int(here["spiked"].sum()), len(here)
            counted.append(f"{value}: {k} of {n}")
            records.append(
                {
                    "setting": factor,
                    "value": value,
                    "spiked": f"{k} of {n}",
                    "share": share(k, n).percent(0),
                    "p (Holm)": f"{adjusted[factor]:.2g}" if factor in adjusted and value == values[0] else "",
                    f"steps {JUMP:g} nats up": f"{int((here['highest'] >= JUMP).sum())} of {n}",
                    "median largest rise": _middle(here["rise"], 2),
                    "last val loss": _middle(here["last_loss"], 3),
                }
            )
        text = f"{factor}: spikes in {'; '.join(counted)}"
        text += f" (p = {adjusted[factor]:.2g})." if factor in adjusted else "."
        first, *others = (rows[(study.runs[factor] == value).reindex(rows.index)] for value in values)
        for value, its in zip(values[1:], others, strict=True):
            text += f" {value}: {apart}." if (apart := otherwise(its, first, values[0])) else ""
        study.tell(f"spikes by {factor}", "; ".join(counted), text, headline=adjusted.get(factor, 1.0) < 1 - LEVEL)
    if records:
        caption = (
            "Each setting: runs that spiked (95% intervals as if runs were drawn at random; p: permutation inside runs "
            "that agree in all else, Holm-adjusted), and the median of the last validation loss"
        )
        study.tabulate("spikes_by_setting", caption, records)


def _number(text: str) -> tuple[float, str]:
    """Return a sort key: texts that begin with a number by it, other texts after them."""
    try:
        return float(text.split(" and ", maxsplit=1)[0].strip("[]").split(",")[-1]), text
    except ValueError:
        return math.inf, text


def _tables(study: Spikes) -> None:
    runs, spikes = study.runs, study.spikes

    def of_each(group: pd.DataFrame, column: str, shown: Callable[[Any], str]) -> str:
        """Return what is ``shown`` of the spikes of each run, the runs in their order."""
        each = (" and ".join(map(shown, spikes.loc[spikes.index == run, column])) for run in group.index)
        return "; ".join(words or "none" for words in each)

    if study.factors:
        cells = [
            {
                **dict(zip(study.factors, names, strict=True)),
                "spiked": f"{int(group['spiked'].sum())} of {len(group)}",
                "at step": of_each(group, "step", "{:,}".format),
                "rise (nats)": of_each(group, "rise", lambda rise: _nats(rise, 2)),
                "highest step (nats)": "; ".join(_nats(v, 1) for v in group["highest"]),
                "last val loss": "; ".join("diverged" if pd.isna(v) else f"{v:.3f}" for v in group["last_loss"]),
            }
            for names, group in runs.groupby(study.factors, sort=False)
        ]
        study.tabulate("spikes_by_cell", "Every combination of settings, its seeds one after another", cells)
    if len(spikes):
        spikes = spikes.assign(run=[run[:10] for run in spikes.index]).join(runs[[*study.factors, "seed"]])
        spikes = spikes.sort_values("rise", ascending=False, kind="stable")
        own = pd.DataFrame(
            {
                "run": spikes["run"],
                "at step": spikes["step"].astype(int),
                "learning rate": [
                    f"{rate:.0%} of its peak{', rising' if rising else ''}"
                    for rate, rising in zip(spikes["rate"], spikes["rising"], strict=True)
                ],
                "rise (nats)": ["not finite" if math.isinf(v) else round(v, 2) for v in spikes["rise"]],
                "back after": ["not by the end" if pd.isna(v) else f"{v:,.0f} steps" for v in spikes["back_after"]],
                "gradient norm ×": spikes["gradient norm"].round(1),
                "weights ×": spikes["weights"].round(2),
            },
        )
        caption = (
            "Every spike: the rise of the loss, and how many times its level before the gradient norm and the norm of "
            "the weights reached between the lowest loss and the peak"
        )
        frame = pd.concat([spikes[[*study.factors, "seed"]], own], axis=1)
        study.tabulate("spikes", caption, frame.reset_index(drop=True), code=("run",))


QUESTION = Question(
    "spikes",
    "Spikes",
    "Which language models spiked, when, and what rose with the loss?",
    "",  # a corpus comes first: `grok prepare`
    analyse,
    lambda observations: len(observations.gpt) >= FEWEST,
    any_task=False,
)
