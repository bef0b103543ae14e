"""Simulated stores with a known truth, written by the store's own code, and questions asked of them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from grok.analysis.figures import drawings
from grok.analysis.observations import CONDITION_SETTINGS, Observations
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.studies import QUESTIONS, Missing
from grok.analysis.studies.base import Question
from grok.arithmetic.outcome import event_times
from grok.config import Identity, RunConfig, flatten, identify, load_config
from grok.records import CurvePoint, RunResult
from grok.store import Provenance, Row, StoreWriter
from grok.store.designs import Design, Purpose, Purposes
from grok.store.reader import to_pandas
from grok.store.rows import to_shard
from grok.store.schema import schema

NUMERICS = "cpu/plain/float32/1 thread/torch 2.13.0"
MACHINE = Provenance(
    git_commit="0" * 40,
    git_dirty=False,
    host="simulated",
    grok_version="0",
    torch_version="2.13.0",
    python_version="3.11",
    numpy_version="2.4",
)


@dataclass
class Truth:
    """One simulated run: its overrides, its true time to generalise (steps) and its regime."""

    overrides: dict[str, Any]
    time: float
    fast: bool = False
    status: str = "completed"
    numerics: str = NUMERICS


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted overrides into the nested mapping that ``load_config`` takes."""
    root: dict[str, Any] = {}
    for name, value in dotted.items():
        if isinstance(value, dict):
            root.setdefault(name.split(".")[0], {})[name.split(".")[1]] = value
            continue
        here = root
        *parents, last = name.split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value
    return root


CONFIGS: dict[str, tuple[RunConfig, Identity]] = {}


def identified(truth: Truth) -> tuple[RunConfig, Identity]:
    """Return the settings and names of a simulated run: the same objects for the same overrides."""
    key = repr(truth.overrides)
    if key not in CONFIGS:
        config = load_config(nested(truth.overrides))
        CONFIGS[key] = config, identify(config)
    return CONFIGS[key]


def curve(truth: Truth, steps: Sequence[int]) -> list[CurvePoint]:
    """Return the evaluations of one run at ``steps``; validation accuracy is 0.95 at the run's time."""
    s, t = np.asarray(steps, dtype=float), truth.time
    acc = 1 / (1 + np.maximum(s / t, 1e-3) ** (-1 / 0.08) / 19)
    if truth.fast:
        loss = np.where(s < t, 5.4 - 0.3 * s / t, 0.02)
        norm = np.where(s < 1.3 * t, 40 + 25 * np.minimum(1, s / t), 65 - 20 * np.minimum(1, (s - 1.3 * t) / t))
    else:
        peak = 0.35 * t
        loss = np.where(s < peak, 5.4 + 7 * s / peak, np.maximum(0.02, 12.4 * (1 - (s - peak) / (t * 0.7))))
        norm = np.where(s < 0.5 * t, 40 + 28 * np.minimum(1, s / (0.4 * t)), 68 - 30 * np.minimum(1, (s - 0.5 * t) / t))
    train = 5.4 * np.exp(-s / 120)
    return [
        CurvePoint(
            step=int(k),
            train_loss=float(train[i]) if k else float("nan"),
            train_acc=float(1 - np.exp(-k / 120)) if k else float("nan"),
            val_loss=float(loss[i]),
            val_acc=float(acc[i]),
            weight_norm=float(norm[i]),
            weight_norm_all=float(norm[i] + 20),
            lr=1e-3,
            block_norms={
                "blocks.0": float(norm[i] * 0.7),
                "blocks.1": float(norm[i] * 0.6),
                "head": float(norm[i] * 0.4),
            },
        )
        for i, k in enumerate(steps)
    ]


