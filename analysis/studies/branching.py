"""Branching: one or two streams of a run are redrawn and the others kept, or single layers are redrawn.

A family is a parent and its children, as the rows of a ``branch`` design say. A child differs from its parent only
in the redrawn streams, or in the initial weights of the redrawn layers. Only children are judged, because parents
may have been chosen by their own results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.criteria import DIARY, UNJUDGED, called
from grok.analysis.observations import Condition, Observations, conditions_of, describe_task, floats, how_many
from grok.analysis.populations import LAYERS, settings_in_words
from grok.analysis.purposes import CHOSEN, asked, places, random_seeds, roles
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.statistics.proportions import clopper_pearson, share
from grok.analysis.statistics.repeatability import Kept, between_parents, kept_distance, mean_share, normal_scores
from grok.analysis.studies.base import Beside, Question, Study, Table, by_condition, otherwise
from grok.analysis.studies.census import judged
from grok.streams import RUN_STREAMS

REDRAWS: Final = (("split",), ("init",), ("order",), ("split", "init"), ("split", "order"), ("init", "order"))
KINDS: Final = ("random", "best", "picked", "descended", "named", "unknown")
"""How a parent was chosen, as `pairs` says it. A child counts in the first one by which it was asked for: those that
were named later, often for their results, take no child from the parents that were drawn or the best."""
FEWEST: Final = 4
"""Smallest number of children of a reported family."""
DIVERGED: Final = -1.0
"""Rank of a run that diverged: below every accuracy."""


@dataclass(frozen=True)
class Families:
    """The children with one set of redrawn streams or layers under one condition."""

    redrawn: tuple[str, ...]
    rows: pd.DataFrame
    """One row per child. Columns: run_id, parent (its run_id), line (the run_id of the first ancestor), seed (the
    parent's), kind, accuracy, score (normal, of the census), parent_score, super, held and generalised (as
    `census.judged` returns them), generation."""

    @property
    def name(self) -> str:
        return " and ".join(self.redrawn)

    @property
    def kept(self) -> str:
        """The streams that children share with their parent, in words."""
        if self.redrawn[0].startswith(LAYERS):
            return "split, order and the other layers"
        return " and ".join(s for s in RUN_STREAMS if s not in self.redrawn)


@dataclass(kw_only=True)
class Branching(Study):
    """The families of one condition and what their children keep."""

    families: list[Families]
    census: pd.DataFrame
    """Random seeds of the same condition: columns ``accuracy`` and ``super``, indexed by run_id."""
    kept: dict[str, Kept]
    """Variance between parents of all first-generation families (``every``) and of those of random parents
    (``random``), and the distance that children of chosen parents keep (``chosen``). A redraw has its family's name."""
    hit: str
    """What the children are counted for, in words: ``super``, or on another task ``above 98%``."""
    horizon: int
    examples: int
    """Number of validation examples."""

    @property
    def children(self) -> pd.DataFrame:
        """The rows of all families, with the name of what each redraws: one per child and parent."""
        return pd.concat([family.rows.assign(redrawn=family.name) for family in self.families], ignore_index=True)


def validation_examples(row: pd.Series) -> int:
    """Return the approximate number of a run's validation examples, which is enough to keep a logit finite."""
    return round(float(row["config.task.modulus"]) ** 2 * (1 - float(row["config.task.train_fraction"])))


def pairs(observations: Observations) -> pd.DataFrame:
    """Return the children of ``branch`` designs: child, parent, redrawn, generation, kind, line and seed.

    Kind is how the parent was chosen: best, random, picked (by name, a random seed of the store), descended (by name,
    a child itself), named (any other that a plan trained) or unknown (nothing says what it was for). A child has a row
    for each kind by which a design asks for it; `one` counts it once. Which children of an unfinished design there are
    may be a choice: those that a later design had trained are of that one only. Generation 1: the parent is a random
    seed. Children that differ from a later step on are no redraws.
    """
    purposes = observations.once(roles)
    children = purposes.of("child", kinds=("branch",))
    children = children[children["from_step"].isna() & (children["decided"] == children["planned_at"])]
    place = observations.once(places)
    children = children[children["run_id"].isin(place.index) & children["choice"].isin((*CHOSEN, "drawn"))]
    children = children[children["redrawn"].map(bool).astype(bool)]
    own = observations.observed["seed"]  # of a run whose design says no other
    children = children.assign(
        seed=[u.get("seed", own[r]) for r, u in zip(children["run_id"], children["unit"], strict=True)]
    )
    random = set(observations.once(random_seeds)["place"])
    descended, trained = set(purposes.of("child")["run_id"]), {*place.index} - purposes.unknown() - purposes.unstated()
    records = [
        {
            "child": child,
            "place": place[child],
            "parent": parent,
            "redrawn": redrawn,
            "generation": 1 if place.get(parent) in random else 2 if parent in trained else None,
            "kind": _kind(choice, place.get(parent) in random, parent in descended, parent in trained),
            "line": line or parent,
            "seed": seed,
        }
        for child, parent, redrawn, choice, line, seed in children[
            ["run_id", "parent_run_id", "redrawn", "choice", "line", "seed"]
        ].itertuples(index=False, name=None)
    ]
    names = ["child", "place", "parent", "redrawn", "generation", "kind", "line", "seed"]
    frame = pd.DataFrame(records, columns=names).drop_duplicates(["place", "parent", "kind"])
    return frame.drop(columns="place").reset_index(drop=True).astype({"generation": "Int64"})


