# %% [markdown]
# # 05 Exercises: the size of a cache
#
# From six numbers, then from a model's config.json, then the two questions that everybody asks of the result.
#
# Lesson: [05 Cache size](../notebooks/05_cache_size.ipynb).

# %%
from kvlab.checks import check, hint, progress
from kvlab.sizes import load_config

# %% [markdown]
# ## 1. cache_bytes
#
# {card cache_bytes}
#
# Keys and values of all attention layers and sequences. At 4 bits an element takes half a byte.


# %%
def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    """Bytes of a cache of batch sequences of seq_len tokens each."""
    ### BEGIN SOLUTION
    return 2 * batch * seq_len * n_layers * n_kv_heads * head_dim * bytes_per_element
    ### END SOLUTION


# %%
check(cache_bytes)

# %% [markdown]
# ## 2. bytes_per_token
#
# {card bytes_per_token}
#
# `config` is that of a plain decoder: `num_hidden_layers`, `hidden_size`, `num_attention_heads`, and perhaps
# `num_key_value_heads` and `head_dim`. Either of the last two may be absent or `None`. The cache is 16-bit whatever the
# weights are. The dict stays as it is.


# %%
def bytes_per_token(config):
    """Bytes that one token takes in a 16-bit cache of the model that config describes, an int."""
    ### BEGIN SOLUTION
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
    return 2 * config["num_hidden_layers"] * n_kv_heads * head_dim * 2
    ### END SOLUTION


# %%
check(bytes_per_token)

# %% [markdown]
# ## 3. crossover_tokens
#
# {card crossover_tokens}
#
# `batch` sequences of equal length. From which length on is the whole cache *larger* than the weights?


# %%
def crossover_tokens(weight_bytes, per_token, batch):
    """The smallest context per sequence at which the cache is larger than the weights, an int."""
    ### BEGIN SOLUTION
    return weight_bytes // (per_token * batch) + 1
    ### END SOLUTION


# %%
check(crossover_tokens)

# %% [markdown]
# ## 4. max_sequences
#
# {card max_sequences}
#
# Sequences of `seq_len` tokens each, beside one copy of the weights.


# %%
def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    """Whole sequences that fit into the memory beside the weights, an int, never below 0."""
    ### BEGIN SOLUTION
    return max(0, (memory_bytes - weight_bytes) // (per_token * seq_len))
    ### END SOLUTION


# %%
check(max_sequences)

# %% [markdown]
# ## Try it
#
# Llama 3.1 8B, from its config.json.

# %%
try:
    print(f"{bytes_per_token(load_config('llama-3.1-8b')):,} bytes a token")
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("bytes_per_token")

# %% tags=["exercise-only"]
progress()
