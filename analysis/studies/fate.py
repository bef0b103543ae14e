"""Fate: up to which step do later batches, or a move of the weights, still decide whether a seed is super?

A family is a parent and the runs that leave it, as the rows of ``branch`` designs say: with another order from the
start or from a later step on, from another order back to the parent's, or moved by units in the last place. Only
children are counted. What a child can lose is bounded by two others: another order from the start, and a move by one
unit in the last place at the same step, which is the control for chaos.

Source: Frankle et al. 2020 (instability to the noise of training from a step on).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.criteria import DIARY, UNJUDGED, called
from grok.analysis.observations import (
    PLAIN_SETTINGS,
    Condition,
    Observations,
    conditions_of,
    describe_task,
    floats,
    has_diary_task,
    how_many,
    listed,
)
from grok.analysis.populations import settings_in_words
from grok.analysis.proposals import STORE_WORD, proposal
from grok.analysis.purposes import asked, places, random_seeds, roles
from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, Estimate, NotEnoughData, generator, median_interval
from grok.analysis.statistics.halfway import Floats, Halfway, halfway
from grok.analysis.statistics.prediction import auroc, screened, spearman
from grok.analysis.statistics.repeatability import mean_share, normal_scores
from grok.analysis.studies.base import Beside, Finding, Question, Study, Table, by_condition
from grok.analysis.studies.census import judged
from grok.analysis.studies.prediction import price
from grok.streams import RUN_STREAMS

START, FORWARD, REVERSE, MOVED = "from the start", "from the step on", "up to the step", "moved"
CHANGES: Final = {
    START: "another order from the start",
    FORWARD: "another order from the step on",
    REVERSE: "another order up to the step",
    MOVED: "moved by one ulp at the step",
}
SUPER, ORDINARY, HELD = "super", "ordinary", "reached and held"
FEWEST_RANKED: Final = 50
"""Smallest number of random seeds or cells that others are ranked among."""
WIDTH: Final = 200
"""Steps: the half-width of an interval that would do."""
NARROW: Final = f"The interval is at most {2 * WIDTH} steps wide"
SCREEN: Final = 1500, 0.05
"""A step, and the share of seeds with the lowest validation loss that goes on: set on the diary's census."""


@dataclass(kw_only=True)
class Fate(Study):
    """The families of one condition."""

    rows: pd.DataFrame
    """One row per child and parent. Columns: run_id, parent, line (the first ancestor), change, step, ulps (0: none),
    parents (``super`` or ``ordinary``: what the parent is here), and of the child ``super``, ``reached and held`` (98%,
    as `criteria.held_by`), ``generalised`` by the horizon, ``accuracy``, ``score`` (normal, among random seeds) and
    ``distance`` (absolute difference to the parent, in log validation loss at the horizon; only where both have one
    numerics tag, or tags of `equal_bits`)."""
    steps: pd.DataFrame
    """By parents, change and step: lines, runs, hits, value, low, high (mean share of super children), held,
    generalised, and medians of accuracy, score and distance."""
    halves: dict[tuple[str, str, str], Halfway]
    """Half-fate steps by parents, measure and change."""
    horizon: int
    hit: str
    """What super runs are in words: ``super``, or on another task ``above 98%``."""


def children(observations: Observations) -> pd.DataFrame:
    """Return the children by the order or the move that makes them: run_id, parent, line, change, step and ulps.

    Those with another order from the start only of parents that others leave later.
    """
    rows = observations.once(roles).of("child")
    rows = rows[rows["run_id"].isin(observations.once(places).index)]  # no language models
    rows = rows[(rows["choice"] != "unstated") & rows["parent_run_id"].notna()]
    rows = rows[rows["from_step"].notna() | (rows["kind"] == "branch")]
    ulps = np.array([n if type(n := unit.get("ulps")) is int else 0 for unit in rows["unit"]], dtype=np.int64)
    back = np.array([unit.get("reverse") is True for unit in rows["unit"]], dtype=bool)
    order = np.array([redrawn == ("order",) for redrawn in rows["redrawn"]], dtype=bool) & (ulps == 0)
    only_moved = np.array([redrawn == () for redrawn in rows["redrawn"]], dtype=bool) & (ulps > 0)
    later = rows["from_step"].notna().to_numpy(bool)
    change = np.select(
        [order & ~later, order & later & back, order & later, only_moved & later],
        [START, REVERSE, FORWARD, MOVED],
        "",
    )
    frame = pd.DataFrame(
        {
            "run_id": rows["run_id"],
            "parent": rows["parent_run_id"],
            "line": rows["line"].fillna(rows["parent_run_id"]),
            "change": change,
            "step": rows["from_step"].fillna(0).astype("int64"),
            "ulps": ulps,
        }
    )
    frame = frame[frame["change"] != ""].drop_duplicates(["run_id", "parent", "change"])
    left = frame.loc[frame["change"] != START, "parent"]
    return frame[frame["parent"].isin(left)].reset_index(drop=True)


