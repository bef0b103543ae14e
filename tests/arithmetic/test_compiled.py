"""The compiled step: the same numbers as the plain one up to rounding, and the same bits whatever is beside it."""

import _ctypes
import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo.exc
from torch._inductor.exc import InvalidCxxCompiler
from torch.nn import functional as F

from grok.arithmetic import engine
from grok.arithmetic.lanes import FusedModel, no_noise
from grok.arithmetic.program import Program
from grok.arithmetic.rows import RowPlan, take_rows
from grok.arithmetic.task import split
from grok.arithmetic.weights import initial_parameters
from grok.errors import TrainingError
from grok.numerics import OneGraph, compiler, first_look, with_whole_cache
from tests.arithmetic.cases import curve, make_batch, results, tiny
from tests.test_golden import check_golden


@pytest.mark.slow  # 40 kernels take a compiler most of a minute: .ci/run has it
def test_compiled_runs_equal_the_uncompiled_to_rounding_and_each_other_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(tiny(numerics={"compile": True}))  # compiled once for both calls
    plain, compiled = tiny(), tiny(numerics={"compile": True})
    (expected,) = results(plain)
    monkeypatch.setattr(engine, "program_for", lambda config: program)
    alone, short = results(compiled, tiny(numerics={"compile": True}, train={"steps": 16}))
    crowded = results(tiny(seed=1, numerics={"compile": True}), compiled, lanes=2)[1]
    for step, values in curve(expected).items():
        assert curve(alone)[step] == pytest.approx(values, rel=1e-4)
    assert alone.weights_hash == crowded.weights_hash
    assert {s: curve(alone)[s] for s in curve(short)} == curve(short)
    assert "compiled=whole" in alone.numerics and "compiled=no" in expected.numerics
    assert alone.weights_hash is not None
    check_golden("compiled", alone.numerics, alone.weights_hash, curve(alone))


