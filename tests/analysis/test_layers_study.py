"""The layer study on simulated transplants whose truth is known."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest

from analysis.figures import drawings
from analysis.studies.layers import transplants
from grok.store.designs import Purpose
from grok.streams import derive_seed
from tests.analysis.questions import ask
from tests.analysis.simulate import Planned, Truth, simulate

LAYERS = ["token_embedding", "blocks.0.mlp", "final_norm", "head"]


def transplant(
    effects: dict[str, float],
    noise: float,
    rng: np.random.Generator,
    recipient: int = 50,
    donor: int = 77,
    layers: Sequence[str] = LAYERS,
) -> list[Truth]:
    truths = []
    for bits in itertools.product([0, 1], repeat=len(layers)):
        taken = [name for name, bit in zip(layers, bits, strict=True) if bit]
        for r in range(2):
            time = 4_000 * np.exp(sum(effects.get(n, 0.0) for n in taken) + rng.normal(0, noise))
            given = {
                "seed": recipient,
                "seeds.layers": dict.fromkeys(taken, derive_seed(donor, "init")),
                "perturb.ulps": 1,
                "seeds.perturb": r,
                "train.steps": 20_000,
                "eval.every": 50,
            }
            truths.append(Truth(given, float(time)))
    return truths


def test_layers_find_who_carries_the_speed() -> None:
    effects = {"token_embedding": -0.6, "head": -0.3}
    study = ask("layers", simulate(transplant(effects, 0.08, np.random.default_rng(10))))
    shares = study.shares.set_index("layer")
    for layer in LAYERS:
        low, high = shares.loc[layer, ["low", "high"]]
        assert low <= effects.get(layer, 0.0) <= high, layer
    assert shares["Shapley share"].sum() == pytest.approx(study.results[0].attribution.total.value)
    assert (shares["no bit changed"] == False).all()  # noqa: E712 - None is another answer
    # The donor has no run of its own in this store, so only its init seed is known.
    together, total = study.findings[:2]
    assert "Their effects add up" in together.text and together.estimate is not None and together.estimate.low > 0.9
    assert f"Seed 50 with init seed {derive_seed(77, 'init')}'s initial weights" in total.text
    assert "times faster" in total.text and "Of that change: token_embedding" in total.text


@pytest.mark.slow
def test_a_short_run_of_the_recipient_does_not_cut_off_the_transplant() -> None:
    rng = np.random.default_rng(19)
    truths = transplant({"head": -1.0}, 0.02, rng)
    (alone,) = ask("layers", simulate(truths)).results
    (beside,) = ask(
        "layers", simulate([*truths, Truth({"seed": 50, "train.steps": 1000, "eval.every": 50}, 4000)])
    ).results
    assert beside.outcome.horizon == alone.outcome.horizon
    assert beside.attribution.total == alone.attribution.total


def test_opposite_transplants_are_not_averaged() -> None:
    rng = np.random.default_rng(19)
    there = transplant({"token_embedding": 1.0}, 0.05, rng, 50, 77)
    back = transplant({"head": -0.5}, 0.05, rng, 77, 50)
    study = ask("layers", simulate(there + back))
    shares = study.shares.set_index(["transplant", "layer"])
    assert shares.loc[("seed 50 ← seed 77", "token_embedding"), "low"] > 0.9
    assert shares.loc[("seed 77 ← seed 50", "head"), "high"] < -0.4
    assert abs(shares.loc[("seed 77 ← seed 50", "token_embedding"), "Shapley share"]) < 0.1
    assert shares.loc[("seed 50 ← seed 77", "token_embedding"), "% of the total"] == pytest.approx(100, abs=10)
    _, slower, faster = (f.text for f in study.findings if f.headline)
    assert "Seed 50 with seed 77's initial weights" in slower
    assert re.search(r"2\.[5-9] times slower", slower)
    assert "Seed 77 with seed 50's initial weights" in faster
    assert re.search(r"1\.[5-8] times faster", faster)


def all_or_nothing(recipient: int, donor: int, rng: np.random.Generator, layers: Sequence[str]) -> list[Truth]:
    """Return a transplant whose recipient is super with all of its weights, and ordinary without any one of them."""
    truths = transplant({}, 0.05, rng, recipient, donor, layers)
    return [
        Truth({**t.overrides, "train.steps": 3000}, t.time * (0.4 if not t.overrides["seeds.layers"] else 1.0))
        for t in truths
    ]


@pytest.mark.parametrize("layers", [["token_embedding", "head"], LAYERS], ids=["halves", "parts"])
def test_a_seed_that_needs_all_of_its_layers_gives_none_of_them_a_share(layers: list[str]) -> None:
    rng = np.random.default_rng(20)
    study = ask("layers", simulate([t for i in range(3) for t in all_or_nothing(100 + i, 200 + i, rng, layers)]))
    together, high, *_ = (f.text for f in study.findings)
    assert "They act together" in together and study.shares.empty and drawings(study) == []
    assert not any("Of that change" in f.text for f in study.findings)
    assert f"head: 0 of {6} (median" in high, "either part alone is enough to lose it"
    assert not any("odds" in f.text for f in study.findings), "no wrong answer with its own weights: no odds"
    changes = [f.shown for f in study.findings if f.label.startswith("all layers")]
    assert all(re.fullmatch(r"accuracy \d+\.\d% instead of (100\.0|99\.\d)%", change) for change in changes)
    cells = study.cells.set_index(["transplant", "exchanged"])["mean"]
    own, half = (cells[study.results[0].transplant.name, exchanged] for exchanged in ("nothing", "head"))
    assert own > 0.99 and half < 0.9


def test_an_order_that_was_exchanged_is_a_factor_and_layers_that_went_together_are_one() -> None:
    rng = np.random.default_rng(31)
    truths = []
    for embedding, head, order, replicate in itertools.product([0, 1], [0, 1], [0, 1], range(2)):
        layers = {"token_embedding": 512, "position_embedding": 512} if embedding else {}
        layers |= {"head": 512} if head else {}
        time = 4_000 * np.exp(-0.6 * embedding - 0.9 * order + rng.normal(0, 0.05))
        given = {"seed": 50, "seeds.layers": layers, "perturb.ulps": 1, "seeds.perturb": replicate}
        given |= {"train.steps": 20_000, "eval.every": 50, **({"seeds.order": 8} if order else {})}
        truths.append(Truth(given, float(time)))
    cells = [
        Purpose(
            role="cell",
            unit={
                "recipient": 50,
                "donor_init": 512,
                "exchanged": sorted(t.overrides["seeds.layers"]),
                "streams": ["order"] if "seeds.order" in t.overrides else [],
                "repeat": t.overrides["seeds.perturb"],
            },
        )
        for t in truths
    ]
    observations = simulate(truths, Planned("layers", list(zip(truths, cells, strict=True))))
    (one,) = transplants(observations)
    assert one.name == "seed 50 ← init seed 512, order seed 8"
    assert (len(one.rows), sorted(one.factors)) == (16, ["head", "order", "position_embedding + token_embedding"])
    study = ask("layers", observations)
    shares = study.shares.set_index("layer")
    for factor, effect in (("order", -0.9), ("position_embedding + token_embedding", -0.6), ("head", 0.0)):
        low, high = shares.loc[factor, ["low", "high"]]
        assert low <= effect <= high, factor
    assert study.findings[1].text.startswith(
        "Seed 50 with init seed 512's initial weights and order seed 8, split kept: "
    )
