"""The pages that are made from the code, in ``docs/reference/``: ``python -m docs.generate`` writes them.

mkdocs writes them as well, before each build. They are not in git: the code has every word of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from grok.analysis import glossary
from grok.config import ArithmeticConfig, GptConfig, RunConfig
from grok.config.arithmetic import METRICS, OPERATIONS
from grok.config.fields import Rule, accepted_values, defaults_of, settings_of
from grok.config.values import literal
from grok.gpt.planning import published
from grok.store.schema import CONFIG, MEASUREMENTS, describe, schema
from grok.streams import MAX_SEED

FOLDER: Final = Path(__file__).parent / "reference"
NOTE: Final = "<!-- Made by python -m docs.generate. Change the code instead. -->\n"

IDENTITY: Final = {"result": "yes", "length": "run and settings", "schedule": "run only", "none": "no"}
"""What a setting's role means for the three names of a run."""

SETTINGS: Final = """# Settings

Every setting of `grok run` and `grok sweep`, given as `NAME=VALUE`. `conf/` holds the same defaults as YAML.
`experiment=NAME` and `sweep=NAME` change several at once.

*Identity* says which names of a run contain the setting:

- **yes**: `run_id`, `trajectory_id` and `config_id`. Another value is another result.
- **run and settings**: `run_id` and `config_id`. A longer run continues the same trajectory.
  Where the learning-rate schedule ends with the run, `trajectory_id` contains it, too.
- **run only**: `run_id`. The run is evaluated at other steps; its weights are the same.
- **numerics tag**: none of them, but another value may round differently, and the column `numerics` contains it.
- **no**: none of them. The value cannot change a result.
- **resolved**: the resulting stream seeds are in `run_id`, and in `trajectory_id` where they can move training.
  It does not matter whether a seed was given or derived.

A setting that was added in a later version is left out at its default, so that older runs keep their names.
"""

COLUMNS: Final = """# Columns of the store

Every column of the four tables, in its order. [The store](../store.md) says how to read them.

Floats that are not a number are stored as null; infinities stay. Lists and maps are JSON text.
"""

TABLES: Final = {
    "runs": "One row per run.",
    "curves": "One row per evaluation. Step k is after k updates.",
    "steps": "One row per update of a language model's run.",
    "designs": "One row for each run of a plan: what the run is for. Written when a plan is made, before it trains.",
}


KEY_FREQUENCIES: Final = """A *key frequency* of the final weights is one whose waves cos and sin of w_k (a ± b)
have at least a quarter of the strongest one's norm in the final logits. Nanda et al. 2023 take those with nontrivial
coefficients in the map from neurons to logits, and name no threshold. The restricted loss keeps these waves and the
mean, the excluded loss takes these waves away. With final weights they are measured only of runs that generalised, at
steps whose weights were kept: a network that has not generalised has no circuit.
"""

NEURONS: Final = """`neurons` looks at the MLP of each block (BLOCK counts from 0) at the answer's position, after the
activation, on one fixed sample of 4,096 equations, or on all if there are no more. Least squares fit each neuron with
the waves of one frequency K in a, ±b, a ± b and their difference, and the best K is its frequency; ± is the operation's
sign. For products and quotients the operands are discrete logarithms, and so is K. Nanda et al. 2023 (section 4.3)
call more than 0.85 explained variance a single frequency. Symmetry is 1 if a neuron does not tell a from ±b. Alignment
is 1 in Gromov 2023's solution, where a neuron's two phases add up to that of its weights to the answers, and near 0
for phases without relation. Both are missing where no neuron is tuned. Shares, counts and cosines have no unit.
"""

LISTS: Final[dict[str, tuple[str, ...]]] = {"task.operation": OPERATIONS, "eval.metrics": METRICS}
"""Settings that check their values themselves: what they take."""

TAG: Final = {
    "device", "lanes", "numerics.path", "numerics.compile", "numerics.kernels", "train.threads", "train.micro_batch",
    "train.parallel", "train.recompute",
}  # fmt: skip
"""Settings in no name of a run, which decide bits all the same: they are in the numerics tag."""


def main() -> None:
    """Write the pages. One that is as it should be is not touched: mkdocs watches their folder while it serves."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        page, text = FOLDER / name, make()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


# Hooks of mkdocs: what the site has beside docs/. Pages of results/ stand under their own paths.

ROOT: Final = Path(__file__).parents[1]
SHOWN: Final = {".md", ".png", ".svg", ".csv", ".json", ".html"}
NOTEBOOK: Final = "census"
"""The notebook that the site shows, executed on the store of the quickstart's census."""


def on_config(config: Any) -> None:
    """Put the results into the navigation."""
    pages = [path for path in results() if path.endswith(".md")]
    config.nav.append({"Results": [*sorted(pages, key=lambda path: (path.count("/"), path))]})


