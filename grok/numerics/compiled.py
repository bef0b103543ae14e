"""Compiles a training step: the loss and its gradients as one graph.

Compiled kernels are kept in a folder of this project's own, and one that a kill left half written is made anew.
"""

from __future__ import annotations

import functools
import os
import re
import struct
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from grok.errors import TrainingError
from grok.numerics.products import processor_model

CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that names the compiler's folder. A user may have set it."""
ELF: Final = struct.Struct("<4s36xQ10xHH")
"""Of the first 64 bytes of a library: its mark, and the place, entry size and number of its section headers."""

T = TypeVar("T")
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
            return with_whole_cache(lambda: self._graphs[key](*tensors))
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


def with_whole_cache(build: Callable[[], T]) -> T:
    """Return what ``build`` returns, which compiles or loads kernels.

    A compiler that was killed leaves a library that begins and does not end. The next process could not load it, would
    die of it, or would take the processor for an older one and compute other bits.
    """
    first_look()
    try:
        return build()
    except Exception:
        if not remove_unfinished_kernels(Path(os.environ[CACHE])):
            raise
    return build()  # another process was killed since the first look


@functools.cache
def first_look() -> None:
    """Choose the folder of kernels, and remove what is unfinished there."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(CACHE) in (None, default_cache_dir()):  # torch writes its own choice into the variable
        kind = re.sub(r"\W+", "-", processor_model())  # several machines may share a home folder
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grok-lab" / "kernels" / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a home that nobody may write to
            folder = Path(default_cache_dir())
        os.environ[CACHE] = str(folder)
    remove_unfinished_kernels(Path(os.environ[CACHE]))


def remove_unfinished_kernels(cache: Path) -> list[Path]:
    """Remove the libraries and objects in the compiler's folder that are not whole; return them.

    What a process compiles at the moment is under its lock, and stays.
    """
    from torch.utils._filelock import FileLock

    removed = []
    for path in [path for pattern in ("*/*.so", "*/*.o") for path in cache.glob(pattern)]:
        if is_whole_library(path):
            continue
        lock = cache / "locks" / f"{path.name.partition('.')[0]}.lock"
        try:
            lock.parent.mkdir(exist_ok=True)
            with FileLock(str(lock), timeout=0):
                if not is_whole_library(path):
                    path.unlink()
                    removed.append(path)
        except (TimeoutError, OSError):  # it is being compiled, or it is not ours to remove
            continue
    return removed


def is_whole_library(path: Path) -> bool:
    """Return whether a library of Linux has its last part, the section headers; of other systems nothing is known."""
    try:
        with path.open("rb") as file:
            head, size = file.read(ELF.size), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return True  # removed meanwhile
    if len(head) < ELF.size or not any(head):
        return False
    mark, place, width, count = ELF.unpack(head)
    return bool(mark != b"\x7fELF" or 0 < place <= size - width * count)


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
