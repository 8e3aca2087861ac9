# %% [markdown]
# # 08 Windows and attention sinks
#
# **The question:** how can a cache stop growing, and what must it never throw away?
#
# After this lesson you can
#
# - write a sliding-window mask and a ring cache that evicts at the right moment, and say which of its two counters is
#   the position;
# - price a model whose layers alternate between a window and full attention;
# - say what attention sinks are, keep them, and say what positions mean under RoPE, learned positions and ALiBi once
#   rows are missing.
#
# About 40 minutes. Needs no GPU. The section "On a real model" near the end needs `make model`.

# %%
from pathlib import Path

import numpy as np

from kvlab.attention import attention, attention_weights, offset_mask, softmax
from kvlab.caches import ConcatCache, attendable
from kvlab.decoder import TinyDecoder
from kvlab.masks import visible
from kvlab.positions import alibi_slopes, rotate
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import MaskDiagram

# %% [markdown]
# ## A lower bound
#
# A causal mask has an upper bound: query i of the new ones stands at past + i and sees no key after that. A *sliding
# window* of W adds a lower bound, **j > past + i - W**. Both together leave W keys at most, however long the text.

# %%
guess_1 = predict("The window is 4. How many keys does the query at position 9 see?", ["3", "4", "5", "10"])
guess_1


# %%
def window_mask(n_new, n_total, window):
    """(n_new, n_total), True where the query may look: itself and the window - 1 tokens before it."""
    at = np.arange(n_total)
    query = at[n_total - n_new :, None]
    return (at <= query) & (at > query - window)


MaskDiagram(window_mask, n_new=3, n_total=10, window=4)

# %% tags=["nbval-check-output"]
guess_1.reveal(window_mask(1, 10, 4).sum(), "Itself and three before it: keys 6 to 9.")
print("keys seen in a prompt of 7:", window_mask(7, 7, 4).sum(axis=1))
print("a window as long as the text is the causal mask:", (window_mask(3, 7, 7) == offset_mask(3, 7)).all())

# %% [markdown]
# ## Does the window count the query itself?
#
# In this course it does, as it does in the configurations of gpt-oss and in the masks of Hugging Face. FlashAttention's
# `window_size=(left, right)` counts the keys *besides* the query, so a window of W is `(W - 1, 0)` there. Nothing
# crashes when one is taken for the other. The picture lays a mask with one key too many beside the right one.
#
# > **This shipped.** ml-explore/mlx-lm #390: the mask of the prompt let each query see window + 1 keys, while the cache
# > that served decoding kept `window` of them. karpathy/nanochat #456, a pull request against another fault,
# > slices to window + 1 rows: whether that is right depends on whose window it is.


# %%
def one_key_too_many(n_new, n_total, window):
    return window_mask(n_new, n_total, window + 1)


MaskDiagram(one_key_too_many, n_new=3, n_total=10, window=4, expected=window_mask)

# %% tags=["nbval-check-output"]
model, ids = TinyDecoder(), np.random.default_rng(0).integers(0, 64, 24)
exact = model(ids, mask=window_mask(24, 24, 4))


def changed(logits):
    return np.flatnonzero(np.abs(logits - exact).max(axis=1) > 1e-9)


print("window + 1 keys: logits change from token", changed(model(ids, mask=one_key_too_many(24, 24, 4)))[0], "on")
print("a test on texts of 4 tokens sees no difference:", (window_mask(4, 4, 4) == one_key_too_many(4, 4, 4)).all())

# %% [markdown]
# ## A ring of rows
#
# A key that no later query may see need not be kept. A **ring cache** has `window` slots, and token p lies in slot
# `p % window`: the newest row takes the place of the oldest. Two counters are needed, and they are not the same number:
# the tokens seen, which is the position of the next token, and the rows held, which stops at `window`.
#
# What does `append` return? The rows that the *new* queries may need: up to `window - 1` before the chunk, then the
# chunk, oldest first, with their positions. Only after that it writes, and so evicts.


# %%
class RingCache:
    """The last `window` rows of one layer, in as many slots; token p lies in slot p % window."""

    def __init__(self, n_kv_heads, head_dim, window):
        self.shape, self.window, self.n_seen = (n_kv_heads, window, head_dim), window, 0
        self.k = self.v = None

    def append(self, k_new, v_new):
        """Store the new rows; return (k, v, positions) of those that the new queries may need."""
        if self.k is None:
            self.k, self.v = np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)
        n_past, self.n_seen = self.n_seen, self.n_seen + k_new.shape[1]
        first = max(n_past - self.window + 1, 0)
        old = np.arange(first, n_past) % self.window
        k = np.concatenate([self.k[:, old], k_new], axis=1)
        v = np.concatenate([self.v[:, old], v_new], axis=1)
        stay = np.arange(max(n_past, self.n_seen - self.window), self.n_seen)  # a long chunk's end
        self.k[:, stay % self.window] = k_new[:, stay - n_past]
        self.v[:, stay % self.window] = v_new[:, stay - n_past]
        return k, v, np.arange(first, self.n_seen)

    def __len__(self):
        return self.n_seen


