"""Whatever commands filled a store, in any order, the report says what each run was for, or that it is unknown."""

import contextlib
import hashlib
import io
import itertools
import json
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import grok
from grok.analysis.observations import Observations
from grok.analysis.populations import populations
from grok.analysis.purposes import asked, places, roles
from grok.analysis.studies.branching import pairs
from grok.analysis.studies.crossed import EQUATIONS, FEWEST, largest_design
from grok.analysis.studies.layers import transplants
from grok.analysis.studies.repeats import repeats
from grok.arithmetic.outcome import event_times
from grok.commands.compose import arithmetic, compose
from grok.config import ArithmeticConfig, identify
from grok.execute import execute
from grok.execute.retry import Totals
from grok.execute.sweep import Sweep
from grok.records import RunResult
from grok.store import DamagedShardWarning, Row, open_store
from grok.store.designs import TRAINED
from grok.streams import Stream
from grok.sweeps import branch, layers, repeat
from grok.sweeps.choosing import redrawn_seeds
from grok.sweeps.search.__main__ import main as search
from tests.analysis.simulate import MACHINE, NUMERICS, Truth, curve

STEPS, LONGER, EVERY, AT = 3000, 6000, 500, 1500
STREAMS = ("split", "init", "order")

Place = tuple[int, int, int, str]
"""The seeds of split, init and order, and the layers' seeds: what a run of the one condition here is made of."""


def place_of(config: ArithmeticConfig) -> Place:
    seeds = config.stream_seeds()
    return seeds.split, seeds.init, seeds.order, json.dumps(config.seeds.layers, sort_keys=True)


def time_of(config: ArithmeticConfig) -> float:
    """Return a run's time to generalise (steps): a function of its seeds, shared by runs that share them."""

    def effect(*address: object) -> float:
        digest = hashlib.sha256(repr(address).encode()).digest()
        return float(np.sqrt(3) * (int.from_bytes(digest[:6], "little") / 2**47 - 1))  # uniform, variance 1

    split, init, order, exchanged = place_of(config)
    log = np.log(5000) + 0.3 * (effect("init", init) + effect("order", order)) + 0.3 * effect(split, init, order)
    log += 0.02 * effect(exchanged, config.perturb.ulps and config.stream_seeds().perturb)
    return float(np.exp(log))


def row_of(run: Any) -> Row:
    """Return what training the planned ``run`` would store."""
    config: ArithmeticConfig = run.config
    points = curve(Truth({}, time_of(config)), list(range(0, config.train.steps + 1, config.eval.every)))
    result = RunResult(
        run_id=run.run_id,
        status="completed",
        stop_reason="steps",
        steps=config.train.steps,
        weights_hash=f"{run.identity.trajectory_id}{config.train.steps}",
        seconds=0.0,
        numerics=NUMERICS,
        started_at=time.time(),
        curve=points,
    )
    for name, step in event_times(points).items():
        setattr(result, name, step)
    return Row(result, config, run.identity, MACHINE)


def train_simulated(sweep: Sweep) -> Totals:
    """Stand in for ``Sweep.train``: store what training would."""
    sweep.writer.commit([row_of(run) for run in sweep.plan.to_train])
    totals = Totals()
    totals.finished.update({run.run_id: 1.0 for run in sweep.plan.to_train})  # type: ignore[misc]
    return totals


@dataclass
class Asked:
    """What was asked for at one place before any result."""

    seeds: list[tuple[int, int]] = field(default_factory=list)
    """For each claim: the number of typed streams, and the master seed."""
    lengths: list[int] = field(default_factory=list)
    """Lengths that were asked for when no result of the place was stored."""


