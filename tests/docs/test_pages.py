"""Commands, links and Python of the documentation are true, and its pages are made from the code."""

import argparse
import doctest
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from docs.generate import FOLDER
from docs.generate import PAGES as MADE
from grok import run
from grok.arithmetic import outcome
from grok.store.schema import CONFIG, DESCRIPTIONS, describe, schema
from grok.sweeps.search import __main__ as search
from grok.text.preparation import Request, prepare
from tests.docs.pages import PAGES, ROOT, blocks, commands, links
from tests.store.conftest import store_of
from tests.store.contract import example_rows

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
COMMANDS = sorted({command.words for page in PAGES for command in commands(page)})

CHOICES = {
    "experiment=gpt/NAME": "experiment=gpt/shakespeare_char",
    "study=NAME": "study=quickstart",
    'task.operation="NAME"': "task.operation=x+y",
    "eval.metrics=[NAME]": "eval.metrics=[fourier]",
    "FORM": "text",
    "SEED": "5",
}
"""What is put where a page leaves the choice to its reader."""

ELSEWHERE = re.compile(r"(store\.path|data\.path|sweep|executor|device|workers|lanes|dry_run|resume\.\w+)=")
"""Words that are dropped from a plan: they name places that are not here, or are planned by tests of their own."""

FOR_ANOTHER_TIME = {"--again", "--help", "--version"}
"""Words of commands that plan nothing."""


class Parsed(BaseException):
    """The words of a command were accepted."""


def plan_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a plan that proves as much as the command's: of few seeds, in no place of its own."""
    words = tuple(CHOICES.get(word, word) for word in words)
    few = r"range\((\d+),\d{2,}\)"
    kept = (word for word in words if not ELSEWHERE.match(word))
    return tuple(re.sub(few, lambda found: f"range({found[1]},{int(found[1]) + 4})", word) for word in kept)


def plans(module: str) -> list[tuple[str, ...]]:
    """Return the different plans of a module's commands."""
    asked = [words[3:] for words in COMMANDS if words[1:3] == ("-m", module)]
    named = [words for words in asked if any(word.startswith("sweep=") for word in words)]
    return sorted({plan_of(words) for words in asked if words not in named and not FOR_ANOTHER_TIME & set(words)})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))[0].path


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every command end as soon as its words are read."""

    def ending(name: str) -> None:
        real = getattr(argparse.ArgumentParser, name)

        def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
            parsed = real(self, *args, **kwargs)
            if sys._getframe(1).f_globals["__name__"] == "argparse":  # one of them calls the other
                return parsed
            raise Parsed

        monkeypatch.setattr(argparse.ArgumentParser, name, parse)

    ending("parse_args")
    ending("parse_known_args")
    ending("parse_intermixed_args")


@pytest.mark.parametrize("words", plans("grok.run"), ids=" ".join)
def test_a_run_can_be_planned(
    words: tuple[str, ...],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ["dry_run=true", "store.path=S"] + (["data.path=" + str(corpus)] if "mode=gpt" in words else [])
    if any("_target_=" in word for word in words):
        place.append(f"plugin_path={ROOT / 'examples'}")
    for word in words:
        if word.startswith("init_from="):
            from grok.config.gpt import ModelConfig
            from grok.gpt.hf import save_hf_folder
            from grok.gpt.model import GPT

            model = GPT(ModelConfig(layers=1, d_model=16, heads=2, context=32), vocab_size=256)
            save_hf_folder(tmp_path / word.removeprefix("init_from="), model)
        if word.startswith("eval.tasks=["):
            (tmp_path / word.removeprefix("eval.tasks=[").removesuffix("]")).touch()
        for folder in re.findall(r"[{,]\w+:([\w/]+)", word) if word.startswith("data.corpora=") else []:
            (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder).symlink_to(corpus)
    assert run.main([*words, *place]) == 0, capfd.readouterr().err


@pytest.mark.parametrize("words", plans("grok.sweeps.search"), ids=" ".join)
def test_a_search_can_be_planned(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if words:
        assert search.main([*words, "dry_run=true", "store.path=S"]) == 0


OTHERS = [words for words in COMMANDS if words[0] != "make" and words[2] not in ("grok.run", "grok.sweeps.search")]


@pytest.mark.parametrize("words", [w for w in OTHERS if len(w) > 3], ids=" ".join)
@pytest.mark.usefixtures("only_parse")
def test_the_options_of_a_command_exist(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [words[2], *(CHOICES.get(word, word) for word in words[3:])])
    with pytest.raises(Parsed):
        found = importlib.util.find_spec(words[2])
        package = found is not None and found.submodule_search_locations is not None
        importlib.import_module(f"{words[2]}.__main__" if package else words[2]).main()


def test_every_named_sweep_and_target_of_make_exists() -> None:
    sweeps = {word.partition("=")[2] for words in COMMANDS for word in words if word.startswith("sweep=")}
    assert {name for name in sweeps - {"NAME"} if not (ROOT / f"conf/sweep/{name}.yaml").exists()} == set()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {words[1] for words in COMMANDS if words[0] == "make"} <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is in git: a generated page is on the site alone, and the links work on GitHub, too."""
    targets = {link: Path(os.path.normpath(page.parent / link.partition("#")[0])) for link in links(page)}
    assert [link for link, target in targets.items() if not target.exists() or FOLDER in target.parents] == []


PYTHON = [(b.page, b.body) for page in PAGES for b in blocks(page) if b.kind == "python" and "import" in b.body]


@pytest.mark.parametrize("page, body", PYTHON, ids=[f"{page} {i}" for i, (page, _) in enumerate(PYTHON)])
def test_python_runs(page: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = list(example_rows(range(3)))
    store_of("results/store", rows)
    text = re.sub(r"results/(walk|quickstart|elsewhere)", "results/store", body)
    text = re.sub(r'\.run\("\w+"\)', f'.run("{rows[0].result.run_id}")', text)
    exec(compile(text, page, "exec"), {})


@pytest.mark.slow
def test_a_build_of_the_site_writes_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "reference")
    generate.on_pre_build(None)
    assert {n: (generate.FOLDER / n).read_text(encoding="utf-8") for n in MADE} == {n: MADE[n]() for n in MADE}
    assert "hooks: [docs/generate.py]" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_every_column_is_described_and_no_other(kind: str) -> None:
    plain = [name for name in schema(kind).names if not name.startswith(CONFIG)]
    assert set(DESCRIPTIONS[kind]) == set(plain), (
        "grok/store/columns.toml describes the columns of grok/store/schema.py"
    )
    assert list(describe(kind)) == schema(kind).names


def test_the_thresholds_of_the_events_are_those_of_the_code() -> None:
    said = {"memorised_step": outcome.MEMORISED_TRAIN_ACC, "memorised_loss_step": outcome.MEMORISED_TRAIN_LOSS}
    said |= dict.fromkeys(("grokked_step", "grokked_for_good_step"), outcome.GENERALISED_VAL_ACC)
    for name, value in said.items():
        assert f" {value} " in DESCRIPTIONS["runs"][name].meaning, name
    assert f" {outcome.LOSS_FALL:.0%} " in DESCRIPTIONS["runs"]["val_loss_peak_step"].meaning
    assert f" {outcome.NORM_FALL:.0%} " in DESCRIPTIONS["runs"]["weight_norm_peak_step"].meaning


PACKAGES = ("grok", "grok/analysis", "grok/sweeps", "hydra_plugins", "benchmarks")
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted, f"{name} has >>> outside of a docstring"
    assert not result.failed