# %% [markdown]
# `kvlab.caches.attendable` appends to a cache and turns positions into the mask: key <= query, and query - key <
# window. The package's decoder calls it, so your ring can serve it as it is. The check is the one of lesson 03: any
# cutting into chunks must equal one full pass, here a full pass under the window mask.

# %% tags=["nbval-check-output"]
for sizes in ([24], [5, 1, 1, 9, 0, 8], [1] * 24):
    caches = model.make_caches(lambda: RingCache(n_kv_heads=2, head_dim=8, window=4))
    parts = [model(part, caches) for part in np.split(ids, np.cumsum(sizes)[:-1])]
    print(f"{len(sizes):2} calls equal the full pass:", np.abs(np.concatenate(parts) - exact).max() < 1e-12)
print("tokens seen:", len(caches[0]), " slots:", caches[0].k.shape[1])

# %% [markdown]
# ## Slots are not in the order of time
#
# Here the key of token t is the number t, so that the slots show who lies in them after each token.

# %%
ring, slots = RingCache(1, 1, window=4), np.full((4, 7), -1)
for t in range(7):
    ring.append(np.full((1, 1, 1), float(t)), np.zeros((1, 1, 1)))
    slots[: t + 1, t] = ring.k[0, : t + 1, 0]

fig, ax = subplots(figsize=(5, 2.2))
ax.imshow(np.where(slots < 0, np.nan, slots), cmap="Blues", vmin=-4, vmax=12, aspect="auto")
for slot, t in np.ndindex(4, 7):
    if slots[slot, t] >= 0:
        new = slots[slot, t] == t
        ax.text(t, slot, slots[slot, t], ha="center", va="center", weight="bold" if new else "normal")
ax.set(xlabel="after token", ylabel="slot", xticks=range(7), yticks=range(4))
ax.grid(False)
alt = (
    "Grid of 4 slots over 7 steps, the newest token in bold. Slots fill with 0, 1, 2, 3; token 4 then takes slot 0, "
    f"token 5 slot 1, and so on. After token 6 the slots hold {slots[:, 6].tolist()}, which is not the order of time."
)
show(fig, alt=alt)

# %% [markdown]
# Attention is a sum over rows, so their order does not matter, as long as the mask goes by each row's *position*. A
# mask that takes the columns for a run of time is right for one new token over a full ring, where nothing is hidden,
# and wrong for a chunk.

# %% tags=["nbval-check-output"]
rng = np.random.default_rng(1)
q, k, v = rng.standard_normal((3, 2, 11, 8))
right = attention(q, k, v, window_mask(11, 11, 4))
for n_new in (1, 2):
    old = np.array([8, 6, 7] if n_new == 2 else [8, 9, 7])  # positions 6 to 8 or 7 to 9, by their slots
    at = np.concatenate([old, np.arange(11 - n_new, 11)])
    by_position, by_column = visible(at[-n_new:], at, window=4), window_mask(n_new, len(at), 4)
    outputs = [attention(q[:, -n_new:], k[:, at], v[:, at], mask) for mask in (by_position, by_column)]
    equal = [np.abs(out - right[:, -n_new:]).max() < 1e-12 for out in outputs]
    print(f"{n_new} new, rows {at}: mask by position {equal[0]}, mask by column {equal[1]}")

# %% [markdown]
# > **This shipped.** Lightning-AI/litgpt #2182: keys went into a ring by position modulo its size, while the mask was
# > the causal one, cut to length. In a prompt longer than the window, early tokens attended to rows of later ones.
#
# `append` above hands rows out in the order of time, which costs a copy of at most `window - 1` rows a call. A kernel
# can read the slots in place instead, if its mask goes by position.
#
# ## Evict after the chunk, not before
#
# The last query of a chunk needs `window` keys. The *first* query needs the `window - 1` before it, and the last one
# does not see all of those. So a chunk of n tokens needs `window - 1 + n` rows, more than the ring has slots. A cache
# that takes the chunk in first and then hands out what it holds has lost them.


# %%
class EvictsFirst(RingCache):
    """Wrong: stores the chunk, then hands out what the ring still holds."""

    def append(self, k_new, v_new):
        super().append(k_new, v_new)
        held = np.arange(max(self.n_seen - self.window, 0), self.n_seen)
        return self.k[:, held % self.window], self.v[:, held % self.window], held


def evicts_first(n_new, n_total, window):
    return window_mask(n_new, n_total, window) & (np.arange(n_total) >= n_total - window)


MaskDiagram(evicts_first, n_new=3, n_total=10, window=4, expected=window_mask)


