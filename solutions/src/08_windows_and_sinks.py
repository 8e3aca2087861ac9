# %% [markdown]
# # 08 Exercises: windows and sinks
#
# A cache that stops growing: which keys a query may see, which rows must stay until it has seen them, and which rows
# must never go.
#
# Lesson: [08 Windows and attention sinks](../notebooks/08_windows_and_sinks.ipynb).

# %%
import numpy as np

from kvlab.attention import attention
from kvlab.caches import attendable
from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. window_mask
#
# {card window_mask}
#
# `n_new` queries stand at the end of `n_total` keys. A query sees itself and the `window - 1` tokens before it, and
# nothing after it. `n_new` may be 0; `window` is at least 1 and may be longer than the text.


# %%
def window_mask(n_new, n_total, window):
    """The sliding-window mask of n_new queries at the end of n_total keys: bool (n_new, n_total)."""
    ### BEGIN SOLUTION
    key_positions = np.arange(n_total)
    query_positions = np.arange(n_total - n_new, n_total)[:, None]
    distance = query_positions - key_positions
    return (distance >= 0) & (distance < window)
    ### END SOLUTION


# %%
check(window_mask)

# %% [markdown]
# ## 2. RingCache
#
# {card RingCache}
#
# The cache of one layer with a sliding window. `append` returns `(k, v, positions)`: the rows that the new queries may
# need, which are up to `window - 1` rows before the chunk and then the chunk, oldest first, with their absolute
# positions (the first token of the text stands at 0). Only after that it evicts.
#
# - It stores at most `window` rows, however long the text, in whatever form you like.
# - `len(cache)` is the number of tokens *seen*, which is the position of the next one, not the number of rows held.
# - A chunk may be longer than the window, and may be empty (`n_new` of 0): then nothing is stored and the rows come
#   back that a next token may need.
# - It keeps its own copy of what it is given, and what an append has returned does not change when later ones follow.


# %%
class RingCache:
    """The last `window` keys and values of one layer and one text."""

    def __init__(self, n_kv_heads, head_dim, window):
        ### BEGIN SOLUTION
        self.shape, self.window, self.n_seen = (n_kv_heads, window, head_dim), window, 0
        self.k = self.v = None
        ### END SOLUTION

    def append(self, k_new, v_new):
        """Store k_new and v_new, each (n_kv_heads, n_new, head_dim); return (k, v, positions)."""
        ### BEGIN SOLUTION
        if self.k is None:
            self.k, self.v = np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)
        n_past, self.n_seen = self.n_seen, self.n_seen + k_new.shape[1]
        first = max(n_past - self.window + 1, 0)
        old = np.arange(first, n_past) % self.window
        k = np.concatenate([self.k[:, old], k_new], axis=1)
        v = np.concatenate([self.v[:, old], v_new], axis=1)
        stay = np.arange(max(n_past, self.n_seen - self.window), self.n_seen)
        self.k[:, stay % self.window] = k_new[:, stay - n_past]
        self.v[:, stay % self.window] = v_new[:, stay - n_past]
        return k, v, np.arange(first, self.n_seen)
        ### END SOLUTION

    def __len__(self):
        """The number of tokens seen."""
        ### BEGIN SOLUTION
        return self.n_seen
        ### END SOLUTION


# %%
check(RingCache)

# %% [markdown]
# ## 3. SinkCache
#
# {card SinkCache}
#
# The same, with the first `n_sinks` tokens of the text kept for ever *besides* the window. Sinks that are not among
# the window's rows any more come first; no row comes back twice. Positions are absolute here too. `n_sinks` is between
# 0 and `window`. All rules of `RingCache` hold; at most `n_sinks + window` rows are stored. You may build on your
# `RingCache`.


# %%
class SinkCache:
    """The first n_sinks and the last `window` keys and values of one layer and one text."""

    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        ### BEGIN SOLUTION
        self.ring, self.n_sinks = RingCache(n_kv_heads, head_dim, window), n_sinks
        self.k = self.v = None
        ### END SOLUTION

    def append(self, k_new, v_new):
        """Store k_new and v_new, each (n_kv_heads, n_new, head_dim); return (k, v, positions)."""
        ### BEGIN SOLUTION
        if self.k is None:
            self.k, self.v = k_new[:, :0], v_new[:, :0]
        k, v, near = self.ring.append(k_new, v_new)
        n_away = min(self.k.shape[1], len(self.ring) - len(near))
        k = np.concatenate([self.k[:, :n_away], k], axis=1)
        v = np.concatenate([self.v[:, :n_away], v], axis=1)
        missing = self.n_sinks - self.k.shape[1]
        self.k = np.concatenate([self.k, k_new[:, :missing]], axis=1)
        self.v = np.concatenate([self.v, v_new[:, :missing]], axis=1)
        return k, v, np.concatenate([np.arange(n_away), near])
        ### END SOLUTION

    def __len__(self):
        """The number of tokens seen."""
        ### BEGIN SOLUTION
        return len(self.ring)
        ### END SOLUTION


# %%
check(SinkCache)

# %% [markdown]
# ## Try it
#
# Your ring under attention: a chunk of 5 tokens and then 3 more, against one pass under your mask. `attendable` makes
# the mask from the positions that your `append` returns; it reads the window from the cache, so it is set here.

# %%
try:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 8, 4))
    cache = RingCache(n_kv_heads=2, head_dim=4, window=3)
    cache.window = 3
    chunks = (slice(0, 5), slice(5, 8))
    parts = [attention(q[:, c], *attendable(cache, k[:, c], v[:, c])) for c in chunks]
    whole = attention(q, k, v, window_mask(8, 8, 3))
    print("chunks equal the full pass:", np.allclose(np.concatenate(parts, axis=1), whole, atol=1e-12))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("RingCache")

# %% tags=["exercise-only"]
progress()
