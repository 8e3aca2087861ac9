# %% [markdown]
# # 03 Masks and positions with a cache
#
# The new tokens stand at the end of the sequence, but they arrive as rows 0, 1, 2 of their arrays.
# **Which keys may a new token see when others are cached, and at which position does it stand?**
#
# After this lesson you can
#
# - write the causal mask for any number of new tokens over any number of cached ones, and say why it is offset;
# - rotate new keys at the right positions before they are stored, and say what goes wrong when you do not;
# - name a test that catches a wrong mask or a wrong position, and one that does not.
#
# About 40 minutes. Needs no GPU.

# %%
import copy

import numpy as np

from kvlab.attention import attention, attention_weights
from kvlab.caches import ConcatCache
from kvlab.decoder import TinyDecoder
from kvlab.positions import alibi_bias
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import MaskDiagram, PositionDrift

# %% [markdown]
# ## Where the new tokens stand
#
# Positions count from 0. A cache of 10 tokens holds positions 0 to 9, so the next token has position 10: the length of
# the cache *is* the next position. In the course's words this number is the *cache position*. Three new tokens then
# stand at 10, 11 and 12, and each has a score for every key, old and new: the weights are (new, past + new).
# `ConcatCache` is the package's form of lesson 02's `KVCache`.

# %% tags=["nbval-check-output"]
rng = np.random.default_rng(0)


def rows(n_heads, n_tokens, head_dim=8):
    return rng.standard_normal((n_heads, n_tokens, head_dim))


cache = ConcatCache(n_kv_heads=2, head_dim=8)
cache.append(rows(2, 10), rows(2, 10))
print("tokens in the cache, and the next position:", len(cache))
k, v = cache.append(rows(2, 3), rows(2, 3))
print("weights of 3 new tokens, 4 query heads:", attention_weights(rows(4, 3), k).shape)

# %% [markdown]
# Now a smaller case that you can draw by hand: **4 tokens are cached and 3 new ones come in one call.**
# This happens when a long prompt is prefilled in chunks, when a user adds a second message to a chat, and when several
# guessed tokens are checked at once. It is the central case of this lesson.

# %%
guess_1 = predict(
    "4 tokens are cached, 3 are new. How many keys may the first of the new queries see?", ["1", "3", "5"]
)
guess_1

# %% [markdown]
# ## The offset mask
#
# Query i of the new ones stands at position past + i. A token may see itself and everything before it, so query i sees
# key j when **j <= past + i**. The offset is `past`: it turns a row number into a position.


# %% tags=["nbval-check-output"]
def offset_mask(n_new, n_total):
    """(n_new, n_total), True where the query may look: query i stands at n_total - n_new + i."""
    if not 0 <= n_new <= n_total:
        raise ValueError(f"offset_mask: {n_new} new tokens cannot be among {n_total} in all")
    query_positions = np.arange(n_total - n_new, n_total)
    return np.arange(n_total) <= query_positions[:, None]


print(offset_mask(3, 7).astype(int))

# %% [markdown]
# > **Often said:** "A causal mask is a lower triangle: `np.tril(np.ones((n_new, n_total)))`."
# >
# > **What is so:** `tril` hangs the triangle from the *top left* corner. The new tokens are the *last* ones, so the
# > triangle belongs in the bottom right corner. The two are the same only when nothing is cached.
#
# The picture lays `tril` beside the right mask. When the notebook runs, move the sliders: the marked cells vanish
# exactly when `n_new` reaches `n_total`.


# %%
def top_left(n_new, n_total):
    return np.tril(np.ones((n_new, n_total), dtype=bool))


MaskDiagram(top_left, n_new=3, n_total=7, expected=offset_mask)

# %% tags=["nbval-check-output"]
guess_1.reveal(offset_mask(3, 7)[0].sum(), "The four cached keys and its own.")
print("keys seen with tril:", top_left(3, 7).sum(axis=1), " with offset_mask:", offset_mask(3, 7).sum(axis=1))
last_rows, shifted = top_left(7, 7)[-3:], np.tril(np.ones((3, 7), dtype=bool), k=4)
print("two other ways to write it agree:", (last_rows == offset_mask(3, 7)).all(), (shifted == offset_mask(3, 7)).all())
print("a decode step after 10 tokens:", offset_mask(1, 11).shape, " blocked keys:", (~offset_mask(1, 11)).sum())

