"""Which of the runs that were asked for must be trained: planned, minus duplicates, minus stored. No torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from grok.config import MODES, ArithmeticConfig, GptConfig, RunConfig, flatten, identify
from grok.config.fields import canonical_json, settings_of
from grok.errors import CheckpointError, ConfigError, DataError
from grok.execute.forced import forced_record, forced_runs
from grok.execute.planned import PlannedRun
from grok.store import Store
from grok.streams import layer_seeds

SHARED: Final = (
    "mode",
    "device",
    "executor",
    "workers",
    "lanes",
    "store.path",
    "store.flush_seconds",
    "dry_run",
    "retry_failed",
    "force",
    "require_clean",
)
"""Settings of the command rather than of a run: one sweep has one value of each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command comes to."""

    asked: tuple[str, ...]
    """The run_id of every config, in the order given, duplicates included."""
    stored: Mapping[str, str]
    """Status of the asked runs that the store holds and that are not trained again."""
    to_train: tuple[PlannedRun, ...]
    forced: Mapping[str, Any] | None = None
    """With ``force=true``: which replicates it makes, for the sweep's record."""

    @property
    def duplicates(self) -> int:
        return len(self.asked) - len(set(self.asked))

    def summary(self) -> str:
        """Return the counts: ``2000 planned, 1936 stored (2 diverged), 0 duplicates, 64 to train``."""
        ends = Counter(status for status in self.stored.values() if status != "completed")
        unusual = f" ({', '.join(f'{n} {status}' for status, n in sorted(ends.items()))})" if ends else ""
        extended = sum(run.extends is not None for run in self.to_train)
        further = f" ({extended} from the end of a shorter run)" if extended else ""
        return (
            f"{len(self.asked)} planned, {len(self.stored)} stored{unusual}, {self.duplicates} duplicates, "
            f"{len(self.to_train)} to train{further}"
        )


def shared_settings(configs: Sequence[RunConfig]) -> RunConfig:
    """Return a config to read the command's own settings from.

    Raises:
        ConfigError: no run at all, or a setting of :data:`SHARED` that differs between runs.
    """
    if not configs:
        raise ConfigError("no run is asked for: expected at least one seed or setting to sweep over")
    first = flatten(configs[0])
    values = {name: first[name] for name in SHARED}
    for config in configs:
        for name, value in values.items():
            other = _attribute(config, name)
            if other != value:
                raise ConfigError(
                    f"{name} differs between the runs of this sweep ({value!r}, {other!r}): "
                    "it belongs to the command, give it one value"
                )
    return configs[0]


def name_runs(configs: Sequence[RunConfig]) -> list[PlannedRun]:
    """Return every config with its names.

    Raises:
        DataError: the data of a GPT run is missing.
    """
    hashes: dict[str | None, str | None] = {}
    named = []
    for config in configs:
        path = config.data.path if isinstance(config, GptConfig) else None
        if path not in hashes:
            hashes[path] = data_hash(config)
        named.append(PlannedRun(config, identify(config, hashes[path]), hashes[path]))
    return named


def refuse_unknown_tensors(configs: Sequence[RunConfig]) -> None:
    """Refuse ``seeds.layers`` that name no tensor, before anything is written.

    The one question of planning that needs the model and with it torch: asked only of
    configs that re-seed tensors. (A GPT's tensors depend on its corpus: its engine asks.)
    """
    seen = set()
    for config in configs:
        if isinstance(config, ArithmeticConfig) and config.seeds.layers:
            key = canonical_json([asdict(config.model), asdict(config.task), sorted(config.seeds.layers)])
            if key not in seen:
                from grok.arithmetic.initial import parameter_shapes

                layer_seeds(list(parameter_shapes(config)), config.seeds.layers, 0)
                seen.add(key)


def refuse_unusable_data(configs: Sequence[RunConfig]) -> None:
    """Refuse a corpus that is damaged, or that the model cannot train on, before anything is written.

    Raises:
        DataError: tokens are missing or cut off, the tokeniser is another one, a split is shorter
            than a block, or the model's vocabulary is too small.
    """
    seen = set()
    for config in configs:
        if isinstance(config, GptConfig) and config.data.path is not None:
            key = (config.data.path, config.model.context, config.model.vocab_size)
            if key not in seen:
                from grok.text.corpus import check_fit, open_corpus

                check_fit(open_corpus(key[0]), context=key[1], vocab_size=key[2])
                seen.add(key)


