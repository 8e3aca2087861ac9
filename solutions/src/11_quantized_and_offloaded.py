# %% [markdown]
# # 11 Exercises: quantized caches
#
# Fewer bits a number, and a cache that spends them well: keys per channel, values per token, the newest rows exact.
#
# Lesson: [11 Quantized and offloaded caches](../notebooks/11_quantized_and_offloaded.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. quantize
#
# {card quantize}
#
# `axis`, an int or a tuple of ints, names what shares one scale; it is kept as size 1 in `scale` and `zero`. `zero` is
# the minimum of each slice and `scale` the step between neighbouring levels: the first of the 2**n_bits levels is the
# minimum, the last the maximum. `codes` are `uint8` and say, for each number, the nearest level, so that
# `codes * scale + zero` is within half a step of `x`. A slice of equal numbers comes back exactly; its scale is up to
# you, and no code may be made of nan. `n_bits` outside 2 to 8 raises `ValueError`. `x` stays as it is.


# %%
def quantize(x, n_bits, axis):
    """(codes uint8, scale, zero) with x ~ codes * scale + zero; one scale and zero for all numbers along axis."""
    ### BEGIN SOLUTION
    if n_bits not in range(2, 9):
        raise ValueError(f"n_bits: expected 2 to 8, got {n_bits}")
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    steps = (x - zero) / np.where(scale > 0, scale, 1)
    codes = np.clip(np.rint(steps), 0, 2**n_bits - 1).astype(np.uint8)
    return codes, scale, zero
    ### END SOLUTION


# %%
check(quantize)

# %% [markdown]
# ## 2. dequantize
#
# {card dequantize}
#
# The way back. Nothing is known but the three arrays: what shares a scale is in their shapes. The dtype is that of
# `scale`.


# %%
def dequantize(codes, scale, zero):
    """The numbers that the codes stand for."""
    ### BEGIN SOLUTION
    return codes * scale + zero
    ### END SOLUTION


# %%
check(dequantize)

# %% [markdown]
# ## 3. QuantizedCache
#
# {card QuantizedCache}
#
# New rows are held exactly until `residual` of them have gathered; then that group of `residual` rows is quantized
# together, at once, keys per channel and values per token. Each KV head has scales of its own. A group never changes
# again, a chunk of any length may complete several, and rows behind the last full group are exact.
#
# `append(k_new, v_new)` returns all rows as attention would see them, oldest first: groups read back, then the exact
# rows. A group that this append completed is returned quantized already, so what comes back depends on the rows and not
# on the chunks. `n_new` may be 0. `len(cache)` is the number of tokens.
#
# `n_bytes` (a property) counts every code at `n_bits`, as if packed, though you may hold one to a byte; every scale and
# every zero at its own bytes; and the exact rows at theirs. The dtype follows the first append, in scales and zeros
# too. The cache keeps its own copies, and what it returned earlier does not change later. `n_bits` outside 2 to 8
# raises `ValueError`, when the cache is made or at the latest when its first group is quantized.


# %%
class QuantizedCache:
    """All rows but the newest in n_bits: keys per channel, values per token, in groups of `residual` rows."""

    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        ### BEGIN SOLUTION
        if n_bits not in range(2, 9):
            raise ValueError(f"n_bits: expected 2 to 8, got {n_bits}")
        self.shape, self.n_bits, self.residual = (n_kv_heads, 0, head_dim), n_bits, residual
        self.groups, self.exact = [], None
        ### END SOLUTION

    def append(self, k_new, v_new):
        """Store k_new and v_new, each (n_kv_heads, n_new, head_dim); return all (k, v) as attention sees them."""
        ### BEGIN SOLUTION
        if self.exact is None:
            self.exact = [np.zeros(self.shape, k_new.dtype)] * 2
        rows = zip(self.exact, (k_new, v_new), strict=True)
        self.exact = [np.concatenate([old, new.astype(old.dtype)], axis=1) for old, new in rows]
        while self.exact[0].shape[1] >= self.residual:
            k, v = (rows[:, : self.residual] for rows in self.exact)
            self.groups.append((quantize(k, self.n_bits, axis=1), quantize(v, self.n_bits, axis=2)))
            self.exact = [rows[:, self.residual :] for rows in self.exact]
        return tuple(
            np.concatenate([*(dequantize(*group[i]) for group in self.groups), self.exact[i]], axis=1) for i in (0, 1)
        )
        ### END SOLUTION

    def __len__(self):
        """The number of tokens stored."""
        ### BEGIN SOLUTION
        return len(self.groups) * self.residual + (0 if self.exact is None else self.exact[0].shape[1])
        ### END SOLUTION

    @property
    def n_bytes(self):
        """Codes at n_bits each, every scale and zero, and the exact rows."""
        ### BEGIN SOLUTION
        parts = [part for group in self.groups for part in group]
        codes = sum(codes.size for codes, _, _ in parts) * self.n_bits // 8
        shared = sum(scale.nbytes + zero.nbytes for _, scale, zero in parts)
        return codes + shared + sum(rows.nbytes for rows in self.exact or [])
        ### END SOLUTION


# %%
check(QuantizedCache)

# %% [markdown]
# ## Try it
#
# Your own functions at work: one row of keys with a large channel, at 4 bits.

# %%
try:
    row = np.array([[0.3, -0.2, 12.0, 0.1]])
    print("one scale for the row:", dequantize(*quantize(row, 4, 1)).round(2))
    print("a scale each:         ", dequantize(*quantize(row, 4, 0)).round(2))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("quantize")

# %% tags=["exercise-only"]
progress()
