# %% [markdown]
# # 01 Exercises: softmax and causal attention
#
# The two functions that everything later in the course rests on.
#
# Lesson: [01 Attention](../notebooks/01_attention.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. softmax
#
# {card softmax}
#
# Over the last axis, whatever the number of axes. Scores near 1,000 must not overflow. An entry of `-inf` takes
# weight 0; every row has at least one finite entry. The input stays as it is.


# %%
def softmax(x):
    """Weights along the last axis of x (..., n): positive, each row sums to 1."""
    ### BEGIN SOLUTION
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
    ### END SOLUTION


# %%
check(softmax)

# %% [markdown]
# ## 2. causal_attention
#
# {card causal_attention}
#
# In every head, the query of token `i` looks at the keys of tokens `0` to `i`, itself included. Use your `softmax`.


# %%
def causal_attention(q, k, v):
    """Causal attention, head by head; q, k and v are (n_heads, n_tokens, head_dim), and so is the result."""
    ### BEGIN SOLUTION
    n_tokens, head_dim = q.shape[1:]
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(head_dim)
    ahead = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)
    return softmax(np.where(ahead, -np.inf, scores)) @ v
    ### END SOLUTION


# %%
check(causal_attention)

# %% [markdown]
# ## Try it
#
# The first row of a head is the value of its first token: there is nothing else to look at.

# %%
try:
    x = np.arange(12.0).reshape(1, 3, 4)
    print(causal_attention(x, x, x).round(3))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("causal_attention")

# %% tags=["exercise-only"]
progress()
