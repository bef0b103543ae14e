"""Numerics: compiled training steps, matrix products, precision, changes by units in the last place."""

from __future__ import annotations

import functools
import os
import re
import struct
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from grok.errors import TrainingError
from grok.streams import Stream

# Matrix products by the fastest library for the processor.
#
# On some AMD processors torch's default library has half the speed of oneDNN; on Intel's both
# are equally fast. A table by processor model and ``numerics.path`` choose the library, never
# a timing.

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


# Compiles a training step: the loss and its gradients as one graph.
#
# Compiled kernels are kept in a folder of this project's own, and one that a kill left half written is made anew.

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
            # the tracer miscounts the arguments of a bound method
            graph = make_fx(lambda *all_of_them: self.function(*all_of_them))(*tensors)  # noqa: PLW0108
            self._graphs[key] = _compiled(graph, self.options)
            return with_whole_cache(lambda: self._graphs[key](*tensors))
        return self._graphs[key](*tensors)


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
        TrainingError: ``auto_fallback`` is False, or the run has made compiled steps, which have other bits.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if compiler() == "none":
        reason = "there is no C++ compiler; Debian's is installed by `apt-get install g++`"
    if not auto_fallback:
        raise TrainingError(
            f"the training step could not be compiled ({reason}): set numerics.compile=false (another numerics tag), "
            "or numerics.auto_fallback=true, which does so before the first step of a run"
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


# The precision of float32 products on a GPU.


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


# Changes weights by units in the last place: runs that then differ although all seeds are equal show chaos.


def move_by_ulps(tensor: Tensor, ulps: int, stream: Stream) -> Tensor:
    """Return ``tensor`` with each element changed by a random -ulps .. ulps units in the last place.

    The bits of neighbouring floats of one sign, read as integers, are neighbouring integers.
    Zeros, and elements so close to zero that they would change their sign, are not changed.
    """
    bits = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)
    moves = torch.from_numpy(stream.integers(tensor.numel(), 2 * ulps + 1) - ulps).reshape(tensor.shape)
    moved = (bits + moves.to(bits)).view(tensor.dtype)
    stays = (tensor == 0) | (moved.sign() != tensor.sign())  # below a zero are the bits of NaN, whose sign is 0, too
    return torch.where(stays, tensor, moved)


# Models whose tensors have names, shapes and dtypes but no data. Needs torch.


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
