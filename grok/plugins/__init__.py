"""Plugins, the user's own code by import path: tasks, models, optimisers, losses, interventions, metrics.

A setting ``{_target_: MODULE.NAME, ARGUMENT: VALUE, ...}`` names a plugin. Its source is read when a command is
planned, its hash is part of the runs' names, and the source is sent to the workers with their work. Only code that
the user's command names is imported, never code that a store or a checkpoint names.
"""

from grok.plugins.code import Code, code_of, fingerprints
from grok.plugins.contracts import Examples, Moment, Operation, RunSink
from grok.plugins.imports import (
    activate,
    active,
    build,
    ends_process,
    exits_refused,
    is_own,
    load,
    name_code,
    place_in_own_code,
)
from grok.plugins.spec import Spec, arguments_of, check_spec, label, target_of

__all__ = [
    "Code",
    "Examples",
    "Moment",
    "Operation",
    "RunSink",
    "Spec",
    "activate",
    "active",
    "arguments_of",
    "build",
    "check_spec",
    "code_of",
    "ends_process",
    "exits_refused",
    "fingerprints",
    "is_own",
    "label",
    "load",
    "name_code",
    "place_in_own_code",
    "target_of",
]
