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
# The store comes from `grok sweep sweep=census`, or, in three minutes, from
# `grok sweep experiment=quickstart 'seed=range(0,64)'`. What a store cannot answer yet is said in its place, with the
# command that trains it.

# %%
import os
from pathlib import Path

import grok

here, above = Path("results/store"), Path("../results/store")  # Jupyter starts a notebook in its own folder
path = Path(os.environ.get("GROK_STORE", above if above.is_dir() else here))
studies = grok.studies(path)
studies

# %% [markdown]
# ## What super means
#
# The definition lives in one place. By accuracy a seed is judged at a fixed step; by time it must be three times
# faster than the median seed, with seeds that never generalised counted as slower than their budget.

# %%
from analysis.criteria import DIARY, REGIMES

print(DIARY)
print(REGIMES)

# %%
studies["census"]

# %%
studies["census"].figures

# %% [markdown]
# Every number is a data frame: `.findings` has each one with its interval, `.tables` what the report shows.

# %%
studies["census"].findings

# %% [markdown]
# ## How long does it take, and are there two kinds of seeds?
#
# A seed that has not generalised by its last step is *censored*: it takes longer than that, we do not know how much.
# The curve below respects that; a histogram would not.

# %%
studies["survival"]

# %%
studies["survival"].figures

# %% [markdown]
# ## Another road, or the same road faster?

# %%
studies["regimes"]

# %%
studies["regimes"].figures

# %% [markdown]
# ## How many seeds would settle it?
#
# The diary saw 18 super seeds in 2,073. To know such a share to within a quarter of a percentage point:

# %%
from analysis.statistics.proportions import seeds_for_width

print(f"{seeds_for_width(18 / 2073, 0.005):,} seeds for an interval of half a percentage point")
