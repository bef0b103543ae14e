"""Which runs train together: lane groups. Nothing about grouping may affect a result.

Runs of one group share a program (compiled once a worker), so they differ in seeds,
their ulps, switch, learning rate, warm-up, weight decay and length only. The first groups are large and the last
ones small, so that all workers end at about the same time; a group's size also bounds
what an executor holds in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from math import ceil
from typing import Any, Final

from grok.config.fields import canonical_json, walk
from grok.execute.planned import PlannedRun

VARYING: Final = frozenset(
    {"optim.lr", "optim.weight_decay", "optim.warmup_steps", "perturb.ulps", "switch.step", "switch.ulps"}
)
"""Result settings that may differ between the lanes of one program."""

LARGEST: Final = 64
"""Runs of a group on a CPU: more would gain nothing and be retried together when one of them is at fault."""

LARGEST_ON_GPU: Final = 4096
"""Runs of a group on a GPU, where lanes are refilled from the group and it should rarely run dry."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that one worker trains in one go."""

    runs: tuple[PlannedRun, ...]
    deaths: int = 0
    """How often its worker died or an exception came out of it."""

    @property
    def name(self) -> str:
        """A name that no other group in flight has."""
        return f"{self.runs[0].run_id}-{len(self.runs)}-{self.deaths}"

    def halves(self) -> tuple[Group, Group]:
        middle = len(self.runs) // 2
        return Group(self.runs[:middle]), Group(self.runs[middle:])


def lane_groups(runs: Sequence[PlannedRun], *, workers: int, lanes: int = 1, gpu: bool = False) -> list[Group]:
    """Return ``runs`` as groups, largest first within a program, in plan order."""
    programs: dict[str, list[PlannedRun]] = {}
    named: dict[tuple[Any, ...], str] = {}
    for run in runs:
        # equal settings make equal programs: a program is named once for all seeds
        alike = (run.identity.config_id, *astuple(run.config.numerics))
        if alike not in named:
            named[alike] = program_of(run)
        programs.setdefault(named[alike], []).append(run)
    return [Group(part) for same in programs.values() for part in _split(same, workers=workers, lanes=lanes, gpu=gpu)]


def program_of(run: PlannedRun) -> str:
    """Return a text that two runs share when one program can train both."""
    settings = {
        name: value
        for name, value, rule in walk(run.config)
        if name.startswith("numerics.") or (rule.role == "result" and name not in VARYING)
    }
    return canonical_json([settings, run.data_hash, *([dict(run.code)] if run.code else [])])


def _split(runs: Sequence[PlannedRun], *, workers: int, lanes: int, gpu: bool) -> Iterator[tuple[PlannedRun, ...]]:
    start = 0
    while start < len(runs):
        left = len(runs) - start
        share = ceil(left / workers) if gpu else ceil(left / (2 * workers))
        size = min(max(share, lanes), LARGEST_ON_GPU if gpu else max(LARGEST, lanes))
        yield tuple(runs[start : start + size])
        start += size
