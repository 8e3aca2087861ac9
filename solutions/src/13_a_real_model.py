# %% [markdown]
# # 13 Exercise: decode a real model on your caches
#
# One loop, the last piece between your cache and a language model of 135 million parameters.
#
# Lesson: [13 A real model](../notebooks/13_a_real_model.ipynb).

# %%
import numpy as np

from kvlab.caches import ConcatCache
from kvlab.checks import check, hint, progress
from kvlab.llama import load, load_tokenizer

# %% [markdown]
# ## 1. decode
#
# {card decode}
#
# `model(ids, caches)` takes the ids of the new tokens as an array of shape `(n,)`, appends their keys and values to the
# caches, one a layer, and returns logits of shape `(n, vocab)`, a row for each id that was fed in. Nothing else comes
# back: the caches that you hand over *are* the memory.
#
# Greedy: the next token is the one with the largest logit. Exactly `n_new` calls, the prompt in the first one; none
# when `n_new` is 0. The last token is never fed in. Caches that hold tokens already are continued: `ids` come after
# them. No token ends the text early, and `ids` (an array of shape `(n_prompt,)`) stay as they are. Return an array or a
# list of ints.


# %%
def decode(model, caches, ids, n_new):
    """The n_new ids that follow ids (n_prompt,), by greedy decoding on caches, one a layer."""
    ### BEGIN SOLUTION
    new, fed = [], ids
    for _ in range(n_new):
        token = int(model(fed, caches)[-1].argmax())
        new.append(token)
        fed = np.array([token])
    return np.array(new, dtype=int)
    ### END SOLUTION


# %%
check(decode)

# %% [markdown]
# ## Try it
#
# SmolLM2-135M-Instruct on 30 caches. `ConcatCache` is the course's; paste your `KVCache` of exercise 02 in its place.
# The cell needs the model's weights (`make model` in a terminal, once).

# %% tags=["needs-model"]
KVCache = ConcatCache  # or your own

try:
    model, tokenizer = load(), load_tokenizer()
    c = model.config
    caches = [KVCache(c.n_kv_heads, c.head_dim) for _ in range(c.n_layers)]
    ids = tokenizer.chat([{"role": "user", "content": "What is a key-value cache? Answer in one sentence."}])
    print(tokenizer.decode(decode(model, caches, ids, n_new=40)))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("decode")

# %% tags=["exercise-only"]
progress()
