"""Carries out a study."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.exceptions import StorageInternalError

from grok.config import load_configs
from grok.errors import ConfigError, StoreError, one_line
from grok.execute import execute
from grok.execute.sweep import GO_ON
from grok.masking import without_passwords
from grok.store import Purposes, check_path
from sweeps.search.comparison import Comparison
from sweeps.search.config import StudyConfig
from sweeps.search.driver import REASON, Search, Train
from sweeps.search.space import Plain, read_space, refuse_impossible


def carry_out(study: StudyConfig, raw_space: Mapping[str, Any], base: Plain, argv: Sequence[str]) -> int:
    """Do the rest of a study, or its comparison; return the exit status.

    Args:
        raw_space: the search space as written in ``conf/study/``.
        base: nested settings of the default run.
        argv: the command, recorded in the store.

    Raises:
        GrokError: refused; nothing was trained.
    """
    space = read_space(raw_space, str(base.get("mode", "arithmetic")))
    refuse_impossible(space, base)
    search = Search(study, space, base, by_execution(argv), tell)
    tell(search.plan())
    if search.default.dry_run:
        check_path(str(search.store_path))
        tell(f"Nothing was trained (dry_run=true). The study would be in {search.folder}.")
        return 0
    if study.compare and not check_path(str(search.store_path)):
        raise ConfigError(
            f"study.compare=true: {search.store_path} does not exist, all {search.limit} trials of study {study.name} "
            "are still to be made; run the command without study.compare first"
        )
    try:
        record = search.record()
        try:
            if study.compare:
                done = Comparison.pin(search, record).run(search)
            else:
                done = search.run(record)
        except KeyboardInterrupt:
            done = False
        return _conclude(search, record.trials(), record.best(), done)
    except StorageInternalError as error:
        reason = without_passwords(one_line(error.__cause__ or error))
        raise StoreError(f"the study's storage cannot be used ({reason}). {GO_ON}") from error


def by_execution(argv: Sequence[str]) -> Train:
    """Return the function that trains runs with ``grok.execute``."""

    def train(settings: Sequence[Plain], design: Purposes) -> bool:
        outcome = execute(load_configs(settings), argv=argv, design=design)
        return set(outcome.run_ids) <= set(outcome.statuses)

    return train


def _conclude(search: Search, trials: Sequence[Any], best: Sequence[Any], done: bool) -> int:
    store = shlex.quote(str(search.store_path))
    finished = sum(trial.state.is_finished() for trial in trials)
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    line = f"{finished} of {search.limit} trials finished in {shlex.quote(str(search.folder))}."
    if not done:
        tell(f"Interrupted: {line} {GO_ON}")
        return 1
    for trial in best:
        values = ", ".join(f"{o.name} {v:.6g}" for o, v in zip(search.objectives, trial.values, strict=True))
        params = " ".join(f"{name}={value}" for name, value in trial.params.items())
        tell(f"best: trial {trial.number}, {values} over {search.study.seeds} seeds: {params}")
    if failed:
        tell(f"{line} {len(failed)} failed (trial {failed[0].number}: {failed[0].user_attrs[REASON]}).")
        return 1
    tell(line if search.study.storage else f"{line} Report: grok study search {store}")
    return 0


def tell(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)
