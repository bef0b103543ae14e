"""Runs at the settings of papers on grokking, compared with the papers' numbers.

A run belongs to an arm of a paper if it has all settings of the arm that can change a result. Its length and evaluation
schedule may differ; the verdicts account for runs that end early. `results/papers/` has the sources of the numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Final

import numpy as np
import pandas as pd

from grok.analysis.observations import (
    OWN_CODE,
    Observations,
    as_text,
    conditions_of,
    differing_settings,
    floats,
    how_many,
)
from grok.analysis.purposes import extended, random_seeds
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.statistics.survival import Times, geometric_mean, growth, least_ratio, ratio_of_times
from grok.analysis.studies.base import Question, Study
from grok.analysis.studies.mechanism import WAY, half_way, measured

# Settings and numbers of papers on grokking: the arms with which `papers` compares runs.


@dataclass(frozen=True)
class Arm:
    """One condition of a paper."""

    name: str
    settings: Mapping[str, str]
    """Settings that differ from the defaults, as on the command line."""
    theirs: int | None = None
    """Steps to 95% validation accuracy in the paper."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Ratio of times in the paper, by the name of a slower arm; 0: the paper does not compare the two."""
    sooner_than: str | None = None
    """A slower arm, which may be another paper's, if the paper says so and has no ratio."""
    claimed: bool = True
    """Whether the paper has this setting; otherwise the steps are compared without a verdict."""
    free: Sequence[str] = ()
    """Settings that may take any value."""
    generalises: bool | None = None
    """Whether it generalises according to the paper, if the paper has no number."""


@dataclass(frozen=True)
class Paper:
    """The arms of one paper, and steps of the phases that its text names."""

    title: str
    arms: Sequence[Arm]
    phases: Mapping[str, int] = field(default_factory=dict)


def _read() -> Iterator[Paper]:
    """Yield the papers of ``papers.toml``, which describes its fields."""
    for paper in tomllib.loads(files("grok.analysis").joinpath("papers.toml").read_text(encoding="utf-8"))["papers"]:
        yield Paper(**paper | {"arms": [Arm(**arm) for arm in paper["arms"]]})


PAPERS: Final = tuple(_read())
ADAM: Final = '{"_target_":"torch.optim.Adam"}'
"""torch's Adam, whose weight decay is part of the gradient ("coupled"), as in Grokfast's code."""
FRACTION: Final = "task.train_fraction"

# Runs at the settings of papers on grokking, compared with the papers' numbers.

AGREES, DISAGREES, OPEN = "agrees", "disagrees", "not decided"
NO_CLAIM: Final = "the paper makes no such claim"
FEWEST: Final = 3
"""Smallest number of runs of an arm for a verdict on its time: with two, the interval is too wide."""
FAR: Final = 2.0
"""If no run has generalised by this many times the paper's step, the outcome differs from the paper's."""
S5_GROWTH: Final = 0.4, 0.5
"""Increase of the median time to 99% accuracy for each 1% less data, in the vicinity of 25 to 30%."""
S5_FRACTIONS: Final = 0.25, 0.31
"""Smallest and largest fraction of a run that is compared with it: at larger fractions the increase is smaller."""
PARTS: Final = ("final_restricted_loss", "final_excluded_loss")
"""Progress measures of Nanda et al., with the key frequencies of the final weights of a run that generalised."""


@dataclass(frozen=True)
class Trained:
    """An arm with its runs."""

    paper: Paper
    arm: Arm
    rows: pd.DataFrame
    times: Times

    @property
    def accuracy(self) -> pd.Series:
        """Validation accuracy of each run at its last step."""
        return self.rows["val_acc"].astype(float)

    @property
    def cut(self) -> float:
        """The last step of the shortest run that had not generalised; infinite if all did."""
        return float(np.min(self.times.left[~self.times.seen], initial=np.inf))


