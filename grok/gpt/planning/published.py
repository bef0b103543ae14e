"""Planning figures of the seed diary, the 104B chronicles and the 580M log, beside the same figures computed here.

Each figure has the number that its source states and the number that follows from the settings of that source.
``grok plan --diary`` prints them as tables; so does a page of the documentation, which is made from this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grok.config.gpt import ModelConfig
from grok.gpt.flops import MACHINES, count_parameters, gpt2_parameters
from grok.gpt.planning.planner import CHINCHILLA_TOKENS_PER_PARAMETER, chinchilla_loss, perplexity


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a source."""

    about: str
    says: str
    """The words of the source."""
    published: float
    computed: float
    unit: str
    why: str
    """How the computed number is obtained, and what explains the difference."""
    tolerance: float = 0.1
    """Largest relative difference at which the two agree; smaller where the source prints more digits."""

    @property
    def agrees(self) -> bool:
        """Whether the two numbers differ by at most the tolerance."""
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
    """Return all figures of the diary, in its order."""
    return (*_run_lengths(), *_models(), *_flops(), *_chinchilla(), *_transformer_xl(), *_open_web_text())


def _run_lengths() -> Sequence[Figure]:
    return (
        Figure("job that was killed", "335hr = 14.6 days", 14.6, 335 / 24, "days", "335 / 24 = 13.96", 0.01),
        Figure("speed of that job", "4.8k steps/day", 4.8e3, 70e3 / (335 / 24), "steps a day",
               "70,000 steps in 335 h; 4.8k follows from the wrong 14.6 days", 0.03),
        Figure("speed of that job", "~3 steps/min", 3, 4_000 / (22 * 60), "steps a minute",
               "4,000 steps in 22 h; 70,000 steps in 335 h would be 3.5"),
    )  # fmt: skip


def _models() -> Sequence[Figure]:
    return (
        Figure("GPT-2 small", "117M params", 117e6, _GPT2_SMALL, "parameters",
               "exact formula; the count in GPT-2's paper is wrong: its published weights have 124,439,808", 0.03),
        Figure("GPT-2 small", "heads=16", 16, 768 / 64, "heads",
               "the published weights have 12 heads of width 64; 16 heads would have width 48"),
        Figure("GPT-2 medium", "345M params", 345e6, _GPT2_MEDIUM, "parameters",
               "exact formula; the count in GPT-2's paper is wrong", 0.01),
        Figure("learning rate", "1.5x10e-4", 1.5 * 10e-4, 1.5e-4, "",
               "1.5x10e-4 is 1.5e-3, ten times the intended 1.5e-4"),
        Figure("WikiText-103 model", "Model (353M)", 353e6, _WT103.without_positions, "parameters",
               f"without the position embedding; with it {_WT103.total:,}"),
        Figure("WikiText-103 model", "315M", 315e6, _WT103.without_positions, "parameters",
               "the summary of the same model; its 2.5 times larger and 20.9 h are wrong, too"),
        Figure('"1B" model', "1B param model", 1e9, _ONE_B, "parameters",
               "24 layers of width 1920; the diary also says 1.16B, which is correct"),
    )  # fmt: skip


def _flops() -> Sequence[Figure]:
    return (
        Figure('step of the "1B" model', "~150TF", 150e12, 6 * _ONE_B * _STEP_1B, "FLOP",
               "6 N tokens with N = 1.16B and 16 x 1,024 tokens; with recomputed activations it is 8 N: 152 TFLOP"),
        Figure("factor of training", "factor seems to be 9", 9, 6, "",
               "9 results from N = 1.0B; with N = 1.16B it is 7.8; with recomputed activations the factor is 8"),
        Figure("factor of the forward pass", "Forward pass factor is 6", 6, 2, "",
               "one multiplication and one addition for each parameter"),
        Figure("the formula as printed", "9*1e6*16*1024=147 TFLOPs", 147e12, 9 * 1e6 * 16 * 1024, "FLOP",
               "1e6 is a typing error: 1e9 is meant"),
        Figure("V100 against A100", "almost half", 0.5, MACHINES["V100"].peak["fp16"] / _A100, "",
               "125 and 312 TFLOP/s in the data sheets"),
        Figure("A100 hours of the 1.16B model", "25 days on 8xA100", 25, 4_800 / 8 / 24, "days", "4,800 h / 8 / 24"),
        Figure("A100 hours of the 124M model", "2.7 days on 8xA100", 2.7, 533 / 8 / 24, "days", "533 h / 8 / 24"),
    )  # fmt: skip


