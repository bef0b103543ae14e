"""What ``--help`` and shell completion say of settings, from where they are declared. No torch, no store."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import shutil
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grok.commands import words as setups
from grok.commands.words import chosen_mode
from grok.config import MODES
from grok.config.fields import Rule, accepted_values, defaults_of, settings_of
from grok.config.values import literal
from grok.errors import GrokError, nearest
from grok.plugins import TARGET
from grok.streams import MAX_SEED

USAGE = """\
usage: grok run [NAME=VALUE ...] [--store STORE]     one run
       grok sweep [NAME=VALUE ...] [--store STORE]   a sweep: a setting may have several values
       grok run --again RUN --store STORE            train a stored run again and compare its bits

examples:
  grok run experiment=quickstart seed=7
  grok sweep experiment=quickstart 'seed=range(0,64)' --store results/quickstart
  grok sweep sweep=weight_decay optim.lr=1e-3,3e-3 dry_run=true
  grok run mode=gpt experiment=gpt/shakespeare_char data.path=data/shakespeare

The same command given again goes on where it stopped. Several values of a setting: 1,2,3 or
range(FIRST,END) or range(FIRST,END,STEP); quote them in a shell. --store S is store.path=S.
"""

OPTIONS = """\
Options
  --config-dir DIR settings files of your own: DIR/experiment/NAME.yaml, DIR/sweep/NAME.yaml; listed by --help
  --cfg job        print the settings of this command and train nothing
  --help WORD      the settings whose name or meaning has WORD in it
  --help all       all settings
  --hydra-help     Hydra's own options
  HYDRA_FULL_ERROR=1 in the environment shows tracebacks
"""


USUAL: Final = {
    "arithmetic": (
        *("seed", "seeds.split", "seeds.init", "seeds.order", "task.operation", "task.modulus", "task.train_fraction"),
        *("model.layers", "model.d_model", "optim.lr", "optim.weight_decay", "train.steps", "eval.every", "store.path"),
        "dry_run",
    ),
    "gpt": (
        *("seed", "data.path", "model.layers", "model.d_model", "model.context", "model.dropout", "optim.lr"),
        *("optim.warmup_steps", "train.steps", "train.batch_size", "train.micro_batch", "eval.every", "precision"),
        *("store.path", "dry_run"),
    ),
}
"""The settings that most commands give, by mode; the help begins with them."""


def run_help(words: Sequence[str]) -> str:
    """Return the help of ``grok run`` for the mode that ``words`` choose; bare words among them narrow it down."""
    mode = chosen_mode(words)
    own = setups.own_folders(words)
    folders = {str(folder) for folder in own}
    narrowing = [word for word in words if "=" not in word and not word.startswith("-") and word not in folders]
    settings = settings_of(MODES[mode])
    if narrowing:
        chosen = {
            name: about
            for name, about in settings.items()
            if narrowing == ["all"] or all(word.lower() in f"{name} {about[1].doc}".lower() for word in narrowing)
        }
        text = "\n".join(setting_lines(chosen, defaults_of(MODES[mode])))
        return text or f"no setting of mode={mode} has {' '.join(narrowing)} in it{nearest(narrowing[0], settings)}"
    other = next(name for name in MODES if name != mode)
    lines = [USAGE]
    for group, title in (("experiment", "Named set-ups"), ("sweep", "Named sweeps (grok sweep)")):
        lines += [title, *named_lines(group, mode, own), ""]
    usual = {name: settings[name] for name in USUAL[mode]}
    lines += [
        f"The {len(usual)} usual settings of mode={mode}. All {len(settings)}: grok run mode={mode} --help all. Some: "
        "--help WORD.",
        f"Those of the other mode: mode={other} --help.",
    ]
    lines += [*setting_lines(usual, defaults_of(MODES[mode])), "", OPTIONS.rstrip()]
    return "\n".join(lines)


def named_lines(group: str, mode: str | None = None, own: Sequence[Path] = ()) -> Iterator[str]:
    """Yield a line for each set-up of ``group``, ``own`` folders' too; of experiments only those of ``mode``."""
    for name in setups.setup_names(group, own):
        if group != "experiment" or mode is None or name.startswith("gpt/") == (mode == "gpt"):
            yield f"  {f'{group}={name}':<34}{setups.setup_meaning(group, name, 80, own)}".rstrip()


def setting_lines(settings: Mapping[str, tuple[Any, Rule]], default: Mapping[str, Any]) -> Iterator[str]:
    """Yield each setting with its default and what it takes, and its meaning below."""
    width = min(100, max(60, shutil.get_terminal_size((100, 24)).columns))
    for name, (hint, rule) in settings.items():
        takes = accepted_values(hint, rule).replace(f" and at most {MAX_SEED}", "").removeprefix("one of ")
        default_text = literal(default[name]).replace("\n", "\\n")
        yield f"  {f'{name}={default_text}':<30} {takes}"
        yield from textwrap.wrap(
            rule.doc, width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )


# Shell completion of ``grok``: what can stand where the cursor is. Imports no torch and reads no store.
#
# ``grok completion SHELL`` prints a script to be sourced. The script asks ``grok completion --for LINE``,
# which prints one candidate a line; where there is none the shell completes files.