@dataclass(kw_only=True)
class Papers(Study):
    """The arms with their runs and curves."""

    trained: list[Trained]
    curves: pd.DataFrame
    """Columns run_id, step, train_acc, val_acc, and the progress measures (NaN: not measured)."""


def arms_of(observations: Observations) -> list[Trained]:
    """Return the arms with runs in the store, in the papers' order.

    If the user's own code changed, an arm has the runs of the version with most of them.
    """
    rows = observations.once(random_seeds)
    known: list[tuple[dict[str, str], pd.DataFrame]] = []
    for condition in conditions_of(rows):
        differing = differing_settings(condition.rows.iloc[0]).items()
        settings = {name: as_text(value) for name, value in differing if name != OWN_CODE}
        if settings not in [others for others, _ in known]:
            known.append((settings, condition.rows))
    trained = []
    for paper, arm in ((of, arm) for of in PAPERS for arm in of.arms):
        found = [
            extended(observations, rows)
            for settings, rows in known
            if {k: v for k, v in settings.items() if k not in arm.free} == arm.settings
        ]
        if found:
            mine = _longest(pd.concat(found))
            trained.append(Trained(paper, arm, mine, observations.times(mine)))
    return trained


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return runs without those that another run of the same seed continues: the same training, ended earlier."""
    lengths = rows["config.train.steps"].astype(int)
    same = [rows[c] for c in ("seed", "replicate", f"config.{FRACTION}") if c in rows]
    return rows[lengths == lengths.groupby(same).transform("max")]


def analyse(observations: Observations) -> Papers:
    """Return the answer for every arm with runs.

    Raises:
        NotEnoughData: no arm has runs.
    """
    trained = observations.once(arms_of)
    if not trained:
        raise NotEnoughData("runs at the setting of a paper")
    ids = pd.concat([t.rows for t in trained]).index
    curves = with_measures(observations.curves_of(ids))
    records = [record for t in trained for record in _claims(t, trained, curves)]
    study = Papers(trained=trained, curves=curves, counted=ids)
    study.tabulate("papers", "Claims of papers beside the runs of this store", records)
    study.tabulate("arms", "What was trained", pd.DataFrame([_arm(part) for t in trained for part in parts(t)]))
    verdicts = [r["verdict"] for r in records if not r["verdict"].startswith(NO_CLAIM)]
    counts = {word: sum(v.startswith(word) for v in verdicts) for word in (AGREES, DISAGREES, OPEN)}
    words = f"{counts[AGREES]} agree, {counts[DISAGREES]} disagree, {counts[OPEN]} not decided"
    text = f"Claims of papers that runs of this store are about: {len(verdicts)}. Verdicts: {words}."
    study.tell("claims of papers", words, text, headline=True)
    study.notes.append(
        "Times are the steps to 95% validation accuracy, with 95% intervals of the geometric mean. A paper's number is "
        "one run: it agrees where one more of our runs might have it (the 95% interval of a new run)."
    )
    return study


def parts(t: Trained) -> list[Trained]:
    """Return an arm as one, or, where a setting of it takes several values, for each value of that."""
    if FRACTION not in t.arm.free:
        return [t]
    shares = floats(t.rows[f"config.{FRACTION}"])
    made = []
    for share in np.unique(shares):
        here = shares == share
        arm = replace(t.arm, name=f"{t.arm.name}, {share:.0%}", free=())
        made.append(Trained(t.paper, arm, t.rows[here], t.times.take(here)))
    return made


def with_measures(curves: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies and progress measures (NaN: not measured) by run and step."""
    measures = measured(curves).reindex(curves.index, columns=list(PARTS))
    return curves[["run_id", "step", "train_acc", "val_acc"]].join(measures)


