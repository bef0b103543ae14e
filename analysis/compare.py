"""``grok compare STORE A B``: two sets of runs side by side, with intervals.

A and B are filters, as ``grok list`` takes them. If enough seeds (split, init, order, but no stream with one seed a
side) are on both sides, these are compared in pairs; otherwise one run of each seed is, as two groups.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.answers import Fact, Report, heading, provenance, run_labels
from grok.analysis.criteria import last_common
from grok.analysis.listing import filtered
from grok.analysis.observations import (
    CONDITION_SETTINGS,
    Observations,
    computed_apart,
    floats,
    in_words,
    listed,
    varying_columns,
)
from grok.analysis.populations import asked_before_and_after, populations
from grok.analysis.purposes import ASKED, SEEDS, absent, after_results, asked, matched, pairing, roles, shared_seeds
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, mean
from grok.analysis.statistics.proportions import difference, paired_difference, share
from grok.analysis.statistics.survival import exponential, quantile
from grok.analysis.studies.base import OwnStudy, Table
from grok.analysis.studies.conditions import CHOSEN, FEWEST, Family, contrast, held_fixed, slowdown_words
from grok.analysis.studies.val_shuffle import SCHEDULE
from grok.analysis.writing import FIGURES, default_folder, study_text, write_page, write_studies
from grok.commands.command import Parser, command, refuse_unwritable, store_of
from grok.errors import ConfigError
from grok.store.layout import Layout

MEASURED: Final = ("val_acc", "val_loss", "weight_norm")
RESULTS: Final = ("class", "early_or_late", "generalised", "val_accuracy", "val_loss", "status")
DIFFERENCE: Final = "B against A"
MAGNITUDE: Final = 10.0
"""Ratio of the ends of an interval above which one unit does not show both."""
Line = tuple[str, Sequence[str], Sequence[Estimate | None]]
"""One line of the table: what it is of, and the difference (of times the ratio), A and B as texts and as numbers."""


@dataclass(frozen=True)
class Sides:
    """Two sets of runs with their filters."""

    names: tuple[str, str]
    rows: tuple[pd.DataFrame, pd.DataFrame]
    paired: bool
    """Whether they are of the same seeds, row by row."""
    shared: int
    """Number of seeds on both sides."""
    failed: tuple[int, int]
    """Number of runs of each that failed, so that they are not in ``rows``."""
    alone: int = 0
    """How many runs were left out: they repeat a seed, or the other side lacks it."""
    by_results: bool = False
    """If seeds were chosen by results on the other side, or listed after them, or after those at another length."""

    @classmethod
    def of(cls, observations: Observations, path: Path, filters: tuple[str, str]) -> Sides:
        """Return the arithmetic runs that satisfy each filter.

        Raises:
            ConfigError: no run does, a run is on both sides, or a filter names no column.
        """
        (a, failed_a), (b, failed_b) = (chosen(observations, path, words) for words in filters)
        computed = [set(zip(rows["trajectory_id"], rows["numerics"], strict=True)) for rows in (a, b)]
        if both := len(computed[0] & computed[1]):
            raise ConfigError(
                f"{both:,} runs are on both sides (itself, another length of it, or its repeat on one machine): "
                "expected two filters that exclude each other"
            )
        every = pd.concat([a, b])
        schedule = SCHEDULE * bool(every["config.eval.couple_order"].fillna(False).any())  # then it redraws the order
        for column in varying_columns(every, (*CONDITION_SETTINGS, *schedule)):
            ours, theirs = (sorted(set(rows[column].map(in_words, na_action=None))) for rows in (a, b))
            if max(len(ours), len(theirs)) > 1:
                raise ConfigError(
                    f"{column.removeprefix('config.')} is {', '.join(ours)} in A and {', '.join(theirs)} in B: "
                    "expected one value on each side, named in its filter"
                )
        by_results = bool(a["later"].any() or b["later"].any())
        by_results |= any(after_results(x, y) or chosen_again(observations, x, y) for x, y in ((a, b), (b, a)))
        pairs = matched(a, b)
        shared = len(pairs[0])
        paired = shared >= FEWEST and not by_results
        rows = pairs if paired else (one_of_each_seed(a), one_of_each_seed(b))
        alone = len(a) + len(b) - sum(map(len, rows))
        return cls(filters, rows, paired, shared, (failed_a, failed_b), alone, by_results)


def chosen_again(observations: Observations, base: pd.DataFrame, rows: pd.DataFrame) -> bool:
    """Return whether ``rows`` has children of runs in ``base`` that a result chose: these would fall back to the mean.

    Children of two kinds are both trained after the choice, so they can be compared in pairs.
    """
    later = rows.index.difference(list(observations.once(asked_before_and_after)[0]))
    children = observations.once(roles).of("child")
    children = children[children["run_id"].isin(later) & ~children["choice"].isin(ASKED)]
    trajectory = observations.all_runs.set_index("run_id")["trajectory_id"]
    return bool(children["parent_run_id"].map(trajectory).isin(base["trajectory_id"]).any())


def one_of_each_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one run of each seed, drawn: runs of a seed are not independent."""
    return rows.sample(frac=1, random_state=0).drop_duplicates([*SEEDS, "layers"]).sort_index()