def refuse_unusable_parents(named: Sequence[PlannedRun], store: Store | None) -> None:
    """Refuse ``resume.run`` where its checkpoint is not there or was made under settings that are not named.

    Asked only of runs that are to begin from it: not of stored ones, nor of those that have a checkpoint of their own.

    Raises:
        CheckpointError: the new run cannot go on from it.
    """
    for run in named:
        config = run.config
        if not isinstance(config, GptConfig) or config.resume.run is None or config.resume.step is None:
            continue
        from grok.checkpoint import checkpoint_steps, read_state, run_folder
        from grok.gpt.training.checkpoint import check_settings

        if store is not None and run.run_id in store.statuses():
            continue
        if checkpoint_steps(run_folder(config.store.path, run.run_id)):
            continue
        folder = run_folder(config.store.path, config.resume.run)
        if not checkpoint_steps(folder):
            raise CheckpointError(
                f"resume.run={config.resume.run}: there is no checkpoint in {folder}; give the whole run_id of a run "
                "whose checkpoint was kept (checkpoint.keep=true, or one that was interrupted or diverged)"
            )
        check_settings(read_state(folder, config.resume.step), config, str(run.data_hash))


def make_plan(asked: Sequence[PlannedRun], store: Store | None) -> Plan:
    """Return the plan of the runs ``asked`` for against what ``store`` holds (None: there is none yet).

    Equal runs are trained once; a stored, shorter run whose checkpoint was kept is extended.
    """
    shared = asked[0].config
    statuses = store.statuses() if store is not None else {}
    named = list(asked)
    forced = None
    if shared.force:
        named = forced_runs(asked, store)
        forced = forced_record(asked, named)
    runs = {run.run_id: run for run in named}
    stored = {
        run_id: statuses[run_id]
        for run_id in runs
        if run_id in statuses and not (shared.retry_failed and statuses[run_id] == "failed")
    }
    waiting = [run for run_id, run in runs.items() if run_id not in stored]
    shorter = _Extensible(store) if store is not None and waiting else None
    to_train = tuple(replace(run, extends=shorter.than(run)) if shorter else run for run in waiting)
    return Plan(asked=tuple(run.run_id for run in named), stored=stored, to_train=to_train, forced=forced)


def data_hash(config: RunConfig) -> str | None:
    """Return the hash of the data that a GPT run reads, None in arithmetic mode.

    Raises:
        DataError: no folder is given, or it was not made by ``grok.prepare``.
    """
    if not isinstance(config, GptConfig):
        return None
    if config.data.path is None:
        raise DataError("data.path is not given: expected a folder made by `python -m grok.prepare`")
    manifest = Path(config.data.path) / "manifest.json"
    try:
        return str(json.loads(manifest.read_text(encoding="utf-8"))["hash"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"data.path={config.data.path!r} has no readable manifest.json: expected a folder made by "
            "`python -m grok.prepare`"
        ) from error


def _attribute(config: RunConfig, dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


class _Extensible:
    """Stored runs whose checkpoint was kept, by all that must be equal for another run to go on from them.

    Besides the trajectory these are the settings of evaluation, early stop and replicate: the
    longer run's row, and the weights it keeps, must be what they would be in an empty store.
    """

    def __init__(self, store: Store) -> None:
        kept = {folder.name for folder in store.layout.checkpoints.glob("*")}
        self._ends: dict[tuple[Any, ...], list[tuple[int, str, str]]] = {}
        if not kept:
            return
        alike = [name for cls in MODES.values() for name in _schedule_settings(cls)]
        columns = [
            "run_id",
            "trajectory_id",
            "mode",
            "steps",
            "stop_reason",
            "config.save",
            *(f"config.{n}" for n in dict.fromkeys(alike)),
        ]
        for row in store.table("runs", kept, columns).to_pylist():
            if row["stop_reason"] == "steps":
                values = (row[f"config.{name}"] for name in _schedule_settings(MODES[row["mode"]]))
                self._ends.setdefault((row["trajectory_id"], *values), []).append(
                    (row["steps"], row["run_id"], row["config.save"])
                )

    def than(self, run: PlannedRun) -> str | None:
        """Return the longest stored run that ``run`` goes on from, if there is one.

        A log schedule spreads its points over the run's length, so it never is continued.
        """
        settings = flatten(run.config)
        if not run.config.length_is_free() or settings.get("eval.schedule", "every") != "every":
            return None
        values = (settings[name] for name in _schedule_settings(type(run.config)))
        ends = self._ends.get((run.identity.trajectory_id, *values), [])
        shorter = [
            (steps, run_id)
            for steps, run_id, saved in ends
            if steps < settings["train.steps"] and _leaves_no_trace(run.config, steps, saved)
        ]
        return max(shorter)[1] if shorter else None


def _leaves_no_trace(config: RunConfig, end: int, saved: str) -> bool:
    """Return whether a language model's run that went on from ``end`` keeps what it would have kept without it.

    Its best weights and its early stop know of every evaluation, the shorter run's last one
    too; its average begins after ``end``, or the shorter run has averaged other steps.
    """
    if not isinstance(config, GptConfig) or not ("final" in config.save or config.train.early_stop):
        return True
    if end % config.eval.every:
        return False
    if "final" not in config.save:
        return True
    return "final" in saved and end < (1 - config.eval.average_share) * config.train.steps


def _schedule_settings(cls: type[RunConfig]) -> list[str]:
    return [name for name, (_, rule) in settings_of(cls).items() if rule.role == "schedule"]
