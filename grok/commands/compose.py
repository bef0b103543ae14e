"""Settings composed from ``conf/`` and the words of a command line, for every command. The only caller of Hydra.

``compose`` gives one run's settings; ``run_application`` hands a command line, sweeps included, to Hydra's own
application. Both read the same files, take the same words and refuse in the same lines.
"""

from __future__ import annotations

import copy
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from grok.commands.command import FULL_ERROR
from grok.commands.words import as_overrides, chosen_mode, presets
from grok.config import MODES, ArithmeticConfig, GptConfig, RunConfig, flatten, load_config, load_configs
from grok.config.fields import settings_of
from grok.config.values import literal
from grok.errors import ConfigError, GrokError, TrainingError, nearest
from grok.processes import Rank
from grok.untrusted import without_passwords

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from grok.execute import Outcome

# Hydra's refusals in one line: what was asked, what was given, what would do.

MEANT: Final = {
    "learning_rate": "optim.lr",
    "wd": "optim.weight_decay",
    "epochs": "train.steps",
    "iterations": "train.steps",
    "max_steps": "train.steps",
    "n_layer": "model.layers",
    "n_head": "model.heads",
    "n_embd": "model.d_model",
    "prime": "task.modulus",
}
"""Names that other programs give to settings."""


def explain(error: Exception, *, one_run: bool, mode: str | None = None) -> str:
    """Return one line on an error of Hydra or OmegaConf.

    ``one_run``: the command never takes several values. ``mode``: whose settings it takes.
    """
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, OverrideParseException):
        reason = error.message.partition("See https://hydra.cc")[0].replace("^", " ")
        return f"{error.override!r} cannot be read: {_joined(reason)} (quote values with special characters)"
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        if group == "hydra/launcher":
            return no_launcher(name)
        known = sorted(error.options)
        if group == "experiment/gpt":
            group, name, known = "experiment", f"gpt/{name}", [f"gpt/{preset}" for preset in presets()]
        return f"{group}={name} is not known{nearest(name, known)}: expected one of {', '.join(known)}"
    text = str(error) or str(error.__cause__ or "")
    nowhere = re.search(r"Interpolation key '([^']*)' not found\s+full_key: (\S+)", text)
    if nowhere:
        return (
            f"{nowhere[2]}: ${{{nowhere[1]}}} stands for another setting, and there is none of this name; "
            rf"where $ is meant itself, write \${{{nowhere[1]}}}"
        )
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and unknown[1] == "study":
        return "study= names a search: give it to `grok search`"
    if unknown:
        return unknown_setting(unknown[1], mode)
    if "requires --multirun" in text or "Ambiguous value" in text:
        several = re.search(r"'([^']+=.*?)'(?: requires|\s)", text)
        sweeps = "several values are a sweep: `grok sweep` (or -m) runs all of them"
        return f"{several[1] if several else 'several values'}: {'expected one value' if one_run else sweeps}"
    cause = f": {error.__cause__}" if str(error) and str(error.__cause__ or "") not in text else ""
    return _joined(text + cause)


def no_launcher(name: str) -> str:
    """Return why one of Hydra's launchers cannot spread a sweep, and what does."""
    return (
        f"hydra/launcher={name}: runs of one sweep share a program and a store, so they are spread by the executor "
        "instead of a launcher: executor=inline, loky, dask, ray or slurm"
    )


def unknown_setting(name: str, of_mode: str | None = None) -> str:
    """Return what is wrong with a setting that the mode does not have: it is another mode's, a group's name, or none.

    What may be meant is looked for among the settings of ``of_mode`` (None: of all modes).

    >>> unknown_setting("task.modulus")
    'task.modulus is a setting of mode=arithmetic, and this is mode=gpt'
    >>> unknown_setting("optim.lrr")
    "unknown setting 'optim.lrr', did you mean 'optim.lr'?"
    >>> unknown_setting("eval.metric_plugin.bits._target_")
    "unknown setting 'eval.metric_plugin.bits._target_', did you mean 'eval.metric_plugins'?"
    """
    of = {mode: [*settings_of(config), "experiment", "mode"] for mode, config in MODES.items()}
    known = list(dict.fromkeys(n for names in of.values() for n in names))
    if name in known:
        without = [mode for mode, names in of.items() if name not in names]
        having = next(mode for mode, names in of.items() if name in names)
        if without:
            return f"{name} is a setting of mode={having}, and this is mode={' or '.join(without)}"
    if name in {n.rpartition(".")[0] for n in known} - {""}:
        inside = ", ".join(n for n in known if n.startswith(f"{name}."))
        return f"{name} is a group of settings, not a value: expected one of {inside}"
    if name.partition(".")[0] == "sweeps":
        return f"unknown setting '{name}': a named sweep is a command: grok {name.rpartition('.')[2]} --help"
    if (meant := MEANT.get(name.rpartition(".")[2])) is not None:
        return f"unknown setting '{name}', did you mean '{meant}'?"
    parts, names = name.split("."), of.get(of_mode or "", known)
    # the name may be that of a map's entry: task.plugn._target_
    whole_or_map = [nearest(".".join(parts[:count]), names) for count in range(len(parts), min(2, len(parts)) - 1, -1)]
    return f"unknown setting '{name}'{next(filter(None, whole_or_map), '')}"


