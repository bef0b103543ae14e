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
# The seeds of the three streams are crossed. Every cell is run twice, the second time with its initial weights moved by
# a unit in the last place. Without the second run, interaction and chaos could not be separated.
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
# The outcome of a run is the logarithm of the step at which it generalised. A run that did not generalise counts with
# the end of its budget. A share is the part of the variance that is due to one source of randomness.

# %%
studies["crossed"]

# %%
studies["crossed"].figures

# %% [markdown]
# ## Are good weights more likely with some order seeds?
#
# The diary reports a batch order with which good model seeds were 25% more likely. The best of many orders always looks
# good. So the table has false-discovery rates, and the confirmed ratio chooses the order on one half of the weights and
# measures it on the other half.

# %%
studies["crossed"].table("conditional_rates")

# %% [markdown]
# ## Is it the seed?
#
# If the shares of weights and order are small compared with chaos, being super is not a property of the seed.

# %%
studies["repeatability"]

# %%
studies["repeatability"].figures