def _kind(choice: str, is_random: bool, is_child: bool, is_known: bool) -> str:
    if choice != "named":
        return {"drawn": "random"}.get(choice, choice)
    return "picked" if is_random else "descended" if is_child else "named" if is_known else "unknown"


def conditions(observations: Observations) -> list[Condition]:
    """Return the conditions that have families: random seeds, parents and children."""
    related = observations.once(pairs)
    if related.empty:
        return []
    runs, random = observations.observed, observations.once(asked)
    others = pd.Index([*related["child"], *related["parent"]]).unique().difference(random.index, sort=False)
    rows = pd.concat([random.drop(columns=["place", "planned_at"]), runs.loc[others.intersection(runs.index)]])
    number = observations.conditions(rows)
    return conditions_of(rows[number.isin(number[related["child"]])])


def one(observations: Observations, condition: Condition) -> Branching:
    """Return the answer for one condition.

    Raises:
        NotEnoughData: too few of its children were judged.
    """
    related, members = observations.once(pairs), condition.rows
    labelled, horizon = judged(observations, members)
    labelled = labelled[labelled["label"] != UNJUDGED]
    is_super = labelled["label"] == "super"
    random = observations.once(random_seeds).index.intersection(labelled.index)
    census = pd.DataFrame({"super": is_super[random], "accuracy": labelled.loc[random, "accuracy"]})
    ranked = labelled["accuracy"].where(labelled["label"] != "diverged", DIVERGED)
    score = pd.Series(np.nan, labelled.index)
    gap = ""
    try:
        score[:] = normal_scores(floats(ranked), floats(ranked[random]))
    except NotEnoughData as missing:
        gap = missing.needs
    related = related[related["child"].isin(labelled.index)].sort_values(
        "kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable"
    )
    related = related.drop_duplicates(["child", "parent"]).sort_index()
    table = related[["child", "parent", "line", "seed", "redrawn", "generation", "kind"]]
    own = labelled.assign(score=score, super=is_super).loc[table["child"]]
    columns = {"accuracy": own["accuracy"], "score": own["score"], "parent_score": score.reindex(table["parent"])}
    columns |= {name: own[name] for name in ("super", "held", "generalised")}
    table = table.rename(columns={"child": "run_id"}).assign(**{n: column.to_numpy() for n, column in columns.items()})
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
        scope=f"{pd.concat([f.rows['run_id'] for f in families]).nunique():,} children of "
        f"{how_many(table['parent'].nunique(), 'parent')}, compared with {how_many(len(census), 'random seed')}; "
        f"{describe_task(first)}; {settings_in_words(first)}.",
        families=families,
        census=census,
        kept={},
        hit=called(first, "super"),
        horizon=horizon,
        examples=validation_examples(first),
    )
    _shares(study)
    for family in families:
        if words := otherwise(members.loc[family.rows["run_id"]], members.loc[random], "the random seeds"):
            study.notes.append(f"Children with a new {family.name}: {words}.")
    if gap:
        study.notes.append(f"What children keep: not enough data, needs {gap}.")
    else:
        _kept(study)
    return study