def equal_bits(observations: Observations) -> set[frozenset[str]]:
    """Return the pairs of numerics tags under which every run that both trained ended with equal weights."""
    runs = observations.observed[["trajectory_id", "steps", "numerics", "weights_hash"]].dropna()
    pairs = runs.merge(runs, on=["trajectory_id", "steps"]).query("numerics_x < numerics_y")
    equal = (pairs["weights_hash_x"] == pairs["weights_hash_y"]).groupby([pairs["numerics_x"], pairs["numerics_y"]])
    return {frozenset(map(str, tags)) for tags in equal.all().loc[lambda same: same].index}


def conditions(observations: Observations) -> list[Condition]:
    """Return the conditions that have such families, with the random seeds beside them."""
    related, runs = observations.once(children), observations.observed
    others = observations.once(asked).index
    known = pd.Index([*related["run_id"], *related["parent"], *others]).unique().intersection(runs.index, sort=False)
    every = conditions_of(runs.loc[known], names=PLAIN_SETTINGS)
    return [condition for condition in every if condition.rows.index.isin(related["run_id"]).any()]


def one(observations: Observations, condition: Condition) -> Fate:
    """Return the answer for one condition.

    Raises:
        NotEnoughData: no child and its parent were judged.
    """
    related = observations.once(children)
    family = pd.Index([*related["run_id"], *related["parent"]]).unique()
    runs, horizon = judged(observations, condition.rows[condition.rows.index.isin(family)])
    runs = runs[runs["label"] != UNJUDGED]
    rows = related[related["run_id"].isin(runs.index) & related["parent"].isin(runs.index)]
    if rows.empty:
        raise NotEnoughData("children that change in mid-run, and their parents, judged at one step")
    child, parent = runs.loc[rows["run_id"]], runs.loc[rows["parent"]]
    curves = observations.curves_of(runs.index)
    at = curves[(curves["step"] == horizon) & (curves["val_loss"] > 0)].set_index("run_id")["val_loss"]
    equal = observations.once(equal_bits)
    alike = [a == b or frozenset((a, b)) in equal for a, b in zip(child["numerics"], parent["numerics"], strict=True)]
    loss = np.log(floats(at.reindex(rows["run_id"]))) - np.log(floats(at.reindex(rows["parent"])))
    rows = rows.assign(
        parents=np.where(parent["label"] == SUPER, SUPER, ORDINARY),
        accuracy=floats(child["accuracy"]),
        score=_scores(observations, condition, child["accuracy"], horizon),
        distance=np.where(alike, np.abs(loss), np.nan),
        **{
            SUPER: (child["label"] == SUPER).to_numpy(),
            HELD: child["held"].eq(2).astype("boolean").mask(child["held"].isna()).to_numpy(),
            "generalised": np.isfinite(child["generalised"].to_numpy(float)),
        },
    ).reset_index(drop=True)
    first = parent.iloc[0]
    hit = called(first, SUPER)
    lines = rows.groupby("parents")["parent"].nunique().rename({SUPER: hit})
    study = Fate(
        scope=f"{rows['run_id'].nunique():,} children of {listed([f'{n} {kind}' for kind, n in lines.items()])} "
        f"parent{'s' * int(lines.sum() > 1)}, judged at step {horizon:,}; {describe_task(first)}; "
        f"{settings_in_words(first)}.",
        rows=rows,
        steps=_grouped(rows[rows["ulps"] <= 1], ["parents", "change", "step"]),
        halves={},
        horizon=horizon,
        hit=hit,
    )
    _halves(study)
    study.notes += _lacking(rows, observations)
    _shares(study)
    _sizes(study)
    _divergence(study, curves)
    if has_diary_task(first):  # the screen was set on its census
        _recognised(observations, condition, study)
    study.tabulate("fate_children", "Every child", _named(rows, hit), open=False, code=("run_id", "parent", "line"))
    study.notes += [
        f"A parent is {hit} if it is {hit} in this store (validation accuracy above {DIARY.super_accuracy:.0%} at "
        f"step {horizon:,}), whatever it was chosen for. Lines of descent are the units of every interval; a share is "
        "the mean of theirs. Reached and held: above it at two evaluations in a row, the first of them by then, since "
        "accuracy dips at single steps.",
        "Half-fate step: where the mean outcome lies midway between another order from the start and a move by one ulp "
        "at the same step. The fit is monotone and linear in log steps. Where most of the change lies between two "
        "neighbouring steps, the interval reaches from one to the other.",
    ]
    return study