# %% [markdown]
# The offset mask is the last `n_new` rows of the square triangle: the rows of the tokens that are new.
#
# > **This shipped.** pytorch/pytorch #108108 and #144858: `scaled_dot_product_attention(..., is_causal=True)` hangs its
# > triangle from the top left, so a single query over a cache sees the oldest key alone and every decode step gives the
# > same vector. Dao-AILab/flash-attention moved its triangle to the bottom right in version 2.1.
#
# ## One token cannot tell
#
# A decode step is one row, the last of the triangle, and nothing in it is blocked (the last line above). So code with
# *no mask at all* is right at every decode step, and a test that feeds tokens one at a time passes.
# Below are six wrong masks that people write. Three tests try them: a prefill into an empty cache, one token
# over a cache, and three tokens over a cache. Each compares with the same tokens in one full pass.

# %%
masks = {
    "offset_mask": offset_mask,
    "top left (tril)": top_left,
    "square (new, new)": lambda new, total: np.broadcast_to(top_left(new, new), (new, total)),
    "none with a cache": lambda new, total: np.ones((new, total), dtype=bool),
    "none once it is filled": lambda new, total: top_left(new, total) | (total > new),
    "strict: j < past + i": lambda new, total: np.tril(np.ones((new, total), dtype=bool), k=total - new - 1),
    "inverted: True hides": lambda new, total: ~offset_mask(new, total),
}
q, k, v = rows(2, 7), rows(2, 7), rows(2, 7)
full = attention(q, k, v, offset_mask(7, 7))


# %% tags=["nbval-check-output"]
def verdict(mask, new, total):
    try:
        out = attention(q[:, total - new : total], k[:, :total], v[:, :total], mask(new, total))
    except ValueError:
        return "error"
    return "right" if np.abs(out - full[:, total - new : total]).max() < 1e-12 else "WRONG"


print(f"{'':24}{'5 into empty':>14}{'1 over 6':>10}{'3 over 4':>10}")
for name, mask in masks.items():
    print(f"{name:24}{verdict(mask, 5, 5):>14}{verdict(mask, 1, 7):>10}{verdict(mask, 3, 7):>10}")

# %% [markdown]
# Only the last column tells the right mask from all the others. "WRONG" means plausible numbers and no crash. "error"
# is the kind way to fail: a (3, 3) mask does not broadcast to (3, 7), and a row with nothing to look at is refused by
# `kvlab` (plain NumPy gives nan). At one token the square mask is (1, 1), which broadcasts to anything.
#
# **Test with more than one query over a cache that is not empty.**
#
# > **This shipped.** Mikyx-1/TinyLLM #17: the mask was applied only `if cache is None`. Generation prefills its prompt
# > into a fresh cache, so the prompt became bidirectional: a model with a training loss of 0.06 wrote garbage.
# >
# > **This shipped.** rasbt/LLMs-from-scratch #697 and meta-llama/llama #899: a square (new, new) mask for scores of
# > shape (new, past + new). In the first it was (1, 1), and harmless at one token; in the second it was found by
# > continuing a prompt in two parts, and crashed.
#
# ## What a wrong mask leaves behind
#
# A wrong mask is not over when the call is over. Take the two-layer decoder, prefill 4 tokens, send a chunk of 3 with a
# wrong mask, then decode 9 tokens with nothing wrong any more.

# %%
model = TinyDecoder()
ids = rng.integers(0, 64, 16)
uncached = model(ids)


def gaps(mask):
    """The largest logit difference to the uncached run at each token, and the caches that the run leaves."""
    caches = model.make_caches()
    parts = [model(ids[:4], caches), model(ids[4:7], caches, mask=mask(3, 7))]
    parts += [model(ids[t : t + 1], caches) for t in range(7, 16)]
    return np.abs(np.concatenate(parts) - uncached).max(axis=-1), caches


