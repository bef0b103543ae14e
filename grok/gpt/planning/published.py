"""Planning figures of the seed diary, the 104B chronicles and the 580M log, beside the same figures worked out here.

Each is a number that its source states and a number that follows from its own settings. ``docs/planner.md`` holds
this list as a table, and a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grok.config.gpt_model import ModelConfig
from grok.gpt.flops import MACHINES, count_parameters, gpt2_parameters
from grok.gpt.planning.planner import CHINCHILLA_TOKENS_PER_PARAMETER, chinchilla_loss, perplexity


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a source."""

    about: str
    says: str
    """As the source puts it."""
    published: float
    computed: float
    unit: str
    why: str
    """Where ours comes from, and where the difference does."""
    tolerance: float = 0.1
    """Relative difference up to which the two agree; less where the source's digits promise more."""

    @property
    def agrees(self) -> bool:
        """Whether the two are within the tolerance."""
        return abs(self.computed / self.published - 1) <= self.tolerance


_GPT2_SMALL: Final = gpt2_parameters(12, 768, 50_257, 1024)
_GPT2_MEDIUM: Final = gpt2_parameters(24, 1024, 50_257, 1024)
_ONE_B: Final = gpt2_parameters(24, 1920, 50_257, 1024)
_WT103: Final = count_parameters(ModelConfig(layers=24, d_model=1024, heads=16, context=1024, bias=False), 50_304)
_A100: Final = MACHINES["A100"].peak["bf16"]
_STEP_1B: Final = 16 * 1024
_WT103_TOKENS: Final = 4_000 * 512 * 1024
_OWT_STEP: Final = 8 * 5 * 12 * 1024
_OWT_TOKENS: Final = 500_000 * _OWT_STEP
_XL_BASE: Final = 40_000 * 256 * 192
_XL_LARGE: Final = 100_000 * 128 * 384


def _hours(parameters: float, tokens: float, share: float = 0.4) -> float:
    return 6 * parameters * tokens / (share * _A100) / 3600


def figures() -> Sequence[Figure]:
    """Return all figures, in the diary's order."""
    return (*_run_lengths(), *_models(), *_flops(), *_chinchilla(), *_transformer_xl(), *_open_web_text())


def _run_lengths() -> Sequence[Figure]:
    return (
        Figure("job that was killed", "335hr = 14.6 days", 14.6, 335 / 24, "days", "335 / 24 = 13.96", 0.01),
        Figure("its speed", "4.8k steps/day", 4.8e3, 70e3 / (335 / 24), "steps a day",
               "70,000 steps in 335 h; 4.8k follows from the wrong 14.6", 0.03),
        Figure("its speed", "~3 steps/min", 3, 4_000 / (22 * 60), "steps a minute",
               "4,000 steps in 22 h; 70,000 in 335 h would be 3.5"),
    )  # fmt: skip


def _models() -> Sequence[Figure]:
    return (
        Figure("GPT-2 small", "117M params", 117e6, _GPT2_SMALL, "parameters",
               "exact formula; GPT-2's paper miscounted, its published weights hold 124,439,808", 0.03),
        Figure("GPT-2 small", "heads=16", 16, 768 / 64, "heads",
               "published weights have 12 heads of 64; 16 would be 48 wide"),
        Figure("GPT-2 medium", "345M params", 345e6, _GPT2_MEDIUM, "parameters",
               "exact formula; miscounted likewise", 0.01),
        Figure("learning rate", "1.5x10e-4", 1.5 * 10e-4, 1.5e-4, "",
               "10e-4 is 1e-3: as printed it is ten times what was meant"),
        Figure("WikiText-103 model", "Model (353M)", 353e6, _WT103.without_positions, "parameters",
               f"without the positions; with them {_WT103.total:,}"),
        Figure("WikiText-103 model", "315M", 315e6, _WT103.without_positions, "parameters",
               "the same model, in the summary: contradicts the 353M above"),
        Figure('"1B" model', "1B param model", 1e9, _ONE_B, "parameters",
               "24 layers of 1920; the diary also says 1.16B, which is right"),
    )  # fmt: skip


