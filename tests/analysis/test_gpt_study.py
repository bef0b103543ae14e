"""The language-model section: perplexities, spread over seeds, samples, and what it refuses to claim."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.answers import compile_report
from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import ask
from analysis.studies.gpt import WIKITEXT_103, shares_seeds
from analysis.writing import write_report
from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult, StepPoint
from grok.store import Row
from grok.store.designs import Purpose, Purposes
from grok.store.reader import to_pandas
from grok.store.rows import to_shard
from tests.analysis.simulate import MACHINE

SAMPLE = "ROMEO:\nWhat <b>light</b> through yonder window breaks?"


def run(
    seed: int,
    preset: str,
    final: float,
    *,
    status: str = "completed",
    parent: str | None = None,
    data: str = "d" * 20,
    metrics: dict[str, float] | None = None,
    mixture: dict[str, float] | None = None,
    **settings: Any,
) -> Row:
    config = load_config(
        {
            "mode": "gpt",
            "experiment": preset,
            "seed": seed,
            "train": {"steps": 400},
            "data": {"mixture_hashes": mixture or {}},
            **settings,
        }
    )
    identity = identify(config, data_hash=data)
    curve = [
        CurvePoint(
            step=k,
            val_loss=4.2 - (4.2 - final) * k / 300 if k <= 300 else final + 0.1,
            sample=SAMPLE,
            metrics={name: value - k / 1000 for name, value in (metrics or {}).items()},
        )
        for k in range(0, 401, 100)
    ]
    log = [
        StepPoint(
            step=k,
            train_loss=4.2 * math.exp(-k / 300),
            consumed_tokens=k * 768,
            tokens_per_second=9000.0,
            mfu=0.25 if k > 100 else 0.375,
            peak_memory=1e9 + k * 1e6,
            event="spike" if k == 250 else None,
        )
        for k in range(1, 401)
    ]
    result = RunResult(
        run_id=identity.run_id + ("x" if parent else ""),
        status=status,
        stop_reason="steps",
        steps=400,
        curve=curve,
        step_log=log,
        started_at=1.7e9,
        seconds=30.0,
        parent_run_id=parent,
        branch_step=200 if parent else None,
    )
    return Row(result, config, identity, MACHINE, data_hash=data)


def store_of(rows: list[Row], kind: str = "sweep", role: str = "member") -> Observations:
    """Return the observations of these runs, all of one design."""
    shard = to_shard(rows)
    frames = [to_pandas(name, shard.table(name)) for name in ("runs", "curves", "steps")]
    table = Purposes(kind, [Purpose(role=role)] * len(rows)).named([row.result.run_id for row in rows]).table(())
    return Observations(*frames, path=Path("simulated"), designs=to_pandas("designs", table))


def test_best_not_last_and_the_spread_over_seeds() -> None:
    losses = [1.50, 1.52, 1.48, 1.51]
    study = ask("gpt", store_of([run(i, "gpt/shakespeare_char", x) for i, x in enumerate(losses)]))
    assert sorted(study.runs["best_loss"]) == pytest.approx(sorted(losses))
    assert (study.runs["best_step"] == 300).all()
    (finding,) = [f for f in study.findings if f.headline]
    values = [math.exp(x) for x in losses]
    assert finding.estimate.value == pytest.approx(sum(values) / 4)
    assert finding.estimate.low < finding.estimate.value < finding.estimate.high
    assert study.runs["tokens"].tolist() == [400 * 768] * 4
    (table,) = [t.frame for t in study.tables if t.name == "runs"]
    assert table["MFU"].tolist() == [0.25] * 4
    assert table["peak GB"].tolist() == [1.4] * 4
    assert "4 spike" in " ".join(study.notes)
    assert not any(t.name.startswith("published") for t in study.tables)
    assert len(study.steps.groupby("run_id").size()) == 4
    assert study.steps.groupby("run_id").size().max() <= 301
    (drawing,) = drawings(study)
    assert {"train_loss", "val_loss"} <= set(drawing.data)


def test_further_validation_sets_and_tasks_have_tables() -> None:
    measured = {"val_loss.wiki": 3.0, "val_acc.wiki": 0.9, "task.piqa.acc": 0.9, "task.piqa.acc_stderr": 0.41}
    rows = [run(0, "gpt/shakespeare_char", 1.5, metrics=measured), run(1, "gpt/shakespeare_char", 1.6)]
    tables = {t.name: t.frame for t in ask("gpt", store_of(rows)).tables}
    (wiki,), (piqa,) = (tables[name].to_dict("records") for name in ("validation_sets", "tasks"))
    assert (wiki["validation set"], wiki["best loss"], wiki["last loss"], wiki["at step"]) == ("wiki", 2.6, 2.6, 400)
    assert (piqa["task"], piqa["metric"], piqa["score"], piqa["standard error"]) == ("piqa", "acc", "0.5", "0.01")
    plain = ask("gpt", store_of(rows[1:]))
    assert not {"validation_sets", "tasks"} & {t.name for t in plain.tables}


def test_repeats_and_scans_of_one_seed_are_no_sample_of_seeds() -> None:
    different = pd.DataFrame({"seed_init": [1, 2, 3], "seed_order": [4, 5, 6], "seed_dropout": [0, 0, 0]})
    assert not shares_seeds(different), "no run draws from the dropout seed that all share"
    assert shares_seeds(different.assign(seed_init=1)), "a scan of orders"
    assert shares_seeds(different.assign(seed_init=1, seed_order=4)), "perturbed repeats of one seed"
    assert shares_seeds(different.assign(seed_order=[4, 4, 6])), "part of a crossed design"


def test_one_seed_has_no_interval() -> None:
    study = ask("gpt", store_of([run(0, "gpt/shakespeare_char", 1.5)]))
    (finding,) = [f for f in study.findings if f.headline]
    assert finding.estimate is None
    assert "no interval" in finding.text


def test_published_results_stand_beside_a_wikitext_run_and_claim_nothing_for_it(tmp_path: Path) -> None:
    rows = [run(0, "gpt/wikitext103_353m", 3.4), run(1, "gpt/wikitext103_353m", 3.5)]
    parent = rows[0].result.run_id
    rows.append(run(0, "gpt/wikitext103_353m", 3.9, status="rolled_back", parent=parent))
    found = store_of(rows)
    study = ask("gpt", found)
    assert {"published", "published_on_the_way", "branches"} <= {t.name for t in study.tables}
    assert "not a WikiText-103 result" in " ".join(study.notes)
    assert set(WIKITEXT_103["perplexity"]) == {37.5, 26.37, 23.24, 18.18, 22.6}
    assert dict(zip(WIKITEXT_103["perplexity"], WIKITEXT_103["per"], strict=True))[22.6] == "BPE of 50,304"
    page = write_report(compile_report(found), tmp_path).read_text()
    assert "<b>light" not in page
    assert "&lt;b&gt;light" in page
    assert "Seed census" not in page  # a store of language models is asked for no arithmetic run