# %% tags=["nbval-check-output"]
def wrong_queries(make, sizes):
    """Which of 11 tokens get another output than in the full pass."""
    cache, cuts = make(2, 8, window=4), np.cumsum(sizes)[:-1]
    parts = zip(*(np.split(x, cuts, axis=1) for x in (q, k, v)), strict=True)
    try:
        out = np.concatenate([attention(a, *attendable(cache, b, c)) for a, b, c in parts], axis=1)
    except ValueError as error:
        return str(error)
    return np.flatnonzero(np.abs(out - right).max(axis=(0, 2)) > 1e-12).tolist()


for sizes in ([1] * 11, [4, 4, 3], [3, 8]):
    print(
        f"{sizes}\n    evicts first: {wrong_queries(EvictsFirst, sizes)}\n    ring: {wrong_queries(RingCache, sizes)}"
    )

# %% [markdown]
# Token by token both are right: for a single query, before and after are the same rows. With chunks, all but the last
# query of each chunk after the first lose keys, and a chunk longer than the window leaves its first queries nothing.
#
# ## The short cut that forgets the window
#
# For one new token a causal mask blocks nothing, so fast paths leave it out. With a window over a cache that keeps
# everything, the lower bound still blocks.
#
# > **This shipped.** karpathy/nanochat #452: a branch for `Tq == 1` called attention with no mask, and the window was
# > forgotten in exactly the path that generates.


# %%
def short_cut(n_new, n_total, window):
    return np.ones((1, n_total), dtype=bool) if n_new == 1 else window_mask(n_new, n_total, window)


MaskDiagram(short_cut, n_new=1, n_total=10, window=4, expected=window_mask)

# %% tags=["nbval-check-output"]
for name, mask in (("mask at every step", window_mask), ("short cut for one token", short_cut)):
    caches = model.make_caches()
    logits = [model(ids[:3], caches, mask=mask(3, 3, 4))]
    logits += [model(ids[t : t + 1], caches, mask=mask(1, t + 1, 4)) for t in range(3, 24)]
    print(f"{name}: wrong tokens {changed(np.concatenate(logits)).tolist()}")

# %% [markdown]
# Right until the window is full, wrong at every token from then on, so a short test passes. A ring cannot forget the
# window in this way: the rows are gone.
#
# ## Memory, flat and not flat
#
# Now a decoder of four layers that alternate, window 16, full, window 16, full, with a prompt of 8 tokens and 56 decode
# steps. The trace counts the rows that attention reads.

# %%
guess_2 = predict("After 64 tokens, what share of the rows that four full layers would hold do these layers hold?")
guess_2

# %%
tall = TinyDecoder(n_layers=4, seed=1)
caches = [RingCache(2, 8, 16) if i % 2 == 0 else ConcatCache(2, 8) for i in range(4)]
trace, text = tall.make_trace(), np.random.default_rng(2).integers(0, 64, 64)
logits = [tall(part, caches, trace=trace) for part in np.split(text, range(8, 64))]
read = np.array([[layer.read for layer in step.layers] for step in trace.steps])
seen = np.array([step.n_past + step.n_new for step in trace.steps])