def chosen(observations: Observations, path: Path, words: str) -> tuple[pd.DataFrame, int]:
    """Return the arithmetic runs that satisfy a filter, one of each trajectory, and how many satisfy it and failed.

    Of several runs it is the one that was asked for before any result, if that is among them: a longer one may have
    been trained because of its result. ``later`` says so of the runs that are. Repeats of a seed do not stand for it
    either: those of the best would replace good luck by usual luck.

    Raises:
        ConfigError: none does, or the filter names no column.
    """
    rows, before = observations.arithmetic, observations.once(asked)["planned_at"]
    whole = pd.concat([before[:0], *(p.rows["planned_at"] for p in observations.once(populations).every)])
    ids = pd.Index(filtered(observations, shlex.split(words))["run"])
    every = observations.observed.loc[ids.intersection(observations.observed.index)]
    of_run, of_seed = ["trajectory_id"], [*SEEDS, "layers"]
    known, later = observations.once(asked_before_and_after)
    for first, columns in ((whole.index, of_run), (before.index, of_run), (list(known), of_seed)):
        stands, same = every.index.isin(first), every.groupby(columns).ngroup()
        every = every[stands | ~same.isin(same[stands])]
    when = pd.concat([whole, before])
    runs = observations.measured(every.index).join(when[~when.index.duplicated()])
    runs["later"] = runs.index.isin(later)
    if runs.empty:
        values = (f"{c.removeprefix('config.')}={in_words(v)}" for c in varying_columns(rows) for v in rows[c].unique())
        raise ConfigError(
            f"{words!r} fits none of the {len(rows):,} arithmetic runs of {path} (`grok report` compares language "
            f"models): expected a filter such as {next(values, 'class=early')}; `grok list {path}` shows the rows"
        )
    every_run = observations.all_runs[observations.all_runs["mode"] == "arithmetic"]
    return runs, int((every_run["run_id"].isin(ids) & (every_run["status"] == "failed")).sum())


