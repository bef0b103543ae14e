"""``grok search study=NAME [overrides]``: starts a study, or continues it.

Studies are files of ``conf/study/``. Every setting of a run can be overridden as in ``grok run``.
``study.trials``, ``study.seeds`` ... set the size of the study.
Exit status 0: the study is finished; 1: interrupted, or a trial failed; 2: refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from grok.commands.command import GO_ON, command
from grok.commands.compose import Settings, compose
from grok.commands.reference import named_lines, setting_lines
from grok.commands.words import store_as_setting
from grok.config.fields import settings_of, walk
from grok.errors import ConfigError
from grok.sweeps.search.config import NO_STUDY, Studied, refuse_unknown, split_study

USAGE: Final = """usage: grok search study=NAME [NAME=VALUE ...] [--store STORE]

examples:
  grok search study=quickstart study.trials=60 study.seeds=8
  grok search study=quickstart dry_run=true             print the plan and train nothing

It takes any setting of `grok run`, too; `grok run --help` lists them.
"""


def usage() -> str:
    """Return the command's help."""
    settings = settings_of(Studied)
    lines = [USAGE]
    lines += ["Studies", *named_lines("study"), "", "Settings of a study"]
    lines += setting_lines(settings, {name: value for name, value, _ in walk(Studied())})
    return "\n".join(lines)


def compose_study(words: Sequence[str]) -> Settings:
    """Return the nested settings of a command line, with the study under ``study``.

    Raises:
        ConfigError: there is no study, or a word is refused.
    """
    if not any(word.startswith(("study=", "+study=")) for word in words):
        raise ConfigError(NO_STUDY)
    return compose([_as_addition(word) for word in words])


def _as_addition(word: str) -> str:
    """Return an override in Hydra's form: ``study`` is a group that the primary config does not have.

    >>> _as_addition("study=quickstart"), _as_addition("study.space.optim.lr={low:1,high:2}")
    ('+study=quickstart', '++study.space.optim.lr={low:1,high:2}')
    """
    if word.startswith("study="):
        return f"+{word}"
    if word.startswith("study.space."):
        return f"++{word}"
    if word.startswith("study."):
        refuse_unknown(word.partition("=")[0])
    return word


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Do the rest of a study."""
    if not argv or {"-h", "--help"} & set(argv):
        print(usage())
        return 0 if argv else 2
    from grok.sweeps.search.driver import carry_out

    study, raw_space, base = split_study(compose_study(store_as_setting(argv)))
    return carry_out(study, raw_space, base, ["python", "-m", "grok.sweeps.search", *argv])


if __name__ == "__main__":
    sys.exit(main())