def _flops() -> Sequence[Figure]:
    return (
        Figure('step of the "1B" model', "~150TF", 150e12, 6 * _ONE_B * _STEP_1B, "FLOP",
               "6 N tokens, N = 1.16B, 16 x 1,024 tokens; recomputing the activations makes it 8 N: 152 TFLOP"),
        Figure("factor of training", "factor seems to be 9", 9, 6, "",
               "9 comes from dividing by 1.0B; by 1.16B it is 7.8, and 8 with activations recomputed"),
        Figure("factor of the forward pass", "Forward pass factor is 6", 6, 2, "", "a multiplication and an addition"),
        Figure("the formula as printed", "9*1e6*16*1024=147 TFLOPs", 147e12, 9 * 1e6 * 16 * 1024, "FLOP",
               "1e6 is a slip for 1e9"),
        Figure("V100 against A100", "almost half", 0.5, MACHINES["V100"].peak["fp16"] / _A100, "",
               "125 against 312 TFLOP/s by the data sheets"),
        Figure("A100 hours of the 1.16B model", "25 days on 8xA100", 25, 4_800 / 8 / 24, "days", "4,800 h / 8 / 24"),
        Figure("A100 hours of the 124M model", "2.7 days on 8xA100", 2.7, 533 / 8 / 24, "days", "533 h / 8 / 24"),
    )  # fmt: skip


def _chinchilla() -> Sequence[Figure]:
    rule = CHINCHILLA_TOKENS_PER_PARAMETER
    return (
        Figure("compute of 117M on 3.3B tokens", "flops is 2.4E+18", 2.4e18, 6 * _GPT2_SMALL * 3.3e9, "FLOP",
               "6 N tokens with the true count"),
        Figure("Chinchilla tokens of 117M", "3.3B", 3.3e9, rule * _GPT2_SMALL, "tokens",
               "20 a parameter; the diary's figure is 28 a parameter, from another fit"),
        Figure("loss that fit predicts", "Predicted loss=~3.3", 3.3, chinchilla_loss(117e6, 3.3e9), "nats",
               "Chinchilla's third fit"),
        Figure("as perplexity", "PPL=24 to 27", 27, perplexity(chinchilla_loss(117e6, 3.3e9)), "",
               "e to the loss; 24 would be a loss of 3.18"),
        Figure("perplexity of a loss of 2.8", "PPL=16.1 to 16.3", 16.3, perplexity(2.8), "", "e to the 2.8"),
        Figure("tokens of the WikiText-103 run", "2.1B tokens", 2.1e9, _WT103_TOKENS, "tokens",
               "4,000 steps of 512 x 1,024"),
        Figure("its epochs", "17 epochs", 17, _WT103_TOKENS / 119e6, "epochs", "of 119M tokens"),
        Figure("Chinchilla tokens held against it", "3.3B tokens suggested by Chinchilla", 3.3e9,
               rule * _WT103.without_positions, "tokens", "3.3B is the 117M model's; this one has 353M parameters"),
        Figure("its time against the 124M model's", "1.4X longer", 1.4, 22 / 15, "", "22 h / 15 h"),
        Figure("its size against the 124M model", "2.5X larger", 2.5, _WT103.without_positions / _GPT2_SMALL, "",
               "353.6M / 124.4M; 2.5 follows from the wrong 315M"),
    )  # fmt: skip


