# %% [markdown]
# # 04 Exercises: grouped queries
#
# Fewer KV heads than query heads: repeat them, then do without the copy, then make them out of a model that has many.
#
# Lesson: [04 Grouped queries](../notebooks/04_grouped_queries.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. repeat_kv
#
# {card repeat_kv}
#
# Neighbouring query heads share a KV head: with 2 KV heads and 4 query heads the result is `[K1 K1 K2 K2]`.
# Raises `ValueError` when `n_heads` is no multiple of the number of KV heads.


# %%
def repeat_kv(x, n_heads):
    """The KV heads x (n_kv_heads, n_total, head_dim), one for each of n_heads query heads."""
    ### BEGIN SOLUTION
    n_kv_heads = len(x)
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} KV heads evenly")
    return np.repeat(x, n_heads // n_kv_heads, axis=0)
    ### END SOLUTION


# %%
check(repeat_kv)

# %% [markdown]
# ## 2. grouped_attention
#
# {card grouped_attention}
#
# Offset-causal attention: the `n_new` queries stand at the end of the `n_total` keys. Scale `1/sqrt(head_dim)`.
# `n_new` may be 0. k and v are never copied for every query head: the check counts the memory that is taken.


# %%
def grouped_attention(q, k, v):
    """Causal attention of q (n_heads, n_new, head_dim) over k and v (n_kv_heads, n_total, head_dim)."""
    ### BEGIN SOLUTION
    n_heads, n_new, head_dim = q.shape
    n_kv_heads, n_total, _ = k.shape
    grouped = q.reshape(n_kv_heads, n_heads // n_kv_heads, n_new, head_dim)
    scores = grouped @ k[:, None].swapaxes(-1, -2) / np.sqrt(head_dim)
    may_look = np.arange(n_total) <= np.arange(n_total - n_new, n_total)[:, None]
    scores = np.where(may_look, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return (weights @ v[:, None]).reshape(n_heads, n_new, head_dim)
    ### END SOLUTION


# %%
check(grouped_attention)

# %% [markdown]
# ## 3. pool_kv_heads
#
# {card pool_kv_heads}
#
# The projection of a model with `n_heads` key heads becomes one with `n_kv_heads`: each new head is the mean of a group
# of neighbouring old ones. Columns `h * head_dim` to `(h + 1) * head_dim` of `w` belong to head `h`.


# %%
def pool_kv_heads(w, n_heads, n_kv_heads):
    """The mean of each group of neighbouring heads: a weight (d_model, n_kv_heads * head_dim)."""
    ### BEGIN SOLUTION
    groups = w.reshape(len(w), n_kv_heads, n_heads // n_kv_heads, -1)
    return groups.mean(axis=2).reshape(len(w), -1)
    ### END SOLUTION


# %%
check(pool_kv_heads)

# %% [markdown]
# ## Try it
#
# Two KV heads, of ones and of twos, for four query heads.

# %%
try:
    print(repeat_kv(np.array([[[1.0]], [[2.0]]]), 4).ravel())
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("grouped_attention")

# %% tags=["exercise-only"]
progress()
