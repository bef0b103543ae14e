"""A world to search in: runs whose time to generalise is a known function of setting and seed.

``train`` writes them into a real store by the store's own code, so that everything but
the training itself is what a user gets, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grok.config import ArithmeticConfig, identify, load_config
from grok.store import Purposes, StoreWriter
from grok.streams import Stream
from sweeps.search.config import StudyConfig, split_study
from sweeps.search.driver import Search
from sweeps.search.record import StudyRecord
from sweeps.search.space import Plain, read_space
from tests.analysis.simulate import Truth, row

SPACE = {
    "optim": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "weight_decay": {"low": 0.0, "high": 2.0},
    }
}
BASE = {"optim": {"lr": 1e-3, "weight_decay": 0.1}, "train": {"steps": 1000}, "eval": {"every": 100}}


def true_time(config: ArithmeticConfig) -> float:
    """Return the step of generalisation: soonest at lr 1e-2 and weight decay 1, with seed noise."""
    distance = math.log10(config.optim.lr / 1e-2) ** 2 + (config.optim.weight_decay - 1) ** 2
    noise = float(Stream("order", config.seed).normal(1)[0])
    return 250 * math.exp(0.6 * distance + 0.2 * noise)


class World:
    """Trains nothing, stores simulated runs, and counts them."""

    def __init__(self, path: Path, fails: Callable[[ArithmeticConfig], bool] = lambda config: False) -> None:
        self.path = path
        self.fails = fails
        self.calls = 0
        self.designs: list[Purposes] = []
        self.trained: list[str] = []
        self.said: list[str] = []

    def train(self, settings: Sequence[Plain], design: Purposes) -> bool:
        self.calls += 1
        self.designs.append(design)
        configs = [load_config(one) for one in settings]
        with StoreWriter(self.path, thorough=False) as writer:
            new = {identify(config).run_id: config for config in configs}
            claim = writer.claim(list(new))
            rows = []
            for run_id in claim.granted:
                config = new[run_id]
                assert isinstance(config, ArithmeticConfig)
                overrides = {
                    "seed": config.seed,
                    "optim.lr": config.optim.lr,
                    "optim.weight_decay": config.optim.weight_decay,
                    "optim.warmup_steps": config.optim.warmup_steps,
                    "optim.grokfast": config.optim.grokfast,
                    "optim.grokfast_lamb": config.optim.grokfast_lamb,
                    "train.steps": config.train.steps,
                    "eval.every": config.eval.every,
                }
                status = "failed" if self.fails(config) else "completed"
                rows.append(row(Truth(overrides, true_time(config), status=status)))
            assert {r.identity.run_id for r in rows} == set(claim.granted)
            writer.commit(rows)
            self.trained += claim.granted
        return True

    def search(self, study: dict[str, Any] | None = None, space: Any = None, **base: Any) -> Search:
        settings = {**BASE, **base, "study": {"name": "test", "trials": 12, "seeds": 4, "parallel": 3, **(study or {})}}
        settings["store"] = {"path": str(self.path)}
        config, _, plain = split_study(settings)
        return Search(config, read_space(space or SPACE, "arithmetic"), plain, self.train, self.said.append)

    def run(self, study: dict[str, Any] | None = None, space: Any = None) -> list[Any]:
        """Carry a study out; return what its trials are."""
        search = self.search(study, space)
        record = search.record()
        assert search.run(record)
        return trials(record)


def trials(record: StudyRecord) -> list[Any]:
    """Return all that a trial is, but when it was made."""
    return [
        (t.number, t.state.name, t.params, t.values, t.intermediate_values, t.user_attrs, t.system_attrs)
        for t in record.trials()
    ]


class Killed(BaseException):
    """Ends a study wherever it is, as a kill would."""


__all__ = ["BASE", "SPACE", "Killed", "StudyConfig", "World", "trials", "true_time"]
