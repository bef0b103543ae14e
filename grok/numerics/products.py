"""Matrix products by the fastest library for the processor.

On some AMD processors torch's default library has half the speed of oneDNN; on Intel's both
are equally fast. A table by processor model and ``numerics.path`` choose the library, never
a timing.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

ONEDNN_PROCESSORS: Final = (r"AMD EPYC .*", r"AMD Ryzen .*")
"""Processor models (as in /proc/cpuinfo) on which oneDNN is faster, by measurement."""


@functools.cache
def processor_model() -> str:
    """Return the processor's name with family, model and stepping, or ``"unknown"``."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        import platform

        return platform.processor() or "unknown"
    fields = dict(re.findall(r"^(vendor_id|model name|cpu family|model|stepping)\s*:\s*(.*)$", text, re.MULTILINE))
    numbers = "-".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', 'unknown')} {numbers}"


def choose_path(requested: str, precision: str) -> str:
    """Return ``plain`` or ``onednn`` for ``numerics.path``.

    oneDNN's operation has no float64, and autocast does not cast its arguments for bf16.
    """
    if precision != "float32":
        return "plain"
    if requested != "auto":
        return requested
    fast = any(re.match(pattern, processor_model()) for pattern in ONEDNN_PROCESSORS)
    return "onednn" if fast and torch.backends.mkldnn.is_available() else "plain"


# Registered without custom_op, whose checks of arguments cost ten microseconds at each of 30 calls a step.
_LIBRARY: Final = torch.library.Library("grok", "FRAGMENT")
_LIBRARY.define("onednn_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


_LIBRARY.impl("onednn_product", _onednn_product, "CPU")


@torch.library.register_fake("grok::onednn_product", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` [R, F] through oneDNN, without a gradient.

    ``weight`` [F, D] may be a transposed view; if ``x`` [R, D] is one, it is copied.
    """
    return torch.ops.grok.onednn_product.default(x, weight, bias)  # type: ignore[no-any-return]


def onednn_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return ``grad.T @ x`` [F, D] for grad [R, F], x [R, D].

    oneDNN needs one of the two as a contiguous copy. The narrower one is copied, even if the result must then be
    transposed.
    """
    if grad.shape[1] <= x.shape[1]:
        return onednn_product(grad.t().contiguous(), x.t())
    return onednn_product(x.t().contiguous(), grad.t()).t().contiguous()


class _OnednnLinear(torch.autograd.Function):
    """``x @ weight.T + bias``; the bias's gradient is a matrix product with ones, which is one library call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_bias = (grad.new_ones(1, grad.shape[0]) @ grad)[0] if ctx.has_bias else None
        return onednn_product(grad, weight.t()), onednn_weight_gradient(grad, x), of_bias


def linear_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias`` for x [R, D], weight [F, D]; differentiable."""
    return _OnednnLinear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, path: str) -> Tensor:
    """Return ``x @ weight.T + bias`` [..., F] for x [..., D], weight [F, D], by a path of :func:`choose_path`."""
    if path == "plain":
        return F.linear(x, weight, bias)
    product: Tensor = linear_onednn(x.reshape(-1, x.shape[-1]), weight, bias)
    return product.reshape(*x.shape[:-1], -1)


def product_tag(path: str) -> str:
    """Return a path's word in the numerics tag; it changes when the path's last bits change."""
    return {"onednn": "onednn-narrow"}.get(path, path)
