"""Random histories of a store: every class that the report prints is the one that the history gave."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from analysis.observations import Observations
from analysis.populations import populations
from analysis.purposes import STREAMS, roles
from analysis.studies.branching import pairs
from analysis.studies.repeats import repeats
from grok.store.designs import Purpose
from grok.streams import derive_seed
from tests.analysis.simulate import Planned, Truth, branch, repeat, run_ids, simulate, sweep

SHORT, LONG = 1000, 3000


@dataclass
class History:
    """What was planned, and what every run therefore is."""

    rng: np.random.Generator
    truths: list[Truth] = field(default_factory=list)
    designs: list[Planned] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)
    """Steps of each seed of the census, by the design that asked for it before any result."""
    first: dict[int, int] = field(default_factory=dict)
    """The number of that design, by seed."""
    children: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    """Children, each with the number of its design, by kind of parent."""
    repeats: set[tuple[str, int]] = field(default_factory=set)
    known: dict[str, int] = field(default_factory=dict)
    """The number of each design."""

    def run(self, seed: int, steps: int = SHORT, **streams: int) -> Truth:
        """Return the run of these seeds, as it was planned before if it was."""
        given = {"seed": seed, "train.steps": steps, "eval.every": 500, **{f"seeds.{s}": v for s, v in streams.items()}}
        known = next((t for t in self.truths if t.overrides == given), None)
        if known is None:
            known = Truth(given, float(np.exp(self.rng.normal(8, 0.6))))
            self.truths.append(known)
        return known

    def plan(self, design: Planned) -> int:
        """Take one more design, unless the same was planned before; return its number."""
        rows = [(t if isinstance(t, str) else str(t.overrides), purpose) for t, purpose in design.rows]
        same = str((design.kind.replace("extend", "sweep"), sorted(map(str, rows))))
        if same not in self.known:
            self.known[same] = len(self.designs)
            self.designs.append(design)
        return self.known[same]

    def census(self) -> None:
        """A sweep over seeds, some of which may be stored already."""
        start = int(self.rng.integers(0, 20))
        seeds, steps = range(start, start + int(self.rng.integers(6, 12))), int(self.rng.choice([SHORT, LONG]))
        number = self.plan(sweep([self.run(seed, steps) for seed in seeds]))
        if set(self.asked) <= set(seeds):
            self.asked = {seed: max(steps, known) for seed, known in self.asked.items()}
        for seed in set(seeds) - set(self.asked):
            self.asked[seed], self.first[seed] = steps, number

    def extension(self) -> None:
        """Some seeds are gone on with, because of their results or in a list."""
        some = self.rng.permutation(sorted(self.asked))[: max(1, len(self.asked) // 2)].tolist()
        choice = str(self.rng.choice(["best", "named", "given"]))
        self.plan(sweep([self.run(seed, LONG) for seed in some], "extend", choice))
        if set(some) == set(self.asked) and choice == "given":
            self.asked = dict.fromkeys(self.asked, LONG)

    def retyped(self) -> None:
        """The streams of some seeds of the census, typed one by one under another master seed."""
        some = self.rng.permutation(sorted(self.asked))[:3].tolist()
        typed = [{stream: derive_seed(seed, stream) for stream in STREAMS} for seed in some]
        steps = int(self.rng.choice([SHORT, LONG]))
        runs = [self.run(900 + seed, steps, **streams) for seed, streams in zip(some, typed, strict=True)]
        self.plan(sweep(runs))

    def branches(self) -> None:
        """Children of parents that were chosen in one of three ways; of a child's child, too."""
        choice = str(self.rng.choice(["best", "drawn", "named"]))
        (seed,) = self.rng.permutation(sorted(self.asked))[:1].tolist()
        parent, stream = self.run(seed, self.asked[seed]), str(self.rng.choice(STREAMS))
        kind = {"best": "best", "drawn": "random", "named": "picked"}[choice]
        count = self.rng.integers(2, 5)
        children = [self.run(seed, SHORT, **{stream: 10**6 + 100 * seed + k}) for k in range(count)]
        number = self.plan(branch({self.truths.index(parent): children}, self.truths, choice))
        self.children[kind] |= {(run, number) for run in run_ids(children)}
        if self.rng.random() < 0.4:
            (line,), other = run_ids([parent]), STREAMS[STREAMS.index(stream) - 1]
            second = [
                self.run(seed, SHORT, **{stream: 10**6 + 100 * seed, other: 10**7 + 100 * seed + k}) for k in range(3)
            ]
            lines = dict.fromkeys(run_ids(children[:1]), line)
            own = {self.truths.index(children[0]): second}
            number = self.plan(branch(own, self.truths, "named", lines))
            self.children["descended"] |= {(run, number) for run in run_ids(second)}

    def repeated(self) -> None:
        """Repeats of one seed with weights moved by a unit in the last place."""
        (seed,) = self.rng.permutation(sorted(self.asked))[:1].tolist()
        own = self.run(seed, self.asked[seed])
        again = [Truth({**own.overrides, "perturb.ulps": 1, "seeds.perturb": k}, own.time) for k in range(3)]
        known = {str(t.overrides): t for t in self.truths}
        again = [known.get(str(t.overrides), t) for t in again]
        self.truths += [t for t in again if str(t.overrides) not in known]
        number = self.plan(repeat(own, again, "ulp", str(self.rng.choice(["best", "drawn"]))))
        self.repeats |= {(run, number) for run in run_ids(again)}

    def searched(self) -> None:
        """Trials of a search."""
        trials = [self.run(seed, SHORT) for seed in range(40, 43)]
        rows = [(t, Purpose(role="trial", unit={"trial": 0, "seed": t.overrides["seed"]})) for t in trials]
        self.plan(Planned("search", rows))  # type: ignore[arg-type]


