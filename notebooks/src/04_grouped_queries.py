# %% [markdown]
# # 04 Grouped queries
#
# **How can eight query heads share two KV heads, and what is saved?**
#
# After this lesson you can
#
# - say which KV head each query head reads in MHA, GQA and MQA, and how many bytes a decode step then reads,
# - write attention that shares KV heads without repeating them in memory,
# - recognise the wrong head order that no comparison of a model with itself can see.
#
# About 35 minutes. No GPU needed.

# %%
import tracemalloc

import numpy as np

from kvlab.attention import offset_mask, softmax
from kvlab.caches import ConcatCache
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import HeadMap

# %% [markdown]
# ## Three ways to share
#
# Every query head asks its own question. Whether it also needs keys and values of its own is a choice.
#
# - **MHA** (multi-head attention): as many KV heads as query heads.
# - **MQA** (multi-query attention): one KV head for all query heads.
# - **GQA** (grouped-query attention): a number in between. Neighbouring query heads form a group and share one KV
#   head.
#
# One rule covers all three: query head `h` reads KV head `h // (n_heads // n_kv_heads)`.


# %% tags=["nbval-check-output"]
def read_heads(n_heads, n_kv_heads):
    return [h // (n_heads // n_kv_heads) for h in range(n_heads)]


for name, n_kv_heads in [("MHA", 8), ("GQA", 2), ("MQA", 1)]:
    print(f"{name}, {n_kv_heads} KV heads: query heads 0 to 7 read KV heads {read_heads(8, n_kv_heads)}")

# %%
fig, axes = subplots(1, 3, figsize=(9, 2.2), sharey=True)
for ax, (name, n_kv) in zip(axes, [("MHA", 8), ("GQA", 2), ("MQA", 1)], strict=True):
    below = (np.arange(n_kv) + 0.5) * 8 / n_kv - 0.5
    for h, g in enumerate(read_heads(8, n_kv)):
        ax.plot([h, below[g]], [1, 0], color=COLORS["quiet"], linewidth=1, zorder=1)
    ax.scatter(range(8), [1] * 8, s=90, marker="o", color=COLORS["new"], zorder=2)
    ax.scatter(below, [0] * n_kv, s=90, marker="s", color=COLORS["keys"], zorder=2)
    ax.set(title=f"{name}: {n_kv} KV head{'s' * (n_kv > 1)}", xlim=(-0.7, 7.7), ylim=(-0.3, 1.3), xticks=[])
    ax.grid(False)
axes[0].set_yticks([0, 1], ["KV heads", "query heads"])
show(
    fig,
    alt="Three panels of 8 query heads (circles) above KV heads (squares). MHA: each query head is joined to its own "
    "KV head. GQA: heads 0 to 3 to the first of 2 KV heads, heads 4 to 7 to the second. MQA: all 8 to one.",
)

# %% [markdown]
# ## Why anyone wanted this
#
# A decode step has one new token, but it reads every stored key and value. Noam Shazeer named the cost in 2019:
# decoding cannot be parallelised over the sequence, and it is slow because the large key and value tensors are loaded
# again at every step (*Fast Transformer Decoding: One Write-Head is All You Need*, arXiv:1911.02150, abstract; the
# counts are in sections 2.4 and 3.1). Sharing one KV head divides that load by the number of heads.
#
# Take a model of 32 layers and 32 query heads, 128 wide, stored in 16 bits, with 4,096 tokens in the cache.

# %% tags=["nbval-check-output"]
n_layers, n_heads, head_dim, n_total = 32, 32, 128, 4096
work = 2 * n_layers * n_heads * n_total * head_dim  # multiply-adds of q k^T and of weights v, for one new token
for n_kv_heads in (32, 8, 1):
    numbers_read = 2 * n_layers * n_kv_heads * n_total * head_dim
    print(f"{n_kv_heads:2d} KV heads: {numbers_read * 2 / 2**30:6} GiB read a step", end=", ")
    print(f"{work:,} multiply-adds, {work // numbers_read:2d} for each number read")

# %% [markdown]
# The bytes fall by `n_heads / n_kv_heads`. The arithmetic does not fall: there are still 32 query heads, and each
# still scores every key.
#
# > **Often said:** "GQA makes attention cheaper to compute."
# >
# > **What is so:** scores and weighted sums cost the same multiply-adds; each number read from the cache serves a
# > whole group of query heads, so the *reading* gets cheaper. (The key and value projections do shrink, once per
# > token.)

# %% [markdown]
# ## First: repeat the KV heads
#
# The simplest way to use shared heads is to repeat them until there are as many as query heads, then do what lesson
# 01 did. The order matters: the copies of one KV head must stand where its group of query heads stands.

# %%
guess_1 = predict("Two KV heads K1 and K2 for four query heads: which order?", options=["K1 K1 K2 K2", "K1 K2 K1 K2"])
guess_1


# %%
def repeat_kv(x, n_heads):
    """(n_kv_heads, n_total, head_dim) -> (n_heads, n_total, head_dim), each KV head repeated for its group."""
    n_kv_heads = x.shape[0]
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} KV heads evenly")
    return np.repeat(x, n_heads // n_kv_heads, axis=0)


# %% tags=["nbval-check-output"]
k1_k2 = np.array([1, 2]).reshape(2, 1, 1)  # two KV heads, one token, one number: small enough to read
guess_1.reveal(" ".join(f"K{i}" for i in repeat_kv(k1_k2, 4).ravel()), "Neighbouring query heads share a KV head.")

try:
    repeat_kv(k1_k2, 5)
except ValueError as error:
    print("refused:", error)

# %% [markdown]
# Five query heads over two KV heads have no even split. The function refuses: rounding down would give four heads,
# and the fifth query head would fail far from the cause, or read a head that is not its own.
#
# Now attention on repeated heads, and beside it a reference that spreads nothing: a loop over the query heads, in
# which each is given its one KV head by the rule above.


# %%
def attend(q, k, v):
    """Causal attention for as many KV heads as query heads."""
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    return softmax(np.where(offset_mask(q.shape[1], k.shape[1]), scores, -np.inf)) @ v


def reference(q, k, v):
    """The same for shared KV heads, one query head at a time."""
    group, out = len(q) // len(k), []
    for h in range(len(q)):
        one = slice(h // group, h // group + 1)
        out.append(attend(q[h : h + 1], k[one], v[one]))
    return np.concatenate(out)


# %% tags=["nbval-check-output"]
rng = np.random.default_rng(4)
n_heads, n_kv_heads, n_tokens, head_dim = 8, 2, 7, 4
q = rng.standard_normal((n_heads, n_tokens, head_dim))
k, v = rng.standard_normal((2, n_kv_heads, n_tokens, head_dim))

right = attend(q, repeat_kv(k, n_heads), repeat_kv(v, n_heads))
print(right.shape, "equals the loop:", np.abs(right - reference(q, k, v)).max() < 1e-12)


# %% [markdown]
# ## Break it: the other order
#
# `np.tile` (in PyTorch `Tensor.repeat`) also makes eight heads out of two. It writes K1 K2 K1 K2. Nothing crashes,
# and the shape is the one expected.


# %% tags=["nbval-check-output"]
def tile_kv(x, n_heads):
    return np.tile(x, (n_heads // x.shape[0], 1, 1))


tiled = attend(q, tile_kv(k, n_heads), tile_kv(v, n_heads))
per_head = np.abs(tiled - right).max(axis=(1, 2))
print("same shape:", tiled.shape == right.shape)
print("largest difference:", round(per_head.max(), 2))
print("heads that are right all the same:", [h for h in range(n_heads) if per_head[h] < 1e-12])

# %%
fig, ax = subplots()
ax.bar(range(n_heads), per_head, color=COLORS["wrong"])
ax.set(xlabel="query head", ylabel="largest difference to right", xticks=range(n_heads))
for h in np.flatnonzero(per_head < 1e-12):
    ax.annotate("right by luck", (h, 0.03), rotation=90, ha="center", va="bottom", color=COLORS["right"], fontsize=8)
show(
    fig,
    alt="Bars over 8 query heads: largest difference between tiled and right output. Heads 1, 3, 4 and 6 are wrong by "
    f"{np.sort(per_head)[4]:.2f} to {per_head.max():.2f}; heads 0, 2, 5 and 7 have no bar, since both orders give them "
    "the same KV head.",
)

# %%
HeadMap(8, 2, spread=tile_kv)

# %% [markdown]
# Half of the heads are right, because for them both orders happen to name the same KV head. Nothing gives the fault
# away: the shape is right, every row of weights sums to 1, and no number is nan.
#
# ## Why the usual test misses it
#
# The usual test of a cache compares the cached run with the uncached one. Here both paths spread the heads with the
# same function. Try three ways: each head repeated in place (right), all heads tiled, and only the values tiled.


# %%
def cached_run(spread_k, spread_v, chunks=(4, 2, 1)):
    """Feed the 7 tokens in chunks through a cache that holds KV heads; spread them only for attention."""
    cache, out, start = ConcatCache(n_kv_heads, head_dim), [], 0
    for n_new in chunks:
        new = slice(start, start + n_new)
        all_k, all_v = cache.append(k[:, new], v[:, new])
        out.append(attend(q[:, new], spread_k(all_k, n_heads), spread_v(all_v, n_heads)))
        start += n_new
    return np.concatenate(out, axis=1)


# %% tags=["nbval-check-output"]
ways = {"in place": (repeat_kv, repeat_kv), "tiled": (tile_kv, tile_kv), "only values tiled": (repeat_kv, tile_kv)}
gaps = {}
for name, (spread_k, spread_v) in ways.items():
    cached = cached_run(spread_k, spread_v)
    uncached = attend(q, spread_k(k, n_heads), spread_v(v, n_heads))
    gaps[name] = np.abs(cached - uncached).max(), np.abs(cached - reference(q, k, v)).max()
    print(f"{name}: cached = uncached {gaps[name][0] < 1e-12}, equals the loop {gaps[name][1] < 1e-12}")

# %%
fig, ax = subplots()
x = np.arange(len(gaps))
drawn = np.maximum(np.array(list(gaps.values())), 1e-17)  # a logarithmic axis cannot show a gap of exactly 0
ax.bar(x - 0.2, drawn[:, 0], width=0.4, bottom=1e-18, color=COLORS["cached"], label="cached against uncached")
ax.bar(x + 0.2, drawn[:, 1], width=0.4, bottom=1e-18, color=COLORS["new"], hatch="//", label="cached against the loop")
ax.axhline(1e-12, color=COLORS["quiet"], linestyle="--", linewidth=1)
ax.annotate("tolerance", (-0.45, 2e-12), color=COLORS["quiet"], fontsize=8)
ax.set(yscale="log", ylim=(1e-18, 1e6), ylabel="largest difference", xticks=x, xticklabels=list(gaps))
ax.legend(loc="upper center", ncols=2)
show(
    fig,
    alt="Largest differences on a logarithmic axis for three head orders. Cached against uncached stays below the "
    "tolerance of 1e-12 for all three. Against the independent loop only repetition in place stays below it; the "
    "other two differ by more than 1.",
)

# %% [markdown]
# The self-comparison passes three times out of three. A test of head order needs something independent: the loop
# above, another library, or numbers whose answer is known. The cheapest is a value head that is constant: whatever
# the weights, a weighted mean of tens is ten.

# %% tags=["nbval-check-output"]
constant_v = np.stack([np.full((n_tokens, head_dim), 10.0), np.full((n_tokens, head_dim), 20.0)])
for spread in (repeat_kv, tile_kv):
    out = attend(q, repeat_kv(k, n_heads), spread(constant_v, n_heads))
    print(spread.__name__, [round(float(x)) for x in out[:, 0, 0]])

# %% [markdown]
# > **This shipped.** onnx/onnx #7274: the Attention operator's own definition tiled the KV heads where PyTorch
# > repeats each in place.
#
# > **This shipped.** apple/axlearn #842: a rewrite turned heads repeated in place into tiled ones; this change
# > turned them back.
#
# ## What goes into the cache
#
# Repeating is for attention only. The cache stores KV heads, before any repetition. Storing the repeated heads gives
# the same numbers and throws the saving away.

# %%
guess_2 = predict("8 query heads, 2 KV heads: how many times larger is a cache that stores the repeated heads?")
guess_2

# %% tags=["nbval-check-output"]
before, after = ConcatCache(n_kv_heads, head_dim), ConcatCache(n_heads, head_dim)
k_all, v_all = before.append(k, v)
k_rep, v_rep = after.append(repeat_kv(k, n_heads), repeat_kv(v, n_heads))
same = attend(q, repeat_kv(k_all, n_heads), repeat_kv(v_all, n_heads)) - attend(q, k_rep, v_rep)
print("same output:", np.abs(same).max() < 1e-12)
print(f"stored before repetition {before.n_bytes} bytes, after {after.n_bytes} bytes")
guess_2.reveal(after.n_bytes // before.n_bytes, "n_heads / n_kv_heads, the whole saving of GQA.")

# %% [markdown]
# > **This shipped.** meta-pytorch/torchtune #38: the KV cache was built with the number of query heads, and the heads
# > were expanded before they were stored. The answers were right.
#
# ## Then: no copy at all
#
# Even a cache of KV heads is wasted if every step first writes the repeated heads somewhere and reads them back.
#
# The way out is to move the queries instead of the keys. The query heads of one group are neighbours in memory, so a
# reshape of `q` stacks them as more rows of one matrix: `(group * n_new, head_dim)`. That matrix meets the one KV
# head of the group in one product. For keys and values nothing is copied, and the reshape itself is only another
# view.


# %%
def grouped_attention(q, k, v):
    """Offset-causal attention of n_heads query heads over n_kv_heads KV heads; k and v are never repeated."""
    (n_heads, n_new, head_dim), (n_kv_heads, n_total, _) = q.shape, k.shape
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} KV heads evenly")
    rows = q.reshape(n_kv_heads, n_heads // n_kv_heads * n_new, head_dim)
    scores = (rows @ k.transpose(0, 2, 1)).reshape(n_heads, n_new, n_total) / head_dim**0.5
    weights = softmax(np.where(offset_mask(n_new, n_total), scores, -np.inf))
    return (weights.reshape(n_kv_heads, -1, n_total) @ v).reshape(n_heads, n_new, head_dim)


# %% tags=["nbval-check-output"]
for n_new in (7, 3, 1, 0):
    last = slice(n_tokens - n_new, n_tokens)
    ours = grouped_attention(q[:, last], k, v)
    print(n_new, "new tokens:", ours.shape, np.allclose(ours, reference(q[:, last], k, v), rtol=0, atol=1e-12))
print("the reshaped q is a view:", np.shares_memory(q, q.reshape(n_kv_heads, -1, head_dim)))


# %% [markdown]
# This is what `kvlab.attention.attention`, which lesson 02 was given, does inside. Is it true that nothing is copied?
# Ask the allocator: one decode step over 4,096 tokens, and the most memory that was held at once.


# %% tags=["nbval-check-output"]
def peak_bytes(function, *arrays):
    tracemalloc.start()
    function(*arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def repeat_first(q, k, v):
    return attend(q, repeat_kv(k, 8), repeat_kv(v, 8))


q_one, (k_long, v_long) = rng.standard_normal((8, 1, 64)), rng.standard_normal((2, 2, 4096, 64))
copies = 2 * (8 // 2) * k_long.nbytes
print(f"the repeated k and v together: {copies // 2**20} MiB")
print("repeat first held at least that much:", peak_bytes(repeat_first, q_one, k_long, v_long) >= copies)
print("grouped held less than one k:", peak_bytes(grouped_attention, q_one, k_long, v_long) < k_long.nbytes)

# %% [markdown]
# ## From MHA to GQA
#
# Ainslie et al. 2023 (*GQA*, arXiv:2305.13245) turn a trained MHA model into a GQA model in two steps (section 2.1):
# the key and value projections of each group are averaged into one ("mean pooling"), then the model is trained
# further, which they call uptraining, for 5 % of the original pre-training compute. The first step fits in three
# lines: neighbours, because attention groups neighbours; a mean, because a sum would scale every score.
#
# What it does to the output depends on how alike the heads of a group are. Below, eight heads are mixed from a common
# part and a part of their own: with `spread` 0 all heads are equal, with 1 they have nothing in common.


# %%
def pool_kv_heads(w, n_heads, n_kv_heads):
    """(d_model, n_heads * head_dim) -> (d_model, n_kv_heads * head_dim): the mean of each group of neighbours."""
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} heads do not divide into {n_kv_heads} groups")
    heads = w.reshape(w.shape[0], n_kv_heads, n_heads // n_kv_heads, w.shape[1] // n_heads)
    return heads.mean(axis=2).reshape(w.shape[0], -1)


# %%
d_model, n_tokens, n_heads, head_dim = 32, 12, 8, 4
x = rng.standard_normal((n_tokens, d_model))
wq = rng.standard_normal((d_model, n_heads * head_dim)) / np.sqrt(d_model)
common, own = rng.standard_normal((2, d_model, 1, head_dim)), rng.standard_normal((2, d_model, n_heads, head_dim))


def kv_weights(spread):
    w = np.sqrt(1 - spread**2) * common + spread * own
    return w.reshape(2, d_model, n_heads * head_dim) / np.sqrt(d_model)


# %%
guess_3 = predict("Eight unrelated heads, pooled into two: by how many per cent does the output change?")
guess_3


# %%
def output(wk, wv):
    """Attention over x with wq and these key and value projections."""
    split = [(x @ w).reshape(n_tokens, -1, head_dim).transpose(1, 0, 2) for w in (wq, wk, wv)]
    return grouped_attention(*split)


def relative_change(wk, wv, n_kv_heads):
    before = output(wk, wv)
    after = output(pool_kv_heads(wk, n_heads, n_kv_heads), pool_kv_heads(wv, n_heads, n_kv_heads))
    return np.linalg.norm(after - before) / np.linalg.norm(before)


# %% tags=["nbval-check-output"]
print("equal heads: unchanged,", relative_change(*kv_weights(0), 2) < 1e-12)
print(f"near-duplicates, spread 0.1: {relative_change(*kv_weights(0.1), 2):.0%}")
guess_3.reveal(f"{relative_change(*kv_weights(1), 2):.0%}", "Norm of the difference over norm of the MHA output.")

# %%
spreads = np.linspace(0, 1, 21)
fig, ax = subplots()
for n_kv_heads, style in [(4, "-"), (2, "--"), (1, ":")]:
    changes = [100 * relative_change(*kv_weights(s), n_kv_heads) for s in spreads]
    ax.plot(spreads, changes, style, label=f"8 heads pooled to {n_kv_heads}")
ax.set(xlabel="spread: 0 all heads equal, 1 nothing in common", ylabel="change of the output (%)", ylim=(0, None))
ax.legend()
at_one = [round(100 * relative_change(*kv_weights(1), n)) for n in (4, 2, 1)]
show(
    fig,
    alt="Change of the attention output after mean pooling against how different the heads are. All three curves start "
    f"at 0 for equal heads and rise; at spread 1, pooling 8 heads to 4, 2 and 1 changes it by {at_one[0]}, {at_one[1]} "
    f"and {at_one[2]} per cent.",
)

# %% [markdown]
# ## What this shows, and what it does not
#
# It shows the conversion and its starting point: averaging is harmless where heads of a group agree and a large
# change where they do not. It says nothing about quality. These weights were never trained, nothing was uptrained,
# and a change of the output is not a loss of accuracy. How alike the heads of a trained model are is a question for
# that model.
#
# What the paper measured, on T5 (an encoder-decoder; it names decoder-only models as untested, see its limitations):
#
# | arXiv:2305.13245 | claim |
# |---|---|
# | section 3.3, figure 4 | mean pooling works best, then taking the first head, then starting from random |
# | section 3.3, figure 5 | right after conversion GQA does reasonably, MQA needs uptraining; both gain from 5 % of it |
# | table 1, T5-XXL | MHA 1.51 s a sample, average score 47.2; GQA with 8 KV heads 0.28 s, 47.1; MQA 0.24 s, 46.6 |
# | section 1, appendix A | MQA can lose quality, and fine-tuning it can be unstable, most on long inputs |
#
# > **Often said:** "To save memory at inference, run the model with fewer KV heads."
# >
# > **What is so:** the number of KV heads is the shape of trained weights. It is chosen when the model is designed,
# > or changed by a conversion that trains again. A switch at inference changes the output as far as the heads of a
# > group differ, which is what the curve above shows for made-up heads.

# %% [markdown]
# ## Recap
#
# - You said which KV head each query head reads (`h // group`) and counted what a step reads: 2, 0.5 and 0.0625 GiB
#   for 32, 8 and 1 KV heads in 32 layers at 4,096 tokens, with the same arithmetic for the scores.
# - You wrote `grouped_attention`, equal to a loop over heads to 1e-12, which reads the KV heads where they lie: a
#   step over 4,096 tokens held less than one `k`, where repeating first held 32 MiB of copies.
# - You recognised the tiled order: same shapes, half of the heads right by luck, cached = uncached to 1e-12, and
#   wrong against anything independent.
#
# One limit: the example of pooling used weights that were never trained, so it proves nothing about quality.
#
# Exercise: [04 Grouped queries](../exercises/04_grouped_queries.ipynb).
#
# Next lesson: [05 Cache size](05_cache_size.ipynb).