def _scores(observations: Observations, condition: Condition, accuracy: pd.Series, horizon: int) -> Any:
    """Return the normal scores of ``accuracy`` among the random seeds and drawn cells of the condition, or NaN."""
    drawn = {*observations.once(random_seeds).index, *_cells(observations, condition)}
    among = condition.rows.index.intersection(sorted(drawn))
    if len(among) < FEWEST_RANKED:
        return np.nan
    census, _ = judged(observations, condition.rows.loc[among], horizon)
    return normal_scores(floats(accuracy.fillna(-1)), floats(census["accuracy"].dropna()))


def _cells(observations: Observations, condition: Condition) -> list[str]:
    """Return the drawn cells of the condition: fresh seeds, which no result chose."""
    cells = observations.once(roles).of("cell", kinds=("crossed",))["run_id"].tolist()
    return condition.rows.index.intersection(observations.once(asked).index.intersection(cells)).tolist()


def _counted(part: pd.DataFrame) -> dict[str, Any]:
    """Return what the children of one kind are: the mean share of super ones, counts, and medians."""
    of_parent = part.groupby("parent")
    counts = list(zip(of_parent["super"].sum(), of_parent.size(), strict=True))
    share = mean_share(counts, of_parent["line"].first().tolist())
    return {
        "lines": part["line"].nunique(),
        "runs": len(part),
        "hits": int(part["super"].sum()),
        "value": share.value,
        "low": share.low,
        "high": share.high,
        HELD: int(part[HELD].sum()) if part[HELD].notna().all() else None,
        "generalised": int(part["generalised"].sum()),
        **part[["accuracy", "score", "distance"]].median(),
    }


def _named(frame: pd.DataFrame, hit: str) -> pd.DataFrame:
    """Return a table whose super parents, measures and column are called ``hit``."""
    called = frame.rename(columns={SUPER: hit})
    return called.replace({name: {SUPER: hit} for name in ("parents", "measure") if name in called})


def _in_words(frame: pd.DataFrame, hit: str) -> pd.DataFrame:
    """Return numbers of `_counted` as a table's columns."""
    of = " of " + frame["runs"].astype(str)
    ends = zip(frame["value"], frame["low"], frame["high"], strict=True)
    frame = _named(frame, hit).replace({"change": CHANGES})
    columns: dict[str, Any] = {
        hit: frame["hits"].astype(str) + of,
        "mean share of lines": [f"{v:.0%} ({a:.0%} to {b:.0%})" for v, a, b in ends],
        HELD: [
            "seen once" if pd.isna(k) else f"{k:.0f} of {n}" for k, n in zip(frame[HELD], frame["runs"], strict=True)
        ],
        "generalised": frame["generalised"].astype(str) + of,
        "median accuracy": [f"{v:.1%}" for v in frame["accuracy"]],
        "median distance to the parent": [f"{v:.2g}" for v in frame["distance"]],
        "median normal score": frame["score"].round(2) + 0.0,  # no -0.0
    }
    return frame[frame.columns[: frame.columns.get_loc("runs")]].assign(**columns).dropna(axis=1, how="all")