def history(seed: int) -> History:
    """Return a random history of three to eight designs after a first census."""
    made = History(np.random.default_rng(seed))
    made.census()
    events = [made.census, made.extension, made.retyped, made.branches, made.repeated, made.searched]
    for event in made.rng.choice(len(events), int(made.rng.integers(3, 8))):
        events[event]()
    return made


def check(made: History, lost: set[int]) -> None:
    """Compare what the report reads with the history; the rows of the designs ``lost`` are not there."""
    whole = simulate(made.truths, *made.designs)
    numbers = {design: n for n, design in enumerate(dict.fromkeys(whole.designs["design_id"]))}
    assert len(numbers) == len(made.designs)
    kept = ~whole.designs["design_id"].map(numbers).isin(lost)
    left = Observations(whole.all_runs, whole.curves, designs=whole.designs[kept])
    rows = whole.designs[kept]
    assert left.once(roles).unknown() == set(whole.all_runs["run_id"]) - set(rows["run_id"])
    found = pairs(left).groupby("kind")["child"].apply(set).to_dict() if len(pairs(left)) else {}
    if not lost:
        assert found == {kind: {run for run, _ in children} for kind, children in made.children.items()}
        (p,) = (p for p in populations(left).every if p.varies == STREAMS)
        assert p.rows.set_index("seed")["config.train.steps"].to_dict() == made.asked
        assert set(repeats(left)["run"][lambda run: run.isin([r for r, _ in made.repeats])]) == {
            run for run, _ in made.repeats
        }
        return
    for kind in ("best", "random", "descended"):
        assert found.get(kind, set()) <= {run for run, _ in made.children[kind]}
        claimed = {run for run, number in made.children[kind] if number not in lost}
        assert kind == "descended" or found.get(kind, set()) == claimed
    seeds = {seed for seed, number in made.first.items() if number not in lost}
    every = [p for p in populations(left).every if p.varies == STREAMS]
    assert {int(seed) for p in every for seed in p.seeds} == seeds


@pytest.mark.parametrize("seed", range(8))
def test_every_class_is_that_of_the_history(seed: int) -> None:
    check(history(seed), set())


@pytest.mark.parametrize("seed", range(4))
def test_lost_designs_leave_their_runs_unknown_and_no_other(seed: int) -> None:
    made = history(100 + seed)
    check(made, {int(made.rng.integers(len(made.designs)))})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_histories(seed: int) -> None:
    made = history(1000 + seed)
    lost = set(made.rng.permutation(len(made.designs))[:2].tolist()) if seed % 2 else set()
    check(made, lost)
