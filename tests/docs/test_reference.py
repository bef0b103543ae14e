"""The pages that are made from the code are written with the site, and every column of the store is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import generate
from docs.generate import PAGES
from grok.arithmetic import outcome
from grok.commands.reference import run_help
from grok.store.schema import CONFIG, DESCRIPTIONS, describe, schema
from tests.docs.pages import ROOT


def test_a_build_of_the_site_writes_the_pages_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those: mkdocs watches the folder while it serves."""
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "reference")
    generate.on_pre_build(None)
    pages = {name: tmp_path / "reference" / name for name in PAGES}
    assert {name: page.read_text(encoding="utf-8") for name, page in pages.items()} == {n: PAGES[n]() for n in PAGES}
    pages["settings.md"].write_text("stale")
    before = {name: page.stat().st_mtime_ns for name, page in pages.items()}
    generate.on_pre_build(None)
    assert [n for n in PAGES if pages[n].stat().st_mtime_ns != before[n]] == ["settings.md"]
    assert pages["settings.md"].read_text(encoding="utf-8") == PAGES["settings.md"]()
    assert "hooks: [docs/generate.py]" in (ROOT / "mkdocs.yml").read_text()


def test_settings_have_the_default_that_is_declared() -> None:
    """A config works out what a null leaves open: the page must not call that the default."""
    page = PAGES["settings.md"]()
    for name in ("dropout_embedding", "dropout_residual", "dropout_attention"):
        assert f"| `model.{name}` | `null` |" in page
        assert f"  model.{name}=null" in run_help(["mode=gpt", name])
    (gpt,) = re.findall(r"\| `model.d_ff` \| `null` \|", page)
    assert page.index(gpt) > page.index("mode=gpt")


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_every_column_is_described_and_no_other(kind: str) -> None:
    plain = [name for name in schema(kind).names if not name.startswith(CONFIG)]
    assert set(DESCRIPTIONS[kind]) == set(plain), (
        "grok/store/columns.toml describes the columns of grok/store/schema.py"
    )
    assert list(describe(kind)) == schema(kind).names


def test_the_thresholds_of_the_events_are_those_of_the_code() -> None:
    said = {
        "memorised_step": outcome.MEMORISED_TRAIN_ACC,
        "memorised_loss_step": outcome.MEMORISED_TRAIN_LOSS,
        "grokked_step": outcome.GENERALISED_VAL_ACC,
        "grokked_for_good_step": outcome.GENERALISED_VAL_ACC,
    }
    for name, value in said.items():
        assert f" {value} " in DESCRIPTIONS["runs"][name].meaning, name
    assert f" {outcome.LOSS_FALL:.0%} " in DESCRIPTIONS["runs"]["val_loss_peak_step"].meaning
    assert f" {outcome.NORM_FALL:.0%} " in DESCRIPTIONS["runs"]["weight_norm_peak_step"].meaning
    assert outcome.PERSISTENCE == 2, "the descriptions say: of two evaluations in a row"


_CAPITALS = re.compile(r"\b([A-Z]{3,})\.md\b")


def test_nothing_cites_a_document_that_is_not_in_the_project() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    below = [path for folder in folders for path in folder.rglob("*")]
    files = [path for path in (*ROOT.iterdir(), *below) if path.suffix in (".py", ".yaml", ".md")]
    documents = {path.stem for path in files if path.suffix == ".md"}
    cited = [(path, name) for path in files for name in _CAPITALS.findall(path.read_text(encoding="utf-8"))]
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in cited if name not in documents] == []


def test_names_are_nouns_of_the_field() -> None:
    word = "(?:found|given|there|asked|told|said)"
    bound = re.compile(rf"^ +{word}(?: =|: [^=\n]+ =)|\bfor {word} in\b|[(,] ?{word}: \w", re.MULTILINE)
    files = [path for place in ("grok", "analysis", "sweeps", "hydra_plugins") for path in (ROOT / place).rglob("*.py")]
    assert [f"{p.relative_to(ROOT)}: {m}" for p in files for m in bound.findall(p.read_text(encoding="utf-8"))] == []
