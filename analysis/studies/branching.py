"""Branching: one or two streams of a run are redrawn and the others kept, or single layers are redrawn.

A family is a parent and its children. A parent derives all streams from its master seed, or is itself a
child. A child differs from its parent only in the redrawn streams, or in the initial weights of the redrawn
layers. Only children are judged, because parents may have been chosen by their own results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.chosen import MOST_CHILDREN, Choice, choices, follows, orders
from analysis.criteria import DIARY, UNJUDGED
from analysis.observations import Condition, Observations, conditions_of, describe_task, floats, is_random_seed
from analysis.populations import LAYERS, STREAMS, settings_in_words
from analysis.records import BRANCH, recorded_parents, repeats_elsewhere
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.offspring import related_share, slope
from analysis.statistics.proportions import clopper_pearson, share
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.by_condition import by_condition
from analysis.studies.census import judged
from analysis.studies.side_by_side import Beside

REDRAWS: Final = (("split",), ("init",), ("order",), ("split", "init"), ("split", "order"), ("init", "order"))
FEWEST: Final = 4
"""Smallest number of children of a reported family."""


@dataclass(frozen=True)
class Families:
    """The children with one set of redrawn streams or layers under one condition."""

    redrawn: tuple[str, ...]
    rows: pd.DataFrame
    """One row per child. Columns: run_id, parent (its run_id), line (the run_id of the first ancestor), seed (the
    parent's), kind, accuracy, outcome (its logit), parent_outcome, super, generation."""

    @property
    def name(self) -> str:
        return " and ".join(self.redrawn)

    @property
    def kept(self) -> str:
        """The streams that children share with their parent, in words."""
        if self.redrawn[0].startswith(LAYERS):
            return "split, order and the other layers"
        return " and ".join(s for s in STREAMS if s not in self.redrawn)


@dataclass(kw_only=True)
class Branching(Study):
    """The families of one condition and their slopes."""

    families: list[Families]
    census: pd.DataFrame
    """Random seeds of the same condition: columns ``accuracy``, ``outcome`` and ``super``, indexed by run_id."""
    slopes: dict[tuple[str, ...], Estimate]
    horizon: int
    examples: int
    """Number of validation examples."""


def validation_examples(row: pd.Series) -> int:
    """Return the approximate number of a run's validation examples, which is enough to keep a logit finite."""
    return round(float(row["config.task.modulus"]) ** 2 * (1 - float(row["config.task.train_fraction"])))


def logit_accuracy(accuracy: pd.Series, rows: pd.DataFrame) -> np.ndarray:
    """Return the logits of validation accuracies, with half an example added to both counts.

    ``rows``: the runs, all of one condition.
    """
    if rows.empty:
        return np.array([])
    n = validation_examples(rows.iloc[0])
    hits = floats(accuracy) * n + 0.5
    return np.asarray(np.log(hits / (n + 1 - hits)))


def plain(observations: Observations) -> pd.DataFrame:
    """Return the runs that can be in a family: no repeat of a chosen run, no coupled order, no layer of another run."""
    rows = observations.arithmetic
    if rows.empty:
        return rows
    rows = rows[~rows.index.isin(observations.once(repeats_elsewhere))]
    rows = rows[rows["config.perturb.ulps"].fillna(0) == 0]
    rows = rows[~rows["config.eval.couple_order"].fillna(False).astype(bool)]
    initial = set(rows["seed_init"])
    transplanted = [bool(initial & set(json.loads(layers).values())) for layers in rows["layers"]]
    return rows[~np.array(transplanted, dtype=bool)]


def pairs(observations: Observations) -> pd.DataFrame:
    """Return (child, parent, redrawn, generation) of every child in the store.

    Generation 1: the parent is a random seed. Generation 2: it is not. A run that could be a child of several
    parents belongs to the one with most common streams; of equal ones, a random seed comes before others. A run that
    `grok branch --parents` planned belongs to a parent named there: it was trained because of that parent's result. Of
    several it belongs to the one that its new seeds follow from. A named parent that is no child of a random seed is
    nobody's child.
    """
    rows = plain(observations)
    related: list[tuple[str, str, tuple[str, ...], int]] = []
    names = ["child", "parent", "redrawn", "generation"]
    if rows.empty:
        return pd.DataFrame(related, columns=names)
    rows = rows.assign(_condition=observations.conditions(rows), _random=is_random_seed(rows))
    whole = rows["layers"] == "{}"
    for number, condition in rows[whole].groupby("_condition"):
        related += _by_layers(rows[~whole & (rows["_condition"] == number)], condition)
        children = condition[~condition["_random"]]
        for generation, parents in ((1, condition[condition["_random"]]), (2, children)):
            for redrawn in REDRAWS:
                kept = [f"seed_{s}" for s in STREAMS if s not in redrawn]
                matches = _matches(children, parents, kept, [f"seed_{s}" for s in redrawn])
                related += [(child, parent, redrawn, generation) for child, parent in matches]
    frame = pd.DataFrame(related, columns=names)
    recorded, named = recorded_parents(observations, rows.index)
    known = [
        parent in recorded[child] if child in recorded else generation == 1 or child not in named
        for child, parent, _, generation in frame.itertuples(index=False, name=None)
    ]
    frame = frame[np.array(known, dtype=bool)]
    doubtful = frame["child"].isin(list(recorded)) & frame.duplicated("child", keep=False)
    foreign = [
        doubt and not _follows(rows.loc[child], str(rows.at[parent, "trajectory_id"]), redrawn)
        for doubt, child, parent, redrawn, _ in zip(doubtful, *(frame[name] for name in names), strict=True)
    ]
    frame = frame.assign(distance=frame["redrawn"].map(len), foreign=foreign)
    frame = frame.sort_values(["distance", "foreign", "generation", "child", "parent"], kind="stable")
    return frame.drop_duplicates("child")[names].reset_index(drop=True)


def _follows(child: pd.Series, parent: str, redrawn: tuple[str, ...]) -> bool:
    """Return whether the child's new seeds follow from the trajectory ``parent``."""
    return set(redrawn) <= set(STREAMS) and follows(child, parent, orders(redrawn), MOST_CHILDREN)


def first_ancestors(observations: Observations) -> dict[str, str]:
    """Return the first ancestor of every run that `grok branch --parents` planned, by the runs' ids.

    An ancestor is the parent, if that was planned so, too, its parent, and so on.
    """
    recorded, _ = recorded_parents(observations, observations.arithmetic.index)
    if not recorded:
        return {}
    related = observations.once(pairs)
    related = related[related["child"].isin(list(recorded))]
    parents = dict(zip(related["child"], related["parent"], strict=True))
    first = {}
    for child in parents:
        line = [child]
        while line[-1] in parents and parents[line[-1]] not in line:
            line.append(parents[line[-1]])
        first[child] = line[-1]
    return first


def _by_layers(children: pd.DataFrame, parents: pd.DataFrame) -> Iterator[tuple[str, str, tuple[str, ...], int]]:
    """Yield (child, parent, redrawn layers, generation) of runs that differ only in the initial weights of layers."""
    seeds = [f"seed_{s}" for s in STREAMS]
    both = children[[*seeds, "layers"]].rename_axis("child").reset_index()
    both = both.merge(parents[[*seeds, "_random"]].rename_axis("parent").reset_index(), on=seeds)
    for child, layers, parent, random in both[["child", "layers", "parent", "_random"]].itertuples(index=False):
        yield str(child), str(parent), tuple(f"{LAYERS}{name}" for name in sorted(json.loads(layers))), 2 - bool(random)


def _matches(
    children: pd.DataFrame, parents: pd.DataFrame, kept: list[str], redrawn: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield (child, parent) pairs that agree in the columns ``kept`` and differ in each of ``redrawn``."""
    if children.empty or parents.empty:
        return
    left = children[[*kept, *redrawn]].rename_axis("child").reset_index()
    right = parents[[*kept, *redrawn]].rename_axis("parent").reset_index()
    both = left.merge(right, on=kept, suffixes=("", "_p"))
    for column in redrawn:
        both = both[both[column] != both[f"{column}_p"]]
    yield from zip(both["child"].astype(str), both["parent"].astype(str), strict=True)


def _kinds(observations: Observations, related: pd.DataFrame, chosen: list[Choice]) -> list[str]:
    """Return the kind of each child's parent: best, random, picked, named or descended.

    The command that asks for the child says it: a best parent whose own run was super is a picked one of a later sweep.
    A child that two commands ask for counts for the one that chose its parents by an early loss or at random, whichever
    trained it: else such a parent would change its kind because it turned out to be super.
    Parents that ``--parents`` named are picked if they are random seeds, and descended if they are children of others.
    The rest are named: they are no random seeds of the store, so they were chosen by other results than picked ones.
    """
    descended = observations.once(first_ancestors)
    anyhow: dict[str, str] = {}
    for choice in chosen:
        anyhow.update(choice.kinds)
    kinds = []
    rows = observations.arithmetic
    columns = ["child", "parent", "redrawn", "generation"]
    seeds = rows.loc[related["child"], [f"seed_{s}" for s in STREAMS]]
    for seed, link in zip(seeds.to_dict("records"), related[columns].itertuples(index=False, name=None), strict=True):
        child, parent, redrawn, generation = link
        trajectory = str(rows.at[parent, "trajectory_id"])
        blind = (c for c in chosen if c.covers(seed, parent, trajectory, redrawn))
        sweep = next(blind, None) or next((c for c in chosen if child in c.planned), None)
        default = "random" if generation == 1 else "named"
        kind = (sweep.kinds if sweep else anyhow).get(parent, default)
        if kind == "named":
            kind = "descended" if parent in descended else "picked" if generation == 1 else "named"
        kinds.append(kind)
    return kinds


def analyse(observations: Observations, question: Question) -> Study:
    """Return the answer for every condition that has families.

    Raises:
        NotEnoughData: no run of the store is a child of another one.
    """
    related = observations.once(pairs)
    if related.empty:
        raise NotEnoughData("runs that keep two streams of a stored seed and redraw the third, or redraw one layer")
    rows = plain(observations)
    number = observations.conditions(rows)
    with_children = rows[number.isin(number[related["child"]])]
    return by_condition(observations, question, conditions_of(with_children), one, Beside(beside))


def beside(study: Branching) -> dict[str, object]:
    """Return the row of one condition in the table of conditions."""
    return {
        "children": sum(len(f.rows) for f in study.families),
        **{f.label: f.shown for f in study.findings},
    }


def one(observations: Observations, condition: Condition, question: Question) -> Branching:
    """Return the answer for one condition.

    Raises:
        NotEnoughData: too few of its children were judged.
    """
    related, members = observations.once(pairs), condition.rows
    labelled, horizon = judged(observations, members)
    labelled = labelled[labelled["label"] != UNJUDGED]
    outcome = pd.Series(logit_accuracy(labelled["accuracy"], members.loc[labelled.index]), labelled.index)
    is_super = labelled["label"] == "super"
    random = members.index[is_random_seed(members)].intersection(labelled.index)
    census = pd.DataFrame(
        {"outcome": outcome[random], "super": is_super[random], "accuracy": labelled.loc[random, "accuracy"]}
    )
    related = related[related["child"].isin(labelled.index) & related["parent"].isin(labelled.index)]
    first_of = observations.once(first_ancestors)
    table = pd.DataFrame(
        {
            "run_id": related["child"],
            "parent": related["parent"],
            "line": [first_of.get(parent, parent) for parent in related["parent"]],
            "seed": members["seed"].reindex(related["parent"]).to_numpy(),
            "redrawn": related["redrawn"],
            "generation": related["generation"],
            "kind": _kinds(observations, related, choices(observations, members)),
            "accuracy": labelled["accuracy"].reindex(related["child"]).to_numpy(),
            "outcome": outcome.reindex(related["child"]).to_numpy(),
            "parent_outcome": outcome.reindex(related["parent"]).to_numpy(),
            "super": is_super.reindex(related["child"]).to_numpy(),
        }
    )
    by_layer = sorted({redrawn for redrawn in table["redrawn"] if redrawn[0].startswith(LAYERS)})
    families = [
        Families(redrawn, group.drop(columns="redrawn").reset_index(drop=True))
        for redrawn in (*REDRAWS, *by_layer)
        if len(group := table[table["redrawn"] == redrawn]) >= FEWEST
    ]
    if not families:
        raise NotEnoughData(f"at least {FEWEST} children that were judged")
    first = members.iloc[0]
    study = Branching(
        name=question.name,
        title=question.title,
        question=question.question,
        scope=f"{sum(len(f.rows) for f in families):,} children of "
        f"{table['parent'].nunique()} parents, compared with {len(census):,} random seeds; {describe_task(first)}; "
        f"{settings_in_words(first)}.",
        families=families,
        census=census,
        slopes={},
        horizon=horizon,
        examples=validation_examples(first),
    )
    _fill(study)
    return study


def _fill(study: Branching) -> None:
    base = share(int(study.census["super"].sum()), len(study.census)) if len(study.census) else None
    by_kind: list[dict[str, Any]] = []
    slopes: list[dict[str, Any]] = []
    mean = float(study.census["outcome"].mean()) if len(study.census) else 0.0
    for family in study.families:
        first = family.rows[family.rows["generation"] == 1]
        by_kind += [_share_record(family, str(kind), group) for kind, group in family.rows.groupby("kind", sort=True)]
        fitted = _handed_on(first)
        if fitted is None:
            continue
        drawn = _handed_on(first[first["kind"] == "random"])
        study.slopes[family.redrawn] = fitted
        slopes.append(
            {
                "kept": family.kept,
                "redrawn": family.name,
                "parents": first["parent"].nunique(),
                "children": len(first),
                "handed on": fitted.plain(2),
                "random parents alone": drawn.plain(2) if drawn else "",
            }
        )
        study.findings.append(
            Finding(
                f"share handed on with {family.kept} kept",
                fitted.plain(2),
                f"{family.kept.capitalize()} kept, {family.name} redrawn: children keep {fitted.plain(2)} of their "
                f"parent's distance from the mean in logit accuracy at step {study.horizon:,} ({len(first)} children "
                f"of {first['parent'].nunique()} parents; 0: like any other seed, 1: as far as the parent).",
                fitted,
                headline=len(family.redrawn) == 1,
            )
        )
    if base is not None:
        study.findings.append(
            Finding(
                "super among random seeds",
                base.percent(),
                f"Among {len(study.census)} random seeds of the same settings {base.percent()} are super "
                f"(validation accuracy above {DIARY.super_accuracy:.0%} at step {study.horizon:,}); their mean logit "
                f"accuracy is {mean:.2f}.",
                base,
            )
        )
    study.tables.append(Table("branching_shares", "Super seeds among children, 95% intervals", pd.DataFrame(by_kind)))
    if slopes:
        study.tables.append(
            Table("branching_slopes", "What children keep of their parent's logit accuracy", pd.DataFrame(slopes))
        )
    children = pd.concat([f.rows.assign(redrawn=f.name) for f in study.families], ignore_index=True)
    study.tables.append(Table("branching_children", "Every child", children, open=False, code=("run_id", "parent")))
    study.notes.append(
        "Only children are judged, because the best parents were chosen by their own validation loss. The families of "
        "the best parents show what promising seeds pass on, those of random parents what any seed passes on. "
        "Parents given by --parents are picked (random seeds of the store), descended (children of such parents) or "
        "named (others). Parents with a common ancestor are one line: they share streams, so for all such parents a "
        "line counts as one family."
    )
    if slopes:
        study.notes.append(
            "The share that children keep is a slope. Parents chosen by the outcome itself do not bias it. The best "
            "were chosen by an early loss: if it tells more about the kept streams than the outcome does, the slope is "
            "too high. That over random parents alone is free of this, and less certain."
        )


def _handed_on(rows: pd.DataFrame) -> Estimate | None:
    """Return the slope of children on parents; None if there are too few."""
    codes = np.unique(rows["parent"], return_inverse=True)[1]
    try:
        return slope(rows["parent_outcome"].to_numpy(float), rows["outcome"].to_numpy(float), codes)
    except NotEnoughData:
        return None


def _share_record(family: Families, kind: str, group: pd.DataFrame) -> dict[str, Any]:
    hits = group["super"].to_numpy(bool)
    codes = np.unique(group["line"], return_inverse=True)[1].astype(np.int64)
    related = related_share(hits, group["outcome"].to_numpy(float), codes)
    return {
        "kept": family.kept,
        "redrawn": family.name,
        "parents": f"{group['parent'].nunique()} {kind}",
        "lines": group["line"].nunique(),
        "super": f"{int(hits.sum())} of {len(group)}",
        "of these parents": clopper_pearson(int(hits.sum()), len(group)).percent(),
        "of all such parents": related.percent(),
        "median logit accuracy": round(float(group["outcome"].median()), 2),
    }


QUESTION = Question(
    "branching",
    "Branching",
    "If two streams of a fast seed are kept and the third is redrawn, does it stay fast?",
    "grok branch --store STORE",
    analyse,
    lambda observations: any(BRANCH in map(str, sweep.get("argv", [])) for sweep in observations.sweeps),
)
