"""The comparison of a study's best setting with the default, on new seeds.

The best of many trials looks better than it is, because chance with its seeds is a part of the choice. So
both settings, the new seeds and the test are recorded ("pinned") before training. ``analysis`` makes the
paired test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from grok.config import load_config
from grok.errors import ConfigError, StoreError, TrainingError
from sweeps.search.driver import Search, Stage
from sweeps.search.record import COMPARED, PINNED, StudyRecord, now

TEST: Final = "two-sided Wilcoxon signed-rank test of the seeds' paired differences, alpha 0.05"
SIDES: Final = ("default", "best")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The pinned comparison: two settings, their seeds and the test."""

    record: StudyRecord
    pinned: dict[str, Any]

    @classmethod
    def pin(cls, search: Search, record: StudyRecord) -> Comparison:
        """Return the pinned comparison of a finished study, which is made once and never changed.

        Raises:
            ConfigError: the study is not finished, or has no finished trial.
        """
        fresh = search.study.comparison
        if (pinned := record.attribute(PINNED)) is not None:
            first, end = pinned["seeds"]
            if (first, end - first) != (fresh.first_seed, fresh.seeds):
                search.tell(f"study.comparison is not used: seeds {first} to {end - 1} are pinned already.")
            return cls(record, pinned)
        trials = record.trials()
        left = search.limit - sum(trial.state.is_finished() for trial in trials)
        best = sorted(record.best(), key=lambda trial: (_first(search, trial.values), trial.number))
        if left > 0 or not best:
            raise ConfigError(
                f"study.compare=true: {left} of {search.limit} trials of study {search.study.name} are still to be "
                "made, so the best is not known; run the command without study.compare first"
            )
        pinned = {
            "study": search.study.name,
            "pinned_at": now(),
            "searched": len(trials),
            "trial": best[0].number,
            "objective": search.objectives[0].name,
            "test": TEST,
            "default": {name: search.flat.get(name) for name in best[0].params},
            "best": dict(best[0].params),
            "seeds": [fresh.first_seed, fresh.first_seed + fresh.seeds],
            "steps": search.budget,
        }
        with record.changing():
            if record.attribute(PINNED) is None:  # another process may have been first
                record.set_attribute(PINNED, pinned)
        return cls(record, record.attribute(PINNED))

    def run(self, search: Search) -> bool:
        """Train both settings on the new seeds and record their runs; return False if interrupted.

        Raises:
            TrainingError: runs failed; nothing is recorded.
        """
        if self.pinned["best"] == self.pinned["default"]:
            search.tell("The best setting is the default: there is nothing to compare.")
            return True
        if self.pinned["steps"] != search.budget or self.pinned["study"] != search.study.name:
            raise StoreError(f"the comparison of {search.study.name} was pinned for {self.pinned['steps']} steps")
        stage = Stage(tuple(range(*self.pinned["seeds"])), search.budget, True)
        wanted = {side: search.settings_of(self.pinned[side], stage) for side in SIDES}
        search.tell(
            f"pinned {self.pinned['pinned_at']}: trial {self.pinned['trial']} against the default on "
            f"{len(stage.seeds)} new seeds; {self.pinned['test']}"
        )
        planned = [
            (settings, {"side": side, "trial": self.pinned["trial"] if side == "best" else None, "seed": seed})
            for side in SIDES
            for settings, seed in zip(wanted[side], stage.seeds, strict=True)
        ]
        if not search.train_as("member", planned):
            return False
        objective = search.objectives[0]
        configs = {side: [load_config(settings) for settings in wanted[side]] for side in SIDES}
        outcomes = {side: search.outcomes(configs[side], True) for side in SIDES}
        failed = [outcome for side in SIDES for outcome in outcomes[side] if outcome.status == "failed"]
        if failed:  # they say nothing about the setting: scores of theirs would be the worst there are
            raise TrainingError(
                f"{len(failed)} of {sum(map(len, outcomes.values()))} runs of the comparison failed "
                f"({failed[0].error}): give the same command with retry_failed=true"
            )
        runs: dict[str, list[tuple[int, str, float]]] = {
            side: [
                (seed, outcome.run_id, objective.score(outcome, config))
                for seed, outcome, config in zip(stage.seeds, outcomes[side], configs[side], strict=True)
            ]
            for side in SIDES
        }
        with self.record.changing():
            self.record.set_attribute(COMPARED, runs)
        sign = 1 if objective.direction == "minimize" else -1
        gaps = [sign * (a[2] - b[2]) for a, b in zip(runs["default"], runs["best"], strict=True)]
        values = {side: objective.value(outcomes[side], configs[side][0]) for side in SIDES}
        search.tell(
            f"{objective.name}: {values['best']:.6g} at trial {self.pinned['trial']}'s setting, "
            f"{values['default']:.6g} at the default; better for {sum(g > 0 for g in gaps)} of {len(gaps)} seeds, "
            f"worse for {sum(g < 0 for g in gaps)}"
        )
        return True


def _first(search: Search, values: list[float] | None) -> float:
    if not values or not math.isfinite(values[0]):
        return math.inf
    return values[0] if search.objectives[0].direction == "minimize" else -values[0]
