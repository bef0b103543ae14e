"""The compiled step: the same numbers as the plain one up to rounding, and the same bits whatever is beside it."""

from __future__ import annotations

import pytest

from grok.arithmetic.program import OneLaneProgram
from grok.errors import TrainingError
from tests.arithmetic.cases import curve, results, tiny


def test_compiled_runs_equal_the_uncompiled_to_rounding_and_each_other_to_the_bit() -> None:
    plain, compiled = tiny(), tiny(numerics={"compile": True})
    (expected,) = results(plain)
    alone, short = results(compiled, tiny(numerics={"compile": True}, train={"steps": 16}))
    crowded = results(tiny(seed=1, numerics={"compile": True}), compiled, lanes=2)[1]
    for step, values in curve(expected).items():
        assert curve(alone)[step] == pytest.approx(values, rel=1e-4)
    assert alone.weights_hash == crowded.weights_hash
    assert {s: curve(alone)[s] for s in curve(short)} == curve(short)
    assert "compiled=yes" in alone.numerics and "compiled=no" in expected.numerics


def test_a_failed_compile_stops_with_the_setting_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    import torch._inductor.config as inductor

    with inductor.patch({"force_disable_caches": True, "cpp.cxx": ("/no/such/compiler",)}):
        # another shape than the test above, so that nothing compiled before can serve
        config = tiny(model={"d_ff": 20}, numerics={"compile": True})
        with pytest.raises(TrainingError, match=r"numerics\.compile=false"):
            results(config)
        with pytest.warns(UserWarning, match="compiling failed, going on uncompiled"):
            (found,) = results(tiny(model={"d_ff": 20}, numerics={"compile": True, "auto_fallback": True}))
    assert "compiled=no" in found.numerics
    (plain,) = results(tiny(model={"d_ff": 20}))
    assert found.weights_hash == plain.weights_hash


def test_noise_takes_the_plain_path_and_the_tag_says_so() -> None:
    program = OneLaneProgram(tiny(model={"dropout": 0.1}, numerics={"compile": True}))
    assert "rows=plain" in program.tag() and "compiled=no" in program.tag()
    assert "rows=shared" in OneLaneProgram(tiny()).tag()
