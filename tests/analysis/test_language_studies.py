"""Studies of language models: perplexities, crossed seeds and spikes, from simulated truth."""

import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grok.analysis.answers import compile_report
from grok.analysis.figures import drawings
from grok.analysis.observations import Observations
from grok.analysis.purposes import asked_unseen
from grok.analysis.statistics.estimate import generator
from grok.analysis.statistics.excursions import RISE, excursions, heights, smoothed, threshold
from grok.analysis.statistics.variance_shares import seeds_needed
from grok.analysis.studies.crossed import Crossed
from grok.analysis.studies.gpt import WIKITEXT_103, Gpt, shares_seeds
from grok.analysis.writing import write_report
from grok.records import CurvePoint, StepPoint
from grok.store import Row
from grok.store.designs import Purpose, Purposes
from grok.store.reader import to_pandas
from grok.store.rows import to_shard
from tests.analysis.simulate import ask, language_row, needs

CHOSEN = Purpose(role="child", choice="best", redrawn=("order",))
SAMPLE = "ROMEO:\nWhat <b>light</b> through yonder window breaks?"


def run(
    seed: int, preset: str, final: float, *, parent: str = "", metrics: dict[str, float] | None = None, lr: float = 1e-3
) -> Row:
    """Return a run, or the branch of one that was rolled back to ``parent``."""
    settings = {"experiment": preset, "seed": seed, "train": {"steps": 400}, "optim": {"lr": lr}}
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
            consumed_samples=k * 3,
            tokens_per_second=9000.0,
            mfu=0.25 if k > 100 else 0.375,
            peak_memory=1e9 + k * 1e6,
            event="spike" if k == 250 else None,
        )
        for k in range(1, 401)
    ]
    made = language_row(settings, curve, step_log=log, started_at=1.7e9, seconds=30.0)
    if parent:
        branch = {"status": "rolled_back", "parent_run_id": parent, "branch_step": 200}
        made = replace(made, result=replace(made.result, run_id=made.result.run_id + "x", **branch))
    return made


def store_of(
    rows: list[Row], kind: str = "sweep", role: str = "member", children: Sequence[tuple[Row, Purpose]] = ()
) -> Observations:
    """Return the observations of these runs, all of one design, and of ``children`` with what each is for."""
    shard = to_shard([*rows, *(row for row, _ in children)])
    frames = [to_pandas(name, shard.table(name)) for name in ("runs", "curves", "steps")]
    planned = [(kind, [(row, Purpose(role=role)) for row in rows]), ("branch", children)]
    designs = [Purposes(k, [p for _, p in of]).named([row.result.run_id for row, _ in of]) for k, of in planned if of]
    table = pa.concat_tables([design.table(()) for design in designs])
    return Observations(*frames, path=Path("simulated"), designs=to_pandas("designs", table))


