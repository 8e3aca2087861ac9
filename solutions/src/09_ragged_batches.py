# %% [markdown]
# # 09 Exercises: left padding and packed sequences
#
# Sequences of unequal length share one batch: padded into a rectangle, or laid end to end in one row.
# Each of them must get what it would get alone.
#
# Lesson: [09 Batches of unequal length](../notebooks/09_ragged_batches.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. pad_positions
#
# {card pad_positions}
#
# The batch is padded on the left, and every row has at least one token. In each row the first token stands at
# position 0, the next at 1, and so on. Pads get 0. The result is ints; the input stays as it is.


# %%
def pad_positions(attention_mask):
    """Position ids of a left-padded batch: ints (batch, n); tokens count from 0 in each row, pads get 0."""
    ### BEGIN SOLUTION
    tokens_so_far = attention_mask.cumsum(axis=1)
    return np.maximum(tokens_so_far - 1, 0)
    ### END SOLUTION


# %%
check(pad_positions)

# %% [markdown]
# ## 2. ragged_mask
#
# {card ragged_mask}
#
# `attention_mask` covers everything in the cache and the new tokens, padded on the left; every row has at least one
# token. The queries are the last `n_new` columns. A query that is a token sees the tokens of its own row up to and
# including itself, and no pad. A query that is a pad sees only itself. `n_new` may be 0. The result is bool; the input
# stays as it is.


# %%
def ragged_mask(attention_mask, n_new):
    """The mask of every row of a left-padded batch: bool (batch, n_new, n_total), True where the query may look."""
    ### BEGIN SOLUTION
    n_total = attention_mask.shape[1]
    keys = np.arange(n_total)
    queries = keys[n_total - n_new :, None]
    tokens_before = (keys <= queries) & (attention_mask[:, None, :] == 1)
    return tokens_before | (keys == queries)  # before a pad there are only pads: itself is all that it sees
    ### END SOLUTION


# %%
check(ragged_mask)

# %% [markdown]
# ## 3. packed_mask
#
# {card packed_mask}
#
# Sequences of the given lengths lie one after another in one row. Inside each the mask is causal, and nothing is seen
# across sequences. A length may be 0: that sequence adds nothing. The result is bool; the list stays as it is.


# %%
def packed_mask(lengths):
    """The mask of packed sequences: bool (n, n) with n = sum(lengths), True where the query may look."""
    ### BEGIN SOLUTION
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(sequence))
    return (at[None, :] <= at[:, None]) & (sequence[None, :] == sequence[:, None])
    ### END SOLUTION


# %%
check(packed_mask)

# %% [markdown]
# ## Try it
#
# An example to look at your own functions with: a batch of 3, 5 and 1 tokens, one decode step, and the same three
# packed.

# %%
try:
    batch = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    print(pad_positions(batch))
    print(ragged_mask(batch, 1).astype(int))
    print(packed_mask([3, 5, 1]).astype(int))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("ragged_mask")

# %% tags=["exercise-only"]
progress()
