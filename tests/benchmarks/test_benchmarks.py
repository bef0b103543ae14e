"""Benchmarks measure what they say: like with like, counted code, whole files."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import device_day, gpt
from benchmarks.contenders import LANES, PEERS, JaxLoop, PlainModel, TorchOps, batches, initial, logits
from benchmarks.device_day import STAGES, run_day
from benchmarks.generated.page import COUNT, parts
from benchmarks.generated.page import page as counted_page
from benchmarks.gpt import SHAPES, PlainGPT, our_config
from benchmarks.seeds import KINDS
from benchmarks.settings import default_config
from grok.gpt.model import parameter_count
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from tests.docs.pages import ROOT

PYTHON = Path(os.environ.get("GROK_CUDA_PYTHON", ROOT / ".venv-cuda/bin/python"))

MISSING = (
    f"needs torch's CUDA build (not a device), and {PYTHON} is missing: `make cuda-environment`, "
    "or name another Python by GROK_CUDA_PYTHON"
)


def needs_cuda_build(test: Callable[[], None]) -> Callable[[], None]:
    for mark in (pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)):
        test = mark(test)
    return test


@cache
def generated(*words: str) -> dict[str, Any]:
    printed = run_in_cuda_build("benchmarks.generated", *words)
    result: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return result


def run_in_cuda_build(module: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_cuda_build
def test_the_step_has_the_kernels_operations_and_bytes_that_were_counted() -> None:
    counts, committed = generated("count"), json.loads(COUNT.read_text())
    if counts["torch"] != committed["torch"]:
        pytest.skip(f"counted with torch {committed['torch']}, this is {counts['torch']}")
    assert counts["graphs"] == committed["graphs"]


@needs_cuda_build
def test_every_kernel_compiles_for_the_device_in_one_way_and_without_spills() -> None:
    for part in generated("cubins").values():
        assert part["cubins"] == part["kernels"] > 0
        assert part["failed"] == part["spilled"] == part["several"] == []


@needs_cuda_build
def test_the_generated_step_has_the_numbers_of_the_plain_one() -> None:
    result, real = generated("interpret"), json.loads(COUNT.read_text())["graphs"]
    for precision, bound in {"float32": 1e-6, "float64": 1e-9}.items():
        assert result[precision]["difference"] < bound
        for graph, kinds in result[precision]["kinds"].items():  # what the real step has, the small one has as well
            assert all(kinds[kind] for kind, n in real[graph]["kinds"].items() if n), (graph, kinds)


FUSED = ("--config", '{"numerics": {"kernels": "fused"}}')


@needs_cuda_build
def test_kernels_written_by_hand_have_the_plain_numbers_and_spill_nothing_on_three_devices() -> None:
    single, double = map(float, run_in_cuda_build("tests.benchmarks.interpreted_block").split())
    assert single < 1e-6 and double < 1e-14
    result = generated("interpret", *FUSED)
    assert result["float32"]["difference"] < 1e-6 and result["float64"]["difference"] < 1e-9
    step = generated("cubins", *FUSED)["step"]
    assert step["failed"] == step["spilled"] == [] and len(step["by hand"]) == 3 * 17
    three = generated("cubins", FUSED[0], FUSED[1].replace("}}", '}, "precision": "tf32x3"}'))["step"]
    kernels = ("forward", "rows", "weights", "input", "head")
    products = [used for used in three["by hand"] if used.startswith(kernels)]
    assert three["failed"] == three["spilled"] == [] and len(products) == 3 * 11
    assert all("cvt.rna.tf32" in used and int(used.split(": ")[1].split()[0]) > 64 for used in products), (
        "none is empty"
    )
    assert sum("wgmma" in used for used in products) == 8, "on sm_90, but for the weights"
    wide = FUSED[1].replace("}}", '}, "precision": "float64", "model": {"d_model": 256}}')
    assert len(generated("cubins", FUSED[0], wide)["step"]["by hand"]) == 3 * 17
    count = generated("count", *FUSED)
    size = sum(row[3] for row in parts(count)) + count["graphs"]["step"]["by hand"]["bytes"]
    assert f"a step is {size / count['width'] / 1e6:.1f} MB a lane" in (ROOT / "docs/internals.md").read_text("utf-8")


def test_three_products_in_tf32_are_nearly_one_in_float32() -> None:
    """The interpreter does not round: this splits as the machine code does, and adds in float64."""

    def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        large = ((x.view(torch.int32) + 2**12) & -(2**13)).view(torch.float32)  # to the nearest, ties away from zero
        return large, x - large

    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, generator=draw).exp() - 1 for shape in ((64, 512), (512, 64)))
    (a, b), (c, d) = ((large.double(), split(small)[0].double()) for large, small in map(split, (x, y)))
    exact, size = x.double() @ y.double(), x.double().abs() @ y.double().abs()
    errors = [((found - exact).abs() / size).max().item() for found in (a @ c, a @ c + a @ d + b @ c)]
    assert errors[1] <= 3 * 2**-22 and errors[0] > 300 * errors[1], "of one product, and of three"


def test_nothing_in_the_count_adds_in_no_fixed_order() -> None:
    graphs = json.loads(COUNT.read_text())["graphs"]
    assert set(graphs) == {"step", "update", "evaluation"}
    for graph in graphs.values():
        assert graph["atomics"] == 0 and graph["other calls"] == []
    assert graphs["step"]["products"] == 30


def test_the_page_shows_the_count() -> None:
    page = (ROOT / "docs/internals.md").read_text(encoding="utf-8")
    assert counted_page(json.loads(COUNT.read_text())) in page


@pytest.fixture(scope="module")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("60:0",), out=out, tokenizer="char"))[0]


@pytest.mark.parametrize("name", SHAPES)
def test_both_loops_train_the_same_model(name: str, fables: Corpus) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        plain = PlainGPT(shape, 50_257, torch.Generator())
    config = our_config(shape, fables, 1, 20, "float32", False)
    ours = parameter_count(config.model, vocab_size=50_257)
    assert sum(p.numel() for p in plain.parameters()) == ours
    if name == "gpt2":
        assert ours == 124_439_808 - (12 * (3 + 1 + 4 + 1 + 2) + 1) * 768  # GPT-2 without its biases
        bytewise = parameter_count(config.model, vocab_size=257)  # the device's day has no other tokeniser
        assert f"({bytewise / 1e6:.0f} million parameters" in (device_day.gpt.__doc__ or "")


def test_only_known_names_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpt.arguments_of(["--data", "DIR", "--only", "ours, flaot32"])
    assert "'ours, flaot32' (choose from" in capsys.readouterr().err


def test_the_days_file_names_every_stage_also_those_without_time(tmp_path: Path) -> None:
    run_day(["environment", "gpt"], tmp_path, seconds=1.2, words=["--fake"])
    day = json.loads((tmp_path / "device-day.json").read_text())["stages"]
    assert [(stage["name"], stage["state"]) for stage in day] == [("environment", "out of time"), ("gpt", "not begun")]


@pytest.mark.slow
def test_the_day_runs_on_a_fake_device(tmp_path: Path) -> None:
    outcomes = run_day(list(STAGES), tmp_path, seconds=500, words=["--fake"])
    assert [(stage["name"], stage["state"]) for stage in outcomes] == [(name, "done") for name in STAGES]
    assert outcomes[1]["result"]["same bits captured and queued"] is True


REGIME: dict[str, Any] = {
    "task": {"modulus": 11},
    "model": {"d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"batch_size": 24},
    "numerics": {"compile": False},
}


def test_every_contender_steps() -> None:
    config = default_config(**REGIME)
    for kind in ("plain", "ours"):
        made = KINDS[kind](config, 0)
        made.step()
    assert made.lane.run.step == 1
    made.evaluate()
    assert made.lane.run.step == 1


def test_the_peers_model_is_the_plain_one_in_float64() -> None:
    config = default_config(**REGIME)
    weights = {name: w.double() for name, w in initial(config, 3).items()}
    plain = PlainModel(config.task, config.model).double()
    plain.load_state_dict(weights)
    tokens = torch.from_numpy(next(batches(config, 3))[0])
    for only_answer in (False, True):
        found = logits(TorchOps, weights, tokens, 2, 2, only_answer=only_answer)
        torch.testing.assert_close(found, plain(tokens)[:, -1], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_every_peer_trains_alike() -> None:
    pytest.importorskip("jax", reason="an extra of the benchmark alone: pip install jax")
    config = default_config(**REGIME)
    losses = [[peer.step() for _ in range(3)] for peer in (PEERS["careful"](config, 0), JaxLoop(config, 0))]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    several = [
        [peer.step() for _ in range(3)] for peer in (PEERS["torch.func.vmap"](config, 0), JaxLoop(config, 0, LANES))
    ]
    np.testing.assert_allclose(several[0], several[1], rtol=1e-5)
    PEERS["torch.compile"](config, 0).step()