def test_best_not_last_and_the_spread_over_seeds() -> None:
    losses = [1.50, 1.52, 1.48, 1.51]
    *asked, child = (run(i, "gpt/shakespeare_char", x) for i, x in enumerate([*losses, 1.2]))
    study = ask("gpt", store_of(asked, children=[(child, CHOSEN)]))
    assert sorted(study.runs["best_loss"]) == pytest.approx(sorted([*losses, 1.2]))
    assert (study.runs["best_step"] == 300).all()
    (finding,) = [f for f in study.findings if f.headline]
    assert (finding.estimate.value, finding.estimate.n) == (pytest.approx(math.exp(sum(losses) / 4)), 4)
    assert study.runs["tokens"].tolist() == [400 * 768] * 5
    (table,) = [t.frame for t in study.tables if t.name == "runs"]
    assert table[["MFU", "peak GB"]].to_numpy().tolist() == [[0.25, 1.4]] * 5
    assert study.steps.groupby("run_id").size().between(1, 301).tolist() == [True] * 5
    assert [f.estimate for f in ask("gpt", store_of(asked[:1])).findings if f.headline] == [None], "one seed"
    two = ask("gpt", store_of([asked[0], run(7, "gpt/tinystories_sample", 1.4)]))
    several, *each = [f for f in two.findings if f.headline]
    assert several.shown == "4.06 to 4.48" and each[0].shown == "4.06" and "brackets" not in several.text
    better = [run(i, "gpt/shakespeare_char", x - 0.1 - 0.004 * i, lr=0.1) for i, x in enumerate(losses)]
    better[3] = replace(better[3], result=replace(better[3].result, status="diverged"))
    compared = ask("gpt", store_of([*asked, *better]))
    (table,) = [t.frame for t in compared.tables if t.name == "perplexities"]
    ratio, low, high = map(float, re.findall(r"[\d.]+", table["over the reference's"][0]))
    assert low < ratio < high and ratio == pytest.approx(math.exp(-0.106), abs=1e-3) and table["pairs of seeds"][0] == 4
    said, first, other = (finding.text for finding in compared.findings[:3])
    assert " 1 of 1 differs from gpt/shakespeare_char, optim.lr=0.001 beyond" in said
    assert "without runs that diverged: ×0.9" in said
    assert " 1 of 4 diverged" in first and " 1 of 4 diverged" not in other, "no result chose the reference"


@pytest.mark.parametrize("many", [3, 6])
def test_to_go_on_with_all_language_models_is_no_choice(many: int) -> None:
    preset = {"experiment": "gpt/shakespeare_char"}
    short, long = (
        [language_row({**preset, "seed": s, "train": {"steps": n}}, [CurvePoint(step=n, val_loss=1)]) for s in range(6)]
        for n in (200, 400)
    )
    shard, member = to_shard([*short, *long[:many]]), Purpose(role="member")
    ids = [[row.result.run_id for row in rows] for rows in (short, long[:many])]
    first, then = (Purposes("sweep", [member] * len(of)).named(of) for of in ids)
    planned = to_pandas("designs", pa.concat_tables([first.table(()), then.table(set(ids[1]))]))
    asked = asked_unseen(
        Observations(to_pandas("runs", shard.runs), to_pandas("curves", shard.curves), designs=planned)
    )
    assert asked == set(ids[0] + ids[1] * (many == 6))


def test_losses_stand_by_what_was_used() -> None:
    rows = [run(seed, "gpt/tinystories_sample", 1.5 + 0.1 * seed) for seed in range(3)]
    study = ask("gpt", store_of(rows))
    assert isinstance(study, Gpt)
    used = study.used.set_index(["run_id", "step"]).sort_index()
    assert len(used) == 3 * 4, "step 0 has used nothing"
    model = rows[0].config.model  # type: ignore[attr-defined]
    blocks = model.layers * (12 * model.d_model**2 + 13 * model.d_model)  # GPT-2's count of a block
    at = used.xs(400, level="step").iloc[0]
    assert (at["tokens"], at["samples"]) == (400 * 768, 400 * 3)
    assert at["hours"] == pytest.approx(400 * 768 / 9000 / 3600)
    assert at["flops"] == pytest.approx(400 * 768 * (6 * blocks + 12 * model.layers * model.d_model * 256))
    (drawing,) = [d for d in drawings(study) if d.name == "loss_by_use"]
    assert len(drawing.data) == len(used)


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


def test_published_results_stand_beside_a_wikitext_run_and_claim_nothing_for_it(tmp_path: Path) -> None:
    rows = [run(0, "gpt/wikitext103_353m", 3.4), run(1, "gpt/wikitext103_353m", 3.5)]
    parent = rows[0].result.run_id
    rows.append(run(0, "gpt/wikitext103_353m", 3.9, parent=parent))
    found = store_of(rows)
    study = ask("gpt", found)
    assert {"published", "published_on_the_way", "branches"} <= {t.name for t in study.tables}
    assert set(WIKITEXT_103["perplexity"]) == {37.5, 26.37, 23.24, 18.18, 22.6}
    assert dict(zip(WIKITEXT_103["perplexity"], WIKITEXT_103["per"], strict=True))[22.6] == "BPE of 50,304"
    page = write_report(compile_report(found), tmp_path).read_text()
    assert "<b>light" not in page
    assert "&lt;b&gt;light" in page
    assert "Seed census" not in page  # a store of language models is asked for no arithmetic run