def test_the_fused_gelu_and_its_slope_are_as_exact_as_float32() -> None:
    config = tiny()
    model = FusedModel(config.model, RowPlan.of(config.task), "plain")
    h = torch.cat([torch.linspace(-9, 9, 100_001), torch.tensor([0.0, 1e-30, -1e-30, 60.0, -60.0])]).requires_grad_()
    exact = h.detach().double().requires_grad_()
    value, expected = model.gelu(h), F.gelu(exact)
    (slope,), (expected_slope,) = torch.autograd.grad(value.sum(), h), torch.autograd.grad(expected.sum(), exact)
    rounding = torch.finfo(torch.float32).eps * exact.detach().abs().clamp(min=1)
    assert ((value - expected).detach().abs() <= rounding).all()
    assert ((slope - expected_slope).abs() <= 3 * torch.finfo(torch.float32).eps).all()
    assert len(model.kept) == 1


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_step_gives_the_gradients_of_the_readable_one_in_float64(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traced graph as it is, and with kernels: these take half a minute, and the golden file compiles others."""
    if not kernels:
        monkeypatch.setattr("grok.numerics._compiled", lambda graph, options: graph)
    over = {"precision": "float64", "model": {"positions": "sinusoidal", "norm": "pre", "layers": 1}}
    plain, compiled = (Program(tiny(**over, numerics={"compile": c})) for c in (False, True))
    config = plain.config
    parameters = {n: p.requires_grad_() for n, p in initial_parameters(config, torch.float64).items()}
    train_set, val_set = split(config.task, 0)
    a, b, answer = (torch.from_numpy(x[:25]) for x in (train_set.a, train_set.b, train_set.answer))
    batch = make_batch(a, b, answer, 20, torch.float64)
    (loss, accuracy, gradients), found = (p.gradients(parameters, batch, no_noise) for p in (plain, compiled))
    assert found[0] == pytest.approx(loss, rel=1e-12) and found[1] == accuracy
    for name, gradient in gradients.items():
        assert (found[2][name] - gradient).abs().max() <= 1e-12, name
    assert compiled.evaluate(parameters, val_set) == pytest.approx(plain.evaluate(parameters, val_set), rel=1e-12)
    assert compiled.compiled and compiled.model.kept == []


def test_a_failed_compile_stops_with_the_setting_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*graph_and_options: object) -> None:
        raise InvalidCxxCompiler  # what a machine without a compiler takes seconds to say

    monkeypatch.setattr("grok.numerics._compiled", refuse)
    config = tiny(numerics={"compile": True})
    with pytest.raises(TrainingError, match=r"numerics\.compile=false"):
        results(config)
    with pytest.warns(RuntimeWarning, match="the step could not be compiled and runs uncompiled"):
        config.numerics.auto_fallback = True
        (found,) = results(config)
    assert "compiled=no" in found.numerics
    (plain,) = results(tiny())
    assert found.weights_hash == plain.weights_hash


LIBRARY = Path(_ctypes.__file__)
"""A whole library of this system."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A compiler's folder with a library, and what kills left of three others and of an object."""
    whole = LIBRARY.read_bytes()
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cwhole.main.so").write_bytes(whole)
    left = {"czero.so": b"", "cshort.main.so": whole[:10], "chalf.main.so": whole[: len(whole) // 2]}
    for name, content in (left | {"chalf.main.o": whole[:-1]}).items():
        (tmp_path / "ab" / name).write_bytes(content)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    first_look.cache_clear()
    yield tmp_path
    first_look.cache_clear()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*") if path.suffix != ".lock")


@pytest.mark.skipif(sys.platform != "linux", reason="the form of libraries is Linux's")
def test_a_library_cut_off_after_the_first_look_is_compiled_once_more(cache: Path) -> None:
    assert with_whole_cache(lambda: names(cache)) == ["cwhole.main.so"], "looked at before anything is loaded"
    library = cache / "ab" / "cnew.main.so"
    calls = []

    def load() -> str:
        calls.append(1)
        if not library.exists():
            library.write_bytes(LIBRARY.read_bytes() if len(calls) > 1 else b"")
        ctypes.CDLL(str(library))
        return "loaded"

    assert with_whole_cache(load) == "loaded" and len(calls) == 2
    with pytest.raises(ZeroDivisionError):
        with_whole_cache(lambda: calls.append(1) or 1 // 0)
    assert len(calls) == 3, "other errors are raised at once"


def test_no_run_changes_its_numerics_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation's compilation fails once a compiled step was taken: falling back would mix two tags."""
    stepped: list[bool] = []

    def fragile(self: OneGraph, *tensors: torch.Tensor) -> list[torch.Tensor]:
        if self.function.__name__ == "_whole_step":
            stepped.append(True)
        elif stepped:
            raise torch._dynamo.exc.Unsupported("no compiler any more")
        return self.function(*tensors)

    monkeypatch.setattr(OneGraph, "__call__", fragile)
    with pytest.raises(TrainingError, match="before the first step of a run"):
        results(tiny(numerics={"compile": True, "auto_fallback": True}))
    assert stepped


def test_a_graph_is_made_anew_for_another_dtype() -> None:
    graph = OneGraph(lambda x: [x * 3])
    for dtype in (torch.float32, torch.int64):
        x = torch.arange(4, dtype=dtype)
        (found,) = graph(x)
        torch.testing.assert_close(found, x * 3)


def test_noise_takes_the_plain_path_and_the_tag_says_so() -> None:
    program = Program(tiny(model={"dropout": 0.1}, numerics={"compile": True}))
    assert "rows=plain" in program.tag() and "compiled=no" in program.tag()
    assert "rows=shared" in Program(tiny()).tag()


@pytest.mark.parametrize("compile", [False, True])
def test_shared_rows_are_summed_in_float32_whatever_the_gradient_is(compile: bool) -> None:
    """A thousand bfloat16 ones added up in bfloat16 end at 256."""
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    index = torch.full((1000,), 1)

    def summed(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        return list(torch.autograd.grad(take_rows(leaf, index).sum(), [leaf]))

    (gradient,) = OneGraph(summed)(x.detach(), index) if compile else summed(x, index)
    assert gradient.dtype == torch.bfloat16
    assert gradient.tolist() == [[0] * 4, [1000] * 4, [0] * 4]


def test_the_tag_names_the_compiler_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r";compiler=[^;]+-\d+(\.\d+)*;", Program(tiny(numerics={"compile": True})).tag())
    assert "compiler=" not in Program(tiny()).tag()
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.cxx": ("/no/such/compiler",)}):
        assert compiler() == "none"
