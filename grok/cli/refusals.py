"""Hydra's refusals in one line: what was asked, what was given, what would do."""

from __future__ import annotations

import re
from typing import Final

from grok.config import MODES
from grok.config.fields import settings_of
from grok.config.gpt import PRESETS
from grok.errors import nearest

EXECUTORS: Final = {
    "submitit_slurm": "slurm",
    "submitit_local": "loky",
    "joblib": "loky",
    "ray": "ray",
    "ray_aws": "ray",
    "dask": "dask",
    "rq": "dask",
}
"""Launchers of Hydra's own that people know, and the executor that does the same here."""


MEANT: Final = {
    "learning_rate": "optim.lr",
    "wd": "optim.weight_decay",
    "epochs": "train.steps",
    "iterations": "train.steps",
    "max_steps": "train.steps",
    "n_layer": "model.layers",
    "n_head": "model.heads",
    "n_embd": "model.d_model",
    "prime": "task.modulus",
}
"""Names that other programs give to settings."""


def explain(error: Exception, *, one_run: bool, mode: str | None = None) -> str:
    """Return one line on an error of Hydra or OmegaConf.

    ``one_run``: the command never takes several values. ``mode``: whose settings it takes.
    """
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, OverrideParseException):
        reason = error.message.partition("See https://hydra.cc")[0].replace("^", " ")
        return f"{error.override!r} cannot be read: {_joined(reason)} (quote values with special characters)"
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        if group == "experiment/gpt":
            return unknown_preset(f"gpt/{name}")
        known = sorted(error.options)
        if group == "hydra/launcher":
            return no_launcher(name)
        return f"{group}={name} is not known{nearest(name, known)}: expected one of {', '.join(known)}"
    text = str(error) or str(error.__cause__ or "")
    nowhere = re.search(r"Interpolation key '([^']*)' not found\s+full_key: (\S+)", text)
    if nowhere:
        return (
            f"{nowhere[2]}: ${{{nowhere[1]}}} stands for another setting, and there is none of this name; "
            rf"where $ is meant itself, write \${{{nowhere[1]}}}"
        )
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and unknown[1] == "study":
        return "study= names a search: give it to `grok search`"
    if unknown:
        return unknown_setting(unknown[1], mode)
    if "requires --multirun" in text or "Ambiguous value" in text:
        several = re.search(r"'([^']+=.*?)'(?: requires|\s)", text)
        remedy = (
            "expected one value" if one_run else "several values are a sweep: `grok sweep` (or -m) runs all of them"
        )
        return f"{several[1] if several else 'several values'}: {remedy}"
    cause = f": {error.__cause__}" if str(error) and str(error.__cause__ or "") not in text else ""
    return _joined(text + cause)


def no_launcher(name: str) -> str:
    """Return why one of Hydra's launchers cannot spread a sweep, and what does.

    >>> no_launcher("joblib").partition("executor=")[2]
    'loky (inline, loky, dask, ray or slurm)'
    """
    return (
        f"hydra/launcher={name}: runs of one sweep share a program and a store, so they are spread by the executor "
        f"instead of a launcher: executor={EXECUTORS.get(name, 'loky')} (inline, loky, dask, ray or slurm)"
    )


def unknown_setting(name: str, of_mode: str | None = None) -> str:
    """Return what is wrong with a setting that the mode does not have: it is another mode's, a group's name, or none.

    What may be meant is looked for among the settings of ``of_mode`` (None: of all modes).

    >>> unknown_setting("task.modulus")
    'task.modulus is a setting of mode=arithmetic, and this is mode=gpt'
    >>> unknown_setting("optim.lrr")
    "unknown setting 'optim.lrr', did you mean 'optim.lr'?"
    >>> unknown_setting("eval.metric_plugin.bits._target_")
    "unknown setting 'eval.metric_plugin.bits._target_', did you mean 'eval.metric_plugins'?"
    """
    of = {mode: [*settings_of(config), "experiment", "mode"] for mode, config in MODES.items()}
    known = list(dict.fromkeys(n for names in of.values() for n in names))
    if name in known:
        without = [mode for mode, names in of.items() if name not in names]
        having = next(mode for mode, names in of.items() if name in names)
        if without:
            return f"{name} is a setting of mode={having}, and this is mode={' or '.join(without)}"
    if name in {n.rpartition(".")[0] for n in known} - {""}:
        inside = ", ".join(n for n in known if n.startswith(f"{name}."))
        return f"{name} is a group of settings, not a value: expected one of {inside}"
    if name.partition(".")[0] == "sweeps":
        return f"unknown setting '{name}': a named sweep is a command: grok {name.rpartition('.')[2]} --help"
    if (meant := MEANT.get(name.rpartition(".")[2])) is not None:
        return f"unknown setting '{name}', did you mean '{meant}'?"
    parts, names = name.split("."), of.get(of_mode or "", known)
    # the name may be that of a map's entry: task.plugn._target_
    whole_or_map = [nearest(".".join(parts[:count]), names) for count in range(len(parts), min(2, len(parts)) - 1, -1)]
    return f"unknown setting '{name}'{next(filter(None, whole_or_map), '')}"


def unknown_preset(name: str) -> str:
    """Return what is wrong with ``experiment=NAME`` where NAME looks like a preset's and is none.

    >>> unknown_preset("gpt/shakespeare_chr").partition(": expected")[0]
    "experiment=gpt/shakespeare_chr is not known, did you mean 'gpt/shakespeare_char'?"
    """
    known = [f"gpt/{preset}" for preset in PRESETS]
    return f"experiment={name} is not known{nearest(name, known)}: expected one of {', '.join(known)}"


def _joined(text: str) -> str:
    return " ".join(text.split())