def row(truth: Truth) -> Row:
    """Return the store's row of one simulated run."""
    config, identity = identified(truth)
    budget, every = config.train.steps, config.eval.every  # type: ignore[attr-defined]
    points = curve(truth, sorted({*range(0, budget + 1, every), budget}))
    if config.train.stop_when_generalised:  # type: ignore[attr-defined]
        seen = [p.step for p in points if p.val_acc >= 0.95][:2]  # two evaluations in a row, not before the horizon
        points = [p for p in points if len(seen) < 2 or p.step <= max(3000, seen[1])]
    if truth.status == "diverged":
        points = points[: len(points) // 2 + 1]
        points[-1].val_loss = points[-1].val_acc = float("nan")
    result = RunResult(
        run_id=identity.run_id,
        status=truth.status,
        stop_reason="steps" if truth.status == "completed" else "not_finite",
        steps=points[-1].step,
        weights_hash=f"{identity.trajectory_id}{truth.numerics}",
        seconds=budget * 0.02,
        numerics=truth.numerics,
        started_at=1.9e9,  # after every plan
        curve=points,
    )
    for name, step in (event_times(points) if truth.status == "completed" else {}).items():
        setattr(result, name, step)
    return Row(result, config, identity, MACHINE)


def language_row(settings: dict[str, Any], curve: list[CurvePoint], data: str = "d" * 20, **of: Any) -> Row:
    """Return the store's row of a finished language model; ``of``: more of its result."""
    config = load_config({"mode": "gpt", **settings})
    identity = identify(config, data)
    steps = config.train.steps  # type: ignore[attr-defined]
    ended = {"run_id": identity.run_id, "status": "completed", "stop_reason": "steps", "steps": steps, **of}
    return Row(RunResult(curve=curve, **ended), config, identity, MACHINE, data)


@dataclass
class Planned:
    """A design of simulated runs, as a command would write it. ``rows``: a run, or its id, and what it is for."""

    kind: str
    rows: list[tuple[Truth | str, Purpose]]


def run_ids(truths: Sequence[Truth]) -> list[str]:
    """Return the runs' ids."""
    return [identified(truth)[1].run_id for truth in truths]


def sweep(truths: Sequence[Truth], kind: str = "sweep", choice: str = "given") -> Planned:
    """Return the design of a ``grok sweep`` over these runs."""
    return Planned(kind, [(truth, Purpose(unit=_unit(truth.overrides), choice=choice)) for truth in truths])


def branch(
    parents: Mapping[int, Sequence[Truth]], truths: Sequence[Truth], choice: str, lines: Mapping[str, str] | None = None
) -> Planned:
    """Return the design of a ``grok branch``: children by the place of their parent in ``truths``."""
    rows: list[tuple[Truth | str, Purpose]] = []
    for place, children in parents.items():
        (parent,) = run_ids([truths[place]])
        line = (lines or {}).get(parent, parent)
        unit = {"seed": truths[place].overrides.get("seed", 0)}
        rows.append((truths[place], Purpose(role="parent", unit=unit, choice=choice, line=line)))
        for child in children:
            redrawn = redrawn_from(truths[place], child)
            rows.append(
                (
                    child,
                    Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=redrawn, choice=choice, line=line),
                )
            )
    return Planned("branch", rows)


def redrawn_from(parent: Truth, child: Truth) -> tuple[str, ...]:
    """Return the streams and layers whose seeds are not the parent's."""
    mine, theirs = (identified(truth)[0] for truth in (child, parent))
    streams = [
        s for s in ("split", "init", "order") if getattr(mine.stream_seeds(), s) != getattr(theirs.stream_seeds(), s)
    ]
    layers = set(mine.seeds.layers.items()) - set(theirs.seeds.layers.items())
    return (*streams, *(f"layers.{name}" for name, _ in layers))


def repeat(own: Truth, repeats: Sequence[Truth], change: str = "ulp", choice: str = "drawn") -> Planned:
    """Return the design of a ``grok repeat`` of one run; ``change`` is the kind of repeat."""
    (parent,) = run_ids([own])
    unit = {"kind": change, "of": "control" if choice == "drawn" else "candidate", "seed": own.overrides.get("seed", 0)}
    rows: list[tuple[Truth | str, Purpose]] = [
        (own, Purpose(role="control" if choice == "drawn" else "candidate", unit={"seed": unit["seed"]}, choice=choice))
    ]
    for count, truth in enumerate(repeats):
        redrawn = redrawn_from(own, truth)
        rows.append(
            (
                truth,
                Purpose(
                    role="child", unit={**unit, "repeat": count}, parent_run_id=parent, redrawn=redrawn, choice=choice
                ),
            )
        )
    return Planned("repeat", rows)


