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
# Seeds of the three streams are crossed, and every cell is run twice, the second time with its initial weights moved by
# a unit in the last place. Without that second run, interaction between seeds and plain chaos would look the same.
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
# The outcome of a run is the logarithm of the step at which it generalised; a run that did not counts with the end of
# the budget. Each share is the part of the variance of that outcome that would vanish if this source were fixed.

# %%
studies["crossed"]

# %%
studies["crossed"].figures

# %% [markdown]
# ## Given this order seed, are good weights likelier?
#
# The diary's author saw a batch order that made good model seeds 25% likelier. The best of many orders always looks
# good, so the table comes with a false-discovery rate, and the confirmed ratio picks the order on one half of the
# weights and measures it on the other.

# %%
studies["crossed"].table("conditional_rates")

# %% [markdown]
# ## Is it the seed?
#
# If the shares of the weights and of the order are small beside chaos, a super seed is not a property of its numbers.

# %%
studies["repeatability"]

# %%
studies["repeatability"].figures
