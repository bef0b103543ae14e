"""The runs of a store, prepared for analysis: one row per trajectory, with its curve and event times.

A trajectory counts once, however often it was evaluated or re-run: the longest of its runs is kept. What a run was
for, and so to which population it belongs, :mod:`grok.analysis.purposes` reads from the store's designs.
Failed and rolled-back runs are left out (the provenance counts them). Diverged runs stay, as seeds
that did not generalise.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.statistics.survival import Times
from grok.config import ArithmeticConfig
from grok.config.fields import settings_of
from grok.errors import one_line
from grok.plugins import label
from grok.records import tag_parts
from grok.store import DamagedShardWarning
from grok.streams import RUN_STREAMS, derive_seed
from grok.untrusted import has_shape, is_plain, open_file, read_json

# What a store keeps beside its tables: searches in the journals of Optuna, and the JSON files of sweeps.
#
# A store may come from anybody. A file whose content has another shape than this project writes is left
# out with a warning, so studies can rely on the shape.

SEARCH: Final = {
    "name": str,
    "objective": str,
    "direction": str,
    "trials": [{"number": int, "state": str, "value": (float, None), "params": dict, "runs": [list]}],
    "definition": {"settings?": {"train.steps?": (float, None)}},
    "default": dict,
}
"""A search."""
SWEEP: Final = {"argv?": [str], "config?": {"designs?": [str], "settings?": dict}}
"""``sweeps/SWEEP.json``."""


def searches(store: Path) -> list[dict[str, Any]]:
    """Return the searches, in order of the files' names."""
    return _documents(sorted((store / "search").glob("*.journal")), _read_study, _is_search)


def sweeps(store: Path) -> list[dict[str, Any]]:
    """Return the records of sweeps, in order of the files' names."""
    return _documents(sorted((store / "sweeps").glob("*.json")), read_json, lambda data: has_shape(data, SWEEP))


def _documents(files: Iterable[Path], read: Callable[[Path], Any], is_ours: Callable[[Any], bool]) -> list[Any]:
    documents = []
    for file in files:
        try:
            data = read(file)
        except FileNotFoundError:
            continue
        except Exception as error:  # Optuna trusts a journal, and fails at a damaged one in many ways
            reason = one_line(error)
        else:
            if is_ours(data):
                documents.append(data)
                continue
            reason = "not what this project writes there"
        warnings.warn(f"left out {file}: {reason}", DamagedShardWarning, stacklevel=2)
    return documents


def _read_study(file: Path) -> dict[str, Any]:
    """Return the study in a journal of Optuna's."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    open_file(file).close()  # a link or a pipe is refused
    storage = JournalStorage(JournalFileBackend(str(file)))
    study = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
    known, trials = study.user_attrs, study.get_trials(deepcopy=False)
    if "default" not in known:
        raise FileNotFoundError(file)  # it is being made
    return {
        "name": study.study_name,
        "objective": known["definition"]["study"]["objective"],
        "direction": study.directions[0].name.lower(),
        "definition": known["definition"],
        "default": known["default"],
        "trials": [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "params": dict(trial.params),
                "value": trial.values[0] if trial.values and math.isfinite(trial.values[0]) else None,
                "runs": trial.user_attrs.get("runs", []),
            }
            for trial in trials
        ],
    }


def _is_search(data: Any) -> bool:
    if not has_shape(data, SEARCH) or not is_plain(data["name"]):
        return False
    is_share = data["objective"].endswith("_share")
    plain = (str, float, bool, None)
    settings = [data["default"], *(trial["params"] for trial in data["trials"])]
    return all(has_shape(value, plain) for values in settings for value in values.values()) and all(
        _is_score(run) and (not is_share or run[2] in (0, 1)) for trial in data["trials"] for run in trial["runs"]
    )


def _is_score(run: list[Any]) -> bool:
    """Return whether ``run`` is ``[seed, run_id, score]``."""
    return len(run) == 3 and has_shape(run[0], int) and has_shape(run[1], str) and has_shape(run[2], float)


# The versions of the user's own code in a store.
#
# A store keeps the hashes of code, not its text.

OWN_CODE: Final = "own_code"
"""Stands beside the settings of a condition: which version a run has of own code that the store has in several."""
OWN_METRICS: Final = "own_metrics"
"""The same for own metrics. They only measure, so a version is no condition of training."""
HASH: Final = 8
"""Digits of a hash in a condition's name."""
METRICS: Final = "config.eval.metric_plugins"