def _joined(text: str) -> str:
    return " ".join(text.split())


# Settings composed from ``conf/`` and the words of a command line, for every command. The only caller of Hydra.

VERSION_BASE: Final = "1.3"
"""The version of Hydra whose rules the files in ``conf/`` are written for."""

PRIMARY: Final = "config"
"""The file of ``conf/`` that every command starts from."""

Settings = dict[str, Any]
"""Nested plain settings, interpolations resolved."""


CONF: Final = "grok.conf"
"""The package of the settings' files."""


def compose(words: Sequence[str]) -> Settings:
    """Return the settings of one run, given as ``NAME=VALUE`` words.

    Raises:
        ConfigError: what ``grok run`` would refuse, too; or several values for one setting.
    """
    from hydra import compose as compose_by_hydra
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    overrides = as_overrides(words)
    running = GlobalHydra.instance().hydra  # the command's own, where this is asked while it runs
    GlobalHydra.instance().clear()
    try:
        with (
            _refusals(one_run=True, mode=chosen_mode(overrides)),
            initialize_config_module(CONF, version_base=VERSION_BASE),
        ):
            config = compose_by_hydra(PRIMARY, overrides=overrides)
            return typing.cast(Settings, OmegaConf.to_container(config, resolve=True))
    finally:
        GlobalHydra.instance().hydra = running


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
        return typing.cast(Settings, OmegaConf.to_container(OmegaConf.create(plain), resolve=True))


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
    from hydra.core.utils import env_override

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
    args.overrides = as_overrides(args.overrides)
    with (
        env_override({FULL_ERROR: "1"}),  # Hydra then raises instead of printing several lines and a traceback
        _refusals(one_run=False, mode=chosen_mode(args.overrides), begun=lambda: bool(getattr(task, "begun", False))),
    ):
        source = f"pkg://{CONF}"
        _run_hydra(args=args, args_parser=parser, task_function=task, config_path=source, config_name=PRIMARY)


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
    except Exception as error:
        refused = isinstance(error, (HydraException, OmegaConfBaseException))
        if begun() and not refused:
            raise
        _raise_interruption(error)
        reason = explain(error, one_run=one_run, mode=mode) or type(error).__name__
        raise ConfigError(reason if refused else f"these settings cannot be read: {reason}") from error


def _raise_interruption(error: BaseException | None) -> None:
    """Raise the interruption that ``error`` came from: OmegaConf's cleaning up can fail after one, and hides it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        error = error.__context__


# The difference between a command and its preset, and the overrides that change nothing.

_NOT_THE_RUNS: Final = (
    "data.path",
    "data.corpora",
    "store.",
    "log.",
    "dry_run",
    "retry_failed",
    "force",
    "require_clean",
    "resume.",
)
"""Settings that say where things are or what the command does: no part of what a preset describes."""

MANY: Final = 4
"""More values of one setting than this are counted instead of listed."""


def announcement(configs: Sequence[GptConfig], argv: Sequence[str]) -> list[str]:
    """Return lines that say how the runs of a command differ from their presets, and which overrides change nothing.

    ``argv`` is the command, whose ``NAME=VALUE`` words are the overrides.
    """
    lines = []
    words = dict(_overrides(argv))  # of a setting given twice the last one counts
    for name in dict.fromkeys(str(config.experiment) for config in configs):
        if name.removeprefix("gpt/") not in presets():
            continue  # a file of the user's own; what it says is its own
        preset = flatten(gpt_settings(["mode=gpt", f"experiment={name}"]))
        runs = [flatten(_with_length(config)) for config in configs if config.experiment == name]
        changes = ", ".join(_changes(runs, preset))
        lines.append(f"{name} with {changes}" if changes else f"{name} as the preset has it")
        idle = [
            word
            for setting, word in words.items()
            if setting in preset
            and not setting.startswith(_NOT_THE_RUNS)
            and all(settings[setting] == preset[setting] for settings in runs)
        ]
        if idle and "sweep" not in words:  # a sweep's file may have another value, which the word replaces
            lines.append(f"Note: the preset has {', '.join(idle)} already: nothing is changed by that.")
    return lines


def refuse_two_lengths(config: GptConfig, words: Sequence[str]) -> None:
    """Refuse ``train.steps`` that a length in epochs or tokens would replace.

    Raises:
        ConfigError: a command's ``words`` give it, and the settings have such a length.
    """
    typed, train = dict(_overrides(words)), config.train
    length = "epochs" if train.epochs is not None else "tokens"
    if "train.steps" in typed and (train.epochs is not None or train.tokens is not None):
        raise ConfigError(
            f"{typed['train.steps']} and train.{length}={getattr(train, length):g}: expected one length, "
            f"leave one of them out (train.{length}=null)"
        )


def _with_length(config: GptConfig) -> GptConfig:
    """Return ``config`` with the steps that it trains, as far as they are known before the weights are read."""
    from grok.execute.groups import with_budget  # pyarrow and more, which no refusal needs

    return config if config.data.path is None or config.init_from is not None else with_budget(config)


def _changes(runs: Sequence[dict[str, Any]], preset: dict[str, Any]) -> Iterator[str]:
    """Yield ``NAME=VALUE (preset VALUE)`` for each setting that differs, of all values that the runs have."""
    for name, before in preset.items():
        values = list(dict.fromkeys(settings[name] for settings in runs))
        if values == [before] or name in ("mode", "experiment") or name.startswith(_NOT_THE_RUNS):
            continue
        shown = ",".join(map(literal, values)) if len(values) <= MANY else f"{len(values)} values"
        yield f"{name}={shown} (preset {literal(before)})"


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, word) of the command's overrides, but those that choose a preset."""
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and name not in ("mode", "experiment") and not name.startswith("-"):
            yield name.lstrip("+"), word


