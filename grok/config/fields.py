"""Declares settings with meaning, bounds and role in a run's identity, and builds checked configs of them.

A setting is a dataclass field made by :func:`setting`. :func:`build` turns a plain
mapping (the settings that Hydra composed) into the dataclass. It refuses unknown names,
wrong types and values out of bounds in one line, which names the setting, the value and the
accepted values.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar

from grok.errors import ConfigError, in_words, nearest
from grok.plugins import check_spec
from grok.streams import MAX_SEED

Role = Literal["result", "length", "schedule", "none"]
"""What a setting can change: the trajectory, only its length, only the evaluation schedule, or nothing.

``result`` settings are in run_id and trajectory_id, ``length``
(``train.steps``) and ``schedule`` (evaluation) only in run_id, ``none`` in neither.
"""

T = TypeVar("T")

Built = dict[tuple[Any, str, int], Any]
"""Groups of settings that :func:`build` has made."""


NEVER: Final = object()
"""A neutral value that no setting equals."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a setting accepts, and its role in identity.

    Choices and bounds of a list, and bounds of a map, are those of each entry.
    """

    doc: str
    default: Any = None
    role: Role = "result"
    choices: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    neutral: Any = NEVER
    """A value at which the setting is left out of the identity, so that a setting
    added in a later version does not rename the runs of an earlier one."""
    length: int | None = None
    """Number of entries of a list that is not empty."""
    steps: bool = False
    """Whether a list is one of steps: it is put in order, each once."""
    code: Literal["none", "one", "named"] = "none"
    """Whether a map names the user's own code (``_target_`` and arguments), or by name several such maps."""
    own: bool = False
    """Whether the setting also accepts the import path of the user's own code (MODULE.NAME)."""

    planned: bool = False
    """Whether planning works it out: it is named and stored with the settings, and nobody gives it."""


ANY: Final = Rule(doc="")


def setting(default: Any, doc: str, **rule: Any) -> Any:
    """Declare a setting with its default, one sentence of meaning and the bounds of :class:`Rule`."""
    metadata = {"rule": Rule(doc, default, **rule)}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def planned(default: Any, doc: str, **rule: Any) -> Any:
    """Declare a result of planning, which is recorded beside the settings and given by nobody."""
    return setting(default, doc, planned=True, **rule)


def section(cls: type[T]) -> T:
    """Declare a nested group of settings."""
    return field(default_factory=cls)


def defaults(**values: Any) -> Callable[[type[T]], type[T]]:
    """Give a group of settings defaults of its own for settings that it inherits: their meaning and bounds stay."""

    def change(cls: type[T]) -> type[T]:
        inherited = {f.name: f for f in fields(typing.cast(Any, cls))}
        for name, value in values.items():
            rule = inherited[name].metadata["rule"]
            cls.__annotations__[name] = inherited[name].type
            setattr(cls, name, setting(**{f.name: getattr(rule, f.name) for f in fields(Rule)} | {"default": value}))
        return cls

    return change


@functools.cache
def _declared(cls: Any) -> dict[str, tuple[Any, Rule | None]]:
    """Return type and rule of each field of ``cls`` by name, without a rule for a group of settings.

    It is cached, because planning builds thousands of configs.
    """
    hints = typing.get_type_hints(cls)
    return {f.name: (hints[f.name], f.metadata.get("rule")) for f in fields(cls)}


@functools.cache
def _settings(cls: Any) -> dict[str, tuple[Any, Rule]]:
    flat: dict[str, tuple[Any, Rule]] = {}
    for name, (hint, rule) in _declared(cls).items():
        if rule is None:
            flat |= {f"{name}.{below}": value for below, value in _settings(hint).items()}
        else:
            flat[name] = (hint, rule)
    return flat


def settings_of(cls: Any) -> dict[str, tuple[Any, Rule]]:
    """Return every setting below ``cls`` by dotted name, with its type and rule, in declaration order."""
    return {name: of for name, of in _settings(cls).items() if not of[1].planned}


def recorded_of(cls: Any) -> dict[str, tuple[Any, Rule]]:
    """Return :func:`settings_of` and the results of planning."""
    return dict(_settings(cls))