STD = {"init": 0.04, "order": 0.02, "dropout": 0.0, "perturb": 0.01}
"""True standard deviations of the final loss."""


@functools.cache
def language_cross() -> Observations:
    sizes = {"init": 6, "order": 6, "dropout": 2, "perturb": 2}
    rng = generator("crossed language models")
    effects = {stream: rng.normal(0, STD[stream], n) for stream, n in sizes.items() if stream != "perturb"}
    shared = {"experiment": "gpt/tinystories_sample", "train": {"steps": 200}, "eval": {"every": 100}}
    shared |= {"model": {"dropout": 0.1}, "perturb": {"ulps": 1}}
    rows = []
    for cell in itertools.product(*map(range, sizes.values())):
        final = 4.5 + sum(effects[stream][level] for stream, level in zip(effects, cell, strict=False))
        losses = ((0, 7.0), (100, final + 1), (200, final + rng.normal(0, STD["perturb"])))
        seeds = dict(zip(sizes, cell, strict=True))
        rows.append(language_row({**shared, "seeds": seeds}, [CurvePoint(step=k, val_loss=x) for k, x in losses]))
    return store_of(rows, "crossed", "cell")


def test_the_shares_of_the_final_loss_hold_the_truth() -> None:
    study = ask("language_crossed", language_cross())
    assert isinstance(study, Crossed) and study.shares is not None
    total = sum(s * s for s in STD.values())
    for stream, name in (("init", "init"), ("order", "order"), ("dropout", "dropout"), ("perturb", "chaos")):
        e = study.shares.shares[name]
        assert e.low <= STD[stream] ** 2 / total <= e.high, name
    assert study.shares.levels == {"init": 6, "order": 6, "dropout": 2} and study.shares.replicates == 2
    assert study.scope.startswith("144 runs of transformer of 12 ") and "validation loss at step 200" in study.scope
    assert {d.name for d in drawings(study)} == {"language_crossed_variance_shares", "language_crossed_heat_map"}
    (floor,) = [f for f in study.findings if f.label == "noise floor"]
    assert floor.estimate is not None
    assert floor.estimate.low <= total**0.5 <= floor.estimate.high < 4 * floor.estimate.value
    (needed,) = [t.frame for t in study.tables if t.name == "seeds_needed"]
    first = needed.iloc[0]
    assert first["low"] <= seeds_needed(total**0.5, 0.01) <= first["high"]
    assert floor.text.startswith("The standard deviation of the loss at step 200")
    whole = language_cross()
    lost = whole.curves["val_loss"].where((whole.curves["step"] < 200) | (whole.curves.index % 7 > 0), np.inf)
    curves = whole.curves.assign(val_loss=lost)
    early = ask("language_crossed", Observations(whole.all_runs, curves, designs=whole.designs))
    assert "at step 100" in early.scope and any("loss at step 200" in note for note in early.notes)


def test_a_store_of_language_models_says_nothing_of_splits_and_no_interval_over_shared_seeds() -> None:
    observations = language_cross()
    assert "runs of this study" in needs("crossed", observations)
    (finding,) = ask("gpt", observations).findings
    assert finding.estimate is None and "They share seeds" in finding.text