def compared(observations: Observations, sides: Sides) -> OwnStudy:
    """Return both sides and their differences, with 95% intervals, and their curves."""
    from grok.analysis.figures.seeds import compare

    (a, b), names = sides.rows, sides.names
    step = int(min(rows["config.train.steps"].min() for rows in sides.rows))
    lines = [_generalised(observations, sides, step), *_times(observations, sides)]
    lines += [line for name in MEASURED for line in _measured(observations, sides, name, step)]
    columns = [DIFFERENCE, *names]
    frame = pd.DataFrame([[what, *shown] for what, shown, _ in lines], columns=["", *columns])
    numbers = [
        {"what": what, "of": column, "value": e.value, "low": e.low, "high": e.high, "runs": e.n}
        for what, _, estimates in lines
        for column, e in zip(columns, estimates, strict=True)
        if e is not None
    ]
    streams = ", ".join(column.removeprefix("seed_") for column in pairing(a, b))
    held = ", ".join(column.removeprefix("seed_") for column in held_fixed(pd.concat(sides.rows)))
    kind = f"the same seeds ({streams}) on both sides, compared in pairs"
    if not sides.paired:
        kind = f"two groups, not pairs (seeds on both sides: {sides.shared})"
    if held:
        kind += f"; all have one {held} seed, and another may give another difference"
    if sides.alone:
        kind += f"; {sides.alone:,} more are left out: of each seed one is drawn{', others lack a pair' * sides.paired}"
    if any(sides.failed):
        kind += "; {:,} of A and {:,} of B failed, maybe not by chance, and are left out".format(*sides.failed)
    words = " ".join(("compare", *names)).replace("<", " below ").replace(">", " above ")
    name = re.sub(r"\W+", "_", words)[:200]  # of files
    study = OwnStudy(
        name=name,
        title="Two sets of runs",
        question=f"How do A ({names[0]}) and B ({names[1]}) differ?",
        scope=f"Runs of A: {len(a):,}, of B: {len(b):,}; {kind}.",
        summary=_confounded(sides),
        missing=absent(observations.once(roles).missing_with(pd.concat(sides.rows).index)),
        tables=[Table("both", "Both sides and their differences or ratios, with 95% intervals", frame)],
        notes=_notes(observations, sides),
        files={f"{name}.csv": pd.DataFrame(numbers)},
    )
    times = [observations.times(rows) for rows in sides.rows]
    if any(t.seen.any() for t in times):
        caption = "Share of seeds that have generalised by each step, Kaplan-Meier with 95% bands."
        study.drawn = [compare(name, "Time to generalise", caption, list(zip(names, times, strict=True)))]
    return study


def page_of(observations: Observations, study: OwnStudy, store: Path) -> Report:
    """Return the content of the comparison's page: its first sentence is the first row of its table."""
    what, change, a, b = map(str, study.tables[0].frame.iloc[0])
    first, second = study.tables[0].frame.columns[2:]
    said = f"{what[0].upper()}{what[1:]}: {a} with {first}, {b} with {second}; B minus A {change}, "
    return Report(
        store.resolve().name,
        str(store),
        study.question,
        f"{said}with 95% intervals in brackets. {study.summary} {study.missing}".rstrip(),
        Fact("The whole store:", f"grok report {shlex.quote(str(store))} --open", is_command=True),
        heading(observations),
        provenance(observations),
        [study],
        [],
        run_labels(observations.all_runs),
    )


def _generalised(observations: Observations, sides: Sides, step: int) -> Line:
    a, b = (observations.times(rows).right <= step for rows in sides.rows)
    counts = (int(a.sum()), len(a), int(b.sum()), len(b))
    change = paired_difference(sum(a & ~b), sum(b & ~a), len(a)) if sides.paired else difference(*counts)
    three = [change]
    for hits, n, rows in zip(counts[::2], counts[1::2], sides.rows, strict=True):
        seeds = _independent(rows)
        three.append(share(hits, n) if 0 < hits < n else share(seeds * (hits > 0), seeds))  # these show no spread
    if shared_seeds(*sides.rows):
        means, ends = _means(sides, a.astype(float), b.astype(float)), (-1.0, 0.0, 0.0)
        three = [
            replace(e, low=max(end, min(e.low, mean.low)), high=min(1.0, max(e.high, mean.high)))
            for e, mean, end in zip(three, means, ends, strict=True)
        ]
    shown = [f"{hits} of {n}, {e.percent()}" for hits, n, e in zip(counts[::2], counts[1::2], three[1:], strict=True)]
    return f"generalised by step {step:,}", [three[0].percent(0).replace("%", " points"), *shown], three


def _independent(rows: pd.DataFrame) -> int:
    """Return the number of runs, or of the seeds that they share, of the stream with the fewest."""
    return min((len(set(of)) for of in shared_seeds(rows).values()), default=len(rows))


