"""Branching: one or two streams of a run are redrawn and the others kept, or single layers are redrawn.

A family is a parent and its children, as the rows of a ``branch`` design say. A child differs from its parent only
in the redrawn streams, or in the initial weights of the redrawn layers. Only children are judged, because parents
may have been chosen by their own results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.criteria import DIARY, UNJUDGED
from analysis.observations import Condition, Observations, conditions_of, describe_task, floats
from analysis.populations import LAYERS, settings_in_words
from analysis.purposes import CHOSEN, STREAMS, asked, places, random_seeds, roles
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


def pairs(observations: Observations) -> pd.DataFrame:
    """Return the children of ``branch`` designs: child, parent, redrawn, generation, kind, line and seed.

    Kind is how the parent was chosen: best, random, picked (by name, a random seed of the store), descended (by name,
    a child itself), named (asked for before any result, but no random seed) or unknown (nothing says what it was for).
    A child counts once for each kind by which a design asks for it: another design takes it from none. Generation 1:
    the parent is a random seed. Children that differ from a later step on are no redraws.
    """
    children = observations.once(roles).of("child", kinds=("branch",))
    children = children[children["from_step"].isna()]
    place = observations.once(places)
    children = children[children["run_id"].isin(place.index) & children["choice"].isin((*CHOSEN, "drawn"))]
    children = children[children["redrawn"].map(bool).astype(bool)]
    own = observations.observed["seed"]  # of a run whose design says no other
    children = children.assign(
        seed=[u.get("seed", own[r]) for r, u in zip(children["run_id"], children["unit"], strict=True)]
    )
    random = set(observations.once(random_seeds)["place"])
    descended, known = set(children["run_id"]), set(observations.once(asked)["place"])
    records = [
        {
            "child": child,
            "place": place[child],
            "parent": parent,
            "redrawn": redrawn,
            "generation": 1 if place.get(parent) in random else 2,
            "kind": _kind(choice, place.get(parent) in random, parent in descended, place.get(parent) in known),
            "line": line or parent,
            "seed": seed,
        }
        for child, parent, redrawn, choice, line, seed in children[
            ["run_id", "parent_run_id", "redrawn", "choice", "line", "seed"]
        ].itertuples(index=False, name=None)
    ]
    names = ["child", "place", "parent", "redrawn", "generation", "kind", "line", "seed"]
    frame = pd.DataFrame(records, columns=names).drop_duplicates(["place", "parent", "kind"])
    return frame.drop(columns="place").reset_index(drop=True)


def _kind(choice: str, is_random: bool, is_child: bool, is_known: bool) -> str:
    if choice != "named":
        return {"drawn": "random"}.get(choice, choice)
    return "picked" if is_random else "descended" if is_child else "named" if is_known else "unknown"


def analyse(observations: Observations, question: Question) -> Study:
    """Return the answer for every condition that has families.

    Raises:
        NotEnoughData: no run of the store is a child of another one.
    """
    related = observations.once(pairs)
    if related.empty:
        raise NotEnoughData("children of grok branch")
    runs = observations.observed
    random = observations.once(asked)
    others = pd.Index([*related["child"], *related["parent"]]).unique().difference(random.index, sort=False)
    rows = pd.concat([random.drop(columns=["place", "planned_at"]), runs.loc[others.intersection(runs.index)]])
    number = observations.conditions(rows)
    with_children = rows[number.isin(number[related["child"]])]
    study = by_condition(observations, question, conditions_of(with_children), one, Beside(beside))
    study.notes += observations.once(roles).said
    return study


def beside(study: Branching) -> dict[str, object]:
    """Return the row of one condition in the table of conditions."""
    return {
        "children": sum(f.rows["run_id"].nunique() for f in study.families),
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
    random = observations.once(random_seeds).index.intersection(labelled.index)
    census = pd.DataFrame(
        {"outcome": outcome[random], "super": is_super[random], "accuracy": labelled.loc[random, "accuracy"]}
    )
    related = related[related["child"].isin(labelled.index)]
    table = pd.DataFrame(
        {
            "run_id": related["child"],
            "parent": related["parent"],
            "line": related["line"],
            "seed": related["seed"],
            "redrawn": related["redrawn"],
            "generation": related["generation"],
            "kind": related["kind"],
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
        scope=f"{sum(f.rows['run_id'].nunique() for f in families):,} children of "
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
                "children": first["run_id"].nunique(),
                "handed on": fitted.plain(2),
                "random parents alone": drawn.plain(2) if drawn else "",
            }
        )
        study.findings.append(
            Finding(
                f"share handed on with {family.kept} kept",
                fitted.plain(2),
                f"{family.kept.capitalize()} kept, {family.name} redrawn: children keep {fitted.plain(2)} of their "
                f"parent's distance from the mean in logit accuracy at step {study.horizon:,} "
                f"({first['run_id'].nunique()} children "
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
    rows = rows[rows["parent_outcome"].notna()].drop_duplicates(["run_id", "parent"])
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
    lambda observations: not observations.once(pairs).empty,
    reads_designs=True,
)
