"""``grok COMMAND``: the console command. ``grok --help`` lists the commands, ``grok COMMAND --help`` explains one.

The table below names modules; a module is imported only when its command is called. So this module
can name the packages above ``grok`` without depending on them.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final

from grok.commands.command import command
from grok.errors import ConfigError, nearest
from grok.version import __version__


@dataclass(frozen=True)
class Command:
    """One command: its module, whose ``main`` it calls, and its description in the list."""

    module: str
    meaning: str
    words: tuple[str, ...] = ()
    """Words that are inserted before those of the user."""


COMMANDS: Final = {
    "the first hour": {
        "sweep": Command("grok.run", "many runs: seed=range(0,64) optim.lr=1e-3,3e-3", ("-m",)),
        "report": Command("grok.analysis.report", "one page on a store, with figures and their data"),
        "list": Command("grok.analysis.listing", "the runs as a table: class=super 'generalised<2000' design=branch"),
        "show": Command("grok.analysis.show", "one run: its seeds, events and curves"),
        "run": Command("grok.run", "one run, or a stored run again (--again)"),
    },
    "what makes a seed good": {
        "repeat": Command("grok.sweeps.repeat", "run the best seeds of a store again, with ordinary ones"),
        "branch": Command("grok.sweeps.branch", "redraw some streams of promising seeds"),
        "layers": Command("grok.sweeps.layers", "move initial layers from one seed to another"),
        "search": Command("grok.sweeps.search.__main__", "settings that work better: a study with Optuna"),
    },
    "stores": {
        "compare": Command("grok.analysis.compare", "two sets of runs side by side: weight_decay=0 weight_decay=1"),
        "atlas": Command("grok.analysis.atlas", "stores as one public data set, with a card and checksums"),
        "store": Command("grok.commands.store", "status, verify, compact, merge, migrate, restore, export"),
    },
    "language models": {
        "prepare": Command("grok.prepare", "text in, tokens and a report on the text out"),
        "plan": Command("grok.plan", "parameters, time, memory and cost of a run"),
        "find": Command("grok.find", "learning rate and batch size, by trying"),
        "evaluate": Command("grok.evaluate", "loss, perplexity and bits per byte of a trained model"),
        "generate": Command("grok.generate", "text from a trained model"),
        "average": Command("grok.average", "the mean weights of a run's kept checkpoints"),
        "hf": Command("grok.hf", "weights to and from Hugging Face's form"),
    },
    "this program": {
        "examples": Command("grok.commands.examples", "code of your own to start from, written into a folder"),
    },
}

DESIGNS: Final = {"repeatability": "repeat", "branching": "branch", "layers": "layers"}
"""``grok sweep NAME ...``: sweeps that start from the runs of a store; each name with its command."""

EXAMPLES: Final = """\
examples:
  grok sweep experiment=quickstart 'seed=range(0,64)' --store results/quickstart
  grok report results/quickstart
  grok show 3f2a --store results/quickstart

A store is named --store S in every command; without it, it is results/store.
"""

CLASH: Final = (
    "warning: PyPI's project 'grok' is installed, too, and writes into the same folder: "
    "pip uninstall grok grok-lab, then pip install grok-lab"
)


@command()
def main(argv: list[str]) -> int:
    """Run the command that the first word names."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"grok-lab {__version__}")
        return 0
    name, *words = argv
    known = {name: entry for group in COMMANDS.values() for name, entry in group.items()}
    if any(distributions(name="grok")):
        print(CLASH, file=sys.stderr)
    if name not in known:
        raise ConfigError(f"'{name}' is no command of grok{nearest(name, known)}: expected one of {', '.join(known)}")
    if name == "sweep" and words and words[0] in DESIGNS:
        name, *words = [DESIGNS[words[0]], *words[1:]]
    chosen = known[name]
    return int(importlib.import_module(chosen.module).main([*chosen.words, *words]))


def usage() -> str:
    """Return the list of commands."""
    lines = ["usage: grok COMMAND ...          grok COMMAND --help says what a command takes", ""]
    for title, commands in COMMANDS.items():
        lines += [title, *(f"  {name:<12}{c.meaning}" for name, c in commands.items()), ""]
    return "\n".join([*lines, EXAMPLES.rstrip()])


if __name__ == "__main__":
    sys.exit(main())