def _means(sides: Sides, a: NDArray[np.float64], b: NDArray[np.float64]) -> list[Estimate]:
    """Return the mean of ``b`` (n,) less that of ``a`` (m,), and both means, by the spread between shared seeds."""
    both = sides.rows[:1] if sides.paired else sides.rows[::-1]
    shared = [[*shared_seeds(*of).values()] for of in (both, sides.rows[:1], sides.rows[1:])]
    change = mean(b - a, shared=shared[0]) if sides.paired else mean(b, a, shared=shared[0])
    # one run has no spread to show
    each = (np.resize(x, max(2, len(x))) for x in (a, b))
    return [change, *(mean(x, shared=of) for x, of in zip(each, shared[1:], strict=True))]


def _times(observations: Observations, sides: Sides) -> list[Line]:
    """Return the medians, and the ratio of the geometric means of times up to a step: it is none of medians."""
    found: list[Estimate | None] = [None, None]
    for i, rows in enumerate(sides.rows):
        with suppress(NotEnoughData):
            found[i] = quantile(observations.times(rows))
    shown = [median.plain() if median else "not reached by half" for median in found]
    lines: list[Line] = [("median step of generalising", ["", *shown], [None, *found])]
    with suppress(NotEnoughData):
        if min(map(len, sides.rows)) < 2:
            return lines
        family = Family("runs", dict(zip(sides.names, sides.rows, strict=True)))
        between = contrast(observations, family, sides.names[1])
        if sides.by_results:
            between = replace(between, slowdown=None, bound=CHOSEN)
        what = f"geometric mean step of generalising, at most {between.horizon:,.0f}; B over A"
        lines.append((what, [slowdown_words(between), "", ""], [between.slowdown, None, None]))
    return lines


def _measured(observations: Observations, sides: Sides, name: str, step: int) -> list[Line]:
    """Return the means at the last step of all runs up to ``step``, if there is one; of losses geometric, and B / A."""
    at = last_common(observations, pd.concat(sides.rows), name, step)
    if min(map(len, sides.rows)) < 2:
        return []
    if at is None:
        return [(f"mean {name.replace('_', ' ')}", ["no common step with finite values", "", ""], [None] * 3)]
    last, values = at
    a, b = (floats(values[rows.index]) for rows in sides.rows)
    is_loss, what = name.endswith("loss"), f"mean {name.replace('_', ' ')} at step {last:,}"
    if is_loss:
        a, b, what = np.log(np.maximum(a, 1e-12)), np.log(np.maximum(b, 1e-12)), f"geometric {what}; B over A"
    change, *ours = _means(sides, a, b)
    top = 1.0 if name.endswith("acc") else math.inf  # an accuracy is at most 1, and a norm at least 0
    ours = [e if is_loss else replace(e, low=max(e.low, 0.0), high=min(e.high, top)) for e in ours]
    three = [exponential(e) if is_loss else e for e in (change, *ours)]
    shown = [_shown(e, is_loss) for e in three]
    return [(what, ["×" * is_loss + shown[0], *shown[1:]], three)]


def _shown(e: Estimate, is_geometric: bool) -> str:
    """Return a mean with the digits that its interval leaves; one over orders of magnitude has two in each number."""
    if is_geometric and e.high > MAGNITUDE * e.low:
        value, low, high = (f"{float(f'{x:.2g}'):,.12g}" for x in (e.value, e.low, e.high))
        return f"{value} ({low} to {high})"
    width = max(e.high - e.low, 1e-3 * abs(e.value), 1e-6)
    return e.plain(max(0, 1 - math.floor(math.log10(width))))


def _typed(sides: Sides) -> list[str]:
    return [
        re.split("[<>=]", word)[0].lower().replace("seed_", "seeds.")
        for words in sides.names
        for word in shlex.split(words)
    ]