def test_what_no_later_order_changes_is_fixed() -> None:
    rng, truth, rows, children = generator("left runs"), {0: 0.2, 100: 0.5, 180: 0.9}, [], []
    for seed, own in enumerate(rng.normal(size=12)):
        settings = {"experiment": "gpt/tinystories_sample", "seed": seed, "train": {"steps": 200}}
        rows.append(language_row(settings, [CurvePoint(step=200, val_loss=4.5)]))
        left = {"run": rows[-1].result.run_id, "changes": ["seeds.order"]}
        for (step, share), order in itertools.product(truth.items(), range(1, 9)):
            loss = 4.5 + 0.1 * (math.sqrt(share) * own + math.sqrt(1 - share) * rng.normal())
            how = {**settings, "seeds": {"order": order}} | ({"resume": {**left, "step": step}} if step else {})
            child = language_row(how, [CurvePoint(step=200, val_loss=loss)])
            purpose = replace(CHOSEN, choice="named", parent_run_id=left["run"], from_step=step)
            children.append((child, purpose)) if step else rows.append(child)
    study = ask("language_fate", found := store_of(rows, children=children))
    steps = study.steps.set_index("step")
    assert steps["children"].tolist() == [96] * 3 and "the store has none" in needs("fate", found)
    for step, share in truth.items():
        assert steps["low"][step] <= share <= steps["high"][step]
        assert steps["spread"][step] == pytest.approx(0.1 * math.sqrt(1 - share), rel=0.2)
    assert steps["high"][0] < steps["low"][180] and [d.name for d in drawings(study)] == ["fixed_by_step"]


STEPS = 60


def test_a_rise_that_lasts_is_an_excursion_with_its_places() -> None:
    losses = np.r_[np.linspace(5, 4, 20), np.full(10, 6.0), np.full(10, 4.1)]
    (found,) = excursions(losses)
    assert (found.low, found.peak) == (found.onset - 2, found.onset) or losses[found.low] == pytest.approx(4, abs=0.1)
    assert found.onset == 20 and found.back == 30
    assert found.rise == pytest.approx(6 - smoothed(losses)[found.low])


def test_one_hard_batch_is_none_and_a_loss_that_is_no_number_never_comes_back() -> None:
    calm = np.full(40, 4.0)
    calm[20] = 9.0
    assert excursions(calm) == [] and heights(calm).argmax() == 20 and heights(calm).max() == 5.0
    (found,) = excursions([4.0] * 20 + [math.nan] * 20)
    assert found.rise == math.inf and found.back is None


@pytest.mark.parametrize(("last", "diverged"), [(9.0, True), (math.nan, False), (math.inf, True)])
def test_the_loss_that_ends_a_run_is_an_excursion_without_an_end(last: float, diverged: bool) -> None:
    (found,) = excursions([*np.linspace(5, 4, 30), last], diverged=diverged)
    assert (found.onset, found.peak, found.back) == (30, 30, None)
    assert found.rise == (pytest.approx(5, abs=0.05) if math.isfinite(last) else math.inf)


def test_the_noise_of_small_batches_is_no_spike() -> None:
    losses = 4 + np.random.default_rng(0).normal(0, 0.5, 2000)
    assert excursions(losses) and not excursions(losses, threshold(losses)) and threshold([5, math.inf]) == RISE
    assert threshold(np.linspace(9, 1, 20)) == RISE
    losses[1000:1010] += 5
    assert threshold(losses) == pytest.approx(6 * 0.5, rel=0.1) and len(excursions(losses, threshold(losses))) == 1


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_excursions_follow_each_other_and_rise_above_all_before(losses: list[float]) -> None:
    level, found = smoothed(losses), excursions(losses)
    for one, before in zip(found, [None, *found], strict=False):
        quiet = level[max(one.low, (before and before.back) or 0) : one.onset]
        assert one.low < one.onset <= one.peak and one.rise > RISE
        assert level[one.low] == level[: one.onset].min()
        assert level[one.onset] > level[one.low] + RISE and (quiet <= level[one.low] + RISE).all()
        assert one.back is None or level[one.back] <= level[one.low] + RISE / 2
    for one, after in itertools.pairwise(found):
        assert one.back is not None and one.back <= after.onset
    if not found:
        assert (level <= np.minimum.accumulate(level) + RISE).all()


