"""Runs to train, with their settings and names, and the lane groups in which they train together. No torch.

Runs of one group share a program (compiled once a worker), so they differ in seeds,
their ulps, switch, learning rate, warm-up, weight decay and length only. The first groups are large and the last
ones small, so that all workers end at about the same time; a group's size also bounds
what an executor holds in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from grok.config import GptConfig, Identity, RunConfig, identify
from grok.config.fields import canonical_json, walk
from grok.config.gpt import MAIN
from grok.errors import DataError
from grok.gpt.schedules import Ramp
from grok.plugins import Code, activate, code_of, fingerprints, target_of
from grok.text.corpus import read_manifest
from grok.text.windows import HASH_DIGITS, set_hash, shares_by_hash

# A run to train: its settings and its names. No torch, but where ``init_from`` names weights.


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to train."""

    config: RunConfig
    identity: Identity
    data_hash: str | None = None
    code: Mapping[str, str] | None = None
    """For each import path of the user's own code that the run names: its fingerprint."""
    extends: str | None = None
    """A stored run whose kept checkpoint this one goes on from: a shorter one of its trajectory, or its trunk."""
    extends_at: int | None = None
    """The step of the trunk's checkpoint; None: the last one of a shorter run."""
    repeats: str | None = None
    """With ``force=true``: the run that was asked for, of which this one is a further replicate."""

    @property
    def run_id(self) -> str:
        return self.identity.run_id

    def under(self, name: str, value: Any) -> PlannedRun:
        """Return the run with another value of one setting, such as ``train.steps``, and the names of that."""
        return self.with_config(with_setting(self.config, name, value))

    def with_config(self, config: RunConfig) -> PlannedRun:
        """Return the run of other settings, with the same data and code, under its names."""
        return replace(self, config=config, identity=identify(config, self.data_hash, self.code))

    def trunk(self) -> tuple[Identity, int] | None:
        """Return the names of the run that this one equals up to a step, and this step; None: it switches nowhere."""
        if (trunk := self.config.trunk()) is None:
            return None
        config, step = trunk
        return identify(config, self.data_hash, self.code), step


def prepare_runs(configs: Sequence[RunConfig]) -> list[PlannedRun]:
    """Read what the names of runs depend on, and return every config with its names.

    That is corpora, weights, and the user's own code, which can be imported from then on.

    Raises:
        DataError: the data of a GPT run is missing.
        ConfigError: code that a config names is not to be found, or its model is not that of ``init_from``.
        CheckpointError: there is no model in ``init_from``.
    """
    own = own_code(configs)
    activate(own)
    hashes: dict[str | None, str | None] = {}
    named = []
    for requested in with_initial_weights(configs):
        path = requested.data.path if isinstance(requested, GptConfig) else None
        if path not in hashes:
            hashes[path] = data_hash(requested)
        config = with_budget(with_corpora(requested)) if isinstance(requested, GptConfig) else requested
        code = fingerprints(own, map(target_of, config.plugins().values())) if own.targets else None
        named.append(PlannedRun(config, identify(config, hashes[path], code), hashes[path], code or None))
    return named


def value_of(config: RunConfig, name: str) -> Any:
    """Return the setting with a dotted ``name``; None where the mode has no such setting."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def with_setting(config: Any, name: str, value: Any) -> Any:
    """Return ``config`` with another value of the setting with a dotted ``name``."""
    first, _, rest = name.partition(".")
    return replace(config, **{first: with_setting(getattr(config, first), rest, value) if rest else value})


def with_initial_weights(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Return ``configs``, those with ``init_from`` with the model and the hash of the weights in it; reads each once.

    Raises:
        CheckpointError: there is no GPT-2 in the folder.
        ConfigError: the settings are of another model.
    """
    sources: dict[str, Any] = {}
    filled = list(configs)
    for at, config in enumerate(configs):
        if isinstance(config, GptConfig) and config.init_from is not None:
            from grok.gpt.hf import read_source, with_source

            if config.init_from not in sources:
                sources[config.init_from] = read_source(config.init_from)[0]
            filled[at] = with_source(config, sources[config.init_from])
    return filled


def own_code(configs: Sequence[RunConfig]) -> Code:
    """Return the code of the user's own that ``configs`` name.

    Raises:
        ConfigError: it is not to be found.
    """
    named = (spec for config in configs for spec in (*config.plugins().values(), config.log.plugin) if spec)
    targets = dict.fromkeys(map(target_of, named))
    return code_of(configs[0].plugin_path, targets) if targets else Code()


