"""``grok COMMAND``: the console command. ``grok --help`` lists the commands, ``grok COMMAND --help`` explains one.

The table below names modules; a module is imported only when its command is called. So this module
can name the packages above ``grok`` without depending on them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from grok.commands.command import Parser, command
from grok.errors import ConfigError, nearest
from grok.version import __version__

HOME: Final = str(Path(__file__).parents[1])
"""The folder of the package ``grok``."""

NEIGHBOURS: Final = ("analysis", "sweeps", "benchmarks")
"""Packages of this project beside ``grok``."""


@dataclass(frozen=True)
class Command:
    """One command: its module, whose ``main`` it calls, and its description in the list."""

    module: str
    meaning: str
    settings: bool = False
    """Whether it accepts ``NAME=VALUE`` words."""
    words: tuple[str, ...] = ()
    """Words that are inserted before those of the user."""


COMMANDS: Final = {
    "the first hour": {
        "sweep": Command("grok.run", "many runs: seed=range(0,64) optim.lr=1e-3,3e-3", True, ("-m",)),
        "report": Command("analysis.report", "one page on a store, with figures and their data"),
        "list": Command("analysis.listing", "the runs as a table: class=super 'generalised<2000' design=branch"),
        "show": Command("grok.show", "one run: its seeds, events and curves"),
        "run": Command("grok.run", "one run, or a stored run again (--again)", True),
    },
    "what makes a seed good": {
        "repeat": Command("sweeps.repeat", "run the best seeds of a store again, with ordinary ones", True),
        "branch": Command("sweeps.branch", "redraw some streams of promising seeds", True),
        "layers": Command("sweeps.layers", "move initial layers from one seed to another", True),
        "search": Command("sweeps.search.__main__", "settings that work better: a study with Optuna", True),
    },
    "stores": {
        "study": Command("analysis.study", "one question of the report"),
        "compare": Command("analysis.compare", "two sets of runs side by side: weight_decay=0 weight_decay=1"),
        "store": Command("grok.commands.store", "status, verify, compact, merge, migrate, restore, export"),
    },
    "language models": {
        "prepare": Command("grok.prepare", "text in, tokens and a report on the text out"),
        "plan": Command("grok.plan", "parameters, time, memory and cost of a run", True),
        "find": Command("grok.find", "learning rate and batch size, by trying", True),
        "evaluate": Command("grok.evaluate", "loss, perplexity and bits per byte of a trained model"),
        "generate": Command("grok.generate", "text from a trained model"),
        "average": Command("grok.average", "the mean weights of a run's kept checkpoints"),
        "hf": Command("grok.hf", "weights to and from Hugging Face's form"),
    },
    "this program": {
        "bench": Command("benchmarks", "speed on this machine (in a checkout only)"),
        "examples": Command("grok.commands.examples", "code of your own to start from, written into a folder"),
        "completion": Command("grok.__main__", "completion for bash, zsh and fish"),
    },
}

DESIGNS: Final = {"repeatability": "repeat", "branching": "branch", "layers": "layers"}
"""``grok sweep NAME ...``: sweeps that start from the runs of a store; each name with its command."""

EXAMPLES: Final = """\
examples:
  grok sweep experiment=quickstart 'seed=range(0,64)' --store results/quickstart
  grok report results/quickstart
  grok show 3f2a --store results/quickstart
  eval "$(grok completion bash)"

A store is named --store S in every command; without it, it is results/store.
"""

BENCHMARKS: Final = ("seeds", "gpt", "device_day")


class _Neighbours(MetaPathFinder):
    """Finds the packages of this project beside ``grok``, even if the current folder has packages of their names."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [HOME]) if name in NEIGHBOURS else None


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
    known = _commands()
    if name == "bench" and name not in known:
        raise ConfigError("grok bench needs a checkout of the project: an installed package has no benchmarks")
    if name not in known:
        raise ConfigError(f"'{name}' is no command of grok{nearest(name, known)}: expected one of {', '.join(known)}")
    if not any(isinstance(finder, _Neighbours) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Neighbours())
    if name == "completion":
        return _completion(words)
    if name == "bench":
        return _bench(words)
    if name == "sweep" and words and words[0] in DESIGNS:
        name, *words = [DESIGNS[words[0]], *words[1:]]
    chosen = known[name]
    return int(importlib.import_module(chosen.module).main([*chosen.words, *words]))


def usage() -> str:
    """Return the list of commands."""
    lines = ["usage: grok COMMAND ...          grok COMMAND --help says what a command takes", ""]
    for title, commands in COMMANDS.items():
        lines += [title, *(f"  {name:<12}{c.meaning}" for name, c in commands.items() if name in _commands()), ""]
    return "\n".join([*lines, EXAMPLES.rstrip()])


def _commands() -> dict[str, Command]:
    every = {name: entry for group in COMMANDS.values() for name, entry in group.items()}
    if not Path(HOME, "benchmarks").is_dir():
        del every["bench"]
    return every


def _bench(words: Sequence[str]) -> int:
    parser = Parser(prog="grok bench", description="Measure speed on this machine; pages go to results/benchmarks/.")
    parser.add_argument("benchmark", choices=BENCHMARKS, help="what to measure; its own --help says how")
    name = parser.parse_args(words[:1]).benchmark
    sys.argv = [f"grok bench {name}", *words[1:]]
    return int(importlib.import_module(f"benchmarks.{name}").main() or 0)


def parser() -> Parser:
    """Return the arguments of ``grok completion``."""
    from grok.commands.reference import SCRIPTS

    parser = Parser(prog="grok completion", description='In ~/.bashrc: eval "$(grok completion bash)"')
    parser.add_argument("shell", choices=list(SCRIPTS), nargs="?", help="print this shell's script")
    parser.add_argument("--for", dest="line", help="print what completes this command line")
    return parser


def _completion(words: Sequence[str]) -> int:
    from grok.commands.reference import SCRIPTS, of_line

    arguments = parser().parse_args(words)
    if arguments.line is not None:
        candidates = of_line(
            arguments.line, {name: (entry.module, entry.settings) for name, entry in _commands().items()}
        )
        print("\n".join(candidates), end="\n" if candidates else "")
    elif arguments.shell is not None:
        print(SCRIPTS[arguments.shell], end="")
    else:
        raise ConfigError("grok completion needs a shell: bash, zsh or fish")
    return 0


if __name__ == "__main__":
    sys.exit(main())
