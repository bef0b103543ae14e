"""Models whose tensors have names, shapes and dtypes but no data. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def unallocated() -> Iterator[None]:
    """Construct modules on the meta device inside this context, without drawing their initial values.

    A draw on that device imports torch's compiler, which takes longer than the import of torch.
    """
    with torch.device("meta"), _NoInitialValues():
        yield


class _NoInitialValues(TorchFunctionMode):
    """Makes every function of ``torch.nn.init`` return its tensor unchanged."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
