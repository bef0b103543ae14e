# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The split, the weights or the order?
#
# The seeds of the three streams are crossed. Every cell is run twice, each time with its initial weights moved by a
# unit in the last place in another way. Without the second run, interaction and chaos could not be separated. With
# `experiment=toy` the sweep takes minutes instead of hours.
#
#     grok sweep sweep=crossed
#     make notebooks GROK_STORE=results/store

# %%
import os
from pathlib import Path

import grok

here, above = Path("results/store"), Path("../results/store")  # Jupyter starts a notebook in its own folder
path = Path(os.environ.get("GROK_STORE", above if above.is_dir() else here))
studies = grok.studies(path)

# %% [markdown]
# ## Variance shares
#
# The outcome of a run is the logarithm of the step at which it generalised, up to the largest step at which the time of
# every run is known. If more than 20% of the runs had not generalised by then, as in the default regime, it is the log
# odds of a wrong answer. The answer names the one that it used. A share is the part of the variance that is due to one
# source of randomness.

# %%
studies["crossed"]

# %%
studies["crossed"].figures

# %% [markdown]
# ## Are good weights more likely with some order seeds?
#
# The diary reports a batch order with which good model seeds were 25% more likely. The best of many orders always looks
# good. So the table has ranks with false-discovery rates, and the confirmed ratio chooses the order on one half of the
# weights and measures it on the other half.

# %%
studies["crossed"].table("conditional_rates")

# %% [markdown]
# ## Is it the seed?
#
# Everything but chaos repeats with the seed. So being super is a property of the whole seed as far as the share of
# chaos is small, also if the split, the weights and the order have small shares each: their combinations are part of
# the seed.

# %%
studies["repeatability"]

# %%
studies["repeatability"].figures
