"""Code of the user's own, named by import path: tasks, models, optimisers, losses, interventions, metrics.

A setting ``{_target_: MODULE.NAME, ARGUMENT: VALUE, ...}`` names it. Its source is read when a command is planned,
is part of the runs' names, and travels to the workers with their work. Nothing is imported that the user's own
command did not name: neither what a store says nor a checkpoint.
"""

from grok.plugins.code import Code, code_of, fingerprints
from grok.plugins.contracts import Examples, Moment, Operation, RunSink
from grok.plugins.imports import activate, active, build, load
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
    "fingerprints",
    "label",
    "load",
    "target_of",
]