def with_corpora(config: GptConfig) -> GptConfig:
    """Return ``config`` with the hashes of its mixture and of its further validation sets, which name the run.

    A mixture of the main corpus alone is no mixture.

    Raises:
        DataError: a corpus is missing, or is not the one that the hashes in ``config`` name.
    """
    data = config.data
    if not (data.mixture or data.validation or data.mixture_hashes or data.validation_hashes):
        return config
    manifests = {name: read_manifest(Path(folder)) for name, folder in data.folders().items()}
    hashes = {name: str(manifest["hash"]) for name, manifest in manifests.items()}
    shares = shares_by_hash(data.mixture, hashes) if data.mixture else {}
    if shares == {hashes[MAIN][:HASH_DIGITS]: 1.0}:
        shares = {}
    sets = {entry: set_hash(manifests[name], split) for entry, (name, split) in data.validation_sets().items()}
    for name, now in (("mixture", shares), ("validation", sets)):
        before = getattr(data, f"{name}_hashes")
        if before not in ({}, now):
            raise DataError(
                f"data.{name}_hashes={canonical_json(before)}, and the corpora of data.{name} give "
                f"{canonical_json(now)}: give their folders by data.corpora, or leave out data.{name}_hashes"
            )
    return replace(config, data=replace(data, mixture_hashes=shares, validation_hashes=sets))


def training_tokens(config: GptConfig) -> list[int]:
    """Return the number of training tokens of each corpus that is trained on.

    Raises:
        DataError: a corpus is missing.
    """
    folders = config.data.folders()
    mixed = {name for name, weight in config.data.mixture.items() if weight > 0} or {MAIN}
    manifests = {manifest["hash"]: manifest for manifest in (read_manifest(Path(folders[name])) for name in mixed)}
    return [int(manifest["splits"]["train"]["tokens"]) for manifest in manifests.values()]


def with_budget(config: GptConfig) -> GptConfig:
    """Return ``config`` with ``train.steps`` worked out where its budget is ``train.epochs`` or ``train.tokens``.

    A run is named by its steps: the same run has one name, however its length was given. An epoch of a mixture has as
    many sequences as one epoch of each of its corpora together.

    Raises:
        DataError: the data is missing.
    """
    train, context = config.train, config.model.context
    if train.epochs is None and train.tokens is None:
        return config
    if train.epochs is not None:
        lengths = training_tokens(config)
        at_random = config.data.sampling == "random"
        sequences = train.epochs * sum(n - context if at_random else (n - 1) // context for n in lengths)
    else:
        assert train.tokens is not None
        sequences = train.tokens / context
    steps = Ramp.of(train.batch_ramp, train.batch_size).steps(max(1, ceil(sequences)))
    return replace(config, train=replace(train, steps=steps))


def data_hash(config: RunConfig) -> str | None:
    """Return the hash of the data that a GPT run reads, None in arithmetic mode.

    Raises:
        DataError: no folder is given, or it was not made by ``grok prepare``.
    """
    if not isinstance(config, GptConfig):
        return None
    if config.data.path is None:
        raise DataError("data.path is not given: expected a folder made by `grok prepare`")
    return str(read_manifest(Path(config.data.path))["hash"])


# Which runs train together: lane groups. Nothing about grouping may affect a result.

VARYING: Final = frozenset(
    {"optim.lr", "optim.weight_decay", "optim.warmup_steps", "perturb.ulps", "switch.step", "switch.ulps"}
)
"""Result settings that may differ between the lanes of one program."""

LARGEST: Final = 64
"""Runs of a group on a CPU: more would gain nothing and be retried together when one of them is at fault."""

LARGEST_ON_GPU: Final = 4096
"""Runs of a group on a GPU, where lanes are refilled from the group and it should rarely run dry."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that one worker trains in one go."""

    runs: tuple[PlannedRun, ...]
    deaths: int = 0
    """How often its worker died or an exception came out of it."""

    @property
    def name(self) -> str:
        """A name that no other group in flight has."""
        return f"{self.runs[0].run_id}-{len(self.runs)}-{self.deaths}"


def lane_groups(runs: Sequence[PlannedRun], *, workers: int, lanes: int = 1, gpu: bool = False) -> list[Group]:
    """Return ``runs`` as groups, largest first within a program, in plan order."""
    programs: dict[str, list[PlannedRun]] = {}
    named: dict[tuple[Any, ...], str] = {}
    for run in runs:
        # equal settings make equal programs: a program is named once for all seeds
        alike = (run.identity.config_id, *astuple(run.config.numerics))
        if alike not in named:
            named[alike] = program_of(run)
        programs.setdefault(named[alike], []).append(run)
    return [Group(part) for same in programs.values() for part in _split(same, workers=workers, lanes=lanes, gpu=gpu)]


def program_of(run: PlannedRun) -> str:
    """Return a text that two runs share when one program can train both."""
    settings = {
        name: value
        for name, value, rule in walk(run.config)
        if name.startswith("numerics.") or (rule.role == "result" and name not in VARYING)
    }
    return canonical_json([settings, run.data_hash, *([dict(run.code)] if run.code else [])])


def _split(runs: Sequence[PlannedRun], *, workers: int, lanes: int, gpu: bool) -> Iterator[tuple[PlannedRun, ...]]:
    start = 0
    while start < len(runs):
        left = len(runs) - start
        share = ceil(left / workers) if gpu else ceil(left / (2 * workers))
        size = min(max(share, lanes), LARGEST_ON_GPU if gpu else max(LARGEST, lanes))
        yield tuple(runs[start : start + size])
        start += size
