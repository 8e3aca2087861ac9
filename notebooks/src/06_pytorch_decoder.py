# %% [markdown]
# # 06 The cache in PyTorch
#
# **The question:** you are given a PyTorch decoder that has no cache. What has to change so that it has one, and what
# does each way of storing the cache cost?
#
# After this lesson you can
#
# - add a cache to an existing model in four changes, and write the loop that generates with it;
# - say what concatenation and a preallocated buffer copy, reserve and break, in bytes;
# - run the same loop on Hugging Face's `DynamicCache` and `StaticCache`, and say which version takes which arguments.
#
# 40 minutes. Needs no GPU.

# %%
import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from kvlab.decoder import TinyDecoder
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.torch_attention import merge_heads, offset_mask, split_heads
from kvlab.torch_decoder import CachedDecoder, TorchDecoder
from kvlab.widgets import MaskDiagram

# %% [markdown]
# ## A decoder without a cache
#
# `TorchDecoder` is the tiny decoder of the earlier lessons as PyTorch modules, with the same weights. It takes ids of
# shape (batch, n), gives logits of shape (batch, n, vocabulary) and remembers nothing. Its parts are open: you will
# call them one by one. It has *learned* positions, a table with a row for each position, so that a wrong position
# changes the answer.
#
# PyTorch arrays have a batch axis: **(batch, heads, tokens, head_dim)**.

# %% tags=["nbval-check-output"]
torch.set_grad_enabled(False)  # inference only; the reason comes later
torch.set_num_threads(1)  # on tensors this small threads only wait for each other
tiny = TinyDecoder(positions="learned", dtype=np.float32)
model = TorchDecoder.from_numpy(tiny)
ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])
logits = model(ids)
gap = max(np.abs(row.numpy() - tiny(one.numpy())).max() for row, one in zip(logits, ids, strict=True))
print("logits:", tuple(logits.shape), " equal to NumPy, one sequence at a time:", bool(gap < 1e-4))
print("parts:", [name for name, _ in model.named_children()])
print("parts of a layer:", [name for name, _ in model.layers[0].named_children()])

# %% [markdown]
# Here is its attention layer, written out. Without a cache the queries and the keys are the same tokens, so
# `is_causal=True` is right. `enable_gqa=True` lets 4 query heads share 2 KV heads.


# %% tags=["nbval-check-output"]
class PlainAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x):
        q = split_heads(self.wq(x), self.n_heads)
        k = split_heads(self.wk(x), self.n_kv_heads)
        v = split_heads(self.wv(x), self.n_kv_heads)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(merge_heads(out))


given = model.layers[0].attn
plain = PlainAttention(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8)
plain.load_state_dict(given.state_dict())
x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
print("the same as the given layer:", bool((plain(x) - given(x)).abs().max() < 1e-5))

# %% [markdown]
# ## The cache as a pair
#
# The simplest cache is the pair (key, value) itself, each of shape (batch, n_kv_heads, seq_len, head_dim). New rows are
# appended by concatenation along the tokens. Count the axes: batch is 0, heads 1, **tokens 2**.


# %% tags=["nbval-check-output"]
def update_cache(past, k, v):
    """Append along axis 2, the tokens. past is None or (k, v), and stays as it was."""
    if past is None:
        return k, v
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)


three, one = torch.zeros(2, 2, 3, 8), torch.zeros(2, 2, 1, 8)
print("3 tokens, then 1:", tuple(update_cache((three, three), one, one)[0].shape))
wrong = torch.cat([three, three], dim=1)
out = scaled_dot_product_attention(torch.zeros(2, 4, 3, 8), wrong, wrong, enable_gqa=True)
print("axis 1, 3 tokens after 3:", tuple(wrong.shape), "and attention takes it:", tuple(out.shape))
try:
    torch.cat([three, one], dim=1)
except RuntimeError as error:
    print("axis 1, 1 token after 3:", str(error).split(".")[0])

# %% [markdown]
# Along the wrong axis, equal chunks make four KV heads of three tokens where two heads of six should be, and the
# attention of 4 query heads takes them. Only a chunk of another length crashes: test with **unequal chunks**.
#
# With the pair, the layer takes a cache and returns one. The mask is now the offset mask of lesson 03.


