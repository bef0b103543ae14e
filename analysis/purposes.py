"""What each run was for, read from the rows of ``designs/``, and which runs were asked for before any result.

Nothing is inferred. A run that no row trains has an unknown purpose, even if a later plan chose it as a parent: it is
counted apart and is in no class that needs a role. A row with ``choice=unstated`` claims nothing either.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import COUNTED, Observations, how_many, is_random_seed, varying_columns
from grok.config import GptConfig
from grok.config.fields import recorded_of
from grok.store.designs import CHOICES, ROLES, TRAINED, decided, results_known
from grok.streams import RUN_STREAMS

SEEDS: Final = [f"seed_{stream}" for stream in RUN_STREAMS]
ASKED: Final = ("given", "drawn")
"""Choices that no result decided."""
CHOSEN: Final = ("best", "named")
"""Choices by results, or by somebody who may have known them."""


@dataclass(frozen=True)
class Planned:
    """A design with planned runs that are not stored."""

    design_id: str
    kind: str
    missing: frozenset[str]
    stored: frozenset[str]
    stops_early: bool
    """Whether stored runs of it stop when they generalise."""

    @property
    def planned(self) -> int:
        """The number of its runs."""
        return len(self.missing) + len(self.stored)


def absent(designs: Sequence[Planned]) -> str:
    """Return how many runs of ``designs`` are not stored, and how that may bias numbers of the others, in words."""
    missing = frozenset[str]().union(*(of.missing for of in designs))
    stored = frozenset[str]().union(*(of.stored for of in designs))
    if not missing:
        return ""
    text = f"{len(missing):,} of {len(missing | stored):,} planned runs are missing."
    if any(of.stops_early for of in designs):
        return f"{text} Runs that generalise early end early: until all are stored, times are biased low, shares high."
    return f"{text} Unless they are missing by chance, numbers of the others are biased." if stored else text


class Roles:
    """The rows of ``designs/`` with their JSON read, in the order of planning; ``decided`` as of that function."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        runs = observations.all_runs
        self.rows = _readable(observations.designs)
        self._training = self.rows[self.rows["role"].isin(TRAINED)]
        self.rows = self.rows.assign(decided=decided(self._training, runs))
        self._runs = runs[["run_id", "mode", "status", "parent_run_id"]]
        stopping = runs["config.train.stop_when_generalised"].fillna(False).astype(bool)
        self._stopping = set(runs["run_id"][stopping])
        self.switched = set(runs["run_id"][_switched(runs) & runs["status"].isin(COUNTED)])
        self._stored = set(runs["run_id"][runs["status"].isin(COUNTED)])

    def of(self, *roles: str, kinds: tuple[str, ...] = ()) -> pd.DataFrame:
        """Return the rows of stored runs that were observed, with one of ``roles`` in designs of ``kinds`` (all)."""
        rows = self.rows[self.rows["role"].isin(roles) & self.rows["run_id"].isin(self._stored)]
        return rows[rows["kind"].isin(kinds)] if kinds else rows

    @cached_property
    def lines(self) -> dict[str, str]:
        """The first ancestor of every branched run."""
        children = self.rows[(self.rows["role"] == "child") & (self.rows["kind"] == "branch")]
        first = children["line"].fillna(children["parent_run_id"])
        return dict(zip(reversed(children["run_id"].tolist()), reversed(first.tolist()), strict=True))

    @cached_property
    def missing(self) -> list[Planned]:
        """The designs with planned runs that are neither stored nor given up."""
        rows = self._training[self._training["retired"].isna()]
        stored = set(self._runs["run_id"])
        absent = rows[~rows["run_id"].isin(stored)]
        of = rows[rows["design_id"].isin(absent["design_id"])].groupby(["design_id", "kind"], sort=False)["run_id"]
        planned = [(str(name), str(kind), frozenset(runs)) for (name, kind), runs in of]
        return [
            Planned(name, kind, runs - stored, runs & stored, not self._stopping.isdisjoint(runs))
            for name, kind, runs in planned
        ]

    def missing_with(self, runs: Collection[str]) -> list[Planned]:
        """Return those of the designs ``missing`` that planned one of ``runs``, too."""
        return [of for of in self.missing if not of.stored.isdisjoint(runs)]

    def unknown(self, mode: str | None = None) -> set[str]:
        """Return the observed runs that no row trains. The branches of a rollback have the rows of their run."""
        return self._without(set(self._training["run_id"]), mode)

    def unstated(self, mode: str | None = None) -> set[str]:
        """Return the observed runs of which every row that trains them leaves open how they were chosen."""
        stated = set(self._training["run_id"][self._training["choice"] != "unstated"])
        return self._without(stated, mode) - self.unknown(mode)

    def _without(self, claimed: set[str], mode: str | None) -> set[str]:
        runs = self._runs if mode is None else self._runs[self._runs["mode"] == mode]
        runs = runs[runs["status"].isin((*COUNTED, "rolled_back"))]
        own = runs["parent_run_id"].where(runs["status"] == "rolled_back")
        return set(runs["run_id"][~runs["run_id"].isin(claimed) & ~own.isin(claimed)])

    @cached_property
    def seen(self) -> set[str]:
        """The arithmetic runs that only plans of after their result name, and these as members: the first is lost."""
        claims = self._observations.once(claims_of)
        late = claims[~claims["place"].isin(claims["place"][~claims["results_seen"]])]
        others = self.rows[self.rows["role"].isin(("child", "trial")) & (self.rows["choice"] != "unstated")]
        return set(late["run_id"]) - set(others["run_id"])

    def about(self, mode: str | None = None) -> dict[str, int]:
        """Return how many runs are of unknown purpose, of unstated choice, and planned after results, in words."""
        return {
            "Trained by no plan in designs/, so what they were for is unknown": len(self.unknown(mode)),
            "Planned without saying how they were chosen (choice=unstated; design=Purposes(...) states it)": len(
                self.unstated(mode)
            ),
            "Stored before the first plan (results_seen), so results may have chosen their seeds": len(self.seen),
        }

    @cached_property
    def said(self) -> list[str]:
        """Sentences on the arithmetic runs that are in no population for what they were for, or change in mid-run."""
        left = "They count here only, in no population and no class."
        counts = {words: (n, left) for words, n in self.about("arithmetic").items()}
        counts["Changed in mid-run (switch.*)"] = len(self.switched), "They are in no population of random seeds."
        return [f"{words}: {how_many(n, 'run')}. {rest}" for words, (n, rest) in counts.items() if n]


