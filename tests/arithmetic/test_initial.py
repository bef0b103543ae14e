from __future__ import annotations

import math

import torch
from torch import nn

from grok.arithmetic.weights import initial_parameters, parameter_shapes
from grok.config import ArithmeticConfig, load_config
from grok.numerics import move_by_ulps
from grok.streams import Stream, layer_seeds
from tests.arithmetic.cases import tiny


def changed(one: ArithmeticConfig, other: ArithmeticConfig) -> set[str]:
    a, b = initial_parameters(one), initial_parameters(other)
    return {n for n in a if not torch.equal(a[n], b[n])}


def drawn(config: ArithmeticConfig) -> set[str]:
    """Return the tensors that draw randomness: the rest starts constant."""
    constant = [n for n in parameter_shapes(config) if "norm" in n or n.endswith(("qkv.bias", "out.bias"))]
    return set(parameter_shapes(config)) - set(constant)


def test_reseeding_a_block_changes_only_its_tensors() -> None:
    base = tiny()
    block = {n for n in drawn(base) if n.startswith("blocks.1.")}
    assert changed(base, tiny(seeds={"layers": {"blocks.1": 77}})) == block
    one = tiny(seeds={"layers": {"blocks.1.mlp.up.weight": 77}})
    assert changed(base, one) == {"blocks.1.mlp.up.weight"}


def test_reseeding_init_changes_every_drawn_tensor_and_no_other() -> None:
    assert changed(tiny(), tiny(seeds={"init": 5})) == drawn(tiny())
    for stream in ("split", "order", "dropout", "eval", "sample", "perturb"):
        assert changed(tiny(), tiny(seeds={stream: 5})) == set()


def test_a_further_layer_moves_no_tensor() -> None:
    two, three = initial_parameters(tiny()), initial_parameters(tiny(model={"layers": 3}))
    assert all(torch.equal(two[n], three[n]) for n in two)


def test_the_longest_match_wins() -> None:
    names = ["blocks.1.mlp.up.weight", "blocks.1.mlp.down.weight", "blocks.10.mlp.up.weight", "head.weight"]
    seeds = layer_seeds(names, {"blocks.1.mlp": 2, "blocks": 1, "blocks.1.mlp.up.weight": 3}, 0)
    assert seeds == dict(zip(names, (3, 2, 1, 0), strict=True))


def test_laws_are_torch_defaults() -> None:
    """Compare bounds and spreads with what torch's own modules draw."""
    config = load_config({"mode": "arithmetic"})
    assert isinstance(config, ArithmeticConfig)
    ours = initial_parameters(config)
    generator = torch.random.get_rng_state()
    theirs = {
        "blocks.0.attention.qkv.weight": nn.MultiheadAttention(128, 4).in_proj_weight,
        "blocks.0.attention.out.weight": nn.MultiheadAttention(128, 4).out_proj.weight,
        "blocks.0.mlp.up.weight": nn.Linear(128, 512).weight,
        "blocks.0.mlp.down.weight": nn.Linear(512, 128).weight,
        "blocks.0.mlp.down.bias": nn.Linear(512, 128).bias,
        "head.weight": nn.Linear(128, 234).weight,
        "token_embedding.weight": nn.Embedding(234, 128).weight,
    }
    torch.random.set_rng_state(generator)
    for name, parameter in theirs.items():
        tensor = parameter.detach()
        n = tensor.numel()
        assert math.isclose(ours[name].std().item(), tensor.std().item(), rel_tol=6 / math.sqrt(n))
        if "embedding" not in name:
            assert math.isclose(ours[name].abs().max(), tensor.abs().max(), rel_tol=12 / n + 1e-3 + 6 / n)


def test_perturbation_is_ulp_sized() -> None:
    base = initial_parameters(tiny())
    moved = initial_parameters(tiny(perturb={"ulps": 1}))
    for name, tensor in base.items():
        gap = (moved[name].double() - tensor.double()).abs()
        one_ulp = (torch.nextafter(tensor, tensor * 2) - tensor).abs().double()
        assert (gap <= one_ulp * 1.0001).all()
        assert bool((gap > 0).any()) == (name in drawn(tiny()))
        if name in drawn(tiny()):  # each tensor by draws of its own
            stream = Stream("perturb", tiny().stream_seeds().perturb).at(name)
            assert torch.equal(moved[name], move_by_ulps(tensor, 1, stream))


def test_moving_by_ulps_keeps_signs_and_zero() -> None:
    values = torch.tensor([0.0, 1e-45, -1e-45, 1.0, -1.0])
    moved = move_by_ulps(values.repeat(50), 3, Stream("perturb", 1)).view(50, 5)
    assert (moved.sign() == values.sign()).all()
    assert (moved[:, 3] != 1.0).any()