# %% tags=["nbval-check-output"]
class CachedAttention(PlainAttention):
    def forward(self, x, cache=None):
        q = split_heads(self.wq(x), self.n_heads)
        k = split_heads(self.wk(x), self.n_kv_heads)
        v = split_heads(self.wv(x), self.n_kv_heads)
        k, v = update_cache(cache, k, v)
        mask = offset_mask(q.shape[2], k.shape[2])
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.wo(merge_heads(out)), (k, v)  # 1


layer = CachedAttention(d_model=32, n_heads=4, n_kv_heads=2, head_dim=8)
layer.load_state_dict(given.state_dict())
first, cache = layer(x[:, :2])
rest, (k, v) = layer(x[:, 2:], cache)
print("2 + 4 tokens = 6 at once:", bool((torch.cat([first, rest], dim=1) - given(x)).abs().max() < 1e-5))
print("stored:", tuple(k.shape), "KV heads, not query heads;  the old pair still has", cache[0].shape[2], "tokens")

# %% [markdown]
# ## Why not keep `is_causal=True`?

# %%
guess_1 = predict(
    "One query, 7 cached keys, is_causal=True. What comes out?",
    ["the right output", "an error", "the first value row", "the mean of all value rows"],
)
guess_1

# %% tags=["nbval-check-output"]
q = torch.randn(1, 4, 3, 8, generator=torch.Generator().manual_seed(1))
k, v = torch.randn(2, 1, 4, 7, 8, generator=torch.Generator().manual_seed(2))
one_query = scaled_dot_product_attention(q[:, :, -1:], k, v, is_causal=True)
guess_1.reveal("the first value row" if torch.equal(one_query, v[:, :, :1]) else "something else", "V[0], bit for bit.")

right = scaled_dot_product_attention(q, k, v, attn_mask=offset_mask(3, 7))
causal = scaled_dot_product_attention(q, k, v, is_causal=True)
tril = scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(3, 7, dtype=torch.bool).tril())
print("3 queries, 7 keys: is_causal is tril:", bool((causal - tril).abs().max() < 1e-5))
print("is_causal is right:", bool((causal - right).abs().max() < 1e-5))
no_mask = scaled_dot_product_attention(q[:, :, -1:], k, v)
print("one query with no mask is right:", bool((no_mask - right[:, :, -1:]).abs().max() < 1e-5))

# %%
MaskDiagram(np.tril(np.ones((3, 7), dtype=bool)), expected=offset_mask(3, 7).numpy())

# %% [markdown]
# `is_causal=True` hangs its triangle from the top left, as PyTorch documents: it is `tril` of the rectangle. The first
# of the new queries sees the oldest key alone, with weight 1. Nothing crashes. What is right:
#
# - one query: no mask at all, it may see every key;
# - several queries over a cache: an offset mask (`torch.nn.attention.bias.causal_lower_right(3, 7)` is PyTorch's own);
# - equally many queries and keys: `is_causal=True`.
#
# **What it costs.** The mask has one entry for each score. Kernels that know the triangle skip it; a mask given as an
# array is read. Serving code therefore takes the first or the third case whenever it can.
#
# ## Adding a cache to the model: four changes
#
# This is what the model and its loop look like before:


# %% tags=["nbval-check-output"]
def run(model, ids):
    positions = torch.arange(0, ids.shape[1])
    x = model.embed(ids) + model.positions(positions)
    for layer in model.layers:
        x = x + layer.attn(layer.attn_norm(x))
        x = x + layer.mlp(layer.mlp_norm(x))
    return model.head(model.final_norm(x))


def generate_uncached(model, ids, n_new):
    for _ in range(n_new):
        logits = model(ids)
        ids = torch.cat([ids, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return ids


print("these parts are the model:", torch.equal(run(model, ids), model(ids)))

# %% [markdown]
# And after. The numbers mark the changes:
#
# 1. each layer takes a cache and returns it;
# 2. the model returns a list of them, one a layer;
# 3. positions start at the cache position;
# 4. the loop passes the caches back, and feeds only the new token.
#
# Below it the same as a diff, made by `difflib` from the cells.


# %%
def run_cached(model, attns, ids, caches, start):
    positions = torch.arange(start, start + ids.shape[1])  # 3
    x = model.embed(ids) + model.positions(positions)
    kept = []
    for layer, attn, cache in zip(model.layers, attns, caches, strict=True):
        out, cache = attn(layer.attn_norm(x), cache)  # 1
        x = x + out
        x = x + layer.mlp(layer.mlp_norm(x))
        kept.append(cache)
    return model.head(model.final_norm(x)), kept  # 2


def generate(model, ids, n_new):
    """Greedy, in exactly n_new calls of model(ids, caches) -> (logits, caches)."""
    out, fed, caches = ids, ids, None
    for _ in range(n_new):
        logits, caches = model(fed, caches)  # 4
        fed = logits[:, -1].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, fed], dim=1)
    return out