class History:
    """A store, the commands that filled it, and the truth."""

    def __init__(self, store: Path, rng: np.random.Generator) -> None:
        self.store, self.rng = str(store), rng
        self.how = [f"train.steps={STEPS}", f"eval.every={EVERY}", f"store.path={store}"]
        self.base = compose(self.how)
        self.stored: dict[str, ArithmeticConfig] = {}
        self.asked: dict[Place, Asked] = defaultdict(Asked)
        self.census: set[Place] = set()
        self.children: set[tuple[str, Place, frozenset[str], str]] = set()
        """(child, parent's place, redrawn streams, how the parent was chosen: best, drawn or named)."""
        self.repeats: set[tuple[str, Place, frozenset[str]]] = set()
        self.recipients: set[tuple[str, Place, frozenset[str]]] = set()
        """Recipients of layers with nothing exchanged, moved by an ulp: repeats once their own run is asked for."""
        self.cells: set[str] = set()
        self.transplants: set[tuple[int, int, str]] = set()
        """(recipient's and donor's master seeds, run)."""
        self.trials: set[str] = set()
        self.unstated: set[str] = set()
        self.stated: set[str] = set()
        self.words: list[str] = []

    def config(self, **settings: Any) -> ArithmeticConfig:
        return arithmetic(self.base, **settings)

    def run_id(self, config: ArithmeticConfig) -> str:
        return identify(config).run_id

    def final(self, config: ArithmeticConfig) -> tuple[float, float]:
        """Return the run's first evaluation as generalised (infinite: none), and minus its last accuracy."""
        points = curve(Truth({}, time_of(config)), list(range(0, config.train.steps + 1, EVERY)))
        step = event_times(points)["grokked_step"]
        return (np.inf if step is None else float(step)), -points[-1].val_acc

    def results_at(self, place: Place) -> bool:
        return any(place_of(c) == place and not c.perturb.ulps for c in self.stored.values())

    def give(self, words: Sequence[str], configs: Sequence[ArithmeticConfig], command: Callable[[], object]) -> None:
        """Give a command that trains ``configs``."""
        self.words.append(" ".join(words))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = command()
        assert not isinstance(status, int) or status == 0, self.words
        self.stored |= {self.run_id(config): config for config in configs}

    def claim(self, configs: Sequence[ArithmeticConfig], typed: int) -> None:
        """Write down that a plain command asks for these runs."""
        seen = {place: self.results_at(place) for place in map(place_of, configs)}
        for config in configs:
            here = self.asked[place_of(config)]
            here.seeds.append((typed, config.seed))
            if not seen[place_of(config)]:
                here.lengths.append(config.train.steps)
            self.stated.add(self.run_id(config))
        if not typed:
            self.census |= {place_of(config) for config in configs}

    def sweep(self, seeds: Sequence[int], steps: int = STEPS) -> None:
        configs = [self.config(seed=int(s), train__steps=steps) for s in seeds]
        words = [f"seed={','.join(map(str, seeds))}", *self.how, f"train.steps={steps}"]
        self.claim(configs, 0)
        if self.rng.random() < 0.5:
            self.give(words, configs, lambda: grok.run.main(["-m", *words]))  # type: ignore[attr-defined]
        else:
            values = {"train__steps": steps, "eval__every": EVERY, "store": self.store}
            self.give(words, configs, lambda: grok.sweep(seed=[int(s) for s in seeds], **values))

    def random_sweep(self) -> None:
        first, n = int(self.rng.integers(0, 30)), int(self.rng.integers(4, 12))
        self.sweep(range(first, first + n))

    def scan(self) -> None:
        seed, first = int(self.rng.integers(100, 103)), int(self.rng.integers(0, 20))
        configs = [self.config(seed=seed, seeds__init=i) for i in range(first, first + 6)]
        words = [f"seed={seed}", f"seeds.init=range({first},{first + 6})", *self.how]
        self.claim(configs, 1)
        self.give(words, configs, lambda: grok.run.main(["-m", *words]))  # type: ignore[attr-defined]

    def best(self, n: int, steps: int = STEPS) -> list[ArithmeticConfig]:
        """Return the best runs of the census so far."""
        runs = [c for c in self.stored.values() if place_of(c) in self.census and not c.perturb.ulps]
        runs = [c for c in runs if c.train.steps == steps]
        return sorted(runs, key=lambda c: (*self.final(c), self.run_id(c)))[:n]

    def retype_the_best(self) -> None:
        """Type the streams of good seeds again, under another master seed and with more steps."""
        for k, chosen in enumerate(self.best(2)):
            given = {f"seeds.{s}": seed for s, seed in zip(STREAMS, place_of(chosen), strict=False)}
            values = {name.replace(".", "__"): seed for name, seed in given.items()}
            config = self.config(seed=900 + k, train__steps=LONGER, **values)
            words = [f"seed={900 + k}", *(f"{n}={v}" for n, v in given.items()), *self.how, f"train.steps={LONGER}"]
            self.claim([config], 3)
            self.give(words, [config], lambda words=words: grok.run.main(words))  # type: ignore[misc,attr-defined]

    def lengthen_the_best(self) -> None:
        chosen = [c.seed for c in self.best(3) if not any(getattr(c.seeds, s) is not None for s in STREAMS)]
        if chosen:
            self.sweep(sorted(chosen), LONGER)

    def branch_among(self) -> None:
        seeds = sorted(c.seed for c in self.best(1000) if not any(getattr(c.seeds, s) is not None for s in STREAMS))
        runs = [s for s in range(min(seeds, default=0), max(seeds, default=-1) + 1) if s in seeds]
        while runs and runs != list(range(runs[0], runs[0] + len(runs))):
            runs.pop()
        if len(runs) < 4:
            return
        candidates = [self.config(seed=s) for s in runs]
        ranked = sorted(candidates, key=lambda c: (curve(Truth({}, time_of(c)), [AT])[0].val_loss, c.seed))
        n = int(self.rng.integers(0, 3))
        drawn = int(self.rng.integers(0 if n else 1, 3))
        options = ["--seeds", f"{runs[0]}:{runs[-1] + 1}", "--best", str(n), "--random", str(drawn), "--at", str(AT)]
        best = {place_of(c) for c in ranked[:n]}
        self._branch(options, candidates, lambda place: "best" if place in best else "drawn")

    def branch_named(self) -> None:
        """Branch from runs by name: random seeds, or children of others."""
        children = [self.stored[run] for run, *_ in self.children if run in self.stored]
        pool = [*self.best(2), *sorted(children, key=lambda c: (*self.final(c), self.run_id(c)))[:2]]
        parents = {self.run_id(c): c for c in pool if self.rng.random() < 0.6}
        if parents:
            self._branch(["--parents", ",".join(parents)], list(parents.values()), lambda place: "named")

    def _branch(
        self, options: list[str], candidates: Sequence[ArithmeticConfig], choice: Callable[[Place], str]
    ) -> None:
        redraw = str(self.rng.choice(["order", "split,init", "init+order", "order,split+init"]))
        argv = ["--store", self.store, *options, "--redraw", redraw, "--times", "2", *self.how[:2]]
        with contextlib.redirect_stdout(io.StringIO()):
            planned = branch.planned(argv)
        by_id = {self.run_id(config): config for config in planned}
        found = set()
        for parent in candidates:
            for words in redraw.split(","):
                for count in range(2):
                    trajectory = identify(parent).trajectory_id
                    new = redrawn_seeds(trajectory, words, count)
                    seeds = dict(zip(STREAMS, place_of(parent), strict=False)) | new
                    child = self.config(**{f"seeds__{s}": seed for s, seed in seeds.items()}, seed=parent.seed)
                    if (run := self.run_id(child)) in by_id:
                        found.add(run)
                        at = place_of(parent)
                        self.children.add((run, at, frozenset(words.split("+")), choice(at)))
                        if "+" not in words:  # it says, too, whether the kept streams make the parent what it is
                            self.repeats.add((run, at, frozenset({words})))
        assert found == by_id.keys(), "each planned child follows from a parent"
        self.stated |= found
        self._carry_out("branch", argv, list(planned), planned, branch.main)

    def repeat_some(self) -> None:
        pool = self.best(1000)
        if len(pool) < 6:
            return
        kind = str(self.rng.choice(["ulp", "order", "ulp,init"]))
        best = self.best(2)
        names = ",".join(self.run_id(c) for c in best)
        chosen = ["--seeds", names] if self.rng.random() < 0.5 else ["--best", "2"]
        argv = ["--store", self.store, *chosen, "--controls", "1", "--kinds", kind, "--times", "2", *self.how[:2]]
        with contextlib.redirect_stdout(io.StringIO()):
            planned = repeat.planned(argv)
        configs = [config for config in planned if isinstance(config, ArithmeticConfig)]
        owns = {place_of(c) for c in self.stored.values() if not c.perturb.ulps}
        redrawn = {self._with_redrawn(own, s, n): (own, s) for own in owns for s in STREAMS for n in range(2)}
        for config in configs:
            here = place_of(config)
            own, *streams = (here,) if config.perturb.ulps else redrawn[here]
            self.repeats.add((self.run_id(config), own, frozenset(streams)))
            self.stated |= {run for run, c in self.stored.items() if place_of(c) == own}  # a candidate or a control
        self.stated |= {self.run_id(config) for config in configs}
        self._carry_out("repeat", argv, configs, planned, repeat.main)

    def _with_redrawn(self, place: Place, stream: str, count: int) -> Place:
        """Return the place of repeat number ``count`` with a redrawn ``stream``."""
        seeds = dict(zip(STREAMS, place, strict=False))
        trajectory = identify(self.config(**{f"seeds__{s}": seed for s, seed in seeds.items()})).trajectory_id
        fresh = Stream("sweep", int(trajectory[:15], 16)).at("repeat", stream, count)
        seeds[stream] = int(fresh.at(stream).integers(1, 2**31)[0])
        return seeds["split"], seeds["init"], seeds["order"], place[3]

    def exchange_layers(self) -> None:
        recipient, donor = (int(seed) for seed in self.rng.choice(12, 2, replace=False))
        argv = ["--recipient", str(recipient), "--donor", str(donor), "--factors", "in=token_embedding;out=head"]
        argv += ["--replicates", "1", *self.how]
        with contextlib.redirect_stdout(io.StringIO()):
            planned = layers.planned(argv)
        self.transplants |= {(recipient, donor, self.run_id(config)) for config in planned}
        own = place_of(self.config(seed=recipient))
        moved = {(self.run_id(c), own, frozenset[str]()) for c in planned if not c.seeds.layers}
        (self.repeats if self.results_at(own) else self.recipients).update(moved)
        self.stated |= {self.run_id(config) for config in planned}
        self._carry_out("layers", argv, list(planned), planned, layers.main)

    def cross(self) -> None:
        first = int(self.rng.integers(0, 3))
        levels = [list(range(first, first + 2))] * 3
        configs = [self.config(seeds__split=a, seeds__init=b, seeds__order=c) for a, b, c in itertools.product(*levels)]
        words = [*(f"seeds.{s}={first},{first + 1}" for s in STREAMS), *self.how]
        self.claim(configs, 3)
        self.cells |= {self.run_id(config) for config in configs}
        self.give(words, configs, lambda: grok.run.main(["-m", *words]))  # type: ignore[attr-defined]

    def without_a_word(self) -> None:
        """Plan from Python and say nothing."""
        first = int(self.rng.integers(200, 206))
        configs = [self.config(seed=seed) for seed in range(first, first + 3)]
        self.unstated |= {self.run_id(config) for config in configs}
        self.give(["execute"], configs, lambda: execute(configs).exit_status)

    def search_settings(self) -> None:
        """Search over settings of another task: all that it trains are trials."""
        words = ["study=quickstart", "study.trials=2", "study.seeds=2", f"study.first_seed={500 + 2 * len(self.words)}"]
        words += [f"study.name=s{len(self.words)}", "study.objective=val_loss", *self.how]
        before = open_store(self.store).run_ids()
        self.give(words, [], lambda: search(words))
        self.trials |= open_store(self.store).run_ids() - before

    def _carry_out(
        self, name: str, argv: list[str], configs: Sequence[ArithmeticConfig], planned: Any, main: Callable[..., int]
    ) -> None:
        if self.rng.random() < 0.5:
            self.give([name, *argv], configs, lambda: main(argv))
        else:
            self.give(["python", name, *argv], configs, lambda: execute(planned).exit_status)

    def commands(self) -> list[Callable[[], None]]:
        plain = [
            self.random_sweep,
            self.scan,
            self.cross,
            self.exchange_layers,
            self.without_a_word,
            self.search_settings,
        ]
        chosen = [self.branch_among, self.branch_named, self.repeat_some, self.retype_the_best, self.lengthen_the_best]
        return [*plain, *chosen, self.branch_among, self.branch_named]

    def go_on(self, n: int) -> None:
        """Give ``n`` random commands, the first of them a sweep."""
        self.random_sweep()
        for _ in range(n):
            every = self.commands()
            every[int(self.rng.integers(len(every)))]()

    # What the report says, in the terms of the truth.

    def truth(self) -> dict[str, Any]:
        """Return every class of every run."""
        expected = {p: a for p, a in self.asked.items() if a.lengths}
        children_places = {place_of(self.stored[run]) for run, *_ in self.children}
        kinds = {"best": "best", "drawn": "random"}
        return {
            "asked": {p: min(a.seeds)[1] for p, a in expected.items()},
            "horizon": {p: max(a.lengths) for p, a in expected.items()},
            "children": {
                (place_of(self.stored[run]), parent, redrawn, kinds.get(choice) or self._named(parent, children_places))
                for run, parent, redrawn, choice in self.children
            },
            "repeats": self.repeats | {one for one in self.recipients if one[1] in expected},
            "cells": set(self.cells),
            "transplants": set(self.transplants),
            "trials": self.trials,
            "unknown": set(),
            "unstated": self.unstated - self.stated,
        }

    def _named(self, place: Place, children: set[Place]) -> str:
        if self.asked[place].lengths and place in self.census:
            return "picked"
        return "descended" if place in children else "named"