def _arm(t: Trained) -> dict[str, object]:
    typed = {k: v for k, v in t.arm.settings.items() if k.startswith(("optim.", "train.loss", "model.init_scale"))}
    if typed.pop("optim.plugin", None) == ADAM:
        typed["optim.plugin._target_"] = "torch.optim.Adam"
    return {
        "paper": t.paper.title,
        "condition": t.arm.name,
        "settings": ", ".join(f"{name}={value}" for name, value in typed.items()),
        "seeds": ", ".join(map(str, sorted(t.rows["seed"].astype(int).unique()))),
        "steps, at most": f"{int(t.rows['config.train.steps'].max()):,}",
        "generalised": f"{int(t.times.seen.sum())} of {len(t.rows)}",
        "step of 95% validation accuracy": _time(t),
        "validation accuracy at the end": _range(t.accuracy),
        "minutes": f"{t.rows['seconds'].sum() / 60:.0f}",
    }


def _time(t: Trained) -> str:
    if not t.times.seen.any():
        return f"not within {t.cut:,.0f}"
    if not t.times.seen.all():
        return f"{int(t.times.seen.sum())} of {len(t.times)} within {t.cut:,.0f}"
    return geometric_mean(t.times).plain() if len(t.times) > 1 else f"{t.times.points[0]:,.0f} (one seed)"


def _range(accuracy: pd.Series) -> str:
    low, high = f"{accuracy.min():.1%}", f"{accuracy.max():.1%}"
    return low if low == high else f"{low} to {high}"


def _ours(t: Trained) -> str:
    return _time(t) + ("" if t.times.seen.any() else f" (then {_range(t.accuracy)})")


def _record(t: Trained, claim: str, theirs: str, ours: str, verdict: str) -> dict[str, str]:
    seeds = f"{t.rows['seed'].nunique()}"
    return {"paper": t.paper.title, "claim": claim, "theirs": theirs, "ours": ours, "seeds": seeds, "verdict": verdict}


def _claims(t: Trained, trained: list[Trained], curves: pd.DataFrame) -> list[dict[str, str]]:
    """Return a record for each claim about an arm."""
    made = []
    if t.arm.theirs is not None:
        verdict = judged_time(t) if t.arm.claimed else f"{NO_CLAIM}: not its optimiser"
        made.append(_record(t, f"{t.arm.name}: steps to 95%", f"{t.arm.theirs:,}", _ours(t), verdict))
    for base in trained:
        over = f"{t.arm.name}, over {base.arm.name}:"
        if (times := t.arm.baselines.get(base.arm.name)) is not None:
            ours, verdict = _speedup(t, base, times)
            made.append(_record(t, f"{over} times sooner", f"{times:g}" if times else "", ours, verdict))
        if base.arm.name == t.arm.sooner_than:
            ours, verdict = _sooner(t, base)
            made.append(_record(t, f"{over} sooner", "yes, no number", ours, verdict))
    if t.arm.generalises is not None:
        word = "generalises" if t.arm.generalises else "does not generalise"
        made.append(_record(t, f"{t.arm.name}: {word}", "curves, no number", _ours(t), judged_outcome(t)))
    if FRACTION in t.arm.free:
        s5 = "S5" in t.arm.name
        ours, verdict = _growth(t, s5)
        claim = f"{t.arm.name}: more time for each 1% less data"
        if s5:
            claim += ", fractions of 25 to 31% (theirs to 99% accuracy, ours to 95%)"
        made.append(_record(t, claim, "40 to 50%" if s5 else "grows, no number", ours, verdict))
    if t.paper.phases:
        made += _phases(t, curves)
    return made


def judged_time(t: Trained) -> str:
    """Return the verdict on a paper's step, one run's, which our prediction interval for one more run must contain."""
    theirs = t.arm.theirs
    assert theirs is not None
    n, seen = len(t.times), int(t.times.seen.sum())
    if seen == n and n >= FEWEST:
        new = geometric_mean(t.times, one_more=True)
        word = AGREES if new.low <= theirs <= new.high else DISAGREES
        return f"{word}: one more run of ours would lie between {new.low:,.0f} and {new.high:,.0f}"
    if seen == 0 and n > 1 and t.cut >= FAR * theirs:
        return f"{DISAGREES}: none of {n} seeds by {t.cut / theirs:.1f} times the paper's step"
    if seen == 0 and t.cut < theirs:
        return f"{OPEN}: runs ended at step {t.cut:,.0f}, before the paper's step"
    needs = [f"at least {FEWEST} seeds"] * (n < FEWEST) + ["more steps"] * (seen < n)
    return f"{OPEN}: {seen} of {how_many(n, 'seed')} generalised; {' and '.join(needs)} are needed"