def _grouped(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return `_counted` of each group: super parents first, changes in the order of ``CHANGES``."""
    frame = pd.DataFrame([dict(zip(by, key, strict=True)) | _counted(part) for key, part in rows.groupby(by)])
    place = {name: i for i, name in enumerate([SUPER, ORDINARY, *CHANGES])}
    return frame.sort_values(by, key=lambda column: column.replace(place)).reset_index(drop=True)


MEASURES: Final = {SUPER: (SUPER,), HELD: (SUPER,), "generalised": (SUPER,), "distance": (SUPER, ORDINARY)}
"""By the column of a measure: the parents whose children have one."""


NEEDED: Final = {
    START: "children with another order from the start",
    MOVED: "children moved by one ulp at the same steps, the control for chaos",
}
"""The ends of the curve whose middle is the half-fate step."""


def _lacking(rows: pd.DataFrame, observations: Observations) -> list[str]:
    """Return for each end of which there is no child what is missing, with its command."""
    later = rows[rows["change"].isin([FORWARD, REVERSE])]
    parents = ",".join(sorted({run[:12] for run in later["parent"]}))
    steps = ",".join(map(str, sorted(set(later["step"]))))
    how = {START: "--redraw order", MOVED: f"--at-step {steps} --ulps 1"}
    return [
        f"Missing: {words}: "
        f"{proposal(f'grok branch --store {STORE_WORD} --parents {parents} {how[kind]}', observations, False)}."
        for kind, words in NEEDED.items()
        if len(later) and not (rows["change"] == kind).any()
    ]


def _wide(rows: pd.DataFrame, change: str, places: str, measure: str, lines: list[str]) -> pd.DataFrame:
    """Return the mean of each line over its children of one change (lines, places); only places above 0 have one."""
    part = rows[(rows["change"] == change) & ((rows[places] > 0) | (change == START))]
    part = part.assign(measure=floats(part[measure]))
    return part.pivot_table(index="line", columns=places, values="measure", aggfunc="mean").reindex(lines)


def _at(wide: pd.DataFrame, steps: list[int]) -> Floats:
    """Return each line of ``wide`` at ``steps`` (lines, steps), linear in log steps between those that it has."""
    result = np.full((len(wide), len(steps)), np.nan)
    for i, (_, values) in enumerate(wide.iterrows()):
        known = values.dropna()
        if len(known):
            result[i] = np.interp(np.log(steps), np.log(known.index.to_numpy(float)), known.to_numpy(float))
    return result


def _halves(study: Fate) -> None:
    """Add the half-fate steps of both directions, and what an interval of twice ``WIDTH`` steps takes."""
    records = []
    for measure, parents in ((measure, kind) for measure, kinds in MEASURES.items() for kind in kinds):
        rows = study.rows[(study.rows["parents"] == parents) & (study.rows["ulps"] <= 1)]
        lines = sorted(rows["line"].unique())
        start, moved = (_wide(rows, change, "step", measure, lines) for change in (START, MOVED))
        for change in (FORWARD, REVERSE):
            curve = _wide(rows, change, "step", measure, lines)
            steps = [int(step) for step in curve.columns]
            if not steps:
                continue
            n = int(curve.notna().any(axis=1).sum())
            label = f"half-fate step, {CHANGES[change]}{'' if measure == SUPER else f', by {measure}'}"
            label += f", {parents} parents" * (parents != SUPER)
            ends = start[0].to_numpy(float) if 0 in start else np.full(len(lines), np.nan)
            estimate = None
            try:
                half = halfway(
                    np.array(steps, float), curve.to_numpy(float), ends, _at(moved, steps), generator(label),
                    change == REVERSE,
                )  # fmt: skip
            except NotEnoughData as gap:
                lacking = [NEEDED[kind] for kind in NEEDED if not (rows["change"] == kind).any()]
                place, more = "cannot be told", f"It needs {' and '.join(lacking) or gap.needs}"
            else:
                study.halves[parents, measure, change] = half
                estimate, place, more = half.place, half.shown("step"), _more(half)
                if half.place.low == 0 and not math.isfinite(half.place.high):
                    place = f"cannot be told: {place}"
            records.append(
                {"parents": parents, "lines": n, "measure": measure, "change": CHANGES[change],
                 "half-fate step": place, f"for a width of {2 * WIDTH} steps": more}
            )  # fmt: skip
            text = f"{label[0].upper()}{label[1:]}: {place}, over {how_many(n, 'line')} of descent."
            short = text if more == NARROW else ""  # the first screen does not know the width that is asked for
            lead, shown = measure == SUPER, parents == SUPER
            study.findings.append(Finding(label, place, f"{text} {more}.", estimate, lead, shown, short))
    caption = "Half-fate steps with 95% intervals"
    study.tables.insert(0, Table("fate_half", caption, _named(pd.DataFrame(records), study.hit)))


def _more(half: Halfway) -> str:
    """Return what would make the interval of a half-fate step twice ``WIDTH`` steps wide."""
    if half.place.high - half.place.low <= 2 * WIDTH:
        spans = bool(half.place.low <= half.places[0] and half.place.high >= half.places[-1])
        return f"{NARROW}{', but spans all steps that were tried' * spans}"
    alike = half.places[~half.apart & (half.places >= half.place.low) & (half.places <= half.place.high)]
    if len(alike):
        steps = ", ".join(map("{:,.0f}".format, alike))
        at = f"At step{'s' * (len(alike) > 1)} {steps}"
        return f"{at} these lines do not tell the ends apart, so any outcome may be midway; more lines may"
    lines = half.lines_for(WIDTH)
    if lines is not None:
        return f"Roughly {lines} such lines would make it {2 * WIDTH} steps wide"
    low, high = half.between
    closer = f"before {high:,.0f}" if not low else f"after {low:,.0f}"
    closer = f"between {low:,.0f} and {high:,.0f}" if low and math.isfinite(high) else closer
    return f"More lines alone do not make it {2 * WIDTH} steps wide: it takes children at steps {closer}"


def _shares(study: Fate) -> None:
    """Add the shares by step, and the two that bound what a child can lose."""
    shown, hit = _in_words(study.steps, study.hit), study.hit
    study.tabulate("fate_steps", "Children by the step at which they change, 95% intervals", shown)
    of = study.steps[study.steps["parents"] == SUPER]
    for change, last in ((START, False), (MOVED, False), (MOVED, True)):
        part = of[of["change"] == change]
        if part.empty:
            continue
        row = part.iloc[-1 if last else 0]
        e = Estimate(row["value"], row["low"], row["high"], int(row["lines"]), "exact, by the scatter between units")
        label = f"{hit} children, {CHANGES[change]}" + ("" if change == START else f", {'last' if last else 'first'}")
        where = "" if change == START else f" {row['step']:,}"
        counts = f"{row['hits']} of {row['runs']} children of {hit} parents are {hit}"
        over = how_many(row["lines"], "line")
        text = f"{CHANGES[change].capitalize()}{where}: {counts}, {e.percent(0)} over {over} of descent."
        study.tell(label, f"{e.percent(0)}", text, e)


def _sizes(study: Fate) -> None:
    """Add children by the size of a move, and the size at which half of what one ulp leaves is lost."""
    rows = study.rows[study.rows["change"] == MOVED]
    several = rows.groupby(["parents", "step"])["ulps"].transform("nunique") > 1
    if not several.any():
        return
    frame = _grouped(rows[several], ["parents", "step", "ulps"])
    study.tabulate("fate_sizes", "Children by step and size of a move, 95% intervals", _in_words(frame, study.hit))
    for step, part in rows[several & (rows["parents"] == SUPER)].groupby("step"):
        lines = sorted(part["line"].unique())
        wide = _wide(part, MOVED, "ulps", SUPER, lines)
        label = f"critical size at step {step:,}"
        try:
            smallest = np.repeat(wide.to_numpy(float)[:, :1], wide.shape[1], 1)
            sizes = wide.columns.to_numpy(float)
            size = halfway(sizes, wide.to_numpy(float), np.zeros(len(lines)), smallest, generator(label), falls=True)
        except NotEnoughData as gap:
            study.tell(label, "cannot be told", f"{label.capitalize()}: needs {gap.needs}.")
            continue
        text = (
            f"Critical size at step {step:,}: {size.shown('size')} ulps. There half as many children are {study.hit} "
            f"as after a move by {sizes[0]:,.0f}; {how_many(len(lines), 'line')} of descent."
        )
        study.tell(label, size.shown("size"), text, size.place)


def _divergence(study: Fate, curves: pd.DataFrame) -> None:
    """Add how far moved children are from their parents by step, in log validation loss: medians over lines."""
    rows = study.rows[(study.rows["change"] == MOVED) & study.rows["distance"].notna()]
    loss = curves.loc[curves["val_loss"] > 0, ["run_id", "step", "val_loss"]]
    names = {"step": "evaluated at", "val_loss": "its"}
    pairs = rows[["run_id", "parent", "line", "parents", "ulps", "step"]].merge(loss.rename(columns=names), on="run_id")
    own = loss.rename(columns={"run_id": "parent", "step": "evaluated at", "val_loss": "own"})
    pairs = pairs.merge(own, on=["parent", "evaluated at"]).query("`evaluated at` > step")
    if pairs.empty:
        return
    pairs["distance"] = np.abs(np.log(floats(pairs["its"])) - np.log(floats(pairs["own"])))
    records = []
    for key, part in pairs.groupby(["parents", "ulps", "step", "evaluated at"]):
        e = median_interval(part.groupby("line")["distance"].mean().to_numpy(float))
        where = dict(zip(("parents", "ulps", "moved at", "evaluated at"), key, strict=True))
        ends = (e.low, e.high) if e.n >= FEWEST_OF_A_MEDIAN else (None, None)
        records.append(where | {"lines": e.n, "median": e.value, "low": ends[0], "high": ends[1]})
    caption = "Distance of moved children to their parents, by step (log of the validation loss)"
    study.tabulate("fate_divergence", caption, _named(pd.DataFrame(records), study.hit), open=False)


def _recognised(observations: Observations, condition: Condition, study: Fate) -> None:
    """Add how early the validation loss tells which drawn cells end well, and what a screen chosen before them costs.

    Few of them are super, so ranks and the less rare outcome *super or fast* have the intervals.
    """
    cells, _ = judged(observations, condition.rows.loc[_cells(observations, condition)], study.horizon)
    cells = cells[cells["label"] != UNJUDGED]
    if len(cells) < FEWEST_RANKED:
        return
    best, good = (cells["label"].isin(names).to_numpy() for names in ((SUPER,), (SUPER, "fast")))
    curves = observations.curves_of(cells.index)
    wide = curves.pivot(index="run_id", columns="step", values="val_loss").reindex(cells.index)
    wide = wide.dropna(axis=1, thresh=math.ceil(0.95 * len(cells)))
    shared = [cells[f"seed_{stream}"].to_numpy() for stream in RUN_STREAMS]
    steps = wide.columns.to_numpy(dtype=np.int64)
    early = steps[(steps > 0) & (steps < study.horizon)].tolist()
    scores = {step: np.nan_to_num(-floats(wide[step]), nan=-np.inf) for step in early}
    records = []
    for step, score in scores.items():
        ranks = 1 + (score[None, :] > score[best, None]).sum(1)
        record = {"step": step, "places of the super seeds by their loss": ", ".join(map(str, sorted(ranks)))}
        with suppress(NotEnoughData):
            end = spearman(score, floats(cells["accuracy"].fillna(-1)), shared=shared)
            record["rank correlation with the last accuracy"] = end.plain(2)
            record["AUROC of super or fast"] = auroc(score, good).plain(2)
        records.append(record)
    n, hits, rare = len(cells), int(best.sum()), int(good.sum())
    caption = f"{n} fresh seeds, {hits} of them super and {rare} super or fast, by their validation loss at each step"
    study.tabulate("fate_recognised", caption, records, open=False)
    at, keep = SCREEN
    if at not in scores or not hits:
        return
    missed, cost = screened(scores[at], best, keep, at, np.full(n, float(study.horizon)))
    trained = float(n * study.horizon)
    blind, screen = (price(steps, of, n) for steps, of in ((trained, hits), (cost * trained, hits - missed)))
    found = f"{hits - missed} of these are found, at {screen} steps each" if missed < hits else "none of these is found"
    text = (
        f"Super among {n} fresh seeds: {hits}. If only the {keep:.0%} with the lowest validation loss at step {at:,} "
        f"go on (set before they were trained), {found}; a blind search trains {blind}. These intervals take the seeds "
        "as independent."
    )
    study.tell("screen on fresh seeds", f"{hits - missed} of {hits}", text)


QUESTION = Question(
    "fate",
    "When fate is fixed",
    "Up to which step do batches, or a move of the weights, decide whether a seed is super?",
    "",  # parents come first: `grok branch --parents ... --at-step ...`
    by_condition(conditions, one, Beside(), PLAIN_SETTINGS),
    lambda observations: not observations.once(children).empty,
    reads_designs=True,
)