def _confounded(sides: Sides) -> str:
    """Return what else differs, in no filter and not equal in each pair, and which seeds runs of a side share."""
    (a, b), typed, both = sides.rows, tuple(_typed(sides)), pd.concat(sides.rows)
    found = varying_columns(both)
    found += [c for c in SEEDS if min(a[c].nunique(), b[c].nunique()) == 1 < both[c].nunique()]
    names = [column.removeprefix("config.").replace("seed_", "seeds.") for column in found]
    names += [f"numerics ({listed(apart)})" for apart in [computed_apart(a, b)] if apart]
    names = [n for n in names if not any(x.startswith(typed) for x in (n, f"config.{n}", n.rpartition(".")[2]))]
    said = [f"{', '.join(names)}: more than one value, so the difference may come from that."] * bool(names)
    by = "intervals are by the spread between these seeds (not those of medians, which are too narrow)"
    said += [f"Runs share {listed(shared)} seeds: {by}."] if (shared := [*shared_seeds(a, b)]) else []
    return " ".join(said)


def _notes(observations: Observations, sides: Sides) -> list[str]:
    notes = [text] if (text := _confounded(sides)) else []
    if any(lost := [int((rows["status"] == "diverged").sum()) for rows in sides.rows]):
        notes.append(
            f"Diverged: {lost[0]:,} of A's runs, {lost[1]:,} of B's. Each mean is at the last step that all runs have."
        )
    if any(name.startswith(word) for word in _typed(sides) for name in RESULTS):
        notes.append("A filter is about results: the sides differ in them because they were chosen so.")
    if sides.by_results:
        notes.append("Some seeds were chosen or listed after results: the choice can make the two sides differ.")
    for name, rows in zip("AB", sides.rows, strict=True):
        if (done := int(rows["grokked_step"].notna().sum())) in (0, len(rows)):
            most = 100 * share(0, _independent(rows)).high
            notes.append(
                f"{'All' if done else 'None'} of {name}'s runs generalised ({len(rows):,}). Up to {most:.2g}% of all "
                "seeds may do otherwise: the intervals of its means hold without these."
            )
    others = [int((~rows.index.isin(observations.once(asked_before_and_after)[0])).sum()) for rows in sides.rows]
    if any(others):
        notes.append(
            f"{others[0]} runs of A and {others[1]} of B were not asked for before any result (children, "
            "repeats, unknown purpose): the difference holds for runs chosen like these, not for random seeds."
        )
    return notes


def parser() -> Parser:
    """Return the command's arguments."""
    made = Parser(
        prog="grok compare",
        usage="grok compare [--store STORE] [--out DIR] [STORE] A B",
        description="Two sets of runs side by side: shares, times, accuracy and loss with 95% intervals, and a page.",
        epilog="example: grok compare results/store weight_decay=0 weight_decay=1",
    )
    made.add_argument("words", nargs="+", metavar="[STORE] A B", help="two filters, as grok list takes them")
    made.add_argument("--store", dest="named_store", metavar="STORE", help="the same as the position STORE")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: STORE/report)")
    return made


@command()
def main(argv: list[str]) -> int:
    """Print the comparison, and write its table and figure."""
    arguments = parser().parse_intermixed_args(argv)
    *arguments.store, a, b = arguments.words if len(arguments.words) in (2, 3) else ("", "", "", "")
    if not a:
        raise ConfigError(f"{len(arguments.words)} words: expected two filters, such as class=early class=late")
    if not arguments.store and Layout(Path(a)).marker.exists():
        raise ConfigError(f"{a} is a store, and {b} the only filter: expected two, such as class=early class=late")
    arguments.store = next(iter(arguments.store), None)
    store = store_of(arguments)
    out = arguments.out or default_folder(store)
    refuse_unwritable("--out", out, folder=True)
    observations = Observations.read(store)
    study = compared(observations, Sides.of(observations, store, (a, b)))
    print(study_text(study))
    drawn = write_studies([study], out)
    for drawing in drawn[study.name]:
        print(f"figure: {out / FIGURES / drawing.name}.png, and its data beside it")
    print(f"numbers: {out / study.name}.csv")
    print(f"page: {write_page(page_of(observations, study, store), drawn, out, name=f'{study.name}.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