# %% tags=["nbval-check-output"]
import difflib
import inspect
import textwrap


def diff(before, after):
    old, new = (textwrap.dedent(inspect.getsource(f)).splitlines() for f in (before, after))
    print(*list(difflib.unified_diff(old, new, n=99, lineterm=""))[3:], "", sep="\n")


diff(PlainAttention.forward, CachedAttention.forward)
diff(run, run_cached)
diff(generate_uncached, generate)

# %% [markdown]
# `add_cache` ties it together: the given weights under the new `forward`, and the cache position read off the cache.
# It is not counted anywhere else. A position kept in the layers *and* in the model is two numbers that can disagree.


# %% tags=["nbval-check-output"]
def share(attn):
    """A CachedAttention that uses the very weights of an attention layer."""
    cached = CachedAttention(attn.wq.in_features, attn.n_heads, attn.n_kv_heads, attn.head_dim)
    cached.wq, cached.wk, cached.wv, cached.wo = attn.wq, attn.wk, attn.wv, attn.wo
    return cached


def add_cache(model):
    """cached(ids, caches) -> (logits, caches), with the model's own weights; caches is None at first."""
    attns = [share(layer.attn) for layer in model.layers]

    def cached(ids, caches=None):
        caches = caches or [None] * len(attns)
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        return run_cached(model, attns, ids, caches, start)

    return cached


cached = add_cache(model)
first, caches = cached(ids[:, :4])
rest, caches = cached(ids[:, 4:], caches)
print("cached = uncached:", bool((torch.cat([first, rest], dim=1) - logits).abs().max() < 1e-5))
print("caches:", len(caches), "layers, each a pair of", tuple(caches[0][0].shape))

# %% [markdown]
# A tuple of such pairs is what libraries called **`past_key_values`**: `past_key_values[layer][0]` the keys,
# `past_key_values[layer][1]` the values, handed from call to call with `use_cache=True`. The end of this lesson shows
# what became of it.
#
# ## The loop
#
# Count the model calls and the tokens that each one is fed.


# %% tags=["nbval-check-output"]
class Counting:
    """Wraps cached(ids, caches) and notes how many tokens each call was fed."""

    def __init__(self, step):
        self.step, self.fed, self.caches = step, [], None

    def __call__(self, ids, caches):
        self.fed.append(ids.shape[1])
        logits, self.caches = self.step(ids, caches)
        return logits, self.caches


counted = Counting(cached)
tokens = generate(counted, ids, n_new=8)
print("tokens fed in each call:", counted.fed, " calls:", len(counted.fed))
print("the same tokens as without a cache:", torch.equal(tokens, generate_uncached(model, ids, 8)))
print("in the cache:", counted.caches[0][0].shape[2], "of", tokens.shape[1], "tokens: the last is never fed in")

# %% [markdown]
# Eight new tokens take eight calls: the prompt's call yields the first of them. These loops are wrong, and none of them
# crashes:


# %%
def loop(step, ids, n_new, feed_all=False, row=-1, calls=0):
    """generate, with the usual mistakes to switch on. `calls` counts one call too many (+1) or too few (-1)."""
    out, fed, caches = ids, ids, None
    for _ in range(n_new + calls):
        logits, caches = step(fed, caches)
        token = logits[:, row].argmax(dim=-1, keepdim=True)
        out = torch.cat([out, token], dim=1)
        fed = out if feed_all else token
    return out


attns = [share(layer.attn) for layer in model.layers]


def from_zero(ids, caches):
    return run_cached(model, attns, ids, caches or [None, None], start=0)


mistakes = {
    "right": (cached, {}),
    "whole sequence each step": (cached, {"feed_all": True}),
    "positions from 0": (from_zero, {}),
    "logits of the first position": (cached, {"row": 0}),
    "one call too many": (cached, {"calls": 1}),
    "one call too few": (cached, {"calls": -1}),
}

# %% tags=["nbval-check-output"]
print(f"{'':30}{'calls':>6}{'cached':>8}{'new':>5}{'right':>7}")
for name, (step, options) in mistakes.items():
    counted = Counting(step)
    new = loop(counted, ids, 8, **options)[:, 6:]
    same = (new[:, :8] == tokens[:, 6 : 6 + new.shape[1]]).sum().item()
    print(f"{name:30}{len(counted.fed):6}{counted.caches[0][0].shape[2]:8}{new.shape[1]:5}{same:4}/16")

