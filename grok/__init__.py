"""A laboratory for one question: what does a random seed decide?

For notebooks and scripts::

    import grok

    grok.run("experiment=quickstart", seed=7)                     one run; returns its row
    grok.sweep("experiment=quickstart", seed=range(0, 64))        many runs; returns a row each
    store = grok.open_store("results/store")                      .runs(), .curves(), .steps(): data frames
    studies = grok.studies("results/store")                       the report's studies, as data frames
    studies["census"]                                             an answer, or what is missing for one

Every refusal raises :class:`grok.GrokError`. The names are loaded at their first use: ``import grok``
imports no other module.
"""

import importlib
from typing import TYPE_CHECKING, Any

from grok.version import __version__

if TYPE_CHECKING:
    from grok.analysis.notebook import studies
    from grok.errors import GrokError
    from grok.run import run, sweep
    from grok.store import open_store

__all__ = ["GrokError", "__version__", "open_store", "run", "studies", "sweep"]

_HOMES = {
    "GrokError": "grok.errors",
    "open_store": "grok.store",
    "run": "grok",  # the command's module, which is callable
    "studies": "grok.analysis.notebook",
    "sweep": "grok.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grok' has no attribute {name!r}")
    if name == "run":
        return importlib.import_module("grok.run")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__"])
