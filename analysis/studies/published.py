"""Published language-model results for comparison with WikiText runs.

All of them are on the full WikiText-103. Numbers on other text, or on a sample of it, are not comparable.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

WIKITEXT_103: Final = pd.DataFrame(
    [
        ("GPT-2 117M (WebText, not tuned)", "117M", 500_000, 37.5, "word", "test, zero-shot", "Radford et al. 2019"),
        ("GPT-2 345M (WebText, not tuned)", "345M", 500_000, 26.37, "word", "test, zero-shot", "Radford et al. 2019"),
        ("Transformer-XL base", "151M", 40_000, 23.24, "word", "test", "NVIDIA DeepLearningExamples"),
        ("Transformer-XL large", "247M", 100_000, 18.18, "word", "test", "NVIDIA DeepLearningExamples"),
        ("nanoGPT 24 layers, d 1024", "353M", 4_000, 22.6, "BPE of 50,304", "best validation", "the seed diary, 2023"),
    ],
    columns=["model", "parameters", "steps", "perplexity", "per", "on", "source"],
)
"""Final results. The steps in the GPT-2 rows are those of the Megatron reproduction."""

TRANSFORMER_XL_ON_THE_WAY: Final = pd.DataFrame(
    [(10_000, 32.3, 32.6), (20_000, 26.1, 24.1), (30_000, 23.7, 21.5), (40_000, 22.9, 20.2)],
    columns=["step", "base perplexity", "large perplexity"],
)
"""Validation perplexity of the two Transformer-XL runs during training."""

WIKITEXT_PRESETS: Final = ("wikitext", "transformer_xl", "gpt2_")
"""Parts of the names of presets whose runs are shown with the published results."""
