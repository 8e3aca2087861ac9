# %% [markdown]
# # 03 Exercises: the offset mask and rotary positions
#
# New tokens stand at the end of everything the cache holds. The mask and the positions have to know it.
#
# Lesson: [03 Masks and positions with a cache](../notebooks/03_offset_mask.ipynb).

# %%
import numpy as np

from kvlab.caches import ConcatCache
from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. offset_mask
#
# {card offset_mask}
#
# `n_new` queries stand at the end of `n_total` keys. A query may look at its own position and at everything before it.
# `n_new` may be 0.


# %%
def offset_mask(n_new, n_total):
    """The causal mask of n_new queries at the end of n_total keys: bool (n_new, n_total), True where it may look."""
    ### BEGIN SOLUTION
    query_positions = np.arange(n_total - n_new, n_total)
    key_positions = np.arange(n_total)
    return key_positions[None, :] <= query_positions[:, None]
    ### END SOLUTION


# %%
check(offset_mask)

# %% [markdown]
# ## 2. rotate
#
# {card rotate}
#
# RoPE with half-split pairing: channel `i` turns together with channel `i + head_dim / 2`, by the angle
# `position * base ** (-2 i / head_dim)`. Positions come in any order. The input stays as it is.


# %%
def rotate(x, positions, base=10000.0):
    """Turn each pair of channels of x (n_heads, n_tokens, head_dim) by its token's angle; positions (n_tokens,)."""
    ### BEGIN SOLUTION
    head_dim = x.shape[-1]
    frequencies = base ** (-2 * np.arange(head_dim // 2) / head_dim)
    angles = positions[:, None] * frequencies
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., : head_dim // 2], x[..., head_dim // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    ### END SOLUTION


# %%
check(rotate)

# %% [markdown]
# ## 3. append_rotated
#
# {card append_rotated}
#
# The cache is one of the course's: `len(cache)` is the number of tokens it holds, `cache.append(k, v)` stores and
# returns all keys and values. Use your own `rotate`. The check looks at what is *stored*, since a uniform shift of
# every position would change no output.


# %%
def append_rotated(cache, k_new, v_new, base=10000.0):
    """Rotate the new keys at their absolute positions and append them; returns what cache.append returns."""
    ### BEGIN SOLUTION
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    return cache.append(rotate(k_new, positions, base), v_new)
    ### END SOLUTION


# %%
check(append_rotated)

# %% [markdown]
# ## Try it
#
# An example to look at your own function with: three tokens, then two more.

# %%
try:
    cache = ConcatCache(n_kv_heads=1, head_dim=4)
    append_rotated(cache, np.ones((1, 3, 4)), np.ones((1, 3, 4)))
    k, v = append_rotated(cache, np.ones((1, 2, 4)), np.ones((1, 2, 4)))
    print(k.round(3))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("offset_mask")

# %% tags=["exercise-only"]
progress()