# %%
shown = ("offset_mask", "top left (tril)", "none once it is filled")
fig, ax = subplots()
ax.axvspan(3.5, 6.5, color=COLORS["weights"], alpha=0.25, label="the chunk with the wrong mask")
for name, colour, marker in zip(shown, ("right", "wrong", "values"), "^os", strict=True):
    ax.plot(gaps(masks[name])[0], marker=marker, color=COLORS[colour], label=name)
ax.set(xlabel="position of the token", ylabel="largest logit difference", title="One chunk, and all that follow")
ax.legend()
wrong, none = (gaps(masks[name])[0] for name in shown[1:])
alt = (
    f"Logit difference to the uncached run by position. tril: 0 for tokens 0 to 3, up to {wrong[4:7].max():.1f} in the "
    f"chunk at 4 to 6, still {wrong[7:].min():.1f} to {wrong[7:].max():.1f} at 7 to 15. No mask: up to "
    f"{none.max():.1f} in the chunk, {none[7:].min():.1f} to {none[7:].max():.1f} after it. offset_mask: 0 everywhere."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
nothing = np.zeros((2, 0, 8))
for name in shown:
    gap, caches = gaps(masks[name])
    print(f"{name}: tokens with wrong logits {np.flatnonzero(gap > 1e-9)}")
    for layer, (right, _) in enumerate(model.keys_values(ids)):
        keys, _ = caches[layer].append(nothing, nothing)
        print(f"    layer {layer}: {(np.abs(keys - right) > 1e-9).any(axis=(0, 2)).sum()} wrong keys of 16 stored")

# %% [markdown]
# Layer 0 stores the right keys, since they come from the embeddings alone. Its *outputs* in the chunk are wrong,
# layer 1 makes keys and values from them and **stores** them, and every later token reads those. With no mask the
# last token of the chunk may see all 7 keys anyway, so its own keys are right: 2 wrong keys instead of 3. A cache
# keeps mistakes.
#
# ## One function for prefill, chunks and decode
#
# With `past = 0` the offset mask is the usual triangle, with `new = 1` it is the decode row, and with `new = 0` it is
# empty. So one call serves all of them, and any cutting of 16 tokens into chunks gives the full pass:

# %% tags=["nbval-check-output"]
for sizes in ([16], [5, 11], [4, 3, 1, 5, 3], [7, 0, 9], [1] * 16):
    caches, parts = model.make_caches(), []
    for part in np.split(ids, np.cumsum(sizes)[:-1]):
        n_total = len(caches[0]) + len(part)
        parts.append(model(part, caches, mask=offset_mask(len(part), n_total)))
    same = np.abs(np.concatenate(parts) - uncached).max() < 1e-12
    print(f"{sizes!s:50} equal to the full pass: {same}")

# %% [markdown]
# **What it costs.** The mask has an entry for each score, so a long prompt fed in at once needs a square of them.
# Chunked prefill holds less at a time, and computes fewer dense scores, since the early chunks have few keys (attention
# code that skips hidden entries saves those without chunks):

# %% tags=["nbval-check-output"]
n, chunk = 4096, 512
in_chunks = sum(chunk * (start + chunk) for start in range(0, n, chunk))
print(f"{n} tokens at once:    {n * n:>10,} scores a head, a mask of {n * n // 2**20} MiB at one byte an entry")
print(f"in chunks of {chunk}:     {in_chunks:>10,} scores a head, a mask of at most {chunk * n // 2**20} MiB")
print(f"a decode step after: {n + 1:>10,} scores a head, and no mask needed: nothing is blocked")

# %% [markdown]
# ## Slots that nobody wrote
#
# A preallocated buffer has more rows than tokens. The rows are *slots*; those not yet written hold zeros. A zero key
# scores 0, and 0 is not "hidden": its weight is exp(0) = 1 before normalising, as much as any key of score 0.
# Here 5 tokens stand in a buffer of 16 slots.

# %%
buffer = np.zeros((1, 16, 8))
buffer[:, :5] = rows(1, 5)
query = rows(1, 1)
everything = attention_weights(query, buffer, np.ones((1, 16), dtype=bool))[0, 0]
written = attention_weights(query, buffer, np.arange(16)[None, :] < 5)[0, 0]

fig, ax = subplots()
ax.bar(np.arange(16) - 0.2, written, 0.4, color=COLORS["right"], label="unwritten slots hidden")
ax.bar(np.arange(16) + 0.2, everything, 0.4, color=COLORS["wrong"], label="all slots attended")
ax.set(xlabel="slot", ylabel="attention weight", title="11 zero keys take their share")
ax.legend()
alt = (
    f"Attention weights over 16 slots. Hidden: the 5 written slots share 1. Attended: slots 5 to 15, which hold zeros, "
    f"take {everything[5]:.3f} each, {everything[5:].sum():.2f} together."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
for n_slots in (16, 256, 4096):
    longer = np.concatenate([buffer[:, :5], np.zeros((1, n_slots - 5, 8))], axis=1)
    taken = attention_weights(query, longer, np.ones((1, n_slots), dtype=bool))[0, 0, 5:].sum()
    print(f"{n_slots:5} slots, 5 written: the zero keys take {taken:.1%} of the weight")
padded = attention_weights(query, buffer, np.pad(offset_mask(1, 5), ((0, 0), (0, 11))))
print("offset_mask(1, 5) with 11 more columns of False hides them:", np.allclose(padded[0, 0], written))

# %% [markdown]
# Their values are zero too, so the output shrinks: the longer the buffer, the closer to nothing. The cure is either to
# hand out the written part only (`kvlab.caches.StaticCache` does) or the same offset mask with False in the columns
# beyond `n_total`.
#
# > **This shipped.** meta-pytorch/gpt-fast #233: the cache hands out its whole buffer, zeros included, and with flex
# > attention the output was another one. huggingface/transformers #30414: with a static cache the zeros up to the
# > maximum length were not masked, and long generations turned to gibberish.
#
# ## Where a token stands
#
# The mask says who sees whom. It does not say where anyone stands: without more, a layer gives a query the same output
# whatever the order of the tokens before it. Rotary positions (RoPE, Su et al. 2021) turn each query and each key by an
# angle that grows with its position. The channels are taken in pairs, and pair i turns by
# `position * base ** (-2 i / head_dim)` radians: the first pair by one radian a token, the later ones ever slower.
#
# A turn keeps the length, and the score of a turned query with a turned key depends on the *difference* of their
# positions alone. That makes a turned key worth storing: no later token changes its angle.
#
# The number that goes in is the *position id*. In this lesson it equals the cache position; with padding (lesson 09)
# and some ways of evicting (lesson 08) it does not.


# %%
def rotate(x, positions, base=10000.0):
    """RoPE, half-split pairing: channel i of (n_heads, n_tokens, head_dim) turns with channel i + head_dim / 2."""
    head_dim = x.shape[-1]
    angles = positions[:, None] * base ** (-np.arange(0, head_dim, 2) / head_dim)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


# %% tags=["nbval-check-output"]
q, k = rows(1, 1), rows(1, 1)


def score(at_query, at_key):
    return (rotate(q, np.array([at_query])) * rotate(k, np.array([at_key]))).sum().round(9)


print("length kept:", np.allclose(np.linalg.norm(rotate(k, np.array([77]))), np.linalg.norm(k), atol=1e-12))
print("position 0 changes nothing:", (rotate(k, np.array([0])) == k).all())
print("3 apart, at 12 and 9:", score(12, 9), " at 1003 and 1000:", score(1003, 1000))
print("4 apart, at 12 and 8:", score(12, 8))

# %%
turned = rotate(np.ones((1, 7, 8)) / np.sqrt(2), np.arange(7))[0]
circle = np.linspace(0, 2 * np.pi, 200)
fig, axes = subplots(1, 2, figsize=(6.4, 3.4))
for ax, pair in zip(axes, (0, 1), strict=True):
    ax.plot(np.cos(circle), np.sin(circle), color=COLORS["quiet"], linewidth=0.8)
    ax.plot(turned[:, pair], turned[:, pair + 4], "o", color=COLORS["keys"])
    for position, (a, b) in enumerate(turned[:, [pair, pair + 4]]):
        ax.text(1.18 * a, 1.18 * b, position, ha="center", va="center")
    ax.set(title=f"pair {pair}: {0.1**pair:g} radian a token", xlabel=f"channel {pair}", ylabel=f"channel {pair + 4}")
    ax.set(aspect="equal", xlim=(-1.4, 1.4), ylim=(-1.4, 1.4))
fig.tight_layout()
alt = (
    "The same key at positions 0 to 6, as points on two circles. Channels 0 and 4 turn 1 radian a token, almost once "
    "around; channels 1 and 5 turn 0.1 radian a token and stay close together."
)
show(fig, alt=alt)

# %% [markdown]
# ## Two ways to pair channels
#
# The paper pairs neighbours: (0, 1), (2, 3), ... That is *interleaved* pairing. Llama checkpoints as Hugging Face
# stores them pair the halves: (0, 4), (1, 5), ... for 8 channels. Both keep all the laws above, so no law tells you
# which one your weights were trained with. They give different numbers, and reordering the channels turns one into
# the other.


# %% tags=["nbval-check-output"]
evens_first = np.r_[0:8:2, 1:8:2]


def rotate_interleaved(x, positions):
    return rotate(x[..., evens_first], positions)[..., np.argsort(evens_first)]


at_12, at_9 = np.array([12]), np.array([9])
halves = (rotate(q, at_12) * rotate(k, at_9)).sum()
neighbours = (rotate_interleaved(q, at_12) * rotate_interleaved(k, at_9)).sum()
print(f"the same query and key, 3 apart: half-split {halves:.3f}, interleaved {neighbours:.3f}")
same = np.allclose(rotate(k[..., evens_first], at_9), rotate_interleaved(k, at_9)[..., evens_first], atol=1e-12)
print("half-split on reordered channels is interleaved:", same)

# %% [markdown]
# ## Rotate, then store
#
# Each new key is turned once, at its absolute position, and stored. The first new position is the cache's length
# *before* the append. However the tokens arrive, the stored keys are those of one full pass:


# %% tags=["nbval-check-output"]
def append_rotated(cache, k_new, v_new, base=10000.0):
    """Turn the new keys at the positions that follow the cache, append them, return all (k, v)."""
    positions = np.arange(len(cache), len(cache) + k_new.shape[1])
    return cache.append(rotate(k_new, positions, base), v_new)


q_all, k_all, v_all = rows(2, 9), rows(2, 9), rows(2, 9)
cache = ConcatCache(n_kv_heads=2, head_dim=8)
for part in (slice(0, 5), slice(5, 8), slice(8, 9)):
    stored, _ = append_rotated(cache, k_all[:, part], v_all[:, part])
print("stored keys", stored.shape, "as in one pass:", np.allclose(stored, rotate(k_all, np.arange(9)), atol=1e-12))

# %% [markdown]
# ## Position 0 for every new token
#
# The classic mistake: the model numbers the rows it is given, `np.arange(n_new)`. In a decode step `n_new` is 1, so
# every generated token gets position 0. Two curves will separate its two harms, both as differences to the uncached
# model, averaged over 20 seeded decoders:
#
# - *bug on*: every decode step runs at position 0;
# - *repaired*: after as many such steps, one step at the right position, on a copy of the caches. Its query and its own
#   key are right, so what is still wrong is only what the earlier steps **stored**.

# %%
guess_2 = predict(
    "One token was decoded at position 0, then the bug is repaired. What do the next tokens look like?",
    ["they are right again", "they stay wrong", "the model crashes"],
)
guess_2


# %%
def drift(seed, position=0, n_prompt=20, n_steps=24):
    """Mean logit difference to the uncached model at each decode step: (run at `position`, repaired)."""
    model, tokens = TinyDecoder(seed=seed), np.random.default_rng(seed).integers(0, 64, n_prompt + n_steps)
    expected, caches, gaps = model(tokens), model.make_caches(), []
    model(tokens[:n_prompt], caches)
    for t in range(n_prompt, n_prompt + n_steps):
        repaired = model(tokens[t : t + 1], copy.deepcopy(caches))
        run = model(tokens[t : t + 1], caches, positions=np.array([t if position is None else position]))
        gaps.append([np.abs(logits - expected[t]).mean() for logits in (run, repaired)])
    return np.array(gaps).T


# %%
bug_on, repaired = np.mean([drift(seed) for seed in range(20)], axis=0)
followed, _ = np.mean([drift(seed, position=None) for seed in range(20)], axis=0)
every = [TinyDecoder(seed=seed)(np.random.default_rng(seed).integers(0, 64, 44)) for seed in range(20)]
unrelated = np.mean([np.abs(logits[1:] - logits[:-1]).mean() for logits in every])

fig, ax = subplots()
ax.axhline(unrelated, color=COLORS["quiet"], linestyle="--", label="logits of one token and the next")
ax.plot(bug_on, marker="o", color=COLORS["wrong"], label="bug on: position 0 at each step")
ax.plot(repaired, marker="s", color=COLORS["values"], label="repaired: only the stored keys are wrong")
ax.plot(followed, marker="^", color=COLORS["right"], label="right position at each step")
ax.set(xlabel="decode steps before this one", ylabel="mean logit difference", ylim=(-0.05, 1.75))
ax.set(title="The wrong keys pile up (mean of 20 models)")
ax.legend()
alt = (
    f"Mean logit difference to the uncached model against the decode steps taken at position 0. Repaired: 0 after "
    f"none, {repaired[1]:.2f} after 1, {repaired[6]:.2f} after 6, {repaired[23]:.2f} after 23. Bug on: {bug_on[0]:.2f} "
    f"at once and level from there, near the {unrelated:.2f} between neighbours. Right position: 0."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
after = {int(n): float(repaired[n].round(2)) for n in (0, 1, 6, 12, 23)}
outcome = "they stay wrong" if repaired[1:].min() > 1e-9 else "they are right again"
guess_2.reveal(outcome, "The wrong key is stored, and every later token reads it.")
print("repaired, difference after so many wrong steps:", after)
print(f"bug on: {bug_on[0]:.2f} at the first step, {bug_on[12:].mean():.2f} later; next token: {unrelated:.2f}")
print("right position: agrees to 9 decimals:", followed.max() < 1e-9, " to 12:", followed.max() < 1e-12)

# %%
PositionDrift({"bug on: position 0": bug_on, "right position": followed, "repaired": repaired})

# %% [markdown]
# Read it with care. The *stored* damage grows step by step, as the wrong keys become a larger share of the cache; a
# single model's curve is jagged, hence the mean. The *bug on* curve does not grow: at the first step the query already
# stands in the wrong place, and its logits are about as far off as those of another token are (dashed), so there is
# little further to go. Nothing crashed on the way.
#
# > **This shipped.** Blaizzy/mlx-vlm #1983: position ids were `arange(seq_length)` with no regard to the cache's
# > offset, so every token of a reply got position 0, while the prefill was right.
#
# ## What a check must look at
#
# Here are more wrong positions, in a single attention layer that sees 9 tokens in calls of 4, 3, 1 and 1. Two things
# are checked: the outputs, and the keys left in the cache. "Counter moves in each layer" is a model with one position
# counter that every layer advances after its append, where the model should advance it once a step: with two layers,
# layer 0 runs at twice the past and layer 1 one call further on. The last three have the right positions, and handle
# the keys or values wrongly.


# %%
def at(positions, turn=rotate):
    """A step whose queries and new keys stand at positions(n_past, n_new)."""

    def step(cache, q, k, v):
        here = positions(len(cache), k.shape[1])
        return turn(q, here), *cache.append(turn(k, here), v)

    return step


def follow(past, new):
    return np.arange(past, past + new)


steps = {
    "offset: follow the cache": at(follow),
    "restart at 0 in each call": at(lambda past, new: np.arange(new)),
    "one too far after the prompt": at(lambda past, new: follow(past, new) + (past > 0)),
    "one too far, everywhere": at(lambda past, new: follow(past, new) + 1),
    "counter moves in each layer: 0": at(lambda past, new: follow(2 * past, new)),
    "counter moves in each layer: 1": at(lambda past, new: follow(2 * past + new, new)),
    "interleaved pairs": at(follow, turn=rotate_interleaved),
}


# %%
def never_rotated(cache, q, k, v):
    return rotate(q, follow(len(cache), k.shape[1])), *cache.append(k, v)


def values_rotated(cache, q, k, v):
    here = follow(len(cache), k.shape[1])
    return rotate(q, here), *append_rotated(cache, k, rotate(v, here))


def rotated_again(cache, q, k, v):
    """Every key in the cache is turned again, and kept so."""
    k_old, v_old = cache.append(k, v)
    cache.reset()
    everyone = np.arange(k_old.shape[1])
    return rotate(q, everyone[-k.shape[1] :]), *cache.append(rotate(k_old, everyone), v_old)


steps |= {f.__name__.replace("_", " "): f for f in (never_rotated, values_rotated, rotated_again)}

# %% tags=["nbval-check-output"]
wanted_keys = rotate(k_all, np.arange(9))
wanted = attention(rotate(q_all, np.arange(9)), wanted_keys, v_all)
print(f"{'':32}{'outputs':>8}{'stored keys':>13}")
for name, step in steps.items():
    cache, cuts = ConcatCache(2, 8), (4, 7, 8)
    parts = zip(*(np.split(x, cuts, axis=1) for x in (q_all, k_all, v_all)), strict=True)
    outputs = np.concatenate([attention(*step(cache, *part)) for part in parts], axis=1)
    keys, _ = cache.append(k_all[:, :0], v_all[:, :0])
    verdicts = ["right" if np.abs(a - b).max() < 1e-9 else "WRONG" for a, b in ((outputs, wanted), (keys, wanted_keys))]
    print(f"{name:32}{verdicts[0]:>8}{verdicts[1]:>13}")

# %% [markdown]
# > **Often said:** "Compare the outputs with an uncached run; if they agree, the positions are right."
# >
# > **What is so:** with RoPE a *uniform* shift of all positions changes no output ("one too far, everywhere"). The
# > stored keys are wrong all the same, and show it as soon as another program continues this cache at the right
# > positions. A check of positions must look at the stored keys, and a check of values at the outputs ("values
# > rotated").
#
# > **This shipped.** fla-org/flash-linear-attention #747 and #766: the count of tokens seen was one number for all
# > layers, and layer 0 had moved it on before the deeper layers asked. A model of one layer cannot show it.
# >
# > **Caught in review.** NeuraLegion/shainet #110: keys were stored rotated, and the whole cache was rotated again at
# > every token.
#
# > **Often said:** "RoPE keys must be rotated before they are stored."
# >
# > **What is so:** rotating all keys on each read works too, and costs more. StreamingLLM (Xiao et al. 2023, section
# > 3.2) stores keys unrotated on purpose, because it renumbers positions when it evicts tokens.

# %% tags=["nbval-check-output"]
unrotated, rotated, on_read, on_append = ConcatCache(2, 8), ConcatCache(2, 8), 0, 0
for t in range(9):
    k_new, v_new = k_all[:, t : t + 1], v_all[:, t : t + 1]
    k_read, _ = unrotated.append(k_new, v_new)
    k_read, on_read = rotate(k_read, np.arange(t + 1)), on_read + t + 1
    k_stored, on_append = append_rotated(rotated, k_new, v_new)[0], on_append + 1
print("the same keys reach attention:", np.allclose(k_read, k_stored, atol=1e-12))
print("keys rotated for 9 tokens: on each read", on_read, " before storing", on_append)
print(f"for 1,024 tokens: {1024 * 1025 // 2:,} and {1024:,}")

# %% [markdown]
# ## Learned positions and ALiBi
#
# **Learned absolute positions** (GPT-2) are a table with a row for each position, added to the token's embedding:
# look up the row of the right index, `len(cache)` onwards. Here a uniform shift *does* change the outputs, and the
# table has an end.

# %% tags=["nbval-check-output"]
for kind in ("rope", "learned"):
    model = TinyDecoder(positions=kind)
    shift = np.abs(model(ids, positions=np.arange(16) + 100) - model(ids)).max()
    print(f"{kind}: all positions shifted by 100 changes the outputs: {shift > 1e-9}")
caches = model.make_caches()
model(ids[:15], caches)
for index in (15, 0):
    logits = model(ids[15:], copy.deepcopy(caches), positions=np.array([index]))
    equal = np.abs(logits - model(ids)[15:]).max() < 1e-9
    print(f"learned, token 15 with row {index} of the table: equal to uncached: {equal}")
try:
    model(ids[:1], positions=np.array([256]))
except ValueError as error:
    print(error)

# %% [markdown]
# **ALiBi** (Press et al. 2022) puts nothing into keys or queries. It adds a bias to the scores, minus a slope times
# the distance from the query back to the key, with another slope for each head. The stored keys know no positions,
# but the bias needs the same offset as the mask: below, 3 queries over 7 keys, in units of the slope. Entries ahead
# of the query are positive and hidden by the mask. To see that nothing is in the keys, put the same token at
# positions 0 and 9.

# %% tags=["nbval-check-output"]
print((alibi_bias(2, 3, 7)[0] * 16).astype(int))
twice = ids.copy()
twice[9] = twice[0]
for kind in ("alibi", "rope", "learned"):
    model = TinyDecoder(positions=kind)
    caches, layer_0 = model.make_caches(), model.keys_values(twice)[0][0]
    chunked = np.concatenate([model(part, caches) for part in np.split(twice, [4, 7])])
    same, equal = np.allclose(layer_0[:, 0], layer_0[:, 9]), np.abs(chunked - model(twice)).max() < 1e-12
    print(f"{kind:8}same token, same layer-0 key at positions 0 and 9: {same!s:6} chunks equal the full pass: {equal}")

# %% [markdown]
# ## Equal up to rounding
#
# All comparisons above were in float64 and allowed 1e-12, not 0: a product of one row and a product of many rows may
# add the same numbers in another order. With 16-bit numbers that order can be seen. Below, logits over 1,000 tokens
# are summed once in one go and once in two halves, as two matrix libraries might. NumPy has no bfloat16, so `bf16`
# rounds a float32 to its upper 16 bits, which is what bfloat16 is.


# %% tags=["nbval-check-output"]
def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


hidden, embed = rng.standard_normal((500, 128)), rng.standard_normal((128, 1000))
for name, fit in {"float64": np.float64, "float32": np.float32, "bfloat16": bf16}.items():
    h, e = fit(hidden), fit(embed)
    one, two = fit(h @ e), fit(fit(h[:, :64] @ e[:64]) + fit(h[:, 64:] @ e[64:]))
    gap, flips = np.abs(one - two).max(), (one.argmax(axis=1) != two.argmax(axis=1)).sum()
    print(f"{name:9}gap < 1e-12: {gap < 1e-12!s:6} < 1e-3: {gap < 1e-3!s:6} some largest logits differ: {flips > 0}")

# %% [markdown]
# So a cached model equals the uncached one up to rounding. In bfloat16 the rounding is large enough to change a
# choice of the largest logit between two close tokens, and from that token on the two texts differ; a long reply has
# many such chances. That is no bug in the cache. Test in float64 or float32, where a bug and rounding are many
# orders of magnitude apart.
#
# ## Recap
#
# - You wrote the mask for any chunk: 3 tokens over 4 cached see 5, 6 and 7 keys, where `tril` shows them 1, 2 and 3.
#   **Why is it offset? Because the new tokens are the last rows of the sequence: row i of the mask belongs to position
#   past + i, which sees every key up to there.**
# - You rotated new keys at the cache's length onwards before storing them. At position 0 nothing crashed, the wrong key
#   was stored, and a token decoded after the repair was still off: by 0.22 after one wrong step, by 0.77 after 23.
# - You know the test that finds these: more than one query over a cache that is not empty, against a full pass, and a
#   look at the stored keys. One token at a time passed three of the six wrong masks.
#
# One limit: here each token's position is its place in the cache. Padding (lesson 09) and eviction (lesson 08) break
# that, and then slot, cache position and position id are three different numbers.
#
# Practise: [`../exercises/03_offset_mask.ipynb`](../exercises/03_offset_mask.ipynb). Next: heads that share keys and
# values, [`04_grouped_queries.ipynb`](04_grouped_queries.ipynb).
