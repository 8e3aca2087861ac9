# %% [markdown]
# # 00 Exercise: count the tokens
#
# The way every exercise works: read the card, replace the line that raises, run the cell, run the check below it.
# A check says *not attempted* until you have written something, then *passed*, or what your code does and where it
# departs from what was asked. `hint("count_tokens")` gives a hint; call it again for the next one.
#
# Lesson: [00 Start here](../notebooks/00_start_here.ipynb).

# %%
from kvlab.checks import check, hint, progress

# %% [markdown]
# ## count_tokens
#
# {card count_tokens}
#
# The keys that one layer has cached are an array of shape `(n_kv_heads, n_total, head_dim)`. How many tokens is that?


# %%
def count_tokens(k):
    """How many tokens the cached keys k, of shape (n_kv_heads, n_total, head_dim), belong to."""
    ### BEGIN SOLUTION
    return k.shape[1]
    ### END SOLUTION


# %%
check(count_tokens)

# %% [markdown]
# ## A hint
#
# Run this cell twice: hints come in steps.

# %%
hint("count_tokens")

# %% [markdown]
# ## Progress
#
# What is passed in the exercise notebooks of this folder, as they were last saved.

# %% tags=["exercise-only"]
progress()