def _chinchilla() -> Sequence[Figure]:
    rule = CHINCHILLA_TOKENS_PER_PARAMETER
    return (
        Figure("compute of 117M on 3.3B tokens", "flops is 2.4E+18", 2.4e18, 6 * _GPT2_SMALL * 3.3e9, "FLOP",
               "6 N tokens with the exact count"),
        Figure("Chinchilla tokens of 117M", "3.3B", 3.3e9, rule * _GPT2_SMALL, "tokens",
               "20 per parameter; the diary's figure is 28 per parameter, from another fit"),
        Figure("loss that the fit predicts", "Predicted loss=~3.3", 3.3, chinchilla_loss(117e6, 3.3e9), "nats",
               "Chinchilla's third fit"),
        Figure("perplexity of that loss", "PPL=24 to 27", 27, perplexity(chinchilla_loss(117e6, 3.3e9)), "",
               "exp(3.312); a perplexity of 24 is a loss of 3.18"),
        Figure("perplexity of a loss of 2.8", "PPL=16.1 to 16.3", 16.3, perplexity(2.8), "", "exp(2.8)"),
        Figure("tokens of the WikiText-103 run", "2.1B tokens", 2.1e9, _WT103_TOKENS, "tokens",
               "4,000 steps of 512 x 1,024"),
        Figure("epochs of that run", "17 epochs", 17, _WT103_TOKENS / 119e6, "epochs", "one epoch has 119M tokens"),
        Figure("Chinchilla tokens of that model", "3.3B tokens suggested by Chinchilla", 3.3e9,
               rule * _WT103.without_positions, "tokens",
               "3.3B tokens are for the 117M model; this run's 2.1B are 30% of 7.1B, not 30% less"),
        Figure("time relative to the 124M model", "1.4X longer", 1.4, 22 / 15, "", "22 h / 15 h"),
        Figure("size relative to the 124M model", "2.5X larger", 2.5, _WT103.without_positions / _GPT2_SMALL, "",
               "353.6M / 124.4M; 2.5 follows from the wrong count of 315M"),
    )  # fmt: skip


def _transformer_xl() -> Sequence[Figure]:
    def minutes(tokens: int, devices: int, rate: float) -> float:
        return tokens / (devices * rate) / 60

    per_device = "all steps at the stated tokens/s, which must be the rate of one device"
    return (
        Figure("XL base, 8 x A100", "75 minutes", 75, minutes(_XL_BASE, 8, 60e3), "minutes", per_device),
        Figure("XL base, 8 x V100", "121 minutes", 121, minutes(_XL_BASE, 8, 32.8e3), "minutes", per_device),
        Figure("XL base, 1 x V100", "766 minutes", 766, minutes(_XL_BASE, 1, 32.8e3), "minutes",
               "faster than the stated throughput allows; the diary also doubts it"),
        Figure("XL base, 16 x V100", "80 minutes", 80, minutes(_XL_BASE, 16, 32.8e3), "minutes",
               "the stated time means 78% of sixteen times one device's rate"),
        Figure("XL large, 8 x A100", "430 minutes", 430, minutes(_XL_LARGE, 8, 21.5e3), "minutes",
               "a tenth faster than the stated throughput allows"),
        Figure("XL large, 16 x V100", "394 minutes", 394, minutes(_XL_LARGE, 16, 14.8e3), "minutes",
               "the stated time means 88% of sixteen times one device's rate"),
        Figure("XL large, 8 x V100/16GB", "984 minutes", 984, minutes(_XL_LARGE, 8, 14.8e3), "minutes",
               "the smaller batch per device costs 30% of the throughput"),
        Figure("the same in hours", "16.4hr", 16.4, 984 / 60, "hours", "984 minutes"),
        Figure("XL large, batch on 8 x V100/16GB", "8*4=32 global instead of 256", 256, 8 * 4, "sequences",
               "256 is the base model's batch; the large model's is 128, which four accumulation steps of 32 give"),
    )  # fmt: skip


