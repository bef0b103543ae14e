"""What ``--help`` says of settings, from where they are declared. No torch, no store."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from grok.commands.words import chosen_mode, setup_meaning, setup_names
from grok.config import MODES
from grok.config.fields import Rule, accepted_values, defaults_of, settings_of
from grok.config.values import literal
from grok.errors import nearest
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
  --config-dir DIR settings files of your own: DIR/experiment/NAME.yaml, DIR/sweep/NAME.yaml
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
    narrowing = [word for word in words if "=" not in word and not word.startswith("-")]
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
        lines += [title, *named_lines(group, mode), ""]
    usual = {name: settings[name] for name in USUAL[mode]}
    lines += [
        f"The {len(usual)} usual settings of mode={mode}. All {len(settings)}: grok run mode={mode} --help all. Some: "
        "--help WORD.",
        f"Those of the other mode: mode={other} --help.",
    ]
    lines += [*setting_lines(usual, defaults_of(MODES[mode])), "", OPTIONS.rstrip()]
    return "\n".join(lines)


def named_lines(group: str, mode: str | None = None) -> Iterator[str]:
    """Yield a line for each set-up of ``group``; of experiments only those of ``mode``."""
    for name in setup_names(group):
        if group != "experiment" or mode is None or name.startswith("gpt/") == (mode == "gpt"):
            yield f"  {f'{group}={name}':<34}{setup_meaning(group, name, 80)}".rstrip()


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