fig, ax = subplots(figsize=(5.8, 2.9))
ax.plot(seen, read[:, 1], color=COLORS["uncached"], label="a full layer")
ax.plot(seen, read[:, 0], color=COLORS["cached"], label="a layer with window 16")
ax.set(xlabel="tokens seen", ylabel="rows of keys read in the step", title="Half of the layers stop growing")
ax.legend()
alt = (
    f"Rows read per step against tokens seen, from the trace. A full layer grows in a straight line to {read[-1, 1]}. "
    f"A layer with window 16 grows with it to 16 and stays at {read[-1, 0]}."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
held = [cache.k.shape[1] if isinstance(cache, RingCache) else len(cache) for cache in caches]
guess_2.reveal(f"{sum(held)} of {4 * 64} rows, {sum(held) / 256:.1%}", f"By layer: {held}.")
print("positions, by layer:", [len(cache) for cache in caches])
other = [RingCache(2, 8, 16) if i % 2 == 0 else ConcatCache(2, 8) for i in range(4)]
chunked = np.concatenate([tall(part, other) for part in np.split(text, [30, 31, 50])])
print("uneven chunks give the same:", np.abs(chunked - np.concatenate(logits)).max() < 1e-12)

# %% [markdown]
# **What it costs.** A window is not an exact form of full attention; it is another model, and the model must be trained
# with it. What it can still reach: a token's row was itself made from a window of rows, so layers pass information on,
# `window - 1` tokens a layer. Change token 0 and look how far the change gets:

# %% tags=["nbval-check-output"]
for n_layers in (1, 2, 3):
    stack, other = TinyDecoder(n_layers=n_layers), ids.copy()
    other[0] = (ids[0] + 1) % 64
    difference = np.abs(stack(ids, mask=window_mask(24, 24, 4)) - stack(other, mask=window_mask(24, 24, 4)))
    print(
        f"{n_layers} layers of window 4: token 0 reaches position", np.flatnonzero(difference.max(axis=1) > 1e-12)[-1]
    )

# %% [markdown]
# ## gpt-oss-120b, priced
#
# 36 layers, every other one with a window of 128, the rest full; 64 query heads, 8 KV heads, head_dim 64. The numbers
# are those of its public `config.json` (openai/gpt-oss-120b). Layers without a window keep what the others forget.

# %% tags=["nbval-check-output"]
from kvlab.sizes import price

gpt_oss = {
    **{"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64},
    **{"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "max_position_embeddings": 131072},
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
all_full = gpt_oss | {"layer_types": ["full_attention"] * 36}
for tokens in (128, 1024, 8192, 131072):
    ours, full = (price(c, tokens=tokens, k_dtype="bf16", v_dtype="bf16").kv_bytes for c in (gpt_oss, all_full))
    print(f"{tokens:7,} tokens: {ours / 2**20:8,.1f} MiB, if all were full {full / 2**20:8,.1f} MiB, {ours / full:.1%}")
print("bytes at 131,072 tokens:", f"{ours:,}")

# %%
tokens = np.arange(0, 1025, 16)
half = gpt_oss | {"layer_types": ["sliding_attention"] * 36}
sliding, full = (np.array([price(c, tokens=int(t)).kv_bytes / 2**21 for t in tokens]) for c in (half, all_full))

fig, ax = subplots(figsize=(5.8, 2.9))
ax.plot(tokens, 2 * full, color=COLORS["quiet"], label="if all 36 were full")
ax.plot(tokens, full, color=COLORS["uncached"], label="the 18 full layers")
ax.plot(tokens, sliding, color=COLORS["cached"], label="the 18 layers with window 128")
ax.set(xlabel="tokens", ylabel="cache of one sequence (MiB)", title="gpt-oss-120b, 16-bit cache")
ax.legend()
alt = (
    f"Cache of gpt-oss-120b by tokens. The 18 window layers rise to {sliding[-1]:.1f} MiB at 128 tokens and stay. "
    f"The 18 full layers rise in a straight line to {full[-1]:.0f} MiB at 1,024 tokens, and 36 full ones "
    f"would to {2 * full[-1]:.0f} MiB."
)
show(fig, alt=alt)

# %% [markdown]
# The saving tends to one half and no further: the full layers decide at long contexts.
#
# ## What a window must not throw away
#
# So far the model was made for its window. People also put a window around a model that was trained with *full*
# attention, to let it run on for ever. That breaks it: such models learn to put much of their attention on the very
# first tokens, whatever these say, because softmax must spend its weight somewhere. Xiao et al. 2023 (StreamingLLM)
# call them **attention sinks**. The cure is to keep the first few tokens besides the window.


# %%
class SinkCache:
    """A ring, and the first n_sinks tokens besides; those that have left the window come back in front."""

    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.ring, self.n_sinks, self.window = RingCache(n_kv_heads, head_dim, window), n_sinks, window
        self.k = self.v = None

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = k_new[:, :0], v_new[:, :0]
        k, v, near = self.ring.append(k_new, v_new)
        n_away = min(self.k.shape[1], len(self.ring) - len(near))  # sinks before the ring's first row
        k = np.concatenate([self.k[:, :n_away], k], axis=1)
        v = np.concatenate([self.v[:, :n_away], v], axis=1)
        missing = self.n_sinks - self.k.shape[1]
        self.k = np.concatenate([self.k, k_new[:, :missing]], axis=1)
        self.v = np.concatenate([self.v, v_new[:, :missing]], axis=1)
        return k, v, np.concatenate([np.arange(n_away), near])

    def __len__(self):
        return len(self.ring)


# %%
MaskDiagram("sinks", n_new=3, n_total=12, window=4, n_sinks=2)

# %% tags=["nbval-check-output"]
at = np.arange(24)
masked = model(ids, mask=visible(at, at, window=4, n_sinks=2))
for sizes in ([24], [5, 1, 1, 9, 0, 8], [1] * 24):
    caches = model.make_caches(lambda: SinkCache(2, 8, n_sinks=2, window=4))
    parts = [model(part, caches) for part in np.split(ids, np.cumsum(sizes)[:-1])]
    print(f"{len(sizes):2} calls equal the full masked pass:", np.abs(np.concatenate(parts) - masked).max() < 1e-12)
row = np.zeros((2, 1, 8))
print("the next token sees positions", caches[0].append(row, row)[2], " tokens seen:", len(caches[0]))

# %% [markdown]
# vllm-project/vllm #3515, a proposal to add sinks to that engine, gives the reason for it: when the first tokens of a
# text are evicted in a sliding-window fashion, such a model writes garbage. You will measure it on a real model below.
#
# ## The other thing called a sink
#
# > **Often said:** "gpt-oss uses attention sinks, as StreamingLLM does."
# >
# > **What is so:** gpt-oss has *learned* sinks: one number for each query head and layer, which joins the scores in the
# > softmax and is then dropped. No token is kept for it, nothing is cached, and a row's weights sum to less than 1.


# %% tags=["nbval-check-output"]
def learned_sink_attention(q, k, v, sinks, mask):
    """Attention with one more logit for each head in the softmax's denominator: sinks (n_heads,)."""
    scores = np.where(mask, q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]), -np.inf)
    column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
    weights = softmax(np.concatenate([scores, column], axis=-1))[..., :-1]
    return weights @ v, weights


sinks, mask = np.array([-20.0, 2.0]), window_mask(11, 11, 4)
out, weights = learned_sink_attention(q, k, v, sinks, mask)
print("sum of the last row's weights, by head:", weights[:, -1].sum(axis=-1).round(2))
print("a sink of -20 changes nothing to 6 decimals:", np.allclose(out[0], right[0], atol=1e-6))
print("rows in the cache for it: 0; numbers in gpt-oss-120b's weights:", 64 * 36)
kept_scores = np.where(mask, q @ k.transpose(0, 2, 1) / np.sqrt(8), -np.inf)
with_row = softmax(np.concatenate([np.broadcast_to(sinks[:, None, None], (2, 11, 1)), kept_scores], axis=-1))
same = np.allclose(with_row @ np.concatenate([np.zeros((2, 1, 8)), v], axis=1), out, atol=1e-12)
print("a first row of fixed score and zero value gives the same output:", same)

# %% [markdown]
# The two are related: a kept first token whose score is the same for every query, and whose value is zero, does to the
# softmax what a learned sink does.
#
# ## Positions under eviction
#
# When rows are missing, *position* can mean two things: the place in the text (**absolute**), or the index among the
# rows held (**re-anchored**, what StreamingLLM does). Let 2 sinks and a window of 5 be held after 40 tokens. Absolute,
# the query at 39 stands 39 tokens behind sink 0, and soon further than any text the model was trained on. Re-anchored,
# the rows are numbered 0 to 6 and the distance stays 6.
#
# With RoPE there are three ways to re-anchor. Keys stored *before* RoPE are turned at each read. Keys stored *after*
# it must be turned again by the difference, which is the same angle for all rows of the window; and since only
# differences matter, it is enough to turn the sinks forward.

# %% tags=["nbval-check-output"]
k_rows, query = rng.standard_normal((1, 7, 8)), rng.standard_normal((1, 1, 8))
held, index = np.array([0, 1, 35, 36, 37, 38, 39]), np.arange(7)
stored, last = rotate(k_rows, held), np.array([39])


def weights_of(at_query, keys):
    return attention_weights(rotate(query, at_query), keys)[0, 0]


on_read = weights_of(index[-1:], rotate(k_rows, index))
turned_back = weights_of(index[-1:], rotate(stored, index - held))
moved = np.concatenate([rotate(stored[:, :2], np.array([33, 33])), stored[:, 2:]], axis=1)
print("stored before RoPE, 7 rows turned at each read:", on_read.round(3))
print("stored after RoPE,", (index != held).sum(), "rows turned back: the same", np.allclose(turned_back, on_read))
print("stored after RoPE, 2 sinks turned: the same", np.allclose(weights_of(last, moved), on_read))

# %% tags=["nbval-check-output"]
print("absolute positions:               ", weights_of(last, stored).round(3))
print("re-anchored keys, absolute query: ", weights_of(last, rotate(k_rows, index)).round(3))
window_only = weights_of(last, stored[:, 2:]), weights_of(index[4:5], rotate(k_rows[:, 2:], index[:5]))
print("without sinks absolute and re-anchored are the same:", np.allclose(*window_only))

# %% [markdown]
# With RoPE a *window* alone has no position problem: its rows shift together. Only the gap between the sinks and the
# window is open to choice. What goes wrong is to mix the two, as in the second line: the newest key seems 33 tokens
# away from its own query.
#
# > **This shipped.** huggingface/transformers #33691 and #35350: `SinkCache` turned the rows that stayed and not the
# > keys that came in, so the positions of its keys were neither those of the text nor consecutive. The class is gone
# > from transformers today.
#
# **Learned positions** are added to the embedding before the first layer, so they are inside every key *and value*. No
# turn takes them out: re-anchoring means to compute the rows anew. **ALiBi** stores nothing; its bias is made from
# distances at each read, and re-anchoring is to count rows. Here 8 tokens stand at positions 0 to 7 and at 5 to 12:

# %% tags=["nbval-check-output"]
for kind in ("rope", "learned", "alibi"):
    decoder, stores = TinyDecoder(positions=kind), []
    for start in (0, 5):
        caches = decoder.make_caches()
        decoder(ids[:8], caches, positions=np.arange(8) + start)
        stores.append(caches[1].append(np.zeros((2, 0, 8)), np.zeros((2, 0, 8))))
    (k_0, v_0), (k_5, v_5) = stores
    same_k, turned = np.allclose(k_0, k_5), np.allclose(rotate(k_0, np.full(8, 5)), k_5)
    print(
        f"{kind:8} keys the same: {same_k!s:6} keys turned by 5: {turned!s:6} values the same: {np.allclose(v_0, v_5)}"
    )
steep, flat = alibi_slopes(8)[[0, -1]]
for name, distance in (("absolute, sink 1,000 tokens back", 1000), ("re-anchored, sink 63 rows back", 63)):
    factors = f"{np.exp(-flat * distance):.2f} in the flattest head, {np.exp(-steep * distance):.0e} in the steepest"
    print(f"ALiBi, {name}: factor {factors}")

# %% [markdown]
# | positions | absolute, under eviction | re-anchored, what it takes |
# |---|---|---|
# | RoPE | nothing to do; the distance to the sinks grows with the text | turn the sinks, or all rows at each read |
# | learned | the table ends | recompute the rows: position is in keys and values |
# | ALiBi | the bias buries the sinks | count rows for the bias; stored rows stay |
#
# ## What Hugging Face keeps
#
# A query sees itself and window - 1 rows before it, and its own row arrives with it. So `window - 1` stored rows are
# enough, and that is what the growing cache of transformers stores; its static form has `window` slots. The second cell
# holds our learned sinks to its code for gpt-oss.

# %% tags=["nbval-check-output"]
import torch
import transformers
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticSlidingWindowLayer

growing = DynamicSlidingWindowLayer(sliding_window=4)
static = StaticSlidingWindowLayer(max_cache_len=32, sliding_window=4)
ring, same = RingCache(2, 8, window=4), []
for part in np.split(np.arange(11), [5, 6, 7]):
    k_new, v_new = k[:, part], v[:, part]
    handed_out = growing.update(torch.tensor(k_new[None]), torch.tensor(v_new[None]))[0]
    static.update(torch.tensor(k_new[None]), torch.tensor(v_new[None]))
    same.append(np.array_equal(handed_out[0].numpy(), ring.append(k_new, v_new)[0]))
print("transformers", transformers.__version__, " seen:", growing.get_seq_length())
print("rows stored: growing", growing.keys.shape[2], " static", static.keys.shape[2], " our ring", ring.k.shape[1])
print("handed out at each call, the same rows as ours:", same)

# %% tags=["nbval-check-output"]
from types import SimpleNamespace

from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

layer = SimpleNamespace(sinks=torch.tensor(sinks), num_key_value_groups=1, training=False)
hidden = torch.tensor(np.where(mask, 0.0, -np.inf))
theirs, _ = eager_attention_forward(layer, *(torch.tensor(x[None]) for x in (q, k, v)), hidden, scaling=8**-0.5)
print("learned sinks as in its gpt-oss:", np.allclose(theirs[0].transpose(0, 1).numpy(), out, atol=1e-9))

# %% [markdown]
# ## On a real model
#
# This section needs `make model`; without it its cells are skipped. SmolLM2-135M-Instruct was trained with full
# attention and RoPE. It reads the first 1,024 tokens of the Apache License 2.0, the file `LICENSE` of this course, and
# we measure how well it predicts each next token. The *loss* is the negative logarithm of the probability that it gave
# to the token that came, in nats (natural logarithm). *Perplexity* is exp of the mean loss: at 10 the model is as
# unsure as between 10 equally likely tokens. It has probably seen this text in training; what counts is the difference
# between caches on the same text.
#
# The text goes through the real caches, 64 tokens a call. All caches that evict hold 64 rows: a window of 64, or 4
# sinks and a window of 60.

# %% tags=["needs-model"]
from kvlab.llama import Llama, load, load_tokenizer

llama = load()
rereading = Llama(llama.config, llama.weights, rotate_on_read=True)  # keys before RoPE, turned at each read
license_ids = load_tokenizer().encode(" ".join(Path("../LICENSE").read_text(encoding="utf-8").split()))[:1024]


def read_text(model, ids, make=None, chunk=64):
    """(n - 1,) loss of each next token, and (n - 1,) the token the model holds most likely."""
    caches, losses, best = model.make_caches(make), [], []
    for start in range(0, len(ids) - 1, chunk):
        logits, following = model(ids[start : start + chunk], caches), ids[start + 1 : start + chunk + 1]
        logits = logits[: len(following)]
        top = logits.max(axis=-1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
        losses.append(total - logits[np.arange(len(following)), following])
        best.append(logits.argmax(axis=-1))
    return np.concatenate(losses), np.concatenate(best)


# %% [markdown]
# Is feeding by chunks honest? First a short run with smaller caches, 20 tokens a call against one token a call.

# %% tags=["needs-model", "nbval-check-output"]
short = license_ids[:40]
makes = {"window": lambda: RingCache(3, 64, 16), "sinks": lambda: SinkCache(3, 64, 4, 12)}
runs = {(name, chunk): read_text(llama, short, make, chunk)[0] for name, make in makes.items() for chunk in (1, 20)}
for name in makes:
    gap = np.abs(runs[name, 1] - runs[name, 20]).max()
    print(f"{name}, absolute positions: chunks equal single tokens: {gap < 0.01}")
moved = read_text(rereading, short, makes["window"], 20)[0]
print("window, re-anchored equals absolute:", np.abs(moved - runs["window", 20]).max() < 0.01)
by_chunk = [read_text(rereading, short, makes["sinks"], chunk)[0] for chunk in (1, 20)]
print("sinks, re-anchored: chunks equal single tokens:", np.abs(by_chunk[0] - by_chunk[1]).max() < 0.01)

# %% [markdown]
# At absolute positions they are the same. Re-anchored, the window alone gives the same again, as it must with RoPE.
# Sinks do not: in a chunk the rows held are numbered once for all its queries, so the distance to the sinks depends on
# the size of the chunk. With 64 tokens a call it is up to 63 more. Keep that in mind for the fourth curve.

# %% tags=["needs-model"]
guess_3 = predict(
    "The full cache gives a perplexity near 14. What does a window of 64 rows give, without the first tokens?",
    ["about the same", "some more, near 20", "several times as much"],
)
guess_3

# %% tags=["needs-model"]
reads = {"full cache": read_text(llama, license_ids)}
reads["window only"] = read_text(llama, license_ids, lambda: RingCache(3, 64, window=64))


# %% tags=["needs-model"]
def sinks_and_window():
    return SinkCache(3, 64, n_sinks=4, window=60)


reads["4 sinks, absolute"] = read_text(llama, license_ids, sinks_and_window)
reads["4 sinks, re-anchored"] = read_text(rereading, license_ids, sinks_and_window)

# %% tags=["needs-model"]
fig, ax = subplots(figsize=(5.8, 2.9))
styles = (("cached", "-"), ("wrong", "-"), ("right", "-"), ("new", "--"))
for (name, (losses, _)), (colour, line) in zip(reads.items(), styles, strict=True):
    blocks = [part.mean() for part in np.split(losses, range(64, 1023, 64))]
    ax.plot(np.arange(64, 1025, 64), blocks, color=COLORS[colour], linestyle=line, label=name)
ax.set(xlabel="tokens read", ylabel="loss of the last 64 tokens (nats)", ylim=(0.8, 6.4))
ax.set(title="64 rows of cache: the first four decide")
ax.legend(ncols=2, loc="upper left")
after = {name: losses[64:].mean() for name, (losses, _) in reads.items()}
full_start = reads["full cache"][0][:64].mean()
alt = (
    f"Loss of each 64 tokens, over 1,024. All four curves begin together at {full_start:.1f}. When the window is full, "
    f"'window only' parts from the others and stays above them, {after['window only']:.1f} on average. With 4 sinks, "
    f"absolute or re-anchored, two curves lie close together, {after['4 sinks, absolute']:.1f} on average, a little "
    f"above the full cache at {after['full cache']:.1f}, which alone falls to about 1 near token 760."
)
show(fig, alt=alt)

# %% tags=["needs-model", "nbval-check-output"]
full_losses, full_best = reads["full cache"]
for name, (losses, best) in reads.items():
    agree, loss, repeat = (best == full_best)[64:].mean(), losses[64:].mean(), losses[720:752].mean()
    said = f"perplexity {np.exp(loss):3.0f}  same next token {agree:.1f}  tokens 721 to 752: {repeat:.1f}"
    print(f"{name:21} loss {loss:.2f}  {said}")
ratio = np.exp(after["window only"] - after["full cache"])
guess_3.reveal("several times as much" if ratio > 3 else "some more, near 20", f"Perplexity times {ratio:.1f}.")
closed = (after["window only"] - after["4 sinks, absolute"]) / (after["window only"] - after["full cache"])
print(f"of the loss that the window costs, 4 rows of 64 give back {closed:.0%}")
print("tokens 721 to 752 repeat 640 to 671:", np.array_equal(license_ids[721:753], license_ids[640:672]))

# %% [markdown]
# The window alone does not go to infinity here: this model still predicts some of the text from 64 tokens. It is badly
# hurt all the same, as soon as the beginning has left. It can be far worse: for Llama-2-13B, Xiao et al. 2023 (table 1)
# report a perplexity of 5,158 for a window of 1,024 rows alone and 5.40 with 4 of the rows kept for sinks.
#
# Four rows repair most of it. What remains is the price of forgetting, which no sink can pay: tokens 721 to 752, in the
# valley of the full cache, repeat a clause that stands 81 tokens earlier, just out of a window of 64 (last column, in
# nats). Absolute or re-anchored makes little difference at 1,024 tokens, a distance that this model (8,192 positions)
# was trained on. Beyond a model's trained length only the re-anchored form stays inside it.
#
# Why the first tokens? The queries are computed as the model does, layer by layer, and their weight on token 0 is
# averaged over the heads and over the tokens 64 to 191.

# %% tags=["needs-model", "nbval-check-output"]
from kvlab.attention import merge_heads, split_heads
from kvlab.decoder import rms_norm, swiglu

c, first = llama.config, license_ids[:192]
x, on_first, pairs = llama.weights.embed[first], [], llama.keys_values(first)
for layer, (keys, values) in zip(llama.weights.layers, pairs, strict=True):
    heads = split_heads(rms_norm(x, layer.attn_norm, c.norm_eps) @ layer.qkv.T, c.n_heads + 2 * c.n_kv_heads)
    queries = rotate(heads[: c.n_heads], np.arange(192), c.rope_base)
    on_first.append(attention_weights(queries, keys)[:, 64:, 0].mean())
    x = x + merge_heads(attention(queries, keys, values)) @ layer.wo.T
    gate, up = np.split(layer.gate_up, 2)
    x = x + swiglu(rms_norm(x, layer.mlp_norm, c.norm_eps), gate.T, up.T, layer.w_down.T)
sizes = [np.linalg.norm(values, axis=-1) for _, values in pairs]
quiet = [np.median(size[:, 0] / np.median(size[:, 1:], axis=1)) for size in sizes]
logits = rms_norm(x, llama.weights.final_norm, c.norm_eps) @ llama.weights.head.T
print("the loop gives the model's own logits:", np.abs(logits - llama(first)).max() < 0.01)
many = sum(np.array(on_first) > 0.2)
print(f"weight on token 0, mean of 30 layers: {np.mean(on_first):.1f}; layers where it is over 0.2: {many}")
print(f"its value's size over the median token's, median layer: {np.median(quiet):.2f}")

# %% tags=["needs-model"]
fig, ax = subplots(figsize=(5.8, 2.9))
ax.bar(np.arange(30), on_first, color=COLORS["weights"], label="attention weight on token 0")
ax.plot(quiet, color=COLORS["values"], marker="o", markersize=4, label="size of its value, over the median token's")
ax.axhline(1 / 128, color=COLORS["quiet"], linestyle="--", label="an even share, about 1/128")
ax.set(xlabel="layer", ylabel="share, and ratio", ylim=(0, 2.3), title="Much weight, little value")
ax.legend()
alt = (
    "By layer, the mean attention weight on token 0: almost nothing in layers 0 to 2, 10 and 11, under 0.1 in layers 3 "
    f"to 9, from layer 12 on {min(on_first[12:]):.2f} to {max(on_first):.2f}. The size of its value over that of the "
    f"median token is {min(quiet[12:]):.2f} to {max(quiet[12:]):.2f} there, and largest, {max(quiet):.1f}, in layer "
    f"{np.argmax(quiet)}, where the weight is not. An even share would be 0.01."
)
show(fig, alt=alt)

# %% [markdown]
# Much weight on a row whose value is small: the row is a place to put weight that has nothing better to do. Evict it,
# and softmax spreads that weight over rows whose values are not small.
#
# ## Recap
#
# - You wrote the window mask and a ring cache. `len` is the position, the rows held stop at the window, and the ring
#   evicts after a chunk has attended: **a query sees itself and window - 1 tokens before it, so a chunk of n needs
#   window - 1 + n rows.** Token by token, evicting first passed the test.
# - You priced gpt-oss-120b: half of its layers stop growing at 128 tokens, and at 131,072 tokens its cache is 50.0 % of
#   what 36 full layers would hold.
# - You kept the first four tokens. On the real model the window alone multiplied the perplexity by 4.2, and 4 sinks
#   gave back 68 % of the loss it cost. **What must a cache never throw away? The tokens that the model learned to rest
#   its attention on.** Their positions are absolute or re-anchored, never mixed; learned sinks need no row at all.
#
# One limit: sinks keep a model fluent, not informed. What has left the window and the reach of the layers is forgotten.
#
# Practise: [`../exercises/08_windows_and_sinks.ipynb`](../exercises/08_windows_and_sinks.ipynb). Next: several
# sequences of unequal length in one batch, [`09_ragged_batches.ipynb`](09_ragged_batches.ipynb).