def _open_web_text() -> Sequence[Figure]:
    return (
        Figure("OpenWebText run, samples", "240M samples total", 240e6, _OWT_TOKENS / 1024, "samples",
               "500,000 steps x 8 GPUs x 5 microsteps x 12 samples"),
        Figure("OpenWebText run, tokens", "30.7B tokens for training", 30.7e9, _OWT_TOKENS, "tokens",
               "30.7B is the number of tokens on one of the 8 GPUs"),
        Figure("OpenWebText run, tokens", "65B total training tokens (7 epochs)", 65e9, _OWT_TOKENS, "tokens",
               "both figures of the diary are wrong; 246B tokens are 27 epochs of 9B"),
        Figure("OpenWebText run, epochs", "3.7 epochs/GPU (8M docs in dataset)", 3.7, _OWT_TOKENS / 8 / 9e9, "epochs",
               "an epoch has 9B tokens; 3.7 is samples / documents, but a sample is no document; 8 GPUs make 27", 0.05),
        Figure("step on 8 A100", "135ms/step", 0.135, 6 * _GPT2_SMALL * _OWT_STEP / (8 * _A100), "s",
               "least time for 491,520 tokens, at the full peak; 135 ms is one microstep of 12 samples on a GPU", 0.01),
        Figure("run on 8 A100", "theoratical time 1.8 days", 1.8, _hours(_GPT2_SMALL, _OWT_TOKENS, 0.47) / 8 / 24,
               "days", "at 47% of the peak, a plausible MFU"),
        Figure("9B tokens on one A100", "256hr", 256, _hours(_GPT2_SMALL, 9e9), "hours",
               "at 40% of the peak; 256 h would be an MFU of 2.3%, and the line above has 47%"),
        Figure("3.3B tokens on one A100", "94hr", 94, _hours(_GPT2_SMALL, 3.3e9), "hours",
               "at 40% of the peak; 94 h is 256 h x 3.3 / 9"),
    )  # fmt: skip


def chronicles() -> Sequence[Figure]:
    """Return the figures of the 104B model's chronicles."""
    wide, deep = gpt2_parameters(32, 16384, 50_304, 2048), gpt2_parameters(64, 11600, 50_304, 2048)
    thirteen = gpt2_parameters(40, 5120, 50_304, 2048)
    narrow = wide - 32 * (65_536 - 20_480) * (2 * 16_384 + 1)  # two matrices and a bias in each layer
    return (
        Figure("104B, 32 layers of 16,384", "correct 104B", 104e9, wide, "parameters",
               "formula of the chronicles, n(12h²+13h)+vh+sh+2h", 0.01),
        Figure("104B, 64 layers of 11,600", "NLAYERS=64 NHIDDEN=11600", 104e9, deep, "parameters",
               "the same formula", 0.01),
        Figure("inner width still 20,480", "58B model instead of 104B", 58e9, narrow, "parameters",
               "two matrices of 16,384 x 20,480 in each layer; the first five experiments trained this model", 0.03),
        Figure("13B, 40 layers of 5,120", "8x times bigger than 13B", 8, wide / thirteen, "", "104B / 12.9B", 0.05),
        Figure("memory of a layer relative to 13B", "~10x (3.2**2)", 10, (16384 / 5120) ** 2, "",
               "the memory of a layer grows with the square of the width"),
        Figure("width over depth", "currently it's 512", 512, 16384 / 32, "", "16,384 / 32", 0.01),
        Figure("width over depth", "ration of 180", 180, 11600 / 64, "", "11,600 / 64", 0.01),
        Figure("initial deviation", "0.00587220219514703", 0.00587220219514703, math.sqrt(2 / (5 * 11600)), "",
               "sqrt(2 / (5 h)); the training used 0.006", 1e-6),
        Figure("batch ramp of the 530B model", "over 12B tokens, 6M samples", 12e9, 6e6 * 2048, "tokens",
               "6M x 2,048", 0.03),
        Figure("warm-up of the 530B model", "1B tokens, 500M samples", 500e6, 1e9 / 2048, "samples",
               "1B / 2,048 = 488k; the setting itself says 500_000, so 500M should be 500k"),
        Figure("8-bit moments", "from needing 18 bytes per param to 12", 12, 18 - 8 + 2, "bytes",
               "two moments of 4 bytes each become two of 1 byte"),
    )  # fmt: skip