def _shares(study: Branching) -> None:
    """Add the shares of super children, every child, and the share of super seeds in the census."""
    hit = study.hit
    by_kind = [
        _share_record(family, hit, str(kind), group)
        for family in study.families
        for kind, group in family.rows.groupby("kind", sort=True)
    ]
    definition = f"{hit} in validation accuracy at step {study.horizon:,}"
    if hit == "super":
        definition = f"super (validation accuracy above {DIARY.super_accuracy:.0%} at step {study.horizon:,})"
    shown, base, text = "no random seed", None, f"No random seed of these settings tells how many are {definition}."
    if n := len(study.census):
        base = share(int(study.census["super"].sum()), n)
        shown = base.percent()
        text = f"Among {how_many(n, 'random seed')} of the same settings {shown} are {definition}."
    of = "; ".join(
        f"{r[hit]} with a new {r['redrawn']}, {r['of all such parents']} ({r['parents']} parent"
        f"{'s' * (r['parents'][:2] != '1 ')})"
        for r in by_kind
        if " and " in r["kept"]
    )
    text += f" Of children these are, with means over lines of descent, for all such parents: {of}." * bool(of)
    study.tell(f"{hit} among random seeds", shown, text, base)
    study.tabulate("branching_shares", f"Children that are {hit}, 95% intervals", by_kind)
    every = study.children.replace(np.inf, np.nan).rename(columns={"super": hit})  # infinite: not generalised
    study.tabulate("branching_children", "Every child", every, open=False, code=("run_id", "parent"))
    study.notes.append(
        "Only children are judged, because the best parents were chosen by their own validation loss. The families of "
        "the best parents show what promising seeds pass on, those of random parents what any seed passes on. "
        "Parents given by --parents are picked (random seeds of the store), descended (children of such parents) or "
        "named (others). A child that was asked for as one of a random or best parent, too, counts there alone. "
        "Parents with a common ancestor are one line: they share streams, so for all such parents a line counts as one "
        "family."
    )


def first_generation(study: Branching) -> dict[str, pd.DataFrame]:
    """Return the children of seeds of the census by how the parents were chosen: every, random and chosen.

    One row per child and parent, with the name of what it redraws.
    """
    rows = study.children
    rows = rows[(rows["generation"] == 1) & rows["parent_score"].notna()]
    random = rows["kind"] == "random"
    return {"every": rows, "random": rows[random], "chosen": rows[~random]}


def what_children_keep(study: Branching) -> dict[str, Kept]:
    """Return what children keep by how their parents were chosen; see `Branching.kept`. What has no data is left out.

    All parents are the units of `between_parents`. A random parent's own score counts as no sibling: the best of its
    stretch of seeds may have been taken away before it was drawn.
    """
    result = {}
    for name, rows in first_generation(study).items():
        scores, own = rows["score"].to_numpy(float), rows["parent_score"].to_numpy(float)
        parents, lines = (np.unique(rows[c], return_inverse=True)[1].astype(np.int64) for c in ("parent", "line"))
        redrawn = rows["redrawn"].to_numpy(dtype=np.str_)
        try:
            if name == "chosen":
                result[name] = kept_distance(scores, redrawn, parents, lines, own)
            else:
                result[name] = between_parents(scores, redrawn, parents, lines)
        except NotEnoughData:
            continue
    return result


