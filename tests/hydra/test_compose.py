"""The sweeper's fast composition equals ``hydra.compose`` for whatever can be typed."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grok.commands.compose import compose as settings_of_a_run
from hydra_plugins.grok_lanes._compose import Composer
from hydra_plugins.grok_lanes.sweeper import count, expand

CONF = Path(__file__).parents[2] / "conf"
ERRORS = (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError)


class Both:
    """Composes the same jobs both ways, one composer for all of them, as in a sweep."""

    def __init__(self) -> None:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        self.composer = Composer(hydra.config_loader, hydra.compose_config("config", [], RunMode.MULTIRUN))

    def by_hydra(self, overrides: list[str]) -> Any:
        """Return what hydra.compose gives, or that it refuses."""
        try:
            return OmegaConf.to_container(compose("config", overrides), resolve=True)
        except ERRORS:
            return "refused"

    def by_composer(self, overrides: list[str]) -> Any:
        try:
            return self.composer.compose(overrides, 0)
        except ERRORS:
            return "refused"


@contextmanager
def both_ways(conf: Path) -> Iterator[Both]:
    with initialize_config_dir(str(conf), version_base="1.3"):
        yield Both()


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings with everything that a config can hold."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "model").mkdir()
    (folder / "config.yaml").write_text(
        "defaults: [_self_, {model: small}, {extra: null}]\n"
        "seed: 0\nname: run\nnothing: null\nlist: [1, 2]\nnested: {a: 1, b: {c: x, d: null}, empty: {}}\n"
    )
    (folder / "extra").mkdir()
    (folder / "extra" / "more.yaml").write_text("# @package _global_\nnested: {a: 7}\nadded: yes\nmissing: ???\n")
    (folder / "model" / "small.yaml").write_text("width: 8\nheads: 2\nkeys: {one: 1}\n")
    (folder / "model" / "large.yaml").write_text(
        "width: 64\nheads: 8\nratio: ${.width}\ntext: wide ${model.width}\nkeys: {two: 2}\n"
    )
    return folder


KEYS = st.sampled_from(
    """
    seed nothing nested nested.a nested.b.c nested.empty missing copy model model.width model.keys.one model.ratio
    nested.new.deep nested.empty.blocks.0 nested.empty.blocks.0.mlp new.0.deep list.0 seed.below added
    """.split()
)
PLAIN = st.one_of(
    st.integers(-5, 10**12).map(str),
    st.sampled_from(["1e-3", "0.5", "-2.0", "true", "False", "null", "abc", "'a b'", '"1"', "'null'", "x+y", "''"]),
)
SCALARS = st.one_of(
    PLAIN,
    st.sampled_from(["${seed}", "'${nested.a} apples'", "???", r"a\,b", "small", "large", "more"]),
)
FLAT = st.lists(SCALARS, max_size=3)
VALUES = st.one_of(
    SCALARS,
    SCALARS,
    FLAT.map(lambda items: f"[{','.join(items)}]"),
    st.dictionaries(st.sampled_from(["a", "one", "blocks.1", "k"]), SCALARS, max_size=2).map(
        lambda items: "{" + ",".join(f"{k}:{v}" for k, v in items.items()) + "}"
    ),
    FLAT.map(lambda items: "{b:{c:[" + ",".join(items) + "]}}"),
)
OVERRIDES = st.one_of(
    st.tuples(st.sampled_from(["", "", "", "+", "++"]), KEYS, VALUES).map(lambda t: f"{t[0]}{t[1]}={t[2]}"),
    KEYS.map(lambda key: f"~{key}"),
    st.tuples(KEYS, SCALARS).map(lambda t: f"~{t[0]}={t[1]}"),
)
SETTABLE = st.sampled_from(["seed", "name", "nothing", "nested.a", "nested.b.c", "model.width", "model.keys.one"])
ADDED = st.sampled_from(["new", "nested.new", "nested.empty.blocks.0", "model.ratio", "model.keys.two"])
MAPS = st.sampled_from(["nested.empty", "model.keys"])
ACCEPTED = st.one_of(
    st.tuples(SETTABLE, PLAIN).map("=".join),
    st.tuples(ADDED, PLAIN).map(lambda t: f"++{t[0]}={t[1]}"),
    st.tuples(MAPS, PLAIN).map(lambda t: f"++{t[0]}={{k:{t[1]}}}"),
)
"""Hydra refuses most lists of :data:`OVERRIDES`, so few of their settings are compared; it takes all of these."""


NEW = ("nested.empty.0.mlp", "model.keys.1", "nested.empty.blocks.0", "new.0.deep", "seed.0")


@pytest.mark.parametrize(
    ("kinds", "examples"),
    [
        pytest.param(OVERRIDES, 10, id="10"),
        pytest.param(ACCEPTED, 15, id="15 accepted"),
        pytest.param(OVERRIDES, 2000, id="2000", marks=pytest.mark.slow),
    ],
)
def test_equals_hydra_for_anything(conf: Path, kinds: st.SearchStrategy[str], examples: int) -> None:
    compared = 0
    with both_ways(conf) as both:

        @settings(max_examples=examples, deadline=None, derandomize=True)
        @given(overrides=st.lists(kinds, max_size=3))
        def check(overrides: list[str]) -> None:
            nonlocal compared
            theirs = both.by_hydra(overrides)
            assert both.by_composer(overrides) == theirs, overrides
            compared += bool(overrides) and theirs != "refused"

        for sign, key in itertools.product(("++", "+", ""), NEW if kinds is OVERRIDES else ()):
            check = example([f"{sign}{key}=3"])(check)
        check()
    assert kinds is OVERRIDES or compared >= 10


SETTINGS = st.one_of(
    st.tuples(st.sampled_from(["seed", "seeds.init", "train.steps", "eval.every"]), st.integers(0, 2**63)),
    st.tuples(st.just("optim.lr"), st.floats(1e-9, 10)),
    st.tuples(st.just("optim.betas"), st.sampled_from(["[0.9,0.95]", "[0,0]"])),
    st.tuples(st.just("++seeds.layers"), st.sampled_from(["{blocks.1:7}", "{head:1,blocks.0.mlp:2}", "{}"])),
    st.tuples(st.sampled_from(["++seeds.layers.head", "++seeds.layers.blocks.0.mlp"]), st.integers(0, 2**63)),
    st.tuples(st.just("experiment"), st.sampled_from(["nanda", "quickstart", "openai", "null"])),
    st.tuples(st.just("store.path"), st.sampled_from(["a/b", "'with space'", "'${oc.env:HOME}/x'"])),
    st.tuples(st.just("device"), st.sampled_from(["cpu", "cuda"])),
)


def test_equals_hydra_on_this_projects_settings() -> None:
    with both_ways(CONF) as both:

        @settings(max_examples=15, deadline=None, derandomize=True)
        @given(chosen=st.lists(SETTINGS, max_size=5, unique_by=lambda pair: pair[0]))
        def check(chosen: list[tuple[str, Any]]) -> None:
            overrides = [f"{key}={value}" for key, value in chosen]
            assert both.by_composer(overrides) == both.by_hydra(overrides)

        check()


def test_a_layers_seeds_are_composed_without_hydra() -> None:
    with both_ways(CONF) as both:
        both.composer.compose([], 0)
        both.composer._compose_by_hydra = None  # type: ignore[assignment,method-assign]
        jobs = [both.composer.compose([f"++seeds.layers.blocks.0.mlp={i}"], i) for i in range(3)]
    assert [job["seeds"]["layers"] for job in jobs] == [{"blocks": {"0": {"mlp": i}}} for i in range(3)]


def expanded(*overrides: str) -> list[list[str]]:
    parser = OverridesParser.create()
    return [[str(o) for o in job] for job in expand(parser.parse_overrides(list(overrides)), parser)]


def test_sweeps_expand_as_hydras_own_sweeper() -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    sweeps = ["a=1,2", "b=range(0,6,2)", "c=x,'y z',null,true", "d=range(0.0,1.0,0.5)", "e=[1,2],{k:v}", "f=5", "a=3,4"]
    parser = OverridesParser.create()
    assert expanded(*sweeps) == BasicSweeper.split_arguments(parser.parse_overrides(sweeps), None)[0]


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("range(0.3,0.8,0.1)", ["0.3", "0.4", "0.5", "0.6", "0.7"]),  # in binary 0.3 + 5 * 0.1 is less than 0.8
        ("range(0.1,0.4,0.1)", ["0.1", "0.2", "0.3"]),
        ("range(1e-3,5e-3,2e-3)", ["0.001", "0.003"]),
        ("range(0,-0.3,-0.1)", ["0.0", "-0.1", "-0.2"]),
        ("range(0,2.5)", ["0.0", "1.0", "2.0"]),
    ],
)
def test_a_range_of_fractions_has_the_numbers_that_its_text_says(sweep: str, values: list[str]) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"a={sweep}"])
    assert [job for (job,) in expanded(f"a={sweep}")] == [f"a={value}" for value in values]
    assert count(override) == len(values)


def test_an_interruption_while_settings_are_read_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("what OmegaConf was about to put back is gone")

    monkeypatch.setattr("hydra.compose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settings_of_a_run([])
