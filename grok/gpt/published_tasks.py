"""Published task scores that stand beside one's own. Source: the log of the 580M model, which cites the others."""

from __future__ import annotations

from typing import Final

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
