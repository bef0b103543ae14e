"""Compiles a training step: the loss and its gradients as one graph."""

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
    """A function from tensors to tensors, compiled for each set of shapes, strides and dtypes of its arguments.

    The function runs once under a tracer that records autograd's operations, so that gradients are
    part of the graph. Forward and backward pass are scheduled together, and no autograd runs
    at run time. No argument may require gradients.
    """

    def __init__(self, function: Function, options: Options | None = None) -> None:
        self.function = function
        self.options: Options = {"pattern_matcher": False} if options is None else options
        """Options of the compiler."""
        self._graphs: dict[Any, Function] = {}

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        # everything on which a compiled graph depends: it has no guards
        key = (torch.get_num_threads(), *[(t.shape, t.dtype, t.stride()) for t in tensors])
        if key not in self._graphs:
            graph = make_fx(self._traced)(*tensors)
            self._graphs[key] = _compiled(graph, self.options)
        return self._graphs[key](*tensors)

    @property
    def _traced(self) -> Function:
        def function(*tensors: Tensor) -> list[Tensor]:  # the tracer miscounts the arguments of a bound method
            return self.function(*tensors)

        return function


def _compiled(graph: torch.fx.GraphModule, options: Options) -> Function:
    """Return ``graph`` compiled, with bias additions fused into the following operations.

    Inductor's pattern matcher would replace a product and its bias by one library call,
    which first copies the bias over the whole output. The graph has no guards: everything
    on which it depends is in the key of ``OneGraph``.
    """
    unguarded: Any = {**options, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    return torch.compile(graph, dynamic=False, fullgraph=True, options=unguarded)


def is_compile_error(error: Exception) -> bool:
    """Return whether torch.compile raised ``error``, not the computation."""
    module = type(error).__module__
    return module.startswith(("torch._dynamo", "torch._inductor"))


def allow_uncompiled(error: Exception, *, auto_fallback: bool) -> None:
    """Warn that the step will run uncompiled after ``error``.

    Raises:
        TrainingError: ``auto_fallback`` is False; the message names the settings that help.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if not auto_fallback:
        raise TrainingError(
            f"the training step could not be compiled ({reason}): set numerics.compile=false (another numerics tag), "
            "or numerics.auto_fallback=true to do so automatically"
        ) from error
    warnings.warn(f"the step could not be compiled and runs uncompiled: {reason}", RuntimeWarning, stacklevel=2)


def compiler() -> str:
    """Return name and version of the C++ compiler of CPU kernels: another compiler may give other last bits."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return _compiler_version(get_cpp_compiler())
    except InvalidCxxCompiler:  # the compilation will raise the error
        return "none"


@functools.cache
def _compiler_version(command: str) -> str:
    name = command.replace("\\", "/").rsplit("/", 1)[-1]
    try:
        query = [command, "-dumpfullversion", "-dumpversion"]  # g++ knows both, clang only the second
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return name
    version = done.stdout.split()
    return f"{name}-{version[0]}" if done.returncode == 0 and version else name