def on_pre_build(config: Any) -> None:
    """Write the pages that are made from code, and execute the notebook."""
    import jupytext
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    main()
    os.environ["GROK_STORE"] = str(ROOT / "results/quickstart-census/store")
    notebook = jupytext.read(ROOT / f"notebooks/{NOTEBOOK}.py")
    NotebookClient(notebook, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    text, made = MarkdownExporter().from_notebook_node(notebook)
    (FOLDER / f"{NOTEBOOK}.md").write_text(text, encoding="utf-8")
    for name, data in made["outputs"].items():
        (FOLDER / name).write_bytes(data)


def on_files(files: Any, config: Any) -> None:
    """Add the results to the site."""
    from mkdocs.structure.files import File

    for path in results():
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))


def on_page_markdown(text: str, **of: Any) -> str:
    """Point links to results at their pages of the site."""
    return text.replace("](../results/", "](results/")


def results() -> list[str]:
    """Return the files of ``results/`` that the site shows, relative to the project."""
    every = (path.relative_to(ROOT) for path in (ROOT / "results").rglob("*") if path.suffix in SHOWN)
    return sorted(str(path) for path in every if not {"store", "stores", "report"} & set(path.parts))


def settings_page() -> str:
    """Return the reference of all settings as Markdown."""
    shared = settings_of(RunConfig)
    parts = [SETTINGS, *_sections("Every mode", RunConfig, set(), 2)]
    parts += _sections("mode=arithmetic", ArithmeticConfig, set(shared), 2)
    parts += _sections("mode=gpt", GptConfig, set(shared), 2)
    return NOTE + "\n".join(parts)


def _sections(title: str, config: type[RunConfig], without: set[str], level: int) -> Iterator[str]:
    """Yield a heading and a table for each group of settings of ``config``."""
    defaults = defaults_of(config)
    settings = [(name, *of) for name, of in settings_of(config).items() if name not in without]
    settings.sort(key=lambda setting: "." in setting[0])  # the bare ones first; stable
    yield f"{'#' * level} {title}\n"
    for group, members in groupby(settings, key=lambda setting: setting[0].rpartition(".")[0]):
        if group:
            yield f"{'#' * (level + 1)} {group}\n"
        yield _table(
            ("setting", "default", "values", "identity", "meaning"),
            [_setting(name, hint, rule, defaults[name]) for name, hint, rule in members],
        )


def _setting(name: str, hint: Any, rule: Rule, default: Any) -> tuple[str, ...]:
    values = accepted_values(hint, rule).replace(str(MAX_SEED), "2^63 - 1")
    if choices := rule.choices or LISTS.get(name):
        values = ", ".join(f"`{choice}`" for choice in choices)
    is_seed = name in ("seed", "switch.order") or name.startswith("seeds.")
    identity = "resolved" if is_seed else IDENTITY[rule.role]
    identity = "numerics tag" if name in TAG else identity
    return f"`{name}`", f"`{literal(default)}`", values, identity, rule.doc


def columns_page() -> str:
    """Return the data dictionary as Markdown."""
    parts = [COLUMNS]
    for kind in TABLES:
        parts.append(f"## {kind}\n\n{TABLES[kind]}\n")
        columns = describe(kind)
        types = {field.name: str(field.type) for field in schema(kind)}
        plain = [name for name in columns if not name.startswith(CONFIG)]
        parts.append(_columns(columns, types, plain))
        if kind == "curves":
            parts.append("### Measurements\n\nWhat `metrics` can hold, beside measurements of your own.\n")
            rows = [(f"`{n}`", meaning, f"`{wanted}`") for n, (meaning, wanted) in MEASUREMENTS.items()]
            parts.append(_table(("name", "meaning", "`eval.metrics` has"), rows))
            parts += [KEY_FREQUENCIES, NEURONS]
        if len(plain) < len(columns):
            parts.append("### Settings\n\nEvery setting is a column, null in the mode that lacks it.\n")
            parts.append(_columns(columns, types, [name for name in columns if name.startswith(CONFIG)]))
    return NOTE + "\n".join(parts)


def _columns(columns: dict[str, Any], types: dict[str, str], names: list[str]) -> str:
    rows = [(f"`{n}`", types[n], columns[n].meaning, columns[n].unit, columns[n].null or "never") for n in names]
    return _table(("column", "type", "meaning", "unit", "null when"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "columns.md": columns_page,
    "glossary.md": glossary.markdown,
    "figures.md": lambda: f"{NOTE}# Published planning figures\n\nFrom `grok plan --diary`.\n\n{published.page()}\n",
}
"""Name of a page: what makes it."""


if __name__ == "__main__":
    main()
