"""The spec of a plugin in the settings, in Hydra's form: ``{_target_: MODULE.NAME, ARGUMENT: VALUE, ...}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from grok.errors import ConfigError

TARGET: Final = "_target_"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Spec = Mapping[str, Any]
"""A plugin in the settings; empty: none."""


def check_spec(setting: str, spec: Spec) -> None:
    """Refuse a spec without an import path, or with an argument that is no keyword.

    Raises:
        ConfigError: the message has the setting and what is expected.

    >>> check_spec("task.plugin", {"_target_": "parity.SparseParity", "bits": 40})
    """
    if not spec:
        return
    target = spec.get(TARGET)
    if not isinstance(target, str) or not _NAME.fullmatch(target):
        shown = f"{setting}={dict(spec)!r} names no code" if target is None else f"{setting}._target_={target!r}"
        raise ConfigError(f"{shown}: expected {setting}._target_=MODULE.NAME, for example my_module.MyTask")
    for name in spec:
        if name != TARGET and not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError(f"{setting}.{name}: an argument of {target} needs a name of letters, digits and _")


def target_of(spec: Spec) -> str:
    """Return the import path."""
    return str(spec[TARGET])


def arguments_of(spec: Spec) -> dict[str, Any]:
    """Return the keyword arguments."""
    return {name: value for name, value in spec.items() if name != TARGET}


def label(spec: Spec) -> str:
    """Return a plugin's text for tables and messages: its import path and its arguments.

    >>> label({"_target_": "parity.SparseParity", "k": 3, "bits": 40})
    'parity.SparseParity(bits=40, k=3)'
    >>> label({"_target_": "groups.dihedral"})
    'groups.dihedral'
    """
    shown = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
        for name, value in sorted(arguments_of(spec).items())
    )
    return f"{target_of(spec)}({shown})" if shown else target_of(spec)
