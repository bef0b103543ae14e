"""Compiling a step: the loss and its gradients as one graph."""

from __future__ import annotations

import functools
import subprocess
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from grok.errors import TrainingError

Function = Callable[..., list[Tensor]]
Options = dict[str, str | int | bool | Callable[..., Any]]


class OneGraph:
    """A function from tensors to tensors, compiled for each set of shapes, strides and dtypes it is called with.

    The function runs once under a tracer that sees through autograd, so that a gradient is
    part of the graph: forward and backward are scheduled together, and what passes between
    them needs no autograd at run time. No argument may require gradients.
    """

    def __init__(self, function: Function, options: Options | None = None) -> None:
        self.function = function
        self.options: Options = {"pattern_matcher": False} if options is None else options
        """The compiler's."""
        self._graphs: dict[Any, Function] = {}

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        # what a compiled graph takes for granted: it checks nothing itself
        key = (torch.get_num_threads(), *[(t.shape, t.dtype, t.stride()) for t in tensors])
        if key not in self._graphs:
            graph = make_fx(self._traced)(*tensors)
            self._graphs[key] = _compiled(graph, self.options)
        return self._graphs[key](*tensors)

    @property
    def _traced(self) -> Function:
        def function(*tensors: Tensor) -> list[Tensor]:  # the tracer counts a bound method's arguments wrongly
            return self.function(*tensors)

        return function


def _compiled(graph: torch.fx.GraphModule, options: Options) -> Function:
    """Return ``graph`` compiled, its bias additions fused with what follows.

    Inductor's pattern matcher would turn a product and its bias into one library call
    that first copies the bias over the whole output. Nothing is looked up again in every
    step: what a graph depends on is its key, and it has no other argument.
    """
    unguarded: Any = {**options, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    return torch.compile(graph, dynamic=False, fullgraph=True, options=unguarded)


def is_compile_error(error: Exception) -> bool:
    """Return whether torch.compile failed, rather than the computation itself."""
    module = type(error).__module__
    return module.startswith(("torch._dynamo", "torch._inductor"))


def allow_uncompiled(error: Exception, *, auto_fallback: bool) -> None:
    """Warn that a step goes on uncompiled after ``error``, where that is allowed.

    Raises:
        TrainingError: it is not; names the settings that would do.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if not auto_fallback:
        raise TrainingError(
            f"the training step could not be compiled ({reason}): set numerics.compile=false, which is another "
            "numerics tag, or numerics.auto_fallback=true to do so by itself"
        ) from error
    warnings.warn(f"compiling failed, going on uncompiled: {reason}", RuntimeWarning, stacklevel=2)


def compiler() -> str:
    """Return name and version of the C++ compiler of CPU kernels: another one may contract and order otherwise."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return _compiler_version(get_cpp_compiler())
    except InvalidCxxCompiler:  # compiling will say so
        return "none"


@functools.cache
def _compiler_version(command: str) -> str:
    name = command.replace("\\", "/").rsplit("/", 1)[-1]
    try:
        query = [command, "-dumpfullversion", "-dumpversion"]  # the first is g++'s, the second is clang's as well
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return name
    version = done.stdout.split()
    return f"{name}-{version[0]}" if done.returncode == 0 and version else name