def training_log() -> Sequence[Figure]:
    """Return the figures of the 580M model's training log."""
    model = ModelConfig(layers=18, d_model=1536, heads=12, context=1024, positions="alibi", bias=False)
    n, step = count_parameters(model, 50_304).total, 512 * 1024
    return (
        Figure("580M model", "580M", 580e6, n, "parameters",
               "18 layers of width 1,536, ALiBi, 50,304 ids, tied head, no biases", 0.02),
        Figure("tokens of a step", "0.5M tokens", 0.5e6, step, "tokens", "512 sequences of 1,024"),
        Figure("tokens of the run", "97000 steps (approx. 48B tokens)", 48e9, 97_000 * step, "tokens",
               "524,288 tokens per step; with exactly 0.5M per step it is 48.5B"),
        Figure("epochs", "over 5 epochs", 5, 97_000 * step / 8.24e9, "epochs",
               "epochs of the training split (8.24B tokens); of all 9.02B tokens it is 5.6", 0.05),
        Figure("tokens of the data", "9.02B", 9.02e9, 8.24e9 + 0.782e9, "tokens",
               "training plus validation split", 0.01),
        Figure("size between two of GPT-2's", "halfway between GPT2-Medium and GPT2-Large", 0.5,
               (n - _GPT2_MEDIUM) / (gpt2_parameters(36, 1280, 50_257, 1024) - _GPT2_MEDIUM), "",
               "(587M - 355M) / (774M - 355M)", 0.15),
    )  # fmt: skip


def page() -> str:
    """Return all tables, each with the name of its source as title."""
    parts = (("The seed diary", "the diary", figures()), ("The 104B chronicles", "the chronicles", chronicles()),
             ("The 580M log", "the log", training_log()))  # fmt: skip
    return "\n\n".join(f"{title}\n\n{table(rows, source)}" for title, source, rows in parts)


def table(rows: Sequence[Figure], source: str = "the diary") -> str:
    """Return the figures of a ``source`` as a Markdown table."""
    verb = "say" if source.endswith("s") else "says"
    lines = [f"| figure | {source} {verb} | computed | | explanation |", "|---|---|---|---|---|"]
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


# Published task scores that stand beside one's own. Source: the log of the 580M model, which cites the others.

MODELS: Final = ("GPT2-M", "GPT-580M", "GPT2-L")
"""GPT-2 medium and large as that log cites them (GPT-Neo's page; The Pile, arXiv:2101.00027), and its own model."""

PUBLISHED: Final[dict[tuple[str, str], tuple[float, float, float]]] = {
    ("lambada_openai", "acc"): (0.430, 0.464, 0.476),
    ("lambada_openai", "perplexity"): (18.26, 14.08, 12.97),
    ("piqa", "acc"): (0.676, 0.668, 0.703),
    ("hellaswag", "acc"): (0.3331, 0.3333, 0.3640),
    ("pile_pile-cc", "bits_per_byte"): (0.9992, 0.9635, 0.9582),
    ("pile_openwebtext2", "bits_per_byte"): (1.0073, 0.9159, 0.9539),
    ("pile_wikipedia", "bits_per_byte"): (1.0213, 0.9846, 0.9795),
    ("pile_arxiv", "bits_per_byte"): (1.2305, 1.3127, 1.1778),
    ("pile_bookcorpus2", "bits_per_byte"): (1.0498, 1.0249, 1.0061),
}
"""By the harness's names of task and metric: the models' scores, in the order of ``MODELS``."""
