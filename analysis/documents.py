"""What a store keeps beside its tables: searches in the journals of Optuna, and the JSON files of sweeps.

A store may come from anybody. A file whose content has another shape than this project writes is left
out with a warning, so studies can rely on the shape.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from grok.errors import one_line
from grok.store import DamagedShardWarning
from grok.untrusted import has_shape, is_plain, open_file, read_json

SCORES: Final = [[(int, str, float)]]
TRIALS: Final = {
    "name": str,
    "objectives": [{"name": str, "direction": str}],
    "trials": [
        {"number": int, "state": str, "values": (None, [(float, None)]), "params": dict, "runs": SCORES, "best": bool}
    ],
    "default?": (dict, None),
    "definition?": {"settings?": {"train.steps?": (float, None)}},
}
"""A search."""
PINNED: Final = {"study": str, "trial": int, "default": dict, "best": dict, "steps?": float}
"""Its comparison, before it is made."""
COMPARED: Final = {"pinned": PINNED, "runs": {"default": SCORES, "best": SCORES}}
"""Its comparison with the scores of its runs."""
SWEEP: Final = {"argv?": [str], "config?": {"runs?": [{"run_id": str}], "settings?": dict}}
"""``sweeps/SWEEP.json``."""


def searches(store: Path) -> list[dict[str, Any]]:
    """Return the searches and their comparisons, in order of the files' names."""
    files = sorted((store / "search").glob("*.journal"))
    read = _documents(files, _read_study, lambda parts: all(map(_is_part, parts)))
    return [part for parts in read for part in parts]


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


def _read_study(file: Path) -> list[dict[str, Any]]:
    """Return the study in a journal of Optuna's: its trials, then its comparison, if any."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    open_file(file).close()  # a link or a pipe is refused
    storage = JournalStorage(JournalFileBackend(str(file)))
    study = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
    known, trials = study.user_attrs, study.get_trials(deepcopy=False)
    if "default" not in known:
        raise FileNotFoundError(file)  # it is being made
    several = len(study.directions) > 1
    ended = any(trial.state.name == "COMPLETE" for trial in trials)
    best = {t.number for t in (study.best_trials if several else [study.best_trial])} if ended else set()
    names = known["definition"]["study"]["objectives"]
    data = {
        "name": study.study_name,
        "objectives": [
            {"name": name, "direction": d.name.lower()} for name, d in zip(names, study.directions, strict=True)
        ],
        "definition": known["definition"],
        "default": known["default"],
        "trials": [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "best": trial.number in best,
                "params": dict(trial.params),
                "values": trial.values and [value if math.isfinite(value) else None for value in trial.values],
                "runs": trial.user_attrs.get("runs", []),
            }
            for trial in trials
        ],
    }
    parts = [data]
    if "pinned" in known:
        parts.append(known["pinned"])
    if "compared" in known:
        parts.append({"pinned": known["pinned"], "runs": known["compared"]})
    return parts


def _is_part(data: Any) -> bool:
    return _is_search(data) or _is_pinned(data) or _is_compared(data)


def _is_search(data: Any) -> bool:
    if not has_shape(data, TRIALS) or not data["objectives"] or not is_plain(data["name"]):
        return False
    scores = [run for trial in data["trials"] for run in trial["runs"]]
    is_share = data["objectives"][0]["name"].endswith("_share")
    return all(map(_is_setting, (trial["params"] for trial in data["trials"]))) and all(
        _is_score(run) and (not is_share or run[2] in (0, 1)) for run in scores
    )


def _is_pinned(data: Any) -> bool:
    return (
        has_shape(data, PINNED | {"pinned_at": str})
        and _is_setting(data["default"])
        and _is_setting(data["best"])
        and data["default"].keys() == data["best"].keys()
    )


def _is_compared(data: Any) -> bool:
    return (
        has_shape(data, COMPARED)
        and _is_pinned(data["pinned"] | {"pinned_at": ""})
        and all(_is_score(run) for side in data["runs"].values() for run in side)
    )


def _is_setting(params: dict[str, Any]) -> bool:
    return all(has_shape(value, (str, float, bool, None)) for value in params.values())


def _is_score(run: list[Any]) -> bool:
    """Return whether ``run`` is ``[seed, run_id, score]``."""
    return len(run) == 3 and has_shape(run[0], int) and has_shape(run[1], str) and has_shape(run[2], float)
