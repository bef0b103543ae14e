"""How much of its devices a run uses: the share of their peak FLOP/s (MFU), and the memory."""

from __future__ import annotations

import math

import torch

from grok.config.gpt import GptConfig
from grok.gpt.flops import count_parameters, peak_of_device, train_flops_per_token
from grok.gpt.training.numerics import Numerics, device_model
from grok.numerics.machine import peak_of_process


class Usage:
    """The FLOPs of a run's model and the peak of its devices."""

    def __init__(self, config: GptConfig, vocab_size: int, numerics: Numerics) -> None:
        self.model, self.device = config.model, numerics.device
        self.parameters = count_parameters(config.model, vocab_size)
        on_gpu = numerics.device.type == "cuda"
        if on_gpu:  # the peak of an earlier run in this process may be higher
            torch.cuda.reset_peak_memory_stats(numerics.device)
        peak = peak_of_device(device_model(numerics.device), numerics.precision) if on_gpu else None
        self.peak = math.nan if peak is None else numerics.devices * peak

    def mfu(self, tokens_per_second: float, context: int) -> float:
        """Return the share of the devices' peak FLOP/s that the model uses, with sequences of ``context`` tokens.

        As in PaLM, recomputed FLOPs are not counted. On a CPU it is NaN, because a CPU's peak depends on its load and
        clock and is not in the table.
        """
        return train_flops_per_token(self.model, self.parameters, context) * tokens_per_second / self.peak

    def peak_memory(self) -> float:
        """Return the peak memory so far in bytes: of tensors on a GPU, else of this process."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device))
        return float(peak_of_process())