def _transformer_xl() -> Sequence[Figure]:
    def minutes(tokens: int, devices: int, rate: float) -> float:
        return tokens / (devices * rate) / 60

    per_device = "all steps at the stated tokens/s, which must be those of one device"
    return (
        Figure("XL base, 8 x A100", "75 minutes", 75, minutes(_XL_BASE, 8, 60e3), "minutes", per_device),
        Figure("XL base, 8 x V100", "121 minutes", 121, minutes(_XL_BASE, 8, 32.8e3), "minutes", per_device),
        Figure("XL base, 1 x V100", "766 minutes", 766, minutes(_XL_BASE, 1, 32.8e3), "minutes",
               "faster than the stated throughput allows: the diary doubts it too"),
        Figure("XL base, 16 x V100", "80 minutes", 80, minutes(_XL_BASE, 16, 32.8e3), "minutes",
               "78% of sixteen times one device's rate"),
        Figure("XL large, 8 x A100", "430 minutes", 430, minutes(_XL_LARGE, 8, 21.5e3), "minutes",
               "a tenth faster than the stated throughput"),
        Figure("XL large, 16 x V100", "394 minutes", 394, minutes(_XL_LARGE, 16, 14.8e3), "minutes",
               "88% of sixteen times one device's rate"),
        Figure("XL large, 8 x V100/16GB", "984 minutes", 984, minutes(_XL_LARGE, 8, 14.8e3), "minutes",
               "its smaller batch a device costs 30% of the throughput"),
        Figure("the same in hours", "16.4hr", 16.4, 984 / 60, "hours", "984 minutes"),
        Figure("XL large, batch on 8 x V100/16GB", "8*4=32 global instead of 256", 256, 8 * 4, "sequences",
               "and 256 is the base model's batch: the large one's is 128, so four accumulation steps explain it"),
    )  # fmt: skip


def _open_web_text() -> Sequence[Figure]:
    return (
        Figure("OpenWebText run, samples", "240M samples total", 240e6, _OWT_TOKENS / 1024, "samples",
               "500,000 x 8 GPUs x 5 microsteps x 12"),
        Figure("OpenWebText run, tokens", "30.7B tokens for training", 30.7e9, _OWT_TOKENS, "tokens",
               "30.7B is what one of the 8 GPUs sees"),
        Figure("OpenWebText run, tokens", "65B total training tokens (7 epochs)", 65e9, _OWT_TOKENS, "tokens",
               "neither of the diary's two figures; 246B are 27 epochs of 9B"),
        Figure("OpenWebText run, epochs", "3.7 epochs/GPU (8M docs in dataset)", 3.7, _OWT_TOKENS / 8 / 9e9, "epochs",
               "of 9B tokens; 3.7 divides samples by documents, which they are not; all 8 GPUs together make 27", 0.05),
        Figure("step on 8 A100", "135ms/step", 0.135, 6 * _GPT2_SMALL * _OWT_STEP / (8 * _A100), "s",
               "the least that 491,520 tokens take at the full peak; 135 ms is one microstep of 12 on one GPU", 0.01),
        Figure("run on 8 A100", "theoratical time 1.8 days", 1.8, _hours(_GPT2_SMALL, _OWT_TOKENS, 0.47) / 8 / 24,
               "days", "at 47% of the peak, which is plausible"),
        Figure("9B tokens on one A100", "256hr", 256, _hours(_GPT2_SMALL, 9e9), "hours",
               "at 40% of the peak; 256 h would be 2.3% of it, against 47% in the line above"),
        Figure("3.3B tokens on one A100", "94hr", 94, _hours(_GPT2_SMALL, 3.3e9), "hours",
               "at 40% of the peak; 94 h is 256 h x 3.3 / 9"),
    )  # fmt: skip