SCRIPTS: Final = {
    "bash": r"""# in ~/.bashrc: eval "$(grok completion bash)"
_grok() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" word rest
    word="${line##*[[:space:]]}"
    COMPREPLY=($(grok completion --for "$line" 2>/dev/null))
    # bash cuts words at = and : and replaces only what stands behind the last of them
    rest="${word##*[=:]}"
    [[ "$word" == *[=:]* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"$rest"}"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _grok grok
""",
    "zsh": r"""# in ~/.zshrc, behind compinit: eval "$(grok completion zsh)"
_grok() {
    local -a all open closed
    all=("${(@f)$(grok completion --for "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    open=(${(M)all:#*=})
    closed=(${all:#*=})
    (( ${#open} )) && compadd -S '' -- $open
    (( ${#closed} )) && compadd -- $closed
    (( ${#open} + ${#closed} )) || { compset -P '*='; _files }
}
compdef _grok grok
""",
    "fish": r"""# grok completion fish > ~/.config/fish/completions/grok.fish
complete -c grok -f -a '(
    set -l all (grok completion --for (commandline -cp | string collect) 2>/dev/null)
    if test (count $all) -gt 0; printf "%s\n" $all; else; __fish_complete_path (commandline -ct); end
)'
""",
}


def candidates(words: Sequence[str], commands: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Return what can stand in place of the last of ``words`` (those behind ``grok``), which is being typed.

    ``commands`` gives for each command its module and whether it takes settings.
    """
    *before, current = words
    if not before:
        return _starting(current, [*commands, "--help", "--version"])
    if before[0] not in commands:
        return []
    module, takes_settings = commands[before[0]]
    if takes_settings and not current.startswith("-") and (settings := _settings(before, current)):
        return settings
    words = _arguments(module, before[1:])
    # a name may stand here that only the user knows; options are offered when one is begun
    return _starting(current, [word for word in words if word.startswith("-") == current.startswith("-")])


def _settings(before: Sequence[str], current: str) -> list[str]:
    """Return settings with their ``=``, or the values of the setting whose name is complete."""
    name, equals, _ = current.partition("=")
    mode = "gpt" if before[0] in ("plan", "find") else chosen_mode(before)
    settings = settings_of(MODES[mode])
    groups = ["experiment", *(["mode"] if before[0] in ("run", "sweep", "search") else [])]
    groups += ["sweep"] if before[0] == "sweep" or "-m" in before else []
    if before[0] == "search":
        studied = importlib.import_module("grok.sweeps.search.config").Studied
        settings |= settings_of(studied)
        groups.append("study")
    if not equals:
        targets = [f"{name}.{TARGET}" for name, (hint, rule) in settings.items() if _names_code(hint, rule)]
        return _starting(current, [f"{name}=" for name in dict.fromkeys([*groups, *settings, *targets])])
    if name in groups:
        return _starting(current, [f"{name}={value}" for value in setups.setup_names(name, setups.own_folders(before))])
    if name.endswith(f".{TARGET}"):
        folder = next((word.partition("=")[2] for word in before if word.startswith("plugin_path=")), ".")
        return _starting(current, [f"{name}={target}" for target in _targets(Path(folder))])
    if name not in settings:
        return []
    hint, rule = settings[name]
    values = rule.choices or (("true", "false") if hint is bool else ())
    return _starting(current, [f"{name}={value}" for value in values])


def _names_code(hint: Any, rule: Rule) -> bool:
    """Return whether a setting takes one import path; ``eval.metric_plugins`` takes several, by name."""
    return Any in typing.get_args(hint) and "by name" not in rule.doc


def _targets(folder: Path) -> Iterator[str]:
    """Yield ``MODULE.NAME`` of every public function and class of a folder's modules, which are not imported."""
    for file in sorted(folder.glob("*.py")):
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                    yield f"{file.stem}.{node.name}"


def _arguments(module: str, before: Sequence[str]) -> list[str]:
    """Return the options and the fixed words that a command's parser takes behind ``before``."""
    door = importlib.import_module(module)
    return _of_parser(door.parser(), before) if hasattr(door, "parser") else [*door.OPTIONS]


def _of_parser(parser: argparse.ArgumentParser, before: Sequence[str]) -> list[str]:
    actions = parser._actions  # argparse has no other way to ask
    options = {option: action for action in actions for option in action.option_strings}
    if before and before[-1] in options and options[before[-1]].nargs != 0:
        return [str(choice) for choice in options[before[-1]].choices or ()]
    for action in actions:
        if action.option_strings or action.choices is None:
            continue
        word = next((word for word in before if word in action.choices), None)
        if word is None:
            return [*map(str, action.choices), *options]
        if isinstance(action, argparse._SubParsersAction):
            return _of_parser(action.choices[word], before[before.index(word) + 1 :])
    return [option for option in options if option.startswith("--")]


def _starting(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]


def of_line(line: str, commands: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Return the candidates at the end of a command line that begins with the program's name."""
    words = line.split()[1:]
    if not line or line[-1].isspace():
        words.append("")
    try:
        return candidates(words, commands) if words else []
    except (GrokError, ImportError):  # nothing to offer is no error at a prompt
        return []
