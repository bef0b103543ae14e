"""MFU by hand, and the peak memory of a process."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from grok.config.gpt import GptConfig
from grok.gpt.flops import MACHINES, count_parameters, peak_of_device
from grok.gpt.training import trainer
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Usage

Build = Callable[..., GptConfig]


def test_the_peak_follows_from_the_drivers_name() -> None:
    assert peak_of_device("NVIDIA H100 80GB HBM3", "bf16") == MACHINES["H100"].peak["bf16"]
    assert peak_of_device("NVIDIA H200", "float64") == MACHINES["H200"].peak["float32"]
    assert peak_of_device("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert peak_of_device("NVIDIA GH200 480GB", "bf16") == 989e12
    for written in ("NVIDIA GeForce RTX 4090", "GeForceRTX4090", "RTX4090"):
        assert peak_of_device(written, "bf16") == 165.2e12
    assert peak_of_device("NVIDIA T4", "float32") is None
    assert peak_of_device("NVIDIA RTX A1000 Laptop GPU", "bf16") is None
    assert peak_of_device("Quadro GV100", "fp16") is None
    assert peak_of_device("cpu-core", "float32") is None
    assert peak_of_device("NVIDIA A100-PCIE-40GB", "bf16") == peak_of_device("NVIDIA A100-SXM4-80GB", "bf16") == 312e12


def test_mfu_is_six_flops_a_parameter_and_attention(settings: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "device_model", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    config = settings(precision="bf16")
    numerics = replace(Numerics.of(config, "cpu"), device=torch.device("cuda"), devices=2)
    model, n = config.model, count_parameters(config.model, 50)
    flops = 6 * (n.total - n.embedding - n.positions + (0 if n.head else n.embedding))
    flops += 12 * model.layers * 8 * model.d_model
    assert Usage(config, 50, numerics).mfu(1e6, 8) == pytest.approx(flops * 1e6 / (2 * 989e12), rel=1e-12)
    assert math.isnan(Usage(config, 50, Numerics.of(config, "cpu")).mfu(1e6, 8))


def test_the_peak_is_that_of_this_process_alone() -> None:
    """Not of the one that started it, and not only of the present."""
    code = (
        "from grok.processes import peak_of_process\n"
        "before = peak_of_process(); large = bytearray(b'1' * 2**26); del large; print(before, peak_of_process())"
    )
    ballast = b"1" * 2**28
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = map(int, said.split())
    assert before < len(ballast) and 2**26 <= after - before < 2**28