def _switched(runs: pd.DataFrame) -> pd.Series:
    """Return whether the streams or the weights of each run change at a later step."""
    column = "config.switch.step"
    return runs[column].notna() if column in runs else pd.Series(False, index=runs.index)


def roles(observations: Observations) -> Roles:
    """Return what the runs of a store were for; ``observations.once(roles)`` reads it once."""
    return Roles(observations)


def _readable(designs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in the order of planning, JSON read, without rows of another shape: these say nothing."""
    rows = designs[designs["role"].isin(ROLES) & designs["choice"].isin(CHOICES)]
    rows = rows.sort_values(["planned_at", "design_id", "run_id"], kind="stable")
    units = [_json(text) for text in rows["unit"]]
    redrawn = [_json(text) for text in rows["redrawn"]]
    fine = [isinstance(u, dict) and (r is None or isinstance(r, list)) for u, r in zip(units, redrawn, strict=True)]
    read: dict[str, list[Any]] = {"unit": units, "redrawn": [_designs_in_order(names) for names in redrawn]}
    for name in ("parent_run_id", "line"):
        read[name] = [text if isinstance(text, str) else None for text in rows[name]]
    for name, values in read.items():
        rows[name] = pd.Series(values, index=rows.index, dtype=object)
    return rows[pd.Series(fine, index=rows.index, dtype=bool)].reset_index(drop=True)


def _json(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except ValueError:  # a store may come from anybody
        return ""


def _designs_in_order(names: Any) -> tuple[str, ...] | None:
    """Return redrawn streams in their usual order, layers after them."""
    if not isinstance(names, list):
        return None
    known = {str(name) for name in names}
    return (*(stream for stream in RUN_STREAMS if stream in known), *sorted(known - set(RUN_STREAMS)))


def places(observations: Observations) -> pd.Series:
    """Return the place of every observed arithmetic run, by run_id: equal for equal condition, streams and layers.

    Runs of one place differ at most in length, evaluation, perturbation and computation.
    """
    runs = observations.observed
    runs = runs[runs["mode"] == "arithmetic"]
    if runs.empty:
        return pd.Series(dtype="int64")
    coupled = runs["config.eval.couple_order"].fillna(False).astype(bool)  # then the schedule redraws the order
    own = runs["trajectory_id"].where(coupled, "")
    label = observations.conditions(runs)
    return runs.groupby([label, *(runs[c] for c in SEEDS), runs["layers"], own], sort=False).ngroup()


def asked_unseen(observations: Observations) -> set[str]:
    """Return the ``run_id`` of each language model that a design asked for before a result of its settings, seeds.

    A plan of another length counts, too, if it goes on with all that earlier ones asked for of its settings.
    """
    claims = observations.once(roles).of("member", "cell")
    runs = observations.observed[observations.observed["mode"] == "gpt"]
    claims = claims[claims["choice"].isin(ASKED) & claims["run_id"].isin(runs.index)]
    if claims.empty:
        return set()
    settings = [n for n, (_, rule) in recorded_of(GptConfig).items() if rule.role == "result"]
    seeds = [str(c) for c in runs if str(c).startswith("seed_")]
    varying = varying_columns(runs, settings)
    condition, place = (
        runs.groupby([*varying, "data_hash", "own_code", *more], dropna=False, sort=False).ngroup()
        for more in ([], ["layers", *seeds])
    )
    claims = claims.assign(place=claims["run_id"].map(place), planned_at=claims["decided"])
    seen = results_known(claims, runs.assign(place=place, run_id=runs.index))
    named = claims["run_id"].map(condition)
    unseen = claims[~seen]
    for (_, of), plan in claims.groupby(["design_id", named]):
        first = unseen[(named[unseen.index] == of) & (unseen["planned_at"] < plan["planned_at"].min())]["place"]
        if len(first) and set(first) <= set(plan["place"]):
            seen[plan.index[plan["place"].isin(first)]] = False
    return set(claims["run_id"][~seen])


def asked(observations: Observations) -> pd.DataFrame:
    """Return the arithmetic runs that a design asked for before any result of theirs: one row for each place.

    These are members and cells, given or drawn and without ``results_seen``. Of several such runs of one place the
    longest stands for it. A plan that asks for a master seed comes before one that types its streams; if it was made
    after a result, only where its run is as long as what was asked for before. ``seed`` is the seed that was asked
    for, and ``planned_at`` is when: the column of a run that several plans claim names only the one that trained it.
    """
    claims = observations.once(claims_of)
    runs = observations.observed
    if claims["results_seen"].all():
        return runs.iloc[:0].assign(place=pd.Series(dtype="int64"), planned_at=pd.Series(dtype="datetime64[us]"))
    unseen = claims[~claims["results_seen"]]
    longest = claims["place"].map(unseen.groupby("place")["length"].max())
    usable = claims[~claims["results_seen"] | (claims["length"] == longest)]
    by = ["typed", "length", "replicate", "planned_at", "run_id"]
    first = usable.sort_values(by, ascending=[True, False, True, True, True], kind="stable").drop_duplicates("place")
    shown = claims[claims["place"].isin(first["place"])].sort_values(["typed", "planned_at"], kind="stable")
    seed = first["place"].map(shown.drop_duplicates("place").set_index("place")["asked_seed"])
    when = first["place"].map(usable.groupby("place")["planned_at"].min())
    rows = runs.loc[first["run_id"]]
    shown_seed = seed.fillna(pd.Series(rows["seed"].to_numpy(), index=seed.index)).to_numpy(dtype="int64")
    rows = rows.assign(seed=shown_seed, place=first["place"].to_numpy(), planned_at=when.to_numpy())
    return rows.sort_values(["seed", "run_id"], kind="stable")


def triples(rows: pd.DataFrame, streams: Sequence[str] = SEEDS) -> list[tuple[int, ...]]:
    """Return each run's (split, init, order) seeds, or those in the columns ``streams``."""
    return list(rows[[*streams]].itertuples(index=False, name=None))


def pairing(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """Return the columns of seeds that make pairs of two sides: not a stream with one seed on either, if others vary.

    That stream may be what the sides differ in.
    """
    return [column for column in SEEDS if max(a[column].nunique(), b[column].nunique()) > 1] or SEEDS


def shared_seeds(*sides: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    """Return the seeds (n,) of all sides' runs in a row, by stream, where several runs of a side have one and not all.

    These runs depend on each other.
    """
    found = [c for c in SEEDS if any(1 < side[c].nunique() < len(side) for side in sides)]
    return {c.removeprefix("seed_"): pd.concat(sides)[c].to_numpy() for c in found}


def matched(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of two sides whose seeds (:func:`pairing`) are on both, row by row: one pair a seed, drawn."""
    by = pairing(a, b)
    ours, theirs = (rows[by].assign(run=rows.index) for rows in (a, b))
    pairs = ours.merge(theirs, on=by).sample(frac=1, random_state=0).drop_duplicates(by).sort_index()
    return a.loc[pairs["run_x"].to_numpy()], b.loc[pairs["run_y"].to_numpy()]


def after_results(base: pd.DataFrame, rows: pd.DataFrame) -> bool:
    """Return whether ``rows`` are seeds of ``base`` listed after their results: a choice, unless all or the first."""
    if "planned_at" not in base:
        return False  # nobody knows when they were planned
    ended = base["started_at"] + pd.to_timedelta(base["seconds"].astype("float64"), unit="s")
    by = pairing(base, rows)
    known, asked_for = triples(base, by), triples(rows, by)
    both = set(known) & set(asked_for)
    order = ["seed"] if base["seed"].nunique() >= len(both) else by
    first = base.drop_duplicates(order).sort_values(order).head(len(both))
    if not (base["planned_at"] <= ended).all() or both in (set(known), set(triples(first, by))):
        return False  # declared since, so nobody knows when it was planned; or nobody chose
    results = dict(zip(known, ended, strict=True))
    return any(results.get(t, planned) < planned for t, planned in zip(asked_for, rows["planned_at"], strict=True))


def extended(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` of :func:`asked`, with longer runs where a later design went on with every one of them.

    To go on with some of them may have been a choice by results, so they stay as long as they were asked for.
    """
    runs = observations.observed
    lengths = runs["config.train.steps"].astype("int64")
    for here in extensions(observations, rows):
        new = rows["place"].map(here)
        longer = new.notna() & (new.map(lengths) > rows["config.train.steps"])
        ids = new.where(longer, pd.Series(rows.index, index=rows.index))
        rows = runs.loc[ids].assign(**{c: rows[c].to_numpy() for c in ("seed", "place", "planned_at")})
    return rows


def extensions(observations: Observations, rows: pd.DataFrame) -> Iterator[pd.Series]:
    """Yield the runs by place of each design with results seen that went on with every one of ``rows`` before it."""
    claims = observations.once(claims_of)
    claims = claims[claims["place"].isin(rows["place"])]
    claims = claims[claims["design_id"].isin(claims["design_id"][claims["results_seen"]])]
    for _, group in claims.groupby("design_id", sort=False):
        longest = group.sort_values(["length", "replicate", "run_id"], ascending=[False, True, True])
        here: pd.Series = longest.drop_duplicates("place").set_index("place")["run_id"]
        if set(rows["place"][rows["planned_at"] <= group["planned_at"].max()]) <= set(here.index):
            yield here


def claims_of(observations: Observations) -> pd.DataFrame:
    """Return the claims on places: members and cells of crosses, given or drawn, with the length that was asked for."""
    rows = observations.once(roles).of("member", "cell")
    rows = rows[rows["choice"].isin(ASKED) & (rows["kind"] != "layers")]
    place = observations.once(places)
    every = observations.observed.loc[place.index].assign(place=place, run_id=place.index)
    # a run that was moved by ulps, or switched, is no result of its place: planning takes it for none either
    every = every[(every["config.perturb.ulps"].fillna(0) == 0) & ~_switched(every)]
    rows = rows[rows["run_id"].isin(every.index)]
    runs = every.loc[rows["run_id"]]
    seeds = [unit.get("seed") for unit in rows["unit"]]
    claims = rows[["design_id", "run_id", "results_seen", "origin"]].assign(
        planned_at=rows["decided"],
        place=runs["place"].to_numpy(),
        length=runs["config.train.steps"].to_numpy(dtype="int64"),
        replicate=runs["replicate"].to_numpy(dtype="int64"),
        typed=[len(set(unit) - {"seed"}) for unit in rows["unit"]],
        asked_seed=pd.array([seed if type(seed) is int else None for seed in seeds], dtype="Int64"),
    )
    return claims.assign(results_seen=results_known(claims, every))


def random_seeds(observations: Observations) -> pd.DataFrame:
    """Return the rows of :func:`asked` that draw every stream from the master seed that was asked for."""
    rows = observations.once(asked)
    return rows[is_random_seed(rows)] if len(rows) else rows