def said(store: str) -> dict[str, Any]:
    """Return every class that the report's studies are made of."""
    observations = Observations.read(store)
    runs = observations.observed
    found, number = observations.once(roles), observations.once(places)

    def at(run: str) -> Place:
        row = runs.loc[run]
        return (
            int(row["seed_split"]),
            int(row["seed_init"]),
            int(row["seed_order"]),
            json.dumps(json.loads(row["layers"])),
        )

    conditions = EQUATIONS.conditions(EQUATIONS.rows(observations))
    crossings = [largest_design(condition.rows, EQUATIONS).rows for condition in conditions]
    rows = observations.once(asked)
    related = observations.once(pairs)
    again = observations.once(repeats)
    again = again[
        again["own"].notna() & (again["kind"] == "ulp") | again["own"].notna() & (again["fixed"].map(len) == 2)
    ]
    kept = populations(observations)
    return {
        "asked": {at(run): int(row["seed"]) for run, row in rows.iterrows()},
        "horizon": {at(run): int(row["config.train.steps"]) for run, row in rows.iterrows()},
        "children": {
            (at(child), at(parent), frozenset(redrawn), kind)
            for child, parent, redrawn, kind in related[["child", "parent", "redrawn", "kind"]].itertuples(index=False)
        },
        "repeats": {
            (run, at(own), frozenset(STREAMS) - set(fixed))
            for run, own, fixed in again[["run", "own", "fixed"]].itertuples(index=False)
        },
        "cells": set(found.of("cell", kinds=("crossed",))["run_id"]),
        "transplants": {
            (unit["recipient"], unit["donor"], run)
            for run, unit in found.of("cell", kinds=("layers",))[["run_id", "unit"]].itertuples(index=False)
        },
        "trials": set(found.of("trial")["run_id"]),
        "unknown": found.unknown(),
        "unstated": found.unstated(),
        "populations": [{at(run) for run in population.rows.index} for population in kept.every],
        "crossed": [set(rows.index) for rows in crossings if len(rows) >= FEWEST],
        "exchanged": [set(one.rows.index) for one in transplants(observations)],
        "places": {run: at(run) for run in number.index},
    }