# %% [markdown]
# The columns: model calls, tokens in the cache, new tokens a sequence, and how many of the 2 x 8 tokens are right. One
# call too many costs a call and a slot; one too few loses a token.
#
# To see the damage without its consequences for later tokens, feed the *right* tokens and compare the logits of each
# step with the uncached model's.


# %%
def teacher_forced(step, feed_all=False, row=-1):
    """Largest logit difference at each of the 8 steps when the right tokens are fed in."""
    expected, caches, gaps = model(tokens), None, []
    for n in range(6, 14):
        fed = tokens[:, :n] if feed_all or n == 6 else tokens[:, n - 1 : n]
        out, caches = step(fed, caches)
        gaps.append((out[:, row] - expected[:, n - 1]).abs().max().item())
    return gaps


fig, ax = subplots()
curves = {name: teacher_forced(step, **options) for name, (step, options) in list(mistakes.items())[:4]}
for (name, gaps), colour in zip(curves.items(), ("right", "wrong", "values", "new"), strict=True):
    ax.plot(range(1, 9), gaps, marker="o", color=COLORS[colour], label=name)
ax.set(xlabel="step (1 is the prompt's)", ylabel="largest logit difference", title="Right tokens in, wrong loop")
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
whole, zero, first_row = list(curves.values())[1:]
alt = (
    "Logit difference to the uncached model at steps 1 to 8. Right loop: 0. Whole sequence each step: 0 at step 1, "
    f"then {min(whole[1:]):.1f} to {max(whole[1:]):.1f}. Positions from 0: 0 at step 1, then {min(zero[1:]):.1f} to "
    f"{max(zero[1:]):.1f}. Logits of the first position: {first_row[0]:.1f} at step 1, then 0."
)
show(fig, alt=alt)

# %% [markdown]
# - Feeding the whole sequence into a cache stores every earlier token again, under new positions.
# - Positions from 0 put every generated token where the first prompt token stands.
# - `logits[:, 0]` is right at every one-token step, where the first position is the last. It is wrong once, at the
#   prompt, and that one wrong token is then fed back.
#
# > **This shipped.** software-mansion/react-native-executorch #819: the whole sequence was fed in at every step
# > although a cache was kept, so that its keys were there many times over.
#
# ## Choosing the token
#
# `argmax` is *greedy*. The other usual way is to draw: divide the logits by a temperature, and keep only the *nucleus*,
# the smallest set of likely tokens whose probabilities reach `top_p` (Holtzman et al. 2020, section 3.1). Whichever way
# it was chosen, the token loops back as the next input.


# %% tags=["nbval-check-output"]
def sample(logits, temperature=1.0, top_p=1.0, generator=None):
    """(batch, vocab) logits -> (batch, 1) ids drawn from the nucleus."""
    probabilities, order = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the more likely tokens already cover
    kept = probabilities.masked_fill(before >= top_p, 0.0)
    return order.gather(-1, torch.multinomial(kept, 1, generator=generator))


last = model(tokens)[:1, -1]
for temperature, top_p in [(1e-3, 1.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0)]:
    likely = (last[0] / temperature).softmax(dim=-1).sort(descending=True).values
    nucleus = int((likely.cumsum(dim=-1) - likely < top_p).sum())
    drawn = sample(last.expand(5000, -1), temperature, top_p, torch.Generator().manual_seed(0))
    inside = torch.isin(drawn, last[0].argsort(descending=True)[:nucleus]).all().item()
    print(f"temperature {temperature:5}, top_p {top_p}: nucleus of {nucleus:2}, 5,000 draws inside: {inside}", end=", ")
    print(f"greedy token {likely[0] / likely[:nucleus].sum():.0%}")

# %% [markdown]
# Greedy decoding and drawing need one cache row a sequence. Several draws from one prompt, and beam search, need the
# rows copied or shared, and reordered: lesson 12.
#
# ## What concatenation costs
#
# `torch.cat` makes a new tensor and copies everything into it, old rows first. To count bytes, look at the address of
# the keys after each step: if it moved, every row was written; if not, only the new one. The other way is a buffer that
# is allocated once:


