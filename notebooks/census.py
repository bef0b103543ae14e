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
# # How many seeds are super?
#
# A sweep of random seeds, read from its store. `make notebooks` opens this in Jupyter; GROK_STORE names the store:
#
#     make notebooks GROK_STORE=results/quickstart
#
# `grok sweep sweep=census` makes the store. `grok sweep experiment=quickstart 'seed=range(0,64)'` makes a small one in
# a minute. If the store cannot answer a question yet, the notebook shows the command that trains the runs.

# %%
import os
from pathlib import Path

import grok

here, above = Path("results/store"), Path("../results/store")  # Jupyter starts a notebook in its own folder
path = Path(os.environ.get("GROK_STORE", above if above.is_dir() else here))
studies = grok.studies(path)
studies

# %% [markdown]
# ## What super and early mean
#
# By accuracy, a seed is judged at a fixed step. An early seed is three times faster than the median seed. Seeds that
# did not generalise count as slower than their budget.

# %%
from grok.analysis.criteria import DIARY

print(DIARY)

# %%
studies["census"]

# %%
studies["census"].figures

# %% [markdown]
# The numbers are in data frames: `.findings` has each number with its interval, `.tables` the report's tables.

# %%
studies["census"].findings

# %% [markdown]
# ## How long does it take, and are there two kinds of seeds?
#
# A seed that has not generalised by its last step is *censored*: it takes longer, but we do not know how much longer.
# The curve below takes this into account; a histogram would not.

# %%
studies["survival"]

# %%
studies["survival"].figures

# %% [markdown]
# ## Do early seeds generalise in another way, or only sooner?

# %%
studies["regimes"]

# %%
studies["regimes"].figures
