"""Settings composed from ``conf/`` and the words of a command line, for every command. The only caller of Hydra.

``compose`` gives one run's settings; ``run_application`` hands a command line, sweeps included, to Hydra's own
application. Both read the same files, take the same words and refuse in the same lines.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from grok.cli import setups
from grok.cli.command import FULL_ERROR
from grok.cli.refusals import explain
from grok.cli.words import as_overrides, chosen_mode
from grok.errors import ConfigError, GrokError

VERSION_BASE: Final = "1.3"
"""The version of Hydra whose rules the files in ``conf/`` are written for."""

PRIMARY: Final = "config"
"""The file of ``conf/`` that every command starts from."""

Settings = dict[str, Any]
"""Nested plain settings, interpolations resolved."""


def conf_source() -> str:
    """Return the folder of the settings as Hydra takes it: a package's folder is named by the package."""
    conf = setups.folder()
    return "pkg://grok.conf" if conf.parent == Path(__file__).parents[1] else str(conf)


def compose(words: Sequence[str]) -> Settings:
    """Return the settings of one run, given as ``NAME=VALUE`` words.

    Raises:
        ConfigError: what ``grok run`` would refuse, too; or several values for one setting.
    """
    from hydra import compose as compose_by_hydra
    from hydra import initialize_config_dir, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    overrides = as_overrides(words)
    source = conf_source()
    running = GlobalHydra.instance().hydra  # the command's own, where this is asked while it runs
    GlobalHydra.instance().clear()
    where: Any = (
        initialize_config_module(source.removeprefix("pkg://"), version_base=VERSION_BASE)
        if source.startswith("pkg://")
        else initialize_config_dir(source, version_base=VERSION_BASE)
    )
    try:
        with _refusals(one_run=True, mode=chosen_mode(overrides)), where:
            settings = OmegaConf.to_container(compose_by_hydra(PRIMARY, overrides=overrides), resolve=True)
    finally:
        GlobalHydra.instance().hydra = running
    assert isinstance(settings, dict)
    return {str(name): value for name, value in settings.items()}


def values_of(words: Sequence[str]) -> Settings:
    """Return what ``NAME=VALUE`` words say, by name, without the files in ``conf/``.

    Raises:
        ConfigError: a word cannot be read, or has several values.

    >>> values_of(["data.path=1_000", "data.corpora={b:DIR}", "train.threads=4"])
    {'data.path': '1_000', 'data.corpora': {'b': 'DIR'}, 'train.threads': 4}
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    with _refusals(one_run=True, mode=chosen_mode(words)):
        overrides = OverridesParser.create().parse_overrides(as_overrides(words))
        for override in overrides:
            if override.is_sweep_override():
                raise ConfigError(f"{override.input_line}: expected one value")
        plain = {override.key_or_group: override.value() for override in overrides}
        settings = OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    assert isinstance(settings, dict)
    return {str(name): value for name, value in settings.items()}


def run_application(task: Callable[[Any], None], words: Sequence[str]) -> None:
    """Run Hydra's application on a command line: ``task`` is called with one run's settings.

    A task that has ``run_plan`` takes all runs of a sweep (``-m``) at once. What is raised before its ``begun``
    is true was raised by Hydra, over the command line.

    Raises:
        ConfigError: Hydra refuses the command line.
        SystemExit: an option that prints something and ends was given (``--cfg``, ``--version`` ...).
    """
    from hydra import version
    from hydra._internal.utils import _run_hydra, get_args_parser

    version.setbase(VERSION_BASE)
    parser = get_args_parser()
    parser.error = _refuse_option  # type: ignore[method-assign]  # its own prints eight lines of Hydra's options
    parser.allow_abbrev = False  # else --experiment is taken for --experimental-rerun
    args = parser.parse_intermixed_args(list(words))  # options may stand behind overrides
    if args.experimental_rerun:
        raise ConfigError(
            "--experimental-rerun reads a folder of Hydra's, and runs have none: expected --again RUN --store STORE"
        )
    if not args.multirun and (sweeps := [word for word in args.overrides if word.startswith("sweep=")]):
        raise ConfigError(f"{sweeps[0]}: a named sweep is many runs, give -m to run all of them")
    if args.cfg and args.multirun:  # what all runs of the sweep share, and what they differ in
        args.multirun = False
        args.overrides = _shared_words(args.overrides, setups.own_folders(words))
    modes = [f"--{name}" for name in ("run", "multirun", "cfg", "shell_completion", "info") if getattr(args, name)]
    if len(modes) > 1:
        raise ConfigError(f"{' and '.join(modes)} exclude each other: give one of them")
    if args.resolve and not (args.cfg or args.help):
        raise ConfigError("--resolve goes with --cfg: give both")
    args.overrides = as_overrides(args.overrides)
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # Hydra then raises instead of printing several lines and a traceback
    try:
        with _refusals(
            one_run=False, mode=chosen_mode(args.overrides), begun=lambda: bool(getattr(task, "begun", False))
        ):
            if _is_plain(args):
                _run_plain(task, args.overrides, multirun=args.multirun)
            else:
                _run_hydra(
                    args=args, args_parser=parser, task_function=task, config_path=conf_source(), config_name=PRIMARY
                )
    finally:
        if before is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = before


def _is_plain(args: Namespace) -> bool:
    """Return whether a command line trains runs from the files in ``conf/`` and leaves Hydra's own settings alone."""
    others = (args.help, args.hydra_help, args.cfg, args.shell_completion, args.info, args.package)
    elsewhere = (args.config_path, args.config_name, args.config_dir, args.experimental_rerun)
    return not any((*others, *elsewhere)) and not any("hydra" in word for word in args.overrides)


