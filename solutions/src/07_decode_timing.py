# %% [markdown]
# # 07 Exercises: timing a decode step
#
# What a step cannot be faster than, how to time one without fooling yourself, and attention that reads its keys in
# blocks.
#
# Lesson: [07 Decode timing](../notebooks/07_decode_timing.ipynb).

# %%
import statistics

import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. decode_floor_ms
#
# {card decode_floor_ms}
#
# The least time that one decode step can take when all weights and the whole cache must be read once.


# %%
def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    """Milliseconds that reading the weights and the cache once takes at this bandwidth."""
    ### BEGIN SOLUTION
    return 1000 * (weight_bytes + kv_bytes) / bandwidth_bytes_per_s
    ### END SOLUTION


# %%
check(decode_floor_ms)

# %% [markdown]
# ## 2. time_decode
#
# {card time_decode}
#
# `step()` queues one decode step and may return before it is done; `synchronize()` returns when the device has
# finished; `clock()` answers in seconds. Run `n_warmup` steps that do not count, then `n_steps` that do, each timed by
# itself. The device must be synchronized before *every* reading of the clock. Return the median in milliseconds: the
# mean of the middle two for an even number of steps.
#
# The check runs your function on a simulated device, whose clock moves only when work is queued or waited for.


# %%
def time_decode(step, n_warmup, n_steps, synchronize, clock):
    """Median milliseconds of a decode step."""
    ### BEGIN SOLUTION
    for _ in range(n_warmup):
        step()
    times_s = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        times_s.append(clock() - start)
    return 1000 * statistics.median(times_s)
    ### END SOLUTION


# %%
check(time_decode)

# %% [markdown]
# ## 3. streamed_attention
#
# {card streamed_attention}
#
# One query over keys and values that are read `block` rows at a time, scale `1/sqrt(head_dim)`. Keep a running maximum
# and a running sum (online softmax), so that the whole row of scores is never held. Accumulate in float32, whatever the
# dtype of k and v. The last block may be shorter, and `block` may be larger than the number of keys.


# %%
def streamed_attention(q, k, v, block):
    """Attention of one query q (head_dim,) over k and v (n_total, head_dim), `block` rows at a time."""
    ### BEGIN SOLUTION
    q = q.astype(np.float32) / np.sqrt(np.float32(len(q)))
    top, total, out = np.float32(-np.inf), np.float32(0), np.zeros(v.shape[1], np.float32)
    for start in range(0, len(k), block):
        scores = k[start : start + block].astype(np.float32) @ q
        new_top = max(top, scores.max())
        factor, weights = np.exp(top - new_top), np.exp(scores - new_top)
        total = total * factor + weights.sum()
        out = out * factor + weights @ v[start : start + block].astype(np.float32)
        top = new_top
    return out / total
    ### END SOLUTION


# %%
check(streamed_attention)

# %% [markdown]
# ## Try it
#
# The H100 of lesson 07 with Llama 3.1 8B in 16 bits and 4,096 tokens of context.

# %%
try:
    print(f"{decode_floor_ms(16.06e9, 0.54e9, 3.35e12):.2f} ms")
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("time_decode")

# %% tags=["exercise-only"]
progress()