def usual(truths: Sequence[Truth]) -> list[Planned]:
    """Return the designs that commands would write for these runs, if nothing else is said of them.

    Runs with exchanged layers and a perturbation are of ``grok layers``; perturbed runs of two typed streams are cells
    of a cross; other perturbed runs and replicates are repeats of controls; all others are members of one sweep.
    """
    members, cells, repeats, exchanged = [], [], [], []
    for truth in truths:
        given = truth.overrides
        kicked = bool(given.get("perturb.ulps"))
        typed = [name for name in ("seeds.split", "seeds.init", "seeds.order") if name in given]
        kind = members
        if kicked and "seeds.layers" in given:
            kind = exchanged
        elif kicked and len(typed) >= 2 and "seed" not in given:
            kind = cells
        elif kicked or given.get("replicate"):
            kind = repeats
        kind.append(truth)
    designs = [sweep(members)] if members else []
    if cells:
        units = [{**_unit(t.overrides), "repeat": t.overrides.get("seeds.perturb", 0)} for t in cells]
        designs.append(
            Planned("crossed", [(t, Purpose(role="cell", unit=u)) for t, u in zip(cells, units, strict=True)])
        )
    own = {_bare(truth.overrides): truth for truth in members}
    by_own: dict[int, list[Truth]] = {}
    for truth in repeats:
        parent = own.get(_bare(truth.overrides))
        if parent is None:
            unit = {"kind": "ulp", "repeat": truth.overrides.get("seeds.perturb", 0), **_unit(truth.overrides)}
            designs.append(Planned("repeat", [(truth, Purpose(role="child", unit=unit, redrawn=()))]))
        else:
            by_own.setdefault(id(parent), []).append(truth)
    for parent in own.values():
        its = by_own.get(id(parent), [])
        kicked = [truth for truth in its if truth.overrides.get("perturb.ulps")]
        designs += [repeat(parent, kicked)] if kicked else []
        again = [truth for truth in its if not truth.overrides.get("perturb.ulps")]
        designs += [repeat(parent, again, "again")] if again else []
    return designs + transplanted(exchanged, members)


def transplanted(truths: Sequence[Truth], stored: Sequence[Truth]) -> list[Planned]:
    """Return a ``grok layers`` design for each recipient and donor, which is known by its init seed."""
    designs = []
    by_recipient: dict[int, list[Truth]] = {}
    for truth in truths:
        by_recipient.setdefault(truth.overrides.get("seed", 0), []).append(truth)
    for recipient, mine in by_recipient.items():
        seeds = sorted({seed for truth in mine for seed in truth.overrides["seeds.layers"].values()})
        for init in seeds:
            rows: list[tuple[Truth | str, Purpose]] = [
                (truth, Purpose(role="recipient", unit={"recipient": recipient}, choice="named"))
                for truth in stored
                if _bare(truth.overrides) in {_bare(t.overrides, "seeds.layers") for t in mine}
            ]
            for truth in mine:
                layers = truth.overrides["seeds.layers"]
                if layers and set(layers.values()) != {init}:
                    continue
                unit = {"recipient": recipient, "donor_init": init, "exchanged": sorted(layers)}
                unit["streams"] = ["order"] if "seeds.order" in truth.overrides else []
                unit["repeat"] = truth.overrides.get("seeds.perturb", 0)
                rows.append((truth, Purpose(role="cell", unit=unit)))
            designs.append(Planned("layers", rows))
    return designs


