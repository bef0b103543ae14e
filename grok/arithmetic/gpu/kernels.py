"""Fixed block sizes of the compiled step's GPU kernels, so that every process runs the same kernels.

By default the compiler times several block sizes for each kernel and keeps the fastest, which may change from process
to process. Its ``deterministic`` setting takes the first of a list of sizes, which is slow for the reductions of this
step. These rules give a thread block 1,024 elements, 8 for each of 128 threads, and read memory in whole lines of 128
bytes.
"""

from __future__ import annotations

from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.codegen.triton import FixedTritonConfig

ELEMENTS: Final = 1024
"""Elements of a thread block's tile."""
LONGEST_ROW: Final = 1024
"""Elements of the longest row that one thread block reads whole."""
COLUMNS: Final = 32
"""Columns that one thread block sums: 128 bytes of float32."""
WIDE_COLUMNS: Final = 64
"""The same from 2**17 columns on, where every multiprocessor still has enough blocks."""


class FixedKernels(InductorChoices):  # type: ignore[misc]
    """Inductor's choices, with fixed block sizes for reductions."""

    def uuid(self) -> str:
        """Return the identifier of these rules in the compiler's cache."""
        return "grok-1"

    @staticmethod
    def should_use_persistent_reduction(features: SIMDKernelFeatures, cooperative_reduction: bool) -> bool:
        """Return whether a thread block reads a whole row once: if it is short and contiguous in memory."""
        if int(features.reduction_numel) <= LONGEST_ROW and along_rows(features):
            return True
        return bool(InductorChoices.should_use_persistent_reduction(features, cooperative_reduction))

    def triton_kernel_kwargs(
        self, kernel_cls: Any, features: SIMDKernelFeatures, groups: list[Any], kernel_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a kernel's arguments with the block sizes of its reduction."""
        tiling = groups[0]
        if not features.is_reduction() or set(tiling) != {"x", "r0_"}:
            return kernel_kwargs
        rows, length = int(features.numel), int(features.reduction_numel)
        config = {"num_warps": 4, "num_stages": 1}
        if self.should_use_persistent_reduction(features, False):
            config["XBLOCK"] = max(1, min(ELEMENTS // power_of_two(length), power_of_two(rows)))
        else:
            columns = WIDE_COLUMNS if rows >= 2**17 else COLUMNS
            config["XBLOCK"] = 1 if along_rows(features) else min(columns, power_of_two(rows))
            config["R0_BLOCK"] = min(ELEMENTS // config["XBLOCK"], power_of_two(length))
        return {**kernel_kwargs, "fixed_config": FixedTritonConfig(config)}


def along_rows(features: SIMDKernelFeatures) -> bool:
    """Return whether a reduction sums neighbours in memory, for the majority of its inputs."""
    votes = 0
    for node in features.reduction_nodes():
        body = node._body
        for index in body.get_read_exprs():
            votes += any(index.coeff(symbol) == 1 for symbol in body.reduce_vars)
            votes -= any(index.coeff(symbol) == 1 for symbol in body.iter_vars)
    return votes > 0


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()