def spiking_run(seed: int, hot: bool, std: str) -> Row:
    lr = 0.03 if hot else 0.003
    settings = {"experiment": "gpt/tinystories_sample", "seed": seed, "train": {"steps": STEPS}, "model": {"init": std}}

    def step(k: int) -> StepPoint:
        high = hot and std != "0.006" and (20 <= k < 30 + seed or (seed == 3 and 50 <= k < 55))
        return StepPoint(
            step=k,
            train_loss=5 - k / 100 + (2.0 + 0.1 * seed) * high,
            lr=min(1, k / 10) * lr,
            grad_norm=8.0 if high else 1.0,
            param_norm=30.0 if high else 10.0,
            event="spike" if high and k == 20 else None,
        )

    curve = [CurvePoint(step=k, val_loss=5 - k / 100 + 0.4 * hot + 0.01 * seed) for k in (0, STEPS)]
    log = [step(k) for k in range(1, STEPS + 1)]
    own = {"step_log": log, "numerics": f"device={'cuda' if hot else 'cpu'}"}
    return language_row({**settings, "optim": {"lr": lr, "warmup_steps": 10}}, curve, **own)


def test_who_spiked_when_and_why() -> None:
    cells = itertools.product(range(4), (False, True), ("0.02", "0.006", "small"))
    study = ask("spikes", store_of([spiking_run(*cell) for cell in cells]))
    assert study.factors == ["model.init", "optim.lr"]
    runs = study.runs
    assert set(runs[runs["spiked"]]["optim.lr"]) == {"0.03"} and int(runs["spiked"].sum()) == 8
    assert sorted(study.spikes["step"]) == [20] * 8 + [50] * 2 and (study.spikes["weights"] == 3).all()
    assert (study.spikes["gradient norm"] == 8).all() and not study.spikes["rising"].any()
    assert sorted(study.spikes["back_after"]) == [5, 5, 10, 10, 11, 11, 12, 12, 13, 13]
    said = {f.label: f for f in study.findings}
    assert said["runs that spiked"].shown == "8 of 24"
    assert said["spikes by optim.lr"].shown == "0.003: 0 of 12; 0.03: 8 of 12" and said["spikes by optim.lr"].headline
    assert "0.03: not computed as 0.003 (device" in said["spikes by optim.lr"].text
    assert "not computed" not in said["spikes by model.init"].text  # each value was on both devices
    assert {t.name for t in study.tables} == {"spikes_by_setting", "spikes_by_cell", "spikes"}
    assert "none" in set(study.tables[0].frame["median largest rise"]) and not study.tables[0].frame.isna().any(
        axis=None
    )


def test_no_two_of_many_conditions_have_one_colour() -> None:
    cells = itertools.product((0,), (False, True), ("0.02", "0.006", "0.004", "small"))
    drawing = drawings(ask("gpt", store_of([spiking_run(*cell) for cell in cells])))[0]
    colours = {layer.group: layer.colour for layer in drawing.charts[0].layers}
    assert len(colours) == len(set(colours.values())) == 6 and "3 conditions of higher loss (3)" in colours
    assert {"train_loss", "val_loss"} <= set(drawing.data) and drawing.data["run_id"].nunique() == 8


def test_children_of_a_run_that_spiked_are_not_counted_as_if_they_were_asked_for() -> None:
    rows = [spiking_run(seed, seed == 0, "0.02") for seed in range(8)]
    again = [spiking_run(seed, True, "0.02") for seed in range(10, 14)]
    study = ask("spikes", store_of(rows, children=[(row, CHOSEN) for row in again]))
    assert {f.label: f.shown for f in study.findings}["runs that spiked"] == "1 of 8"
    assert any(note.startswith("4 more runs") for note in study.notes)