# %%
class StaticCache:
    """Buffers of max_len slots, allocated once, and how many are filled."""

    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.k = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.v = torch.zeros(batch, n_kv_heads, max_len, head_dim)
        self.length = 0

    def update(self, k, v):
        end, max_len = self.length + k.shape[2], self.k.shape[2]
        if end > max_len:
            raise ValueError(f"cache full: {self.length} of {max_len} slots are filled, {k.shape[2]} more do not fit")
        self.k[:, :, self.length : end] = k
        self.v[:, :, self.length : end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def __len__(self):
        return self.length

    def reset(self):
        self.length = 0


# %%
guess_2 = predict("1,000 tokens one at a time. How many times as many bytes does concatenation write?")
guess_2


# %% tags=["nbval-check-output"]
from kvlab.torch_caches import ConcatCache


def bytes_written(cache, n):
    """Bytes of keys and values written at each of n one-token updates, judged by the address."""
    row = torch.ones(1, 2, 1, 8)
    written, kept = [], row
    for _ in range(n):
        k, _ = cache.update(row, row)
        written.append(2 * (row if k.data_ptr() == kept.data_ptr() else k).nbytes)
        kept = k  # alive until the next step, so that its address cannot be handed out again
    return np.array(written)


concat = bytes_written(ConcatCache(batch=1, n_kv_heads=2, head_dim=8), 1000)
static = bytes_written(StaticCache(batch=1, n_kv_heads=2, max_len=1000, head_dim=8), 1000)
print(f"one layer of the toy: concatenation {concat.sum():,} B, buffer {static.sum():,} B")
guess_2.reveal(f"{concat.sum() / static.sum()}", "(n + 1) / 2 times: the bytes go with n squared against n.")
llama_8b = 131_072  # bytes of cache a token, lesson 05
print(f"Llama 3.1 8B, the same run: {llama_8b * 500_500 / 1e9:.1f} GB against {llama_8b * 1000 / 1e9:.2f} GB")
print(f"alive together in the last step: {concat[-2:].sum():,} B, of which {concat[-1]:,} B are kept")

# %%
fig, ax = subplots()
for name, written, colour in [("concatenation", concat, "wrong"), ("buffer", static, "right")]:
    ax.plot(range(1, 1001), written.cumsum() / 1e6, color=COLORS[colour], label=name)
ax.set(xlabel="tokens generated", ylabel="written so far (MB)", title="One layer of the toy: 128 B a token")
ax.legend()
alt = (
    f"Megabytes written against tokens generated. Concatenation: a parabola, {concat[:500].sum() / 1e6:.1f} MB at 500 "
    f"tokens and {concat.sum() / 1e6:.1f} MB at 1,000. The buffer: a line that ends at {static.sum() / 1e6:.2f} MB."
)
show(fig, alt=alt)

# %%
from time import perf_counter

row = torch.ones(1, 8, 1, 128)
print("on this machine, one layer with 8 KV heads of width 128 (another run gives other times):")
for name, cache in [("concatenation", ConcatCache(1, 8, 128)), ("buffer", StaticCache(1, 8, 256, 128))]:
    start = perf_counter()
    for _ in range(256):
        cache.update(row, row)
    print(f"{name:14} 256 tokens in {1000 * (perf_counter() - start):6.1f} ms")

# %% [markdown]
# For 256 tokens the bytes differ by a factor of 128.5, the time by less: at this size the call itself costs more than
# the copy. The longer the reply, the more of the time is copying.
#
# Copying is not the only harm. For the moment of the copy two caches are alive, almost twice the bytes that are kept.
# And every step asks the allocator for one row more than ever before: the block just given back is always too small
# for the next request. PyTorch's GPU allocator keeps such blocks for reuse and counts them as reserved; requests whose
# size creeps up leave pieces that nothing fits. So a long reply can end in **"out of memory" with memory free**, and
# the error message names it: memory "reserved by PyTorch but unallocated". (PyTorch documentation, *CUDA semantics*,
# memory management and its option `expandable_segments`, <https://docs.pytorch.org/docs/stable/notes/cuda.html>. Said,
# not shown: it takes a GPU.)
#
# > **Often said:** "Preallocate the cache and its memory problems are solved."
# >
# > **What is so:** Preallocation cures the *copies*. It reserves the maximum length for every sequence from the first
# > token on, and what is reserved and not filled is lost to all others. *Paging* (lesson 10) cures that.

# %% tags=["nbval-check-output"]
max_len, used = 4096, 300
reserved, filled = llama_8b * max_len, llama_8b * used
print(f"Llama 3.1 8B, one sequence: {reserved / 2**20:.0f} MiB reserved, {filled / 2**20:.1f} MiB filled")
print(f"reserved and not filled: {1 - filled / reserved:.1%}")

# %% [markdown]
# Kwon et al. 2023 (vLLM, section 1) found that in the serving systems they measured only 20.4 % to 38.2 % of the cache
# memory held token states.
#
# ## Three ways to get a buffer wrong
#
# **The last slot.** Without the length check, Python's slices end quietly at the end of the buffer. PyTorch then copies
# one row into none, and that is allowed: one row broadcasts to zero rows.
#
# **A slice kept for later.** What `update` returns is a view, valid until the next update or reset. Then the slots may
# be written again. If you need the rows longer, `clone()` them. And a reset must reset the *length*: what counts as
# filled is the length, not the content.

# %% tags=["nbval-check-output"]
buffer, token = torch.zeros(1, 2, 4, 8), torch.ones(1, 2, 1, 8)
buffer[:, :, 4:5] = token
print("a fifth token in 4 slots: no error, written:", buffer.count_nonzero().item(), "numbers")
full = StaticCache(batch=1, n_kv_heads=2, max_len=4, head_dim=8)
full.update(*torch.ones(2, 1, 2, 4, 8))
try:
    full.update(token, token)
except ValueError as error:
    print("with the check:", error, "| length still", len(full))

# %% tags=["nbval-check-output"]
cache = StaticCache(batch=1, n_kv_heads=2, max_len=4, head_dim=8)
first_prompt, _ = cache.update(*torch.full((2, 1, 2, 3, 8), 1.0))
print("keys of the first prompt:", first_prompt[0, 0, :, 0].tolist())
cache.reset()
cache.update(*torch.full((2, 1, 2, 2, 8), 7.0))
print("the same tensor, after a reset and a second prompt:", first_prompt[0, 0, :, 0].tolist())

cache.k.zero_(), cache.v.zero_()  # a "reset" that clears the rows and leaves the length
keys, _ = cache.update(*torch.ones(2, 1, 2, 1, 8))
print("after a reset that leaves the length, the first token sees:", keys[0, 0, :, 0].tolist())

# %% [markdown]
# **Slots that nobody wrote.** Attending to the whole buffer gives weight to its zeros, as in lesson 03. Here it happens
# in the decoder: the prompt runs right, then every decode step is handed all slots.


# %%
class WholeBuffer(StaticCache):
    def update(self, k, v):
        filled = super().update(k, v)
        return (self.k, self.v) if k.shape[2] == 1 else filled


decoder = CachedDecoder(model)  # the package's add_cache: it takes any object with update(k, v)


def drift(make, max_len):
    """Largest logit difference at each decode step, the right tokens fed in."""
    caches = [make(2, 2, max_len, 8) for _ in model.layers]
    parts = [decoder(part, caches)[0] for part in tokens.split([6] + [1] * 8, dim=1)]
    return (torch.cat(parts, dim=1) - model(tokens)).abs().amax(dim=(0, 2))[6:]


fig, ax = subplots()
curves = {max_len: drift(WholeBuffer, max_len) for max_len in (256, 32, 14)}
for (max_len, gap), colour in zip(curves.items(), ("wrong", "values", "new"), strict=True):
    ax.plot(range(7, 15), gap, marker="o", color=COLORS[colour], label=f"all {max_len} slots attended")
ax.plot(range(7, 15), drift(StaticCache, 256), marker="o", color=COLORS["right"], label="the filled part of 256")
ax.set(xlabel="slots filled", ylabel="largest logit difference", title="Zeros take weight", ylim=(-0.2, None))
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
ends = "; ".join(f"{n} slots: {gap[0]:.1f} at 7 filled, {gap[-1]:.1f} at 14" for n, gap in curves.items())
show(fig, alt=f"Logit difference to the uncached model against slots filled. {ends}; the filled part alone: 0.")

# %% tags=["nbval-check-output"]
print("filled part of 256 slots = uncached:", bool(drift(StaticCache, 256).max() < 1e-5))
whole, filled = ([make(2, 2, 14, 8) for _ in model.layers] for make in (WholeBuffer, StaticCache))
for part in tokens.split([6] + [1] * 8, dim=1):
    decoder(part, whole), decoder(part, filled)
for i, (a, b) in enumerate(zip(whole, filled, strict=True)):
    wrong = (a.k - b.k).abs().amax(dim=(0, 1, 3)) > 1e-5
    print(f"layer {i}: tokens whose stored keys are wrong:", wrong.nonzero()[:, 0].tolist())

# %% [markdown]
# Each step attends to one zero fewer, and the buffer of 14 slots has none left at the last step. It is still wrong:
# layer 1 stored keys that were computed while the zeros took part. What is stored stays wrong.
#
# > **This shipped.** huggingface/transformers #30414 and meta-pytorch/gpt-fast #233: the unwritten slots of a static
# > cache were not masked.
#
# ## For inference only
#
# Training computes the loss at all positions in *one* pass and then needs the graph, the record of every operation.
# There is nothing to cache: nobody waits for a token. A cache filled with the graph on keeps all earlier steps alive,
# and a buffer that is written in place breaks it.


# %% tags=["nbval-check-output"]
with torch.enable_grad():
    predicted = model(ids)[:, :-1].flatten(0, 1)
    nn.functional.cross_entropy(predicted, ids[:, 1:].flatten()).backward()
    _, caches = cached(ids[:, :1])
    first_keys = caches[0][0]
    for token in ids[:, 1:].split(1, dim=1):
        out, caches = cached(token, caches)
    reached = torch.autograd.grad(out.sum(), first_keys)[0]
print("training: one call,", len(predicted), "predictions, gradient:", model.layers[0].attn.wk.weight.grad is not None)
print("step 6 still holds the graph of step 1:", bool(reached.abs().max() > 0))
print("without gradients the cache is only rows:", cached(ids)[1][0][0].grad_fn is None)

# %% tags=["nbval-check-output"]
static = [StaticCache(2, 2, 8, 8) for _ in model.layers]
with torch.enable_grad():
    steps = [decoder(token, static)[0] for token in ids.split(1, dim=1)]
    try:
        torch.cat(steps, dim=1).sum().backward()
    except RuntimeError as error:
        print("backward refuses, modified in place:", "modified by an inplace operation" in str(error))

# %% [markdown]
# PyTorch noticed that rows which `backward` needs had been overwritten. For generation wrap the loop in
# `torch.no_grad()` or `torch.inference_mode()`.
#
# ## A cache that never grows
#
# In an encoder-decoder the decoder also attends to the *source*: the sentence to translate, the sound to transcribe.
# The queries come from the reply, keys and values from the source, and the source does not change. So the
# cross-attention cache is projected once, before the first step, and no step adds to it; it needs no causal mask
# either, since the whole source is there. Only the self-attention cache beside it grows. (Hugging Face keeps the two in
# one `EncoderDecoderCache`.)

# %% tags=["nbval-check-output"]
source, reply = torch.randn(2, 5, 32), torch.randn(2, 3, 32)
cross = split_heads(layer.wk(source), 2), split_heads(layer.wv(source), 2)  # once
own = None
for step, token in enumerate(reply.split(1, dim=1), start=1):
    _, own = layer(token, own)
    q_step = split_heads(layer.wq(token), 4)
    out = scaled_dot_product_attention(q_step, *cross, enable_gqa=True)
    print(f"step {step}: self-attention keys {tuple(own[0].shape)}, cross-attention keys {tuple(cross[0].shape)}")

# %% [markdown]
# ## The same loop on Hugging Face's caches
#
# `to_llama` puts our weights into `transformers.LlamaForCausalLM`: code that shares no line with ours. Llama has rotary
# positions, so the tiny decoder is made with those.

# %% tags=["nbval-check-output"]
import transformers

from kvlab.torch_decoder import to_llama

rope = TorchDecoder.from_numpy(TinyDecoder(positions="rope", dtype=np.float32))
llama = to_llama(rope)
out = llama(ids, use_cache=True)
print("transformers", transformers.__version__)
print("logits equal to ours:", bool((out.logits - rope(ids)).abs().max() < 1e-5))
print("with use_cache=True it returns a", type(out.cache).__name__, "| with False:", llama(ids, use_cache=False).cache)
past_key_values = tuple((one.keys, one.values) for one in out.cache.layers)
print("as a tuple:", len(past_key_values), "layers of", [tuple(t.shape) for t in past_key_values[0]])

# %% [markdown]
# > **Often said:** "Pass `past_key_values`, a tuple of (key, value) pairs, back to the model with `use_cache=True`."
# >
# > **What is so:** That is how it was. In transformers 5.24.0 the argument is called `cache` and takes a Cache object.
# > A tuple is refused, and the old name warns.

# %% tags=["nbval-check-output"]
import warnings

try:
    llama(ids[:, -1:], cache=past_key_values)
except AttributeError as error:
    print("a tuple:", error)
again = transformers.DynamicCache(past_key_values)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    step = llama(ids[:, -1:], past_key_values=again).logits
print("the old name:", caught[0].message)
print("the same tensors in a DynamicCache:", tuple(step.shape), "| tokens now:", again.get_seq_length())

# %% [markdown]
# What the released sources say, for `LlamaForCausalLM` unless another model is named:
#
# | transformers | what `forward` does |
# |---|---|
# | 4.35.2 | tuples only, concatenated along axis 2 |
# | 4.36.0 | `Cache` objects arrive; a tuple is converted, and a tuple is returned |
# | 4.42.4, 4.43.0 | a tuple is converted, with a warning that this will be removed in 4.43 (pull request #31491) |
# | 4.48.0 | a tuple is refused, with an AttributeError as above |
# | 4.57.6 | some models, such as GPT-2, still convert a tuple, with a warning |
# | 5.0.0 | `from_legacy_cache` and `to_legacy_cache` are gone; `past_key_values` is a `Cache` |
# | 5.23.0 | `past_key_values=`, and no `cache_position` any more |
# | 5.24.0 | `cache=`; `past_key_values=` works with a warning, to be removed in 5.40.0; the output has `.cache` |
#
# The pairs have not changed: a `DynamicCache` is a list of layers with `.keys` and `.values`, each
# (batch, n_kv_heads, seq_len, head_dim), and it concatenates along the same axis. A `StaticCache` holds buffers.
#
# Now our `generate`, unchanged, on both. A Cache object is updated in place, so the loop's `caches` is just handed
# through.


# %% tags=["nbval-check-output"]
def on_hugging_face(cache):
    """model(ids, caches) for our loop, which keeps its cache itself and notes the logits."""
    seen = []

    def step(ids, _):
        seen.append(llama(ids, cache=cache).logits)
        return seen[-1], cache

    return step, seen


hf_caches = {
    "DynamicCache": transformers.DynamicCache(config=llama.config),
    "StaticCache": transformers.StaticCache(config=llama.config, max_cache_len=16),
}
ours = generate(CachedDecoder(rope), ids, 8)
for name, cache in hf_caches.items():
    step, seen = on_hugging_face(cache)
    same = torch.equal(generate(step, ids, 8), ours)
    gap = (torch.cat(seen, dim=1) - rope(ours[:, :-1])).abs().max()
    stored = tuple(cache.layers[0].keys.shape)
    print(f"{name:13} same tokens: {same}, logits equal to 1e-5: {bool(gap < 1e-5)}, keys {stored}, seen", end=" ")
    print(int(cache.get_seq_length()))

# %% [markdown]
# Both saw 13 tokens, as our own loop would. The `DynamicCache` holds 13 rows, the `StaticCache` all 16 slots: it hands
# its whole buffer to attention and the model's mask hides what is not filled. That keeps every shape fixed, which
# compiled code needs. Fill it beyond its end:

# %% tags=["nbval-check-output"]
try:
    llama(ids[:, :4], cache=hf_caches["StaticCache"])
except IndexError as error:
    print("4 more than 13 of 16:", error)
print("its length is now", int(hf_caches["StaticCache"].get_seq_length()), "of 16")

# %% [markdown]
# It raises, and its length has moved all the same. Ours raises *before* it changes anything, so that the caller may
# still use what is there.
#
# ## Recap
#
# - You added a cache to a decoder in four changes: the layer takes and returns it, the model returns a list, positions
#   start at the cache position, the loop passes it back. 8 new tokens took 8 calls, and 13 of 14 tokens were stored.
# - You counted bytes: 1,000 tokens by concatenation wrote 64,064,000 B, the buffer 128,000 B, 500.5 times less. The
#   buffer reserves its maximum, 92.7 % of it unused in the example, and must hand out its filled part only.
# - You ran the loop on `DynamicCache` and `StaticCache`: the same tokens, logits equal to 1e-5 in float32. In
#   transformers 5.24.0 the argument is `cache`, and a tuple raises.
#
# One limit: this lesson shows what is written and what is right, not what is fast. Time is the next lesson's subject.
#
# Practise: [exercise 06](../exercises/06_pytorch_decoder.ipynb). Next: [07 Decode timing](07_decode_timing.ipynb).