def shards(store: str) -> Iterator[tuple[Path, set[str]]]:
    """Yield the shards of ``designs/`` with the runs that each says it trains."""
    for path in sorted((Path(store) / "designs").iterdir()):
        rows = pq.read_table(path, columns=["run_id", "role"]).to_pylist()
        yield path, {row["run_id"] for row in rows if row["role"] in TRAINED}


FEW, MANY = 1, 100


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "train", train_simulated)


def differences(truth: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Return what the report says otherwise than the truth, by class."""
    unequal = {}
    for name in ("asked", "children", "repeats", "cells", "transplants", "trials", "unknown", "unstated"):
        if truth[name] != report[name]:
            mine, theirs = (set(x.items()) if isinstance(x, dict) else set(x) for x in (truth[name], report[name]))
            unequal[name] = {"missing": mine - theirs, "wrong": theirs - mine}
    longer = {p: n for p, n in report["horizon"].items() if n > truth["horizon"].get(p, 0)}
    return unequal | ({"horizon": longer} if longer else {})


def check_whole(folder: Path, number: int) -> None:
    history = History(folder / "S", np.random.default_rng(number))
    history.go_on(7)
    report = said(history.store)
    found = differences(history.truth(), report)
    assert not found, "\n".join([*history.words, str(found)])
    asked = set(report["asked"])
    assert all(members <= asked for members in report["populations"])
    assert all(rows <= history.cells for rows in report["crossed"])
    exchanged = {run for *_, run in history.transplants}
    exchanged |= {
        run for run, _, redrawn in report["repeats"] if not redrawn
    }  # of the recipient, with nothing exchanged
    assert all(rows <= exchanged for rows in report["exchanged"])


def check_damaged(folder: Path, number: int) -> None:
    rng = np.random.default_rng(10_000 + number)
    history = History(folder / "S", rng)
    history.go_on(7)
    truth, lost = history.truth(), set()
    kept: set[str] = set()
    for path, runs in list(shards(history.store)):
        if rng.random() < 0.4:
            lost |= runs
            if rng.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[: int(rng.integers(1, path.stat().st_size))])
        else:
            kept |= runs
    with warnings.catch_warnings():  # a damaged shard is warned of; nobody can know of a removed one
        warnings.simplefilter("ignore", DamagedShardWarning)
        report = said(history.store)
    assert report["unknown"] == (lost - kept) & report["places"].keys(), history.words
    assert report["unstated"] <= truth["unstated"] | lost
    children = {(child, parent, redrawn) for child, parent, redrawn, _ in truth["children"]}
    unexplained = {one[:3] for one in report["children"] if one[3] == "unknown"}  # nobody knows what the parent was
    assert unexplained <= children, history.words
    report["children"] = {one for one in report["children"] if one[3] != "unknown"}
    for name in ("children", "repeats", "cells", "transplants", "trials"):
        wrong = set(report[name]) - set(truth[name])
        assert not wrong, f"{history.words} {name} {wrong}"
    assert set(report["asked"]) <= set(truth["asked"])
    assert all(n <= truth["horizon"][p] for p, n in report["horizon"].items())
    assert all(members <= set(truth["asked"]) for members in report["populations"])


@pytest.mark.parametrize("number", range(FEW))
def test_a_whole_history(tmp_path: Path, number: int) -> None:
    check_whole(tmp_path, number)


def test_records_of_commands_decide_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "S", np.random.default_rng(0))
    history.sweep(range(12))
    for options in (["--best", "2", "--random", "0"], ["--best", "0", "--random", "2"]):
        argv = ["--store", history.store, *options, "--at", "1500", "--redraw", "order", "--times", "2"]
        assert branch.main([*argv, *history.how[:2]]) == 0
    whole = said(history.store)["children"]
    assert Counter(kind for *_, kind in whole) == {"best": 4, "random": 4}
    first, second, *others = sorted((tmp_path / "S" / "sweeps").iterdir())
    first.write_text(first.read_text()[:40])
    second.unlink()
    for record in others:
        record.write_text(record.read_text().replace("grok.sweeps.branch", "grok branch"))
    with pytest.warns(DamagedShardWarning):
        assert said(history.store)["children"] == whole


@pytest.mark.parametrize("number", range(FEW))
def test_a_damaged_history(tmp_path: Path, number: int) -> None:
    check_damaged(tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(FEW, MANY))
def test_more_histories(tmp_path: Path, number: int) -> None:
    check_whole(tmp_path / "whole", number)
    check_damaged(tmp_path / "damaged", number)