def with_code_versions(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with a column each of the versions of own code and of own metrics, where the store has several.

    Code of one version is named by the settings. Text that no version of this package wrote stands as it is.
    """
    if "own_code" not in runs or runs["own_code"].isna().all():
        return runs
    metrics = runs[METRICS].fillna("") if METRICS in runs else [""] * len(runs)
    texts = runs["own_code"].fillna("{}").replace("", "{}")
    codes = [hashes_of(text) or ({"own code": text} if text != "{}" else {}) for text in texts]
    versions: dict[str, set[str]] = {}
    for path, version in (item for code in codes for item in code.items()):
        versions.setdefault(path, set()).add(version)

    def column(name: str, measures: bool) -> pd.Series:
        """Return the hashes in words, of the import paths that have several; None if there are none."""
        words = [
            ", ".join(
                f"{path} {version[:HASH]}"
                for path, version in sorted(code.items())
                if len(versions[path]) > 1 and (f'"{path}"' in text) == measures
            )
            for code, text in zip(codes, metrics, strict=True)
        ]
        return pd.Series([text or None for text in words], runs.index, dtype=object, name=f"config.{name}")

    measuring = column(OWN_METRICS, measures=True)
    columns = [runs, column(OWN_CODE, measures=False), *([measuring] if measuring.notna().any() else [])]
    return pd.concat(columns, axis=1)


def hashes_in_words(text: Any) -> Any:
    """Return the hashes of a run's own code as ``knot.knot 8b939bf6d17dbe40``; other values as they are."""
    return ", ".join(f"{path} {version}" for path, version in hashes_of(text).items()) or text


def hashes_of(text: Any) -> dict[str, str]:
    """Return a run's ``own_code`` as hashes by import path; empty for text that no version of this package wrote."""
    try:
        return {str(path): str(version) for path, version in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError):
        return {}


# The runs of a store, prepared for analysis: one row per trajectory, with its curve and event times.

COUNTED: Final = ("completed", "diverged")
"""Statuses of runs that are observations."""

MOST_SETTINGS: Final = 3
"""Largest number of settings that a name has although fewer would do."""
CONDITION_SETTINGS: Final = (
    *(
        name
        for name, (_, rule) in settings_of(ArithmeticConfig).items()
        if rule.role == "result" and name != "perturb.ulps"
    ),
    OWN_CODE,
)
"""What defines a condition: all that can change a result, except seeds and the perturbation."""

PLAIN_SETTINGS: Final = tuple(name for name in CONDITION_SETTINGS if not name.startswith("switch."))
"""Those that a run and one that leaves it at a later step share."""

MEASURED_CONDITION: Final = (*CONDITION_SETTINGS, OWN_METRICS)
"""What defines a condition of runs whose own metrics are read."""

Result = TypeVar("Result")


def floats(values: pd.Series) -> NDArray[np.float64]:
    """Return a column as floats, null as NaN."""
    return np.asarray(values.astype("Float64").to_numpy(dtype=float, na_value=np.nan), dtype=np.float64)


def no_designs() -> pd.DataFrame:
    """Return the table of designs of a store without any."""
    from grok.store.reader import to_pandas
    from grok.store.schema import schema

    return to_pandas("designs", schema("designs").empty_table())


@cache
def default_settings() -> dict[str, object]:
    """Return the default value of every arithmetic setting by dotted name, as the store keeps it."""
    from grok.config import flatten

    return {**flatten(ArithmeticConfig()), OWN_CODE: None, OWN_METRICS: None}


class Observations:
    """The runs and curves of one store."""

    def __init__(
        self,
        runs: pd.DataFrame,
        curves: pd.DataFrame,
        steps: pd.DataFrame | None = None,
        path: Path | None = None,
        searches: Sequence[dict[str, Any]] = (),
        sweeps: Sequence[dict[str, Any]] = (),
        designs: pd.DataFrame | None = None,
    ) -> None:
        self.all_runs = with_code_versions(runs)
        self._curves = curves
        self.steps = steps
        self.path = path
        self._known: dict[Any, Any] = {}
        self.searches = searches
        """Records of ``grok search`` in the store, one dict per file."""
        self.sweeps = sweeps
        """Command and settings of each sweep, one dict per file: they are shown, and decide nothing."""
        self.designs = no_designs() if designs is None else designs
        """What each run was for; :mod:`grok.analysis.purposes` reads it."""

    @classmethod
    def read(cls, path: Path | str) -> Observations:
        """Read a store.

        Raises:
            StoreError: there is no store at ``path``, or it cannot be read.
        """
        from grok.store import open_store

        store = open_store(path)
        documents = searches(Path(path)), sweeps(Path(path))
        return cls(store.runs(), store.curves(), store.steps(), Path(path), *documents, store.designs())

    @cached_property
    def arithmetic(self) -> pd.DataFrame:
        """One row per trajectory of the arithmetic mode, indexed by run_id."""
        return self._trajectories("arithmetic")

    @cached_property
    def gpt(self) -> pd.DataFrame:
        """One row per trajectory of the GPT mode, indexed by run_id."""
        return self._trajectories("gpt")

    @cached_property
    def observed(self) -> pd.DataFrame:
        """Every run that is an observation, indexed by run_id; a trajectory may have several."""
        runs = self.all_runs
        return runs[runs["status"].isin(COUNTED)].set_index("run_id")

    def measured(self, run_ids: Sequence[str] | pd.Index, mode: str = "arithmetic") -> pd.DataFrame:
        """Return one row per trajectory of ``mode`` among ``run_ids`` only."""
        return self._trajectories(mode, run_ids)

    def _trajectories(self, mode: str, among: Sequence[str] | pd.Index | None = None) -> pd.DataFrame:
        rows = self.observed if among is None else self.observed[self.observed.index.isin(among)]
        rows = rows[rows["mode"] == mode]
        # a run before its repeats: these are of chosen seeds, so the longest of all would be the slowest computation of
        # a seed that stops when it has generalised; then the longest, of equally long ones the finest evaluation, and
        # of these the latest, whose own metrics may have changed
        by = ["replicate", "config.train.steps", "steps", "config.eval.every", "started_at", "run_id"]
        rows = rows.sort_values(by, ascending=[True, False, False, True, False, True], kind="stable")
        rows = rows.drop_duplicates("trajectory_id")
        return rows.sort_values(["seed", "run_id"], kind="stable")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """All evaluations, sorted by run and step."""
        return self._curves.sort_values(["run_id", "step"], kind="stable").reset_index(drop=True)

    def curves_of(self, run_ids: Sequence[str] | pd.Index) -> pd.DataFrame:
        """Return the evaluations of some runs."""
        places = sorted(self._places[run] for run in set(run_ids) if run in self._places)
        return self.curves.iloc[np.concatenate([np.arange(i, j) for i, j in places]) if places else []]

    def once(self, compute: Callable[[Observations], Result]) -> Result:
        """Return ``compute(self)``, computed on first use and cached."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        known: Result = self._known[compute]
        return known

    def times(self, rows: pd.DataFrame, event: str = "grokked_step") -> Times:
        """Return the event times of ``rows`` in steps: each in (evaluation before, first evaluation with the event].

        Runs without the event are censored at their last step. A diverged run cannot have the event
        later, so it is censored at the end of its budget.
        """
        right = floats(rows[event])
        seen = np.isfinite(right)
        left = np.array([self._last_before(run, step) for run, step in zip(rows.index, right, strict=True)])
        end_of_run = np.where(rows["status"] == "diverged", floats(rows["config.train.steps"]), floats(rows["steps"]))
        return Times(np.where(seen, np.minimum(left, right - 1), end_of_run), np.where(seen, right, np.inf))

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Each run's rows in ``curves`` as a half-open range."""
        runs = self.curves["run_id"].to_numpy()
        starts = np.flatnonzero(np.r_[True, runs[1:] != runs[:-1]]) if len(runs) else np.array([], dtype=int)
        return {str(runs[i]): (int(i), int(j)) for i, j in zip(starts, [*starts[1:], len(runs)], strict=True)}

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return self.curves["step"].to_numpy(dtype=np.int64)

    def _last_before(self, run: str, step: float) -> float:
        """Return the step of a run's last evaluation before ``step``; 0 if there is none or ``step`` is NaN."""
        place = self._places.get(run)
        if place is None or not np.isfinite(step):
            return 0.0
        steps = self._steps[slice(*place)]
        before = int(np.searchsorted(steps, step))
        return float(steps[before - 1]) if before else 0.0

    def conditions(self, rows: pd.DataFrame) -> pd.Series:
        """Return the number of each row's condition: equal for equal :data:`CONDITION_SETTINGS`.

        Condition 0 has the most rows, 1 the second most, and so on.
        """
        varying = varying_columns(rows)
        if not varying:
            return pd.Series(0, index=rows.index)
        number = rows.groupby(varying, dropna=False, sort=True).ngroup()
        rank = {old: new for new, old in enumerate(number.value_counts(sort=False).sort_values(ascending=False).index)}
        return number.map(rank)

    def by_condition(self) -> list[tuple[str, pd.DataFrame]]:
        """Return (name, rows) for each condition of :attr:`arithmetic`, as :func:`conditions_of` orders them.

        The version of own code and of own metrics is part of a condition here. The name has the settings that
        differ, for titles and legends. It is empty if the store has one condition.
        """
        return [(c.name, c.rows) for c in conditions_of(self.arithmetic, names=MEASURED_CONDITION)]


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs that agree in every setting that can change a result, except seeds."""

    name: str
    """The settings that differ between conditions, such as ``optim.weight_decay=0``; empty if it is the only one."""
    rows: pd.DataFrame

    def __len__(self) -> int:
        return len(self.rows)


def conditions_of(
    rows: pd.DataFrame, but: Sequence[str] = (), names: Sequence[str] = CONDITION_SETTINGS
) -> list[Condition]:
    """Return the conditions among ``rows``: the one with fewest changed settings first, then by size.

    ``but``: settings that the study compares, so they do not define conditions. ``names``: those that may define them.
    """
    if rows.empty:
        return []
    varying = [c for c in varying_columns(rows, names) if c.removeprefix("config.") not in but]
    if not varying:
        return [Condition("", rows)]
    groups = [group for _, group in rows.groupby(varying, dropna=False, sort=True)]
    called = told_apart([settings_words(group.iloc[0], varying) for group in groups])
    conditions = [Condition(", ".join(words), group) for words, group in zip(called, groups, strict=True)]
    reference = min(conditions, key=lambda c: (len(differing_settings(c.rows.iloc[0])), -len(c)))
    return [reference, *sorted((c for c in conditions if c is not reference), key=lambda c: -len(c))]


def settings_words(row: pd.Series, columns: Sequence[str]) -> list[str]:
    """Return ``NAME=VALUE`` for each of ``columns`` of a run; ``(default)`` stands behind default values."""
    defaults = default_settings()
    words = []
    for name in without_repetition([c.removeprefix("config.") for c in columns]):
        value = in_words(row[f"config.{name}"])
        words.append(f"{name}={value}{' (default)' if value == in_words(defaults[name]) else ''}")
    return words


def told_apart(names: Sequence[list[str]]) -> list[list[str]]:
    """Return names of many settings with those that tell them apart, in their order, and how many more differ."""
    kept: list[int] = []
    for place in range(min(map(len, names), default=0)):
        if len({tuple(words[i] for i in (*kept, place)) for words in names}) > len(
            {tuple(words[i] for i in kept) for words in names}
        ):
            kept.append(place)
    return [
        [*(words[i] for i in kept), f"and {len(words) - len(kept)} more settings"]
        if len(words) > max(MOST_SETTINGS, len(kept) + 1)
        else words
        for words in names
    ]


def without_repetition(names: Iterable[str]) -> list[str]:
    """Return settings without ``task.plugin`` if ``task.operation``, which has the same text, is among them."""
    every = list(names)
    return [name for name in every if name != "task.plugin" or "task.operation" not in every]


def varying_columns(rows: pd.DataFrame, names: Sequence[str] = CONDITION_SETTINGS) -> list[str]:
    """Return the columns of the settings ``names`` that take several values in ``rows``."""
    columns = [f"config.{s}" for s in names if f"config.{s}" in rows]
    return [c for c in columns if rows[c].nunique(dropna=False) > 1]


PROCESSOR: Final = ("device", "model", "isa")
"""Parts of a numerics tag: the kind of device, its model, and a processor's instructions."""


def processors(rows: pd.DataFrame) -> pd.Series:
    """Return the ``PROCESSOR`` of each run, of the last process that computed it."""
    return rows["numerics"].map(lambda tag: tuple(tag_parts(tag).get(part) for part in PROCESSOR))


def listed(words: Sequence[str], joint: str = "and") -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def how_many(n: int, noun: str) -> str:
    """Return ``1 seed`` or ``2,000 seeds``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def computed_apart(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """Return what differs between two sides in how they were computed: parts of their numerics tags, device first.

    Lanes' width is none of them: it depends on the other runs of a sweep.
    """
    sides = [[tag_parts(tag) for tag in rows["numerics"].unique()] for rows in (a, b)]
    parts = dict.fromkeys([*PROCESSOR, *(part for side in sides for tag in side for part in tag if tag[part])])
    here, there = ({part: {tag.get(part) for tag in side} for part in parts} for side in sides)
    return [part for part in parts if here[part] != there[part] and part not in ("width", "precision")]


def is_random_seed(rows: pd.DataFrame) -> pd.Series:
    """Return whether each run derives every stream from its master seed, without perturbation."""
    free = (rows["config.perturb.ulps"].fillna(0) == 0) & (rows["layers"] == "{}")
    for stream in RUN_STREAMS:
        free &= is_derived(rows, stream)
    return free


def is_derived(rows: pd.DataFrame, stream: str) -> pd.Series:
    """Return whether each run's seed of ``stream`` is the one that its master seed derives."""
    return rows[f"seed_{stream}"] == [derive_seed(int(seed), stream) for seed in rows["seed"]]


def seed_names(rows: pd.DataFrame, stream: str) -> dict[int, str]:
    """Return a name, such as ``seed 0``, for each stream seed that a master seed of ``rows`` derives."""
    return {derive_seed(int(seed), stream): f"seed {int(seed)}" for seed in sorted(rows["seed"].unique(), reverse=True)}


def has_own_task(row: pd.Series) -> bool:
    """Return whether a run trained on a user's own table, whose size only the user's code knows."""
    plugin = row.get("config.task.plugin")
    return isinstance(plugin, str) and plugin not in ("", "{}")


def describe_task(row: pd.Series) -> str:
    """Return the task of a run in words: ``x/y mod 223, half of the table``."""
    fraction = float(row["config.task.train_fraction"])
    if has_own_task(row):
        return f"{row['config.task.operation']}, {fraction:.0%} of the table"
    return f"{row['config.task.operation']} mod {int(row['config.task.modulus'])}, {fraction:.0%} of the table"


def differing_settings(row: pd.Series, names: Sequence[str] = CONDITION_SETTINGS) -> dict[str, object]:
    """Return the settings of a run that are not the defaults (the diary's regime), by dotted name."""
    defaults = default_settings()
    differing = {}
    for name in names:
        value = row.get(f"config.{name}")
        if name in defaults and not _same(value, defaults[name]):
            differing[name] = value
    return differing


def has_diary_task(row: pd.Series) -> bool:
    """Return whether a run's task is the diary's, for which the thresholds of accuracy were made."""
    return not any(name.startswith("task.") for name in differing_settings(row))


def as_text(value: object) -> str:
    """Return a setting's value as it is typed on the command line."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "null"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def sort_key(value: Any) -> tuple[bool, float, str]:
    """Return the key by which values of a setting are sorted: numbers, then texts."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and not np.isnan(value)
    return not number, float(value) if number else 0.0, as_text(value)


def in_words(value: object) -> str:
    """Return a setting's value as text for readers: own code as ``knot.knot(k=2)``, other values as typed."""
    text = as_text(value)
    if text.startswith("{"):
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # text that no version of this package wrote
            return label(json.loads(text))
    return text


def _same(value: object, default: object) -> bool:
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return default is None
    if isinstance(value, bool | np.bool_) or isinstance(default, bool):
        return bool(value) == default
    if isinstance(default, int | float):
        return float(value) == float(default)  # type: ignore[arg-type]
    return value == default
