"""The JSON files that a store keeps beside its tables.

A store may come from anybody. A file whose content has another shape than this project writes is left
out with a warning, so studies can rely on the shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from grok.store import DamagedShardWarning
from grok.untrusted import has_shape, is_plain, read_json

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
"""``search/NAME.json``."""
PINNED: Final = {"study": str, "trial": int, "default": dict, "best": dict, "steps?": float}
"""``search/NAME.comparison.json``."""
COMPARED: Final = {"pinned": PINNED, "runs": {"default": SCORES, "best": SCORES}}
"""``search/NAME.compared.json``."""
SWEEP: Final = {"argv?": [str], "config?": {"runs?": [{"run_id": str}], "settings?": dict}}
"""``sweeps/SWEEP.json``."""


def searches(store: Path) -> list[dict[str, Any]]:
    """Return the records of searches, in order of the files' names."""
    return _documents(store / "search", lambda data: _is_search(data) or _is_pinned(data) or _is_compared(data))


def sweeps(store: Path) -> list[dict[str, Any]]:
    """Return the records of sweeps, in order of the files' names."""
    return _documents(store / "sweeps", lambda data: has_shape(data, SWEEP))


def _documents(folder: Path, is_ours: Callable[[Any], bool]) -> list[dict[str, Any]]:
    documents = []
    for file in sorted(folder.glob("*.json")):
        try:
            data = read_json(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = str(error)
        else:
            if is_ours(data):
                documents.append(data)
                continue
            reason = "not what this project writes there"
        warnings.warn(f"left out {file}: {reason}", DamagedShardWarning, stacklevel=2)
    return documents


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
