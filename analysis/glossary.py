"""The words of the report, each defined once. ``python -m analysis.glossary`` prints them."""

from __future__ import annotations

from typing import Final

TERMS: Final[dict[str, str]] = {
    "AUROC": "How well a score orders two classes: the probability that a run of one class has a higher score than one "
    "of the other. 0.5 is chance, 1 is perfect.",
    "censored": "A run that ended before its event happened. Only a lower bound of its time is known.",
    "chaos share": "The part of the variance that remains between runs whose seeds are all equal and whose initial "
    "weights differ by a unit in the last place.",
    "checkpoint": "The complete state of a run at one step. A run that continues from it ends with the same bits.",
    "condition": "All settings that can change a result, except seeds. Only runs of one condition are counted "
    "together.",
    "confidence interval": "A range that covers the true value in 95 of 100 repetitions of the whole experiment.",
    "diary's regime": "The settings of the seed diary, which are the default ones: x/y mod 223, two layers, 3,000 "
    "steps. The diary is a researcher's record that asked these questions first. It reported 18 super seeds of 2,073.",
    "diverged": "A run whose loss or weights stopped being finite numbers.",
    "epoch": "One pass over the training examples.",
    "fast seed": "A seed that is neither super nor normal at the horizon.",
    "generalised": "Validation accuracy was at least 0.95 at two evaluations in a row, or at the last one (grokked). "
    "The event has the step of the first one. A later fall below 0.95 does not undo it and is counted as a dip.",
    "generalised for good": "From this evaluation to the run's last one, validation accuracy was always at least "
    "0.95. A run that ends below 0.95 generalised, but not for good.",
    "grokking": "Generalising long after the training examples have been memorised.",
    "horizon": "The step at which seeds are judged: 3,000 in the diary's regime.",
    "lane": "One run among several that are computed side by side.",
    "log-normal": "A distribution of times whose logarithm has a normal distribution.",
    "memorised": "Accuracy on the training mini-batches was at least 0.95 at two evaluations in a row. By loss: the "
    "training loss was at most 0.2.",
    "negative control": "A factor that cannot have an effect. If a method reports an effect of it, the method is "
    "wrong.",
    "norm's fall": "The first evaluation after the peak of the weight norm at which the norm is 1% below the peak.",
    "normal seed": "A seed whose validation accuracy is below 0.25 at the horizon.",
    "numerics tag": "A text that names everything besides settings that decides a run's bits: device, product path, "
    "compilation, precision, threads, torch version.",
    "onset": "The step at which a failure of a language model's training began, before it was noticed.",
    "population": "Runs of one condition in which some streams differ from run to run and the others are fixed: "
    "master seeds, a scan of init seeds at one order, or a scan of one layer's seed.",
    "regime": "Which comes first: the weight norm falls 1% below its highest value so far, or the run generalises. The "
    "diary calls these slow and fast. Two groups are named only where a test shows two.",
    "repeatability": "How often a super seed is super again when its run is repeated, compared with the rate of other "
    "seeds.",
    "restricted mean": "The mean time up to a fixed step. Runs that take longer count with that step.",
    "run": "One training of one model.",
    "seed": "The number that decides the random draws of a run.",
    "Shapley share": "A layer's average contribution over all orders in which the layers could be exchanged.",
    "shard": "One parquet file of a table of the store. It has the runs of one commit, or of a compaction.",
    "split": "The division of the examples into training and validation examples.",
    "step": "One update of the weights. Step k is the state after k updates.",
    "store": "The folder of parquet files that holds every run.",
    "stream": "One named source of randomness (split, init, order ...), with a seed of its own.",
    "study": "One question of the report with its answer; in a search, all trials of one space.",
    "super seed": "A seed whose validation accuracy is above 0.98 at the horizon; by time, one that generalises at "
    "least three times faster than the median seed.",
    "sweep": "Many runs of one command that differ in a few settings.",
    "trajectory": "The sequence of a run's weights from step to step. Analyses count a trajectory once.",
    "trial": "One setting that a search tries, trained with several seeds.",
    "ulp": "Unit in the last place: the smallest change of a floating-point number.",
    "weight norm": "Euclidean length of all parameters except the token and position embeddings.",
    "winner's curse": "The best of many measurements overestimates its true value. Measure it again on other data.",
}


AXES: Final = {
    "L": "lanes: runs side by side",
    "B": "batch: examples of one mini-batch",
    "T": "tokens: positions of one sequence",
    "R": "rows: distinct activations (prefix and position) of a row plan",
    "D": "model width",
    "H": "heads",
    "K": "width of one head, D / H",
    "F": "inner width of the MLP",
    "V": "vocabulary",
}
"""The letters in comments on shapes, such as ``x  # [L, R, D]``."""


EVERYDAY: Final = frozenset("run seed step store sweep split stream epoch lane study trial shard checkpoint".split())
"""Frequent words: the glossary defines them, but the page shows no tooltip for them."""


def markdown() -> str:
    """Return all words as a Markdown page."""
    ordered = sorted(TERMS.items(), key=lambda item: item[0].lower())
    entries = "\n\n".join(f"**{term}**: {meaning}" for term, meaning in ordered)
    axes = "\n".join(f"| {letter} | {axis} |" for letter, axis in AXES.items())
    return f"# Glossary\n\n{entries}\n\n## Letters of the axes\n\n| letter | axis |\n|---|---|\n{axes}\n"


if __name__ == "__main__":
    print(markdown(), end="")
