"""Models whose tensors have a name, a shape and a dtype, and no data. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def unallocated() -> Iterator[None]:
    """Build modules on the meta device inside, without the initial values that they would draw.

    On that device a draw runs through torch's compiler, whose import takes longer than torch's own.
    """
    with torch.device("meta"), _NoInitialValues():
        yield


class _NoInitialValues(TorchFunctionMode):
    """Leaves every tensor that a function of ``torch.nn.init`` is given as it is."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
