"""The precision of float32 products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Compute float32 products in TF32 inside this context if ``precision`` is ``tf32``, otherwise in float32.

    Torch has two settings for this and raises an error where they disagree; this sets both.
    """
    ways = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    held = [(products, products.fp32_precision) for products in ways]
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # they disagree already; the newer setting is restored below
        before = "highest"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for products, value in held:
            products.fp32_precision = value