def _kept(study: Branching) -> None:
    """Add what children keep, and the differences between redraws."""
    study.kept = what_children_keep(study)
    rows = first_generation(study)
    if set(rows["every"]["kind"]) <= {"random"}:  # one statement, not the same one twice
        study.kept.pop("random", None)
    records, differences = [], []
    for family in study.families:
        shares = {name: kept.shares[family.name] for name, kept in study.kept.items() if family.name in kept.shares}
        single = len(family.redrawn) == 1
        mine = {name: of[of["redrawn"] == family.name] for name, of in rows.items()}
        for name, e in shares.items():
            who = f"{mine[name]['run_id'].nunique()} children, {mine[name]['line'].nunique()} lines of descent"
            about = "random parents alone" if name == "random" else _chosen_as(mine[name])
            if name == "chosen":
                text = (
                    f"{family.name} redrawn: on average the children of chosen parents keep {e.plain(2)} of their "
                    f"parents' mean distance from the census ({who}; 0: like random seeds, 1: as far as the parents)."
                )
            else:
                text = (
                    f"{family.name} redrawn: {e.plain(2)} of the rank variance between random seeds lies between "
                    f"parents, through {family.kept}. It is about {about} ({who}; 0: siblings are no more "
                    "alike than any two children, 1: as much as random seeds; chosen parents can differ by more)."
                )
                text += " These data cannot tell." * (e.low <= 0 and e.high >= 1)
            study.tell(
                f"{_WORDS[name]}, {family.name} redrawn",
                e.plain(2),
                text[0].upper() + text[1:],
                e,
                headline=single and name == "every",
                listed=single,
            )
        if shares:
            counts = {
                "kept": family.kept,
                "redrawn": family.name,
                "parents": mine["every"]["parent"].nunique(),
                "children": mine["every"]["run_id"].nunique(),
            }
            records.append(
                counts | {_WORDS[name]: shares[name].plain(2) if name in shares else "" for name in study.kept}
            )
    every = study.kept["every"].shares if "every" in study.kept else {}
    names = sorted(
        (f.name for f in study.families if len(f.redrawn) == 1 and f.name in every), key=lambda n: -every[n].value
    )
    for one, other in combinations(names, 2):
        contrasts = {n: kept.contrasts[one, other] for n, kept in study.kept.items() if (one, other) in kept.contrasts}
        shown = {name: contrast.plain(2) for name, contrast in contrasts.items()}
        if shown:
            differences.append({"redrawn": f"{one} less {other}"} | {_WORDS[n]: shown.get(n, "") for n in study.kept})
        for name, apart in contrasts.items():
            more = {1: f"more is kept with a new {one}", -1: f"less is kept with a new {one}"}
            verdict = more.get(int(np.sign(apart.low) + np.sign(apart.high)) // 2, "the two cannot be told apart")
            text = f"{_WORDS[name].capitalize()}, {one} redrawn less {other} redrawn: {apart.plain(2)}; {verdict}."
            study.tell(f"{_WORDS[name]}, {one} less {other} redrawn", apart.plain(2), text, apart)
    if not records:
        return
    if names:  # all streams beside each other on the first screen
        i = next(i for i, finding in enumerate(study.findings) if finding.headline and finding.label.startswith("var"))
        study.findings[i] = replace(study.findings[i], short=_brief(study, names, set(rows["every"]["kind"])))
    caption = "What children keep: shares of the rank variance, and of chosen parents' mean distance; 95% intervals"
    study.tables.insert(1, Table("branching_kept", caption, pd.DataFrame(records)))
    if differences:
        caption = "Differences between two redraws, 95% intervals"
        study.tables.insert(2, Table("branching_contrasts", caption, pd.DataFrame(differences)))
    study.notes.append(
        f"Outcomes are normal scores: ranks of validation accuracy at step {study.horizon:,} among the random seeds. "
        "The variance between parents is the covariance of siblings; it is about parents chosen as these were, in the "
        "same proportions, and lines of descent are its units. Only random parents tell what the kept streams decide "
        "for any seed; chosen parents can be more unlike each other than random ones. Each interval is one of 95%, "
        "not corrected for their number."
    )


def _brief(study: Branching, names: list[str], kinds: set[str]) -> str:
    """Return what children of random parents keep with one of ``names`` redrawn, else what those of chosen ones do.

    Only between random parents is it a share: chosen ones can differ by more than random seeds do.
    """
    key = "every" if kinds <= {"random"} else "random" if "random" in study.kept else "chosen"
    if key not in study.kept:
        return "These children are too few to tell what random parents, or chosen ones, hand on."
    whose = "chosen parents' mean distance from random seeds that their children keep"
    each = []
    for name in names:
        e = study.kept[key].shares.get(name)
        if e and key != "chosen":
            e = replace(e, value=min(e.value, 1.0), high=min(e.high, 1.0))
            whose = "rank variance of random seeds that lies between random parents"
        each.append(f"{name} {e.plain(2) if e and (e.low > 0 or e.high < 1) else 'not told'}")
    return f"With one stream redrawn, the share of the {whose}: {', '.join(each)}."


def _chosen_as(children: pd.DataFrame) -> str:
    """Return in words how the parents of these children were chosen."""
    number = children.drop_duplicates("parent")["kind"].value_counts()
    if set(number.index) <= {"random"}:
        return "random parents"
    chosen = ", ".join(f"{n} {kind}" for kind, n in sorted(number.items()))
    return f"parents chosen as these {number.sum()} were ({chosen})"


_WORDS: Final = {
    "every": "variance between parents",
    "random": "variance between random parents",
    "chosen": "distance kept of chosen parents",
}


def _share_record(family: Families, hit: str, kind: str, group: pd.DataFrame) -> dict[str, Any]:
    hits, done, held = group["super"].to_numpy(bool), group["generalised"].to_numpy(float), group["held"].dropna()
    by_parent = group.groupby("parent", sort=False).agg(
        hits=("super", "sum"), n=("super", "size"), line=("line", "first")
    )
    related = mean_share(
        [(int(h), int(n)) for h, n in zip(by_parent["hits"], by_parent["n"], strict=True)], [*by_parent["line"]]
    )
    return {
        "kept": family.kept,
        "redrawn": family.name,
        "parents": f"{group['parent'].nunique()} {kind}",
        "lines": group["line"].nunique(),
        hit: f"{int(hits.sum())} of {len(group)}",
        "reached and held": f"{int((held == 2).sum())} of {len(held)}" if len(held) else "seen once",
        "generalised": f"{int(np.isfinite(done).sum())} of {len(group)}",
        "half of these by step": f"{np.median(done[np.isfinite(done)]):,.0f}" if np.isfinite(done).any() else "",
        "of these parents": clopper_pearson(int(hits.sum()), len(group)).percent(),
        "of all such parents": related.percent(),
        "median accuracy": f"{float(group['accuracy'].median()):.1%}",
    }


QUESTION = Question(
    "branching",
    "Branching",
    "If two streams of a good seed are kept and the third is redrawn, is it as good?",
    "grok branch --store STORE",
    by_condition(conditions, one, Beside()),
    lambda observations: not observations.once(pairs).empty,
    reads_designs=True,
)
