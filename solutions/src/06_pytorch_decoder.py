# %% [markdown]
# # 06 Exercises: the cache in PyTorch
#
# A pair that grows, a layer that uses it, a buffer that is allocated once, a whole model with a cache, and the loop.
# Tensors are `(batch, heads, tokens, head_dim)`.
#
# Lesson: [06 The cache in PyTorch](../notebooks/06_pytorch_decoder.ipynb).

# %%
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from kvlab.checks import check, hint, progress
from kvlab.decoder import TinyDecoder
from kvlab.torch_attention import merge_heads, offset_mask, split_heads
from kvlab.torch_decoder import TorchDecoder

# %% [markdown]
# `split_heads(x, n_heads)` turns `(batch, n, n_heads * head_dim)` into `(batch, n_heads, n, head_dim)` and
# `merge_heads(x)` turns it back; `offset_mask(n_new, n_total)` is lesson 03's mask as a tensor. Use them or your own.
#
# ## 1. update_cache
#
# {card update_cache}
#
# The old pair and the new rows stay as they were. An empty chunk adds nothing. The dtype stays.


# %%
def update_cache(past, k, v):
    """The pair (k, v) of past and new tokens; past is None or a pair, k and v are the new rows."""
    ### BEGIN SOLUTION
    if past is None:
        return k, v
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    ### END SOLUTION


# %%
check(update_cache)

# %% [markdown]
# ## 2. CachedAttention
#
# {card CachedAttention}
#
# A module with the `nn.Linear` matrices `wq`, `wk`, `wv` and `wo`, without bias. A head owns a run of `head_dim`
# neighbouring channels, and neighbouring query heads share a KV head. Attention is offset-causal, with scale
# `1/sqrt(head_dim)`. The cache is a pair or None; it holds KV heads, not repeated, and the one handed in stays as it
# was.


# %%
class CachedAttention(nn.Module):
    """An attention layer that takes and returns a cache."""

    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        ### BEGIN SOLUTION
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)
        ### END SOLUTION

    def forward(self, x, cache=None):
        """x (batch, n_new, d_model) and a pair or None -> (out, (k, v))."""
        ### BEGIN SOLUTION
        q = split_heads(self.wq(x), self.n_heads)
        k = split_heads(self.wk(x), self.n_kv_heads)
        v = split_heads(self.wv(x), self.n_kv_heads)
        k, v = update_cache(cache, k, v)
        mask = offset_mask(q.shape[2], k.shape[2])
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.wo(merge_heads(out)), (k, v)
        ### END SOLUTION


# %%
check(CachedAttention)

# %% [markdown]
# ## 3. StaticCache
#
# {card StaticCache}
#
# Two float32 buffers of `max_len` slots, allocated once, and never again by a reset. `update` returns views of the
# filled part, which are valid until the next update or reset; an empty update returns what is stored. What does not
# fit raises `ValueError` and writes nothing. `len` is the number of tokens stored.


# %%
class StaticCache:
    """Keys and values of one layer in buffers that are allocated once."""

    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        ### BEGIN SOLUTION
        self.k = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.v = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.length = 0
        ### END SOLUTION

    def update(self, k, v):
        """Store k and v, each (batch, n_kv_heads, n_new, head_dim); return views of all that is stored."""
        ### BEGIN SOLUTION
        end = self.length + k.shape[2]
        if end > self.k.shape[2]:
            raise ValueError(f"{k.shape[2]} tokens do not fit: {self.length} of {self.k.shape[2]} slots are filled")
        self.k[:, :, self.length : end] = k
        self.v[:, :, self.length : end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]
        ### END SOLUTION

    def reset(self):
        """Forget every token."""
        ### BEGIN SOLUTION
        self.length = 0
        ### END SOLUTION

    def __len__(self):
        """The number of tokens stored."""
        ### BEGIN SOLUTION
        return self.length
        ### END SOLUTION


# %%
check(StaticCache)

# %% [markdown]
# ## 4. add_cache
#
# {card add_cache}
#
# `model` is a `kvlab.torch_decoder.TorchDecoder` with learned positions and no cache. Return a function
# `cached(ids, caches)` that uses its weights: `ids` are the new tokens, `caches` a list with one cache a layer or
# None for a new text; it returns the logits of the new tokens and the caches for the next call. What a cache is, is
# yours to choose. The model itself stays as it was, and nothing is remembered between calls but what `caches` holds.
#
# The parts of the model are open: `model.embed_at(ids, start)` gives the embeddings of tokens that begin at position
# `start`; a layer has `attn_norm`, `attn` (with `wq`, `wk`, `wv`, `wo`, `n_heads`, `n_kv_heads`), `mlp_norm` and `mlp`;
# then come `model.final_norm` and `model.head`. The check counts the tokens that go through each layer's `wk`.


# %%
def add_cache(model):
    """The same model with a cache a layer: cached(ids, caches) -> (logits, caches)."""

    ### BEGIN SOLUTION
    def attend(attn, x, cache):
        q = split_heads(attn.wq(x), attn.n_heads)
        k = split_heads(attn.wk(x), attn.n_kv_heads)
        v = split_heads(attn.wv(x), attn.n_kv_heads)
        k, v = update_cache(cache, k, v)
        mask = offset_mask(q.shape[2], k.shape[2])
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return attn.wo(merge_heads(out)), (k, v)

    def cached(ids, caches=None):
        caches = caches or [None] * len(model.layers)
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        x = model.embed_at(ids, start)
        kept = []
        for layer, cache in zip(model.layers, caches, strict=True):
            out, cache = attend(layer.attn, layer.attn_norm(x), cache)
            x = x + out
            x = x + layer.mlp(layer.mlp_norm(x))
            kept.append(cache)
        return model.head(model.final_norm(x)), kept

    return cached
    ### END SOLUTION


# %%
check(add_cache)

# %% [markdown]
# ## 5. generate
#
# {card generate}
#
# Greedy: the next token is the one with the largest logit. `model(ids, caches)` returns `(logits, caches)`, with logits
# of shape `(batch, n, vocab)`; caches are None at first. Exactly `n_new` calls: the prompt once, then one token each.
# `n_new` may be 0.


# %%
def generate(model, ids, n_new):
    """The prompt ids (batch, n_prompt) and n_new tokens after it: (batch, n_prompt + n_new)."""
    ### BEGIN SOLUTION
    out, fed, caches = ids, ids, None
    for _ in range(n_new):
        logits, caches = model(fed, caches)
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
    return out
    ### END SOLUTION


# %%
check(generate)

# %% [markdown]
# ## Try it
#
# Your cache and your loop on the tiny decoder.

# %%
try:
    model = TorchDecoder.from_numpy(TinyDecoder(positions="learned"))
    with torch.no_grad():
        print(generate(add_cache(model), torch.tensor([[3, 1, 4, 1, 5]]), n_new=6))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("add_cache")

# %% tags=["exercise-only"]
progress()
