"""The products through oneDNN, forward and both gradients, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grok.numerics import OneGraph, choose_path, linear_onednn, product_tag
from grok.streams import Stream

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
SIZES = st.integers(1, 40)


def normal(name: str, *shape: int) -> Tensor:
    count = int(torch.Size(shape).numel())
    return torch.from_numpy(Stream("test", 0).at(name).normal(count)).reshape(shape).float()


def loss_and_gradients(x: Tensor, weight: Tensor, bias: Tensor, *, onednn: bool) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = linear_onednn(*leaves) if onednn else torch.nn.functional.linear(*leaves)
    return [y.detach(), *torch.autograd.grad((y * y).sum(), leaves)]


@settings(max_examples=60, deadline=None)
@given(rows=SIZES, width=SIZES, features=SIZES)
def test_products_and_gradients_are_those_of_float64(rows: int, width: int, features: int) -> None:
    tensors = normal("x", rows, width), normal("w", features, width), normal("b", features)
    expected = loss_and_gradients(*(t.double() for t in tensors), onednn=False)
    for found, right in zip(loss_and_gradients(*tensors, onednn=True), expected, strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("width", "features"), [(24, 40), pytest.param(40, 24, marks=pytest.mark.slow)])
def test_compiled_they_are_the_same(width: int, features: int) -> None:
    """Whichever operand is the narrower and laid out anew."""
    tensors = normal("x", 50, width), normal("w", features, width), normal("b", features)
    graph = OneGraph(lambda x, weight, bias: loss_and_gradients(x, weight, bias, onednn=True))
    for found, right in zip(graph(*tensors), loss_and_gradients(*tensors, onednn=True), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_a_bias_may_be_missing() -> None:
    x, weight = normal("x", 7, 5).requires_grad_(), normal("w", 3, 5).requires_grad_()
    linear_onednn(x, weight, None).sum().backward()
    assert x.grad is not None and weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.ones(7, 3).t() @ x.detach())


def test_a_path_whose_bits_changed_has_another_name_in_the_tag() -> None:
    assert [product_tag(path) for path in ("plain", "onednn")] == ["plain", "onednn-narrow"]
    assert choose_path("onednn", "float64") == "plain"