def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the declared default of every setting below ``cls`` by dotted name.

    A built config may have another value: it works out what a null leaves open.
    """
    return {name: rule.default for name, (_, rule) in _settings(cls).items()}


def build(cls: type[T], data: Any, prefix: str = "", root: Any = None, built: Built | None = None) -> T:
    """Build ``cls`` from nested plain ``data``, checking every name, type and bound.

    Args:
        built: groups of settings that were built before, by kind, prefix and identity of their data: thousands of jobs
            share nearly all of theirs, and each is checked once. The data must stay alive meanwhile.

    Raises:
        ConfigError: an unknown name (with the nearest right one), a wrong type, or a
            value out of bounds.
    """
    root, built = root or cls, {} if built is None else built
    declared = _declared(typing.cast(Any, cls))
    if not isinstance(data, Mapping):
        inside = ", ".join(declared)
        raise ConfigError(f"{prefix.rstrip('.')}={data!r}: this is a group of settings ({inside}), not a value")
    for name in data:
        if name not in declared:
            raise ConfigError(f"unknown setting '{prefix}{name}'{nearest(prefix + str(name), _settings(root))}")
    values: dict[str, Any] = {}
    for name, value in data.items():
        hint, rule = declared[name]
        if rule is not None:
            values[name] = check(prefix + name, value, hint, rule)
            continue
        key = (hint, f"{prefix}{name}.", id(value))
        if key not in built:
            built[key] = build(hint, value, f"{prefix}{name}.", root, built)
        values[name] = built[key]
    return cls(**values)


def check(name: str, value: Any, hint: Any, rule: Rule) -> Any:
    """Return ``value`` as type ``hint`` within ``rule``, or raise ConfigError."""
    kind = without_none(hint)
    if value is None:
        if kind is not hint:
            return None
        raise ConfigError(f"{name}=null: a value is needed, {_accepts(kind, rule)}")
    checked = _convert(name, value, kind, rule)
    if kind is int or kind is float:
        _check_bounds(name, checked, kind, rule)
    if rule.choices is None or isinstance(checked, list):
        return checked
    if checked not in rule.choices and not (rule.own and "." in str(checked)):
        # of three letters, one that differs makes another word: gpu is not cpu
        meant = nearest(str(value), map(str, rule.choices)) if len(str(value)) > 3 else ""
        raise ConfigError(f"{name}={value!r} is not known{meant}: {_accepts(kind, rule)}")
    return checked


@functools.cache
def without_none(hint: Any) -> Any:
    """Return ``X`` of the hint ``X | None``, and any other hint unchanged."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [m for m in typing.get_args(hint) if m is not type(None)]
        if len(members) == 1:
            return members[0]
    return hint


_TYPED: Final[dict[Any, tuple[type, ...]]] = {bool: (bool,), int: (int,), float: (int, float), str: (str, int, float)}
"""What may be typed for a setting of each kind."""


def _convert(name: str, value: Any, kind: Any, rule: Rule) -> Any:
    def refuse() -> ConfigError:
        return ConfigError(f"{name}={value!r}: {type(value).__name__} given, {_accepts(kind, rule)}")

    if kind in _TYPED:
        if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)  # `train.steps=3e3` is a whole number however it was typed
        if not isinstance(value, _TYPED[kind]) or (isinstance(value, bool) and kind is not bool):
            raise refuse()
        try:
            return kind(value)
        except OverflowError:  # a whole number of more than 308 digits
            raise refuse() from None
    origin = typing.get_origin(kind)
    if origin is list:
        if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
            raise refuse()
        (item,) = typing.get_args(kind)
        values = [check(f"{name}[{i}]", v, item, rule) for i, v in enumerate(value)]
        if rule.length not in (None, len(values)) and (values or rule.neutral != []):
            raise ConfigError(f"{name}={values}: expected {rule.length} entries")
        return sorted(set(values)) if rule.steps else values
    if origin is dict:
        if not isinstance(value, Mapping):
            if isinstance(value, str) and typing.get_args(kind)[1] is Any:  # such maps name the user's own code
                named = f"{name}.NAME" if name.endswith("plugins") else name
                raise ConfigError(f"{name}={value!r}: your own code is named by {named}._target_={value}")
            raise refuse()
        _, item = typing.get_args(kind)
        if item is Any:
            words = f"{name}={value!r}: expected text, finite numbers, true, false, lists and maps"
            with in_words(ConfigError, words, TypeError, ValueError):
                plain = json.loads(json.dumps(value, allow_nan=False))
            return _named_code(name, plain, rule)
        return {k: check(f"{name}.{k}", v, item, rule) for k, v in _dotted(name, value).items()}
    raise AssertionError(f"no rule for a setting of type {kind!r}")