def _run_plain(task: Callable[[Any], None], words: Sequence[str], *, multirun: bool) -> None:
    """Do what Hydra's application does, without composing all settings once more beforehand.

    It does so to learn from them whether one run or many are meant (``hydra.mode``); here ``-m`` alone says it.
    """
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_automatic_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    hydra = Hydra.create_main_hydra2("task", create_automatic_config_search_path(None, None, conf_source()))
    overrides = [*words, f"hydra.mode={'MULTIRUN' if multirun else 'RUN'}"]
    try:
        (hydra.multirun if multirun else hydra.run)(PRIMARY, task, overrides)
    finally:
        GlobalHydra.instance().clear()


def _shared_words(words: Sequence[str], own: Sequence[Path]) -> list[str]:
    """Return the overrides that all runs of a sweep share; print the others, as comments of YAML.

    ``own`` are the user's folders of settings.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    with _refusals(one_run=False, mode=chosen_mode(words)):
        swept = [word for word in words if parser.parse_override(as_overrides([word])[0]).is_sweep_override()]
    typed = {word.partition("=")[0].lstrip("+") for word in words}  # they replace what the named sweep has
    for word in words:
        if word.startswith("sweep="):
            of_file = setups.swept(word.partition("=")[2], own)
            swept += [axis for axis in of_file if axis.partition("=")[0].lstrip("+") not in typed]
    print("\n".join(["# settings that all runs of the sweep share; it sweeps over:", *(f"#   {w}" for w in swept)]))
    return [word for word in words if word not in swept]


def _refuse_option(message: str) -> NoReturn:
    raise ConfigError(f"{message}: settings are given without dashes, as NAME=VALUE (seed=7); --help lists them")


@contextmanager
def _refusals(*, one_run: bool, mode: str, begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn what Hydra and OmegaConf refuse into a ConfigError of one line.

    For many a word they have no error of their own: whatever is raised before the work has ``begun`` counts.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except GrokError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        _raise_interruption(error)
        raise ConfigError(explain(error, one_run=one_run, mode=mode)) from error
    except Exception as error:
        if begun():
            raise
        _raise_interruption(error)
        reason = explain(error, one_run=one_run, mode=mode)
        raise ConfigError(f"these settings cannot be read: {reason or type(error).__name__}") from error


def _raise_interruption(error: BaseException | None) -> None:
    """Raise the interruption that ``error`` came from: OmegaConf's cleaning up can fail after one, and hides it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        error = error.__context__
