# %% [markdown]
# # 02 Exercises: the cache
#
# Keep the keys and values that attention has already computed, use them, and count what that saves.
#
# Lesson: [02 The KV cache](../notebooks/02_kv_cache.ipynb).

# %%
import numpy as np

from kvlab.attention import attention
from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. KVCache
#
# {card KVCache}
#
# `append` stores the new rows after those it holds and returns everything it holds, oldest first. `len(cache)` is the
# number of tokens stored.
#
# - It keeps its own copy of what it is given: when the caller changes its arrays afterwards, the cache stays as it was.
# - What an append has returned does not change when later ones follow.
# - The dtype follows the first append.
# - An empty chunk (`n_new` of 0) stores nothing and returns what is stored.
# - There is no maximum length.


# %%
class KVCache:
    """The keys and values of one layer and one text."""

    def __init__(self, n_kv_heads, head_dim):
        ### BEGIN SOLUTION
        self.shape = (n_kv_heads, 0, head_dim)
        self.k = self.v = None
        ### END SOLUTION

    def append(self, k_new, v_new):
        """Store k_new and v_new, each (n_kv_heads, n_new, head_dim); return all (k, v)."""
        ### BEGIN SOLUTION
        if self.k is None:
            self.k, self.v = np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)
        self.k = np.concatenate([self.k, k_new], axis=1)
        self.v = np.concatenate([self.v, v_new], axis=1)
        return self.k, self.v
        ### END SOLUTION

    def __len__(self):
        """The number of tokens stored."""
        ### BEGIN SOLUTION
        return 0 if self.k is None else self.k.shape[1]
        ### END SOLUTION


# %%
check(KVCache)

# %% [markdown]
# ## 2. step
#
# {card step}
#
# One attention layer on the new tokens only. Weights are `(d_model, heads * head_dim)`, so that projected tokens are
# `x @ wq`; a head owns a run of `head_dim` neighbouring channels. Project `x`, append its keys and values to `cache`,
# attend over everything the cache holds, join the heads. The same function serves the prompt, a chunk of it, one new
# token and no token at all.
#
# `attention(q, k, v)` is given: queries `(n_heads, n_new, head_dim)` at the end of keys
# `(n_kv_heads, n_total, head_dim)`. The check counts the tokens that you send through the weights.


# %%
def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    """Attention of the new tokens x (n_new, d_model) over the cache and themselves: (n_new, n_heads * head_dim)."""
    ### BEGIN SOLUTION
    n_new, head_dim = len(x), wq.shape[1] // n_heads
    q = (x @ wq).reshape(n_new, n_heads, head_dim).transpose(1, 0, 2)
    k = (x @ wk).reshape(n_new, n_kv_heads, head_dim).transpose(1, 0, 2)
    v = (x @ wv).reshape(n_new, n_kv_heads, head_dim).transpose(1, 0, 2)
    out = attention(q, *cache.append(k, v))
    return out.transpose(1, 0, 2).reshape(n_new, n_heads * head_dim)
    ### END SOLUTION


# %%
check(step)

# %% [markdown]
# ## 3. projection_counts
#
# {card projection_counts}
#
# `n` tokens are generated one at a time from nothing: step `t` runs over `t` tokens without a cache, over one token
# with it. How many tokens are sent through the projections in the whole run? `n` may be 0 and may be large: exact
# integers.


# %%
def projection_counts(n):
    """Tokens projected while generating n tokens: (without_cache, with_cache)."""
    ### BEGIN SOLUTION
    return n * (n + 1) // 2, n
    ### END SOLUTION


# %%
check(projection_counts)

# %% [markdown]
# ## 4. score_counts
#
# {card score_counts}
#
# The same run, now counting dense score entries of one head: the full table of queries by keys that a matrix product
# gives in each step, hidden entries included.


# %%
def score_counts(n):
    """Dense score entries per head while generating n tokens: (without_cache, with_cache)."""
    ### BEGIN SOLUTION
    return n * (n + 1) * (2 * n + 1) // 6, n * (n + 1) // 2
    ### END SOLUTION


# %%
check(score_counts)

# %% [markdown]
# ## Try it
#
# Your cache under your step: a prompt of 5 tokens, then one more.

# %%
try:
    rng = np.random.default_rng(0)
    x, (wq, wk, wv) = rng.standard_normal((6, 8)), (rng.standard_normal((8, n)) for n in (16, 8, 8))
    cache = KVCache(n_kv_heads=2, head_dim=4)
    whole = step(x, wq, wk, wv, KVCache(2, 4), n_heads=4, n_kv_heads=2)
    parts = [step(chunk, wq, wk, wv, cache, n_heads=4, n_kv_heads=2) for chunk in (x[:5], x[5:])]
    print("prefill and one step equal the full pass:", np.allclose(np.concatenate(parts), whole, atol=1e-12))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("KVCache")

# %% tags=["exercise-only"]
progress()