def _speedup(t: Trained, base: Trained, theirs: float) -> tuple[str, str]:
    """Return the ratio of the times of ``base`` and ``t``, or its bound if runs of ``base`` were cut, and the verdict.

    A bound of these runs decides nothing about further runs, so the verdict is then open.
    """
    whole = bool(base.times.seen.all())
    try:
        e = ratio_of_times(base.times, t.times) if whole else None
        ours = e.plain(1) if e else f"at least {least_ratio(base.times, t.times):.1f} in these runs"
    except NotEnoughData as gap:
        return "none", f"{OPEN if theirs else NO_CLAIM}: needs {gap.needs}"
    if not theirs:
        return ours, f"{NO_CLAIM}: the filter alone, with decay on both sides"
    if e:
        inside = e.low <= theirs <= e.high
        return (
            ours,
            f"{AGREES if inside else DISAGREES}: the interval {'holds' if inside else 'leaves out'} the paper's",
        )
    needed = float(f"{theirs * geometric_mean(t.times).value:.1g}")
    steps = f"about {needed:,.0f} steps are needed" if base.cut < needed else "more steps are needed"
    return ours, f"{OPEN}: runs of {base.arm.name} ended at step {base.cut:,.0f}; {steps}"


def _sooner(t: Trained, base: Trained) -> tuple[str, str]:
    """Return the ratio of the times of ``base`` and ``t``, and the verdict on whether it is above 1."""
    try:
        e = ratio_of_times(base.times, t.times)
    except NotEnoughData as gap:
        return f"{_time(t)}, beside {_time(base)}", f"{OPEN}: needs {gap.needs}"
    verdict = f"{OPEN}: the interval holds 1; more seeds are needed"
    if not e.low <= 1 <= e.high:
        verdict = f"{AGREES}: the interval is above 1" if e.low > 1 else f"{DISAGREES}: the interval is below 1"
    return f"{e.plain(1)} times", verdict


def judged_outcome(t: Trained) -> str:
    """Return the verdict on whether an arm generalises within its steps."""
    n, seen = len(t.times), int(t.times.seen.sum())
    far = f"by step {t.cut:,.0f}"
    if t.arm.generalises:
        if seen == n:
            return f"{AGREES}: {n} of {how_many(n, 'seed')}"
        return f"{OPEN}: {seen} of {how_many(n, 'seed')} {far}; longer runs are needed"
    if seen:
        return f"{DISAGREES}: {seen} of {how_many(n, 'seed')} generalised"
    if n < FEWEST:
        return f"{OPEN}: 0 of {how_many(n, 'seed')} {far}; at least {FEWEST} seeds are needed"
    return f"{AGREES} up to the last step: 0 of {how_many(n, 'seed')} {far}"


def _growth(t: Trained, s5: bool) -> tuple[str, str]:
    """Return the increase of time for each 1% less data, and the verdict on whether it is above zero.

    ``s5``: at the fractions of S5, and the verdict on the paper's number.
    """
    share = floats(t.rows[f"config.{FRACTION}"])
    first, last = S5_FRACTIONS if s5 else (0.0, 1.0)
    near = (share >= first) & (share <= last)
    try:
        e = growth(share[near], t.times.take(near))
    except NotEnoughData as gap:
        where = f"between fractions of {first:g} and {last:g}, " if s5 else ""
        return "none", f"{OPEN}: {where}needs {gap.needs}"
    between = f"between fractions of {share[near].min():g} and {share[near].max():g}"
    if s5:
        low, high = S5_GROWTH
        return e.percent(1), f"{AGREES if e.low <= high and e.high >= low else DISAGREES}: {between}"
    word = AGREES if e.low > 0 else DISAGREES if e.high < 0 else OPEN
    return e.percent(1), f"{word}: {between}{'; more seeds are needed' * (word == OPEN)}"