def chronicles() -> Sequence[Figure]:
    """Return the figures of the 104B model's chronicles."""
    wide, deep = gpt2_parameters(32, 16384, 50_304, 2048), gpt2_parameters(64, 11600, 50_304, 2048)
    thirteen = gpt2_parameters(40, 5120, 50_304, 2048)
    narrow = wide - 32 * (65_536 - 20_480) * (2 * 16_384 + 1)  # two matrices and a bias a layer
    return (
        Figure("104B, 32 layers of 16,384", "correct 104B", 104e9, wide, "parameters",
               "the chronicles' own formula, n(12h²+13h)+vh+sh+2h", 0.01),
        Figure("104B, 64 layers of 11,600", "NLAYERS=64 NHIDDEN=11600", 104e9, deep, "parameters", "likewise", 0.01),
        Figure("inner width left at 20,480", "58B model instead of 104B", 58e9, narrow, "parameters",
               "two matrices of 16,384 x 20,480 a layer; the five first experiments trained this one", 0.03),
        Figure("13B, 40 layers of 5,120", "8x times bigger than 13B", 8, wide / thirteen, "", "104B / 12.9B", 0.05),
        Figure("memory of a layer", "~10x (3.2**2)", 10, (16384 / 5120) ** 2, "", "a layer grows with the square"),
        Figure("width over depth", "currently it's 512", 512, 16384 / 32, "", "16,384 / 32", 0.01),
        Figure("width over depth", "ration of 180", 180, 11600 / 64, "", "11,600 / 64", 0.01),
        Figure("initial deviation", "0.00587220219514703", 0.00587220219514703, math.sqrt(2 / (5 * 11600)), "",
               "sqrt(2 / (5 h)); 0.006 is what was used", 1e-6),
        Figure("batch ramp of the 530B model", "over 12B tokens, 6M samples", 12e9, 6e6 * 2048, "tokens",
               "6M x 2,048", 0.03),
        Figure("warm-up of the 530B model", "1B tokens, 500M samples", 500e6, 1e9 / 2048, "samples",
               "1B / 2,048 = 488k: the 500M of the remark are the 500_000 of its own setting"),
        Figure("8-bit moments", "from needing 18 bytes per param to 12", 12, 18 - 8 + 2, "bytes",
               "two moments of 4 bytes each become two of 1 byte"),
    )  # fmt: skip


def training_log() -> Sequence[Figure]:
    """Return the figures of the 580M model's training log."""
    model = ModelConfig(layers=18, d_model=1536, heads=12, context=1024, positions="alibi", bias=False)
    n, step = count_parameters(model, 50_304).total, 512 * 1024
    return (
        Figure("580M model", "580M", 580e6, n, "parameters",
               "18 layers of 1,536, ALiBi, 50,304 ids, head tied, no biases", 0.02),
        Figure("tokens of a step", "0.5M tokens", 0.5e6, step, "tokens", "512 sequences of 1,024"),
        Figure("tokens of the run", "97000 steps (approx. 48B tokens)", 48e9, 97_000 * step, "tokens",
               "by 524,288 a step; by 0.5M flat it is 48.5B"),
        Figure("epochs", "over 5 epochs", 5, 97_000 * step / 8.24e9, "epochs",
               "of the training split's 8.24B; of all 9.02B tokens it is 5.6", 0.05),
        Figure("tokens of the data", "9.02B", 9.02e9, 8.24e9 + 0.782e9, "tokens", "training and validation", 0.01),
        Figure("its place among GPT-2's sizes", "halfway between GPT2-Medium and GPT2-Large", 0.5,
               (n - _GPT2_MEDIUM) / (gpt2_parameters(36, 1280, 50_257, 1024) - _GPT2_MEDIUM), "",
               "(587M - 355M) / (774M - 355M)", 0.15),
    )  # fmt: skip


def page() -> str:
    """Return all tables, each under the name of its source."""
    parts = (("The seed diary", "the diary", figures()), ("The 104B chronicles", "the chronicles", chronicles()),
             ("The 580M log", "the log", training_log()))  # fmt: skip
    return "\n\n".join(f"{title}\n\n{table(rows, source)}" for title, source, rows in parts)


def table(rows: Sequence[Figure], source: str = "the diary") -> str:
    """Return the figures of a ``source`` as a Markdown table."""
    verb = "say" if source.endswith("s") else "says"
    lines = [f"| figure | {source} {verb} | worked out | | why |", "|---|---|---|---|---|"]
    for row in rows:
        verdict = "agrees" if row.agrees else "**differs**"
        computed = f"{_shown(row.computed, row.unit)} {row.unit}".strip()
        lines.append(f"| {row.about} | {row.says} | {computed} | {verdict} | {row.why} |")
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    if unit == "parameters":
        return f"{value:,.0f}"
    if value and (value >= 1e6 or value < 1e-2):
        power = math.floor(math.log10(value))
        return f"{value / 10**power:.2f}e{power}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