def _unit(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seeds that a command asks for, as they are typed."""
    typed = {name.removeprefix("seeds."): value for name, value in overrides.items() if name.startswith("seeds.")}
    layers = typed.pop("layers", {})
    typed.pop("perturb", None)
    return {"seed": overrides.get("seed", 0), **typed, **{f"layers.{name}": seed for name, seed in layers.items()}}


def _bare(overrides: Mapping[str, Any], *without: str) -> str:
    left_out = {"perturb.ulps", "seeds.perturb", "replicate", "numerics.path", *without}
    return str(sorted((name, value) for name, value in overrides.items() if name not in left_out))


def plans(rows: Sequence[Row], planned: Sequence[Planned]) -> Iterator[tuple[Design, set[str]]]:
    """Yield the designs, and which of their runs had results: an earlier plan has their condition and streams."""
    places = {}
    for stored in rows:
        settings, seeds = flatten(stored.config), stored.config.stream_seeds()
        kicked = seeds.perturb if settings["perturb.ulps"] else None
        where = [settings.get(name) for name in (*CONDITION_SETTINGS, "perturb.ulps", "seeds.layers")]
        places[stored.result.run_id] = str((where, seeds.split, seeds.init, seeds.order, kicked))
    known: set[str] = set()
    for plan in planned:
        named = [(run if isinstance(run, str) else identified(run)[1].run_id, purpose) for run, purpose in plan.rows]
        purposes = Purposes(plan.kind, [purpose for _, purpose in named])
        yield purposes.named([run for run, _ in named]), {run for run, _ in named if places.get(run) in known}
        known |= {places[run] for run, _ in named if run in places}


def simulate(truths: Sequence[Truth], *designs: Planned) -> Observations:
    """Return what a store of these runs would hold, without writing one.

    ``designs``: what the runs were for, in the order of planning. The first plan is that of the runs that none names.
    """
    rows = [row(t) for t in truths]
    shard = to_shard(rows)
    runs, curves, steps = (to_pandas(kind, shard.table(kind)) for kind in ("runs", "curves", "steps"))
    start, minute = datetime(2026, 1, 1), timedelta(minutes=1)
    planned = [*usual(unnamed(truths, designs)), *designs]
    tables = [
        design.table(seen, planned_at=start + n * minute) for n, (design, seen) in enumerate(plans(rows, planned))
    ]
    table = pa.concat_tables([schema("designs").empty_table(), *tables])
    return Observations(runs, curves, steps, path=Path("simulated"), designs=to_pandas("designs", table))


def unnamed(truths: Sequence[Truth], designs: Sequence[Planned]) -> list[Truth]:
    """Return the runs that no design has in a role of its own; a parent or candidate has another purpose, too."""
    beside = ("parent", "candidate", "control", "recipient", "donor")
    named = {id(run) for design in designs for run, purpose in design.rows if purpose.role not in beside}
    return [truth for truth in truths if id(truth) not in named]


def write(truths: Sequence[Truth], path: Path, *designs: Planned) -> Path:
    """Write a store of simulated runs and their designs."""
    rows = [row(t) for t in truths]
    with StoreWriter(path) as writer:
        for design, seen in plans(rows, [*usual(unnamed(truths, designs)), *designs]):
            writer.record_design(design, seen)
        writer.commit(rows)
    return path


def mixture_times(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return times of a log-normal mixture (fast around 2,200 steps, slow around 11,000) and who is fast."""
    fast = rng.random(n) < 0.07
    return np.exp(np.where(fast, rng.normal(np.log(2200), 0.25, n), rng.normal(np.log(11_000), 0.2, n))), fast


def census(n: int, rng: np.random.Generator, steps: int = 3000, every: int = 100, **overrides: Any) -> list[Truth]:
    """Return ``n`` random seeds of one condition; ``optim__lr=...`` overrides ``optim.lr``."""
    times, fast = mixture_times(n, rng)
    given = {k.replace("__", "."): v for k, v in overrides.items()}
    return [
        Truth({"seed": i, "train.steps": steps, "eval.every": every, **given}, float(t), bool(f))
        for i, (t, f) in enumerate(zip(times, fast, strict=True))
    ]


def crossed(
    sizes: tuple[int, int, int], rng: np.random.Generator, components: Mapping[str, float], replicates: int = 2
) -> list[Truth]:
    """Return a split × init × order grid whose log times have the given variance components, around 3,000 steps."""
    names = ("split", "init", "order")
    effects = {
        label: rng.normal(0, np.sqrt(v), [sizes[names.index(n)] for n in label.split(" × ")])
        for label, v in components.items()
        if label != "chaos"
    }
    truths = []
    for cell in itertools.product(*map(range, sizes)):
        base = np.log(3000)
        for label, effect in effects.items():
            base += float(effect[tuple(cell[names.index(n)] for n in label.split(" × "))])
        for r in range(replicates):
            t = float(np.exp(base + rng.normal(0, np.sqrt(components.get("chaos", 0.0)))))
            seeds = {f"seeds.{name}": 100 + level for name, level in zip(names, cell, strict=True)}
            given = {**seeds, "perturb.ulps": 1, "seeds.perturb": r, "train.steps": 20_000, "eval.every": 250}
            truths.append(Truth(given, t, fast=t < 1500))
    return truths


BY_NAME: dict[str, Question] = {q.name: q for q in QUESTIONS}
RENDERED: set[str] = set()
"""Figures of which this process has made a picture: one of each kind is enough, and takes longer than its study."""


def ask(name: str, observations: Observations) -> Any:
    """Return a study of a store; each of its figures has data, and the first of each name in this process a picture."""
    answer = BY_NAME[name].ask(observations)
    if isinstance(answer, Missing):
        raise NotEnoughData(answer.needs)
    for drawing in drawings(answer):
        assert len(drawing.data)
        if drawing.name not in RENDERED:
            assert drawing.png().startswith(b"\x89PNG")
            RENDERED.add(drawing.name)
    return answer


def needs(name: str, observations: Observations) -> str:
    answer = BY_NAME[name].ask(observations)
    assert isinstance(answer, Missing), answer
    return answer.needs