def _phases(t: Trained, curves: pd.DataFrame) -> list[dict[str, str]]:
    """Return the claims about the phases: the end of memorisation, and what changes before validation accuracy."""
    mine = curves[curves["run_id"].isin(t.rows.index) & (curves["step"] > 0)].dropna(subset=list(PARTS))
    ahead = {part: f"{part.removeprefix('final_').replace('_', ' ')} is half-way" for part in PARTS}
    if mine.empty:
        verdict = f"{OPEN}: needs the key frequencies of a run that has generalised, and save=final"
        claims = [f"{words} before validation accuracy is at 50%" for words in ahead.values()]
        return [_record(t, claim, "yes, no number", "not measured", verdict) for claim in claims]
    moves = pd.DataFrame([_moves(curve) for _, curve in mine.groupby("run_id", sort=True)])
    claim = "memorisation ends and the circuit begins to form (excluded loss is lowest)"
    theirs = f"about epoch {t.paper.phases['memorised']:,}"
    made = [_record(t, claim, theirs, _steps(moves["turn"]), f"{OPEN}: the paper's is read off a figure, of one run")]
    for part, words in ahead.items():
        ours = f"{_steps(moves[part])}; accuracy {_steps(moves['val_acc'])}"
        if moves["val_acc"].isna().any():
            verdict = f"{OPEN}: validation accuracy was {_range(t.accuracy)} when the run ended at step {t.cut:,.0f}"
        else:
            verdict = _judged_lead(moves[part], moves["val_acc"])
        made.append(_record(t, f"{words} before validation accuracy is at 50%", "yes, no number", ours, verdict))
    return made


def _judged_lead(measure: pd.Series, accuracy: pd.Series) -> str:
    """Return the verdict on whether a measure changes before accuracy does in every run; the same step is neither."""
    n, unclear = len(accuracy), int(measure.isna().sum())
    before, after = int((measure < accuracy).sum()), int((measure > accuracy).sum())
    rest = f", at the same measured step in {n - before - after - unclear}" if before + after + unclear < n else ""
    rest += f", no clear change in {unclear}" if unclear else ""
    if after:
        return f"{DISAGREES}: after it in {after} of {how_many(n, 'seed')}, before it in {before}{rest}"
    return f"{OPEN if rest else AGREES}: before it in {before} of {how_many(n, 'seed')}{rest}"


def _steps(steps: pd.Series) -> str:
    return ", ".join("none" if np.isnan(step) else f"{step:,.0f}" for step in steps)


def _moves(curve: pd.DataFrame) -> dict[str, float]:
    """Return the steps of a run at which excluded loss is lowest, both losses are half-way, and accuracy is 50%.

    Excluded loss falls during memorisation and rises later. Restricted loss falls after its peak.
    """
    step, right = floats(curve["step"]), floats(curve["val_acc"]) >= WAY
    restricted, excluded = (floats(curve[part]) for part in PARTS)
    low, high = int(np.argmin(excluded)), int(np.argmax(restricted))
    return {
        "turn": float(step[low]),
        PARTS[0]: half_way(step[high:], restricted[high:]),
        PARTS[1]: half_way(step[low:], excluded[low:]),
        "val_acc": float(step[np.argmax(right)]) if right.any() else float("nan"),
    }


QUESTION = Question(
    name="papers",
    title="Papers beside these runs",
    question="Do the numbers of papers on grokking come out at their settings?",
    command="",
    answer=analyse,
    applies=lambda observations: bool(observations.once(arms_of)),
)