def _named_code(name: str, value: dict[str, Any], rule: Rule) -> dict[str, Any]:
    """Return a map that names code as its rule says, or raise ConfigError."""
    if rule.code == "one":
        check_spec(name, value)
    for key, spec in value.items() if rule.code == "named" else ():
        if not (isinstance(spec, dict) and spec and key.isidentifier()):
            raise ConfigError(f"{name}.{key}={spec!r}: expected {name}.NAME._target_=MODULE.NAME")
        check_spec(f"{name}.{key}", spec)
    return value


def _dotted(name: str, value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a map by dotted names: ``{"blocks": {"0": 7}}`` is how a command line gives ``{"blocks.0": 7}``.

    Raises:
        ConfigError: a name is given twice.
    """
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        entries = {f"{key}.{k}": v for k, v in _dotted(name, inner).items()} if isinstance(inner, Mapping) else {}
        for k, v in (entries or {str(key): inner}).items():
            if k in flat:
                raise ConfigError(f"{name}.{k} is given twice: {flat[k]} and {v}")
            flat[k] = v
    return flat


def _check_bounds(name: str, value: float, kind: Any, rule: Rule) -> None:
    if kind is int and abs(value) > MAX_SEED and rule.maximum is None:
        raise ConfigError(f"{name}={value} is too large: whole numbers are kept in 64 bits, at most {MAX_SEED}")
    outside = (
        (isinstance(value, float) and not math.isfinite(value))
        or (rule.minimum is not None and value < rule.minimum)
        or (rule.maximum is not None and value > rule.maximum)
        or (rule.above is not None and value <= rule.above)
        or (rule.below is not None and value >= rule.below)
    )
    if outside:
        raise ConfigError(f"{name}={value!r} is out of range: {_accepts(kind, rule)}")


def _accepts(kind: Any, rule: Rule) -> str:
    if rule.choices is not None and typing.get_origin(kind) is list:
        return f"a list out of {', '.join(rule.choices)}"
    if rule.choices is not None:
        own = ", or MODULE.NAME of your own" if rule.own else ""
        return "one of " + ", ".join(str(c) for c in rule.choices) + own
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    items = {int: "whole number", float: "number", str: "text"}
    maps = next((f"a map from name to {items[item]}" for item in typing.get_args(kind)[1:] if item in items), "a map")
    text = words.get(kind, "a list" if typing.get_origin(kind) is list else maps)
    limits = {"at least": rule.minimum, "above": rule.above, "at most": rule.maximum, "below": rule.below}
    bounds = [f"{word} {_plain(bound)}" for word, bound in limits.items() if bound is not None]
    return f"expected {text}" + (f", {' and '.join(bounds)}" if bounds else "")


def takes_null(hint: Any) -> bool:
    """Return whether a setting of type ``hint`` may be null."""
    return without_none(hint) is not hint


def accepted_values(hint: Any, rule: Rule) -> str:
    """Return a description of the values that a setting of type ``hint`` accepts.

    >>> accepted_values(int | None, Rule(doc="", minimum=1))
    'a whole number, at least 1; or null'
    """
    return _accepts(without_none(hint), rule).removeprefix("expected ") + ("; or null" if takes_null(hint) else "")


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def walk(config: Any) -> Iterator[tuple[str, Any, Rule]]:
    """Yield (dotted name, value, rule) for every setting of a built config."""
    cls: Any = type(config)
    rules, values = _reader(cls)
    for (name, rule), value in zip(rules, values(config), strict=True):
        yield name, value, rule


@functools.cache
def _reader(cls: Any) -> tuple[list[tuple[str, Rule]], Callable[[Any], tuple[Any, ...]]]:
    """Return name and rule of every setting below ``cls``, and a function from a config to all their values."""
    settings = _settings(cls)
    return [(name, rule) for name, (_, rule) in settings.items()], attrgetter(*settings)


def canonical_json(value: Any) -> str:
    """Return JSON text with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def flatten(config: Any) -> dict[str, Any]:
    """Return every setting by dotted name; lists and maps as canonical JSON text."""
    return {name: canonical_json(v) if isinstance(v, (list, dict)) else v for name, v, _ in walk(config)}