def gpt_settings(words: Sequence[str]) -> GptConfig:
    """Return the checked settings of a language model's command line, as ``grok run`` would read it.

    Raises:
        ConfigError: settings that ``grok run`` would refuse too.
    """
    config = load_config(compose(words))
    if not isinstance(config, GptConfig):
        raise ConfigError(f"mode={config.mode}: expected settings of mode=gpt")
    refuse_two_lengths(config, words)
    return config


# What Hydra's application calls with composed settings: the runs are trained by ``grok.execute``.


class Task:
    """Hydra's task function: a single run is a call, a sweep one call of :meth:`run_plan`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.configs: list[RunConfig] = []
        self.outcome: Outcome | None = None
        self.refusal: GrokError | None = None
        self.begun = False
        """Whether the settings are read: what goes wrong from here on is not the command line's fault."""

    def carry_out(self, words: Sequence[str]) -> Outcome | None:
        """Train what a command line asks for; None: it only asked for something to be printed.

        Raises:
            GrokError: refused; nothing was trained.
        """
        run_application(self, words)
        if self.refusal is not None:
            raise self.refusal
        return self.outcome

    def __call__(self, config: DictConfig) -> None:
        """Train the one run of a command without ``-m``."""
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if HydraConfig.get().mode == RunMode.MULTIRUN:  # each run would replace the outcome of the one before
            self.refusal = ConfigError(no_launcher(HydraConfig.get().runtime.choices["hydra/launcher"]))
            return
        try:
            settings = OmegaConf.to_container(config, resolve=True)
            self._execute([typing.cast(dict[str, Any], settings)])
        except OmegaConfBaseException as error:
            self.refusal = ConfigError(explain(error, one_run=True))
        except GrokError as refusal:  # Hydra would add lines of its own
            self.refusal = refusal

    def run_plan(self, settings: Sequence[Mapping[str, Any]]) -> Sequence[str | Exception]:
        """Train all jobs of a sweep; return each one's run_id, or what it failed with."""
        outcome = self._execute(settings)
        failed = {
            run_id: TrainingError(f"run {run_id} failed: {outcome.errors.get(run_id, 'in an earlier command')}")
            for run_id, status in outcome.statuses.items()
            if status == "failed"
        }
        return [failed.get(run_id, run_id) for run_id in outcome.run_ids]

    def _execute(self, settings: Sequence[Mapping[str, Any]]) -> Outcome:
        from grok.execute import Designed, execute

        self.begun = True
        self.configs = load_configs(settings)
        language_models = [config for config in self.configs if isinstance(config, GptConfig)]
        for config in language_models:
            refuse_two_lengths(config, self.argv)
        if Rank.of_this_process().index == 0:
            for line in announcement(language_models, self.argv):
                print(without_passwords(line), flush=True)
        self.outcome = execute(Designed(self.configs, "given"), argv=self.argv)
        return self.outcome


# Changes to composed settings, for sweeps written in Python.


def apply(base: Settings, chosen: Mapping[str, Any]) -> Settings:
    """Return a copy of nested ``base`` with the values of ``chosen``, by dotted name."""
    settings = copy.deepcopy(base)
    for name, value in chosen.items():
        *groups, last = name.split(".")
        inner = settings
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return settings


def arithmetic(settings: Settings, **changes: Any) -> ArithmeticConfig:
    """Return the checked config of ``settings`` with ``changes`` by dotted name, with ``__`` for each dot.

    Raises:
        ConfigError: the config refuses a value, or the mode is not arithmetic.
    """
    config = load_config(apply(settings, {name.replace("__", "."): value for name, value in changes.items()}))
    if not isinstance(config, ArithmeticConfig):
        raise ConfigError(f"mode={config.mode}: expected arithmetic")
    return config
