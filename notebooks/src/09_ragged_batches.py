# %% [markdown]
# # 09 Batches of unequal length
#
# Reading the weights is what a decode step waits for, so a server lets many sequences share one read (lesson 07).
# An array is a rectangle, and sequences are not equally long.
# **How do sequences of unequal length share one batch, so that each of them gets what it would get alone?**
#
# After this lesson you can
#
# - give each row of a left-padded batch its own position ids and its own mask, and decode on with a cache;
# - run the usual mistakes (pads seen, one row of positions for all, the wrong column read, the wrong stop), and say
#   which of them a RoPE model hides;
# - count the slots that padding and finished sequences waste, give them back, and pack a prefill that wastes none.
#
# About 40 minutes. Needs no GPU.

# %%
import numpy as np

from kvlab import masks
from kvlab.attention import attention, offset_mask, softmax
from kvlab.caches import ConcatCache, StaticCache
from kvlab.decoder import TinyDecoder, generate
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import MaskDiagram

# %% [markdown]
# ## Three prompts in one rectangle
#
# Three prompts of 3, 7 and 5 tokens. The short ones are filled up with *pads*, tokens that stand for nothing, and
# a second array says which cells are tokens (1) and which are pads (0): the *attention mask*, as libraries call it.
# The pads stand on the **left**, so that the next token of every row belongs into the same column.
#
# It is the attention mask that says what a pad is. The id in a padded cell may be any; here it is 0, which is also a
# token that the model may write.


# %% tags=["nbval-check-output"]
def left_pad(prompts, pad=0):
    """(ids, attention_mask), each (batch, n) with n the longest prompt."""
    n = max(map(len, prompts))
    ids = np.stack([np.pad(p, (n - len(p), 0), constant_values=pad) for p in prompts])
    return ids, np.stack([np.arange(n) >= n - len(p) for p in prompts]).astype(int)


rng = np.random.default_rng(4)
prompts = [rng.integers(1, 64, n) for n in (3, 7, 5)]
ids, attention_mask = left_pad(prompts)
print(ids, attention_mask, sep="\n\n")

# %%
guess_1 = predict("Row 0 begins with 4 pads. Which position id does its first token need?", ["0", "1", "4"])
guess_1

# %% [markdown]
# ## Three counters
#
# The model of this lesson has *learned* positions: a table with a row for each position, added to the embedding.
# Alone, the first token of a prompt gets row 0 of that table. In the batch it must get the same row, wherever it lies:
# its position id is the number of *tokens* before it in its own row. Nobody reads what a pad makes of its position;
# it gets 0, which every table has.


# %% tags=["nbval-check-output"]
def pad_positions(attention_mask):
    """(batch, n) ints: in each row the first token stands at 0, the next at 1; pads get 0."""
    return np.maximum(attention_mask.cumsum(axis=1) - 1, 0)


print(pad_positions(attention_mask))
guess_1.reveal(pad_positions(attention_mask)[0, 4], "No token of its own row comes before it.")

# %% [markdown]
# The cache knows nothing of that. It stores a row for each token that goes in, pad or not. So three numbers, which are
# one and the same while nothing is padded or evicted, go apart:
#
# - a *slot* is a row in storage; here each sequence has 12 of them reserved;
# - the *cache position* is the number of rows stored so far, pads included: `len(cache)`, the same for the whole batch;
# - the *position id* is what the positional encoding uses, another one in each row.
#
# `ragged_mask` makes the masks: lesson 03's offset mask with one condition more, that the key is a token. Then every
# query may see itself: a token could anyway, and a pad has only pads before it, so itself is all that it sees.


# %%
def ragged_mask(attention_mask, n_new):
    """(batch, n_new, n_total), for the last n_new columns as queries. A pad as a query sees only itself."""
    keys = np.arange(attention_mask.shape[1])
    queries = keys[len(keys) - n_new :, None]
    tokens_before = (keys <= queries) & (attention_mask[:, None, :] == 1)
    return tokens_before | (keys == queries)


# %% [markdown]
# `TinyDecoder` takes one sequence a call, so `run` is a loop over the rows of the batch. It hides nothing: pads are
# computed and stored as they are in one batched call, and each row gets its row of `positions` and its own mask.


# %%
def run(model, ids, positions, masks, caches=None):
    """Logits (batch, n_new, vocab_size); caches: for each row, one a layer."""
    rows = zip(ids, caches or [None] * len(ids), positions, masks, strict=True)
    return np.stack([model(row, cache, positions=at, mask=mask) for row, cache, at, mask in rows])


def extend(model, ids, attention_mask, caches=None):
    """`run` with the right positions and masks; attention_mask covers what is cached and the new columns."""
    n_new = ids.shape[1]
    return run(model, ids, pad_positions(attention_mask)[:, -n_new:], ragged_mask(attention_mask, n_new), caches)


# %% tags=["nbval-check-output"]
model = TinyDecoder(positions="learned")
caches = [model.make_caches(lambda: StaticCache(n_kv_heads=2, max_len=12, head_dim=8)) for _ in prompts]
extend(model, ids, attention_mask, caches)
print("the next token:  slots reserved  cache position  position id")
for row, (cache, *_) in enumerate(caches):
    print(f"row {row}{cache.max_len:25}{len(cache):16}{attention_mask[row].sum():13}")

# %% [markdown]
# **The cache position counts stored rows whatever they hold.** It says where the next row is written. It does not say
# where the token stands in its text, nor which rows may be looked at. Those two need the attention mask, and in a batch
# with pads they are two more things that you must hand over.
#
# ## The mask of a row with pads
#
# The causal mask beside the right one, for a row of 4 pads and 3 tokens. Every marked cell is a pad that somebody sees.
# What the diagram calls positions are columns here, that is, slots.

# %%
MaskDiagram("causal", expected="left padding", n_new=7, n_total=7, n_pad=4)

# %% [markdown]
# The diagonal of the pads stays. A pad hidden from itself would have nothing to look at; what that does comes below.
#
# ## Each row equals itself alone
#
# Two checks. The batch against each prompt alone; and the loop against a model written for batches, which has one more
# axis in front and does all rows in one product: there the mask is (batch, n_new, n_total), and all heads share it.

# %% tags=["nbval-check-output"]
logits = extend(model, ids, attention_mask)
alone = [model(prompt) for prompt in prompts]
for row, real in enumerate(attention_mask.astype(bool)):
    same = np.abs(logits[row, real] - alone[row]).max() < 1e-12
    print(f"row {row}: {(~real).sum()} pads, logits of its {real.sum()} tokens as if alone: {same}")
print("every logit is finite:", np.isfinite(logits).all())


# %% tags=["nbval-check-output"]
def batched_attention(q, k, v, mask):
    """q, k, v (batch, n_heads, n, head_dim); mask (batch, n_new, n_total)."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(mask[:, None], scores, -np.inf)) @ v


q, k, v = rng.standard_normal((3, 3, 2, 7, 8))
mask = ragged_mask(attention_mask, n_new=7)
loop = np.stack([attention(*row) for row in zip(q, k, v, mask, strict=True)])
print("shape", loop.shape, "as one batch:", np.abs(batched_attention(q, k, v, mask) - loop).max() < 1e-12)

# %% [markdown]
# ## What goes wrong, and for which model
#
# Now the usual mistakes, over a prefill of 7 columns and 3 decode steps with a cache. The decoded tokens are given,
# so that every version reads the same text. Each version has a mask, the positions of the prefill and the positions of
# the decode steps.

# %%
guess_2 = predict(
    "Pads hidden, but all rows get positions 0, 1, 2 ... of the columns. The model uses RoPE. The short rows are then",
    ["wrong from the first token", "wrong after some steps", "right"],
)
guess_2


# %%
def all_see(attention_mask, n_new):
    """The causal mask for every row: pads are seen."""
    causal = offset_mask(n_new, attention_mask.shape[1])
    return np.broadcast_to(causal, (len(attention_mask), *causal.shape))


def columns(attention_mask):
    """One row of positions for the whole batch: the numbers of the columns, which are the cache positions."""
    return np.broadcast_to(np.arange(attention_mask.shape[1]), attention_mask.shape)


versions = {
    "right": (ragged_mask, pad_positions, pad_positions),
    "pads seen": (all_see, pad_positions, pad_positions),
    "one row of positions for all": (ragged_mask, columns, columns),
    "... in the decode steps only": (ragged_mask, pad_positions, columns),
    "pads seen, one row for all": (all_see, columns, columns),
}


# %%
def worst_gap(model, texts, mask_of, at_prefill, at_decode, n_decode=3):
    """The largest logit difference between a row of the batch and the same text alone."""
    ids, mask = left_pad(texts)
    n, caches, parts = ids.shape[1], [model.make_caches() for _ in texts], []
    for end in range(n - n_decode, n + 1):
        part = slice(0 if end == n - n_decode else end - 1, end)
        positions = (at_prefill if part.start == 0 else at_decode)(mask)[:, part]
        parts.append(run(model, ids[:, part], positions, mask_of(mask[:, :end], end - part.start), caches))
    rows = zip(np.concatenate(parts, axis=1), mask.astype(bool), texts, strict=True)
    return max(np.abs(logits[real] - model(text)).max() for logits, real, text in rows)


# %% tags=["nbval-check-output"]
texts = [np.append(prompt, rng.integers(1, 64, 3)) for prompt in prompts]
models = {kind: TinyDecoder(positions=kind) for kind in ("learned", "rope", "alibi")}
print(f"{'':32}" + "".join(f"{kind:>9}" for kind in models))
verdicts = {}
for name, version in versions.items():
    gaps = {kind: worst_gap(m, texts, *version) for kind, m in models.items()}
    verdicts[name] = {kind: "right" if gap < 1e-12 else "WRONG" for kind, gap in gaps.items()}
    print(f"{name:32}" + "".join(f"{said:>9}" for said in verdicts[name].values()))
guess_2.reveal(verdicts["one row of positions for all"]["rope"], "All tokens of a row are shifted by the same amount.")

# %% [markdown]
# **RoPE hides wrong positions.** A row with 4 pads is shifted by 4 as a whole, a score depends on the distance alone,
# and the distances are right. With RoPE and the right mask, a test of the outputs cannot see such a shift: use learned
# positions, or compare the stored keys. The fourth line is where RoPE does fail: the prefill counts tokens, the decode
# steps count columns, and row 0 skips 4 positions in between. ALiBi takes no position ids at all; its distances are
# those of the columns. What no encoding forgives is a pad that is seen.
#
# > **Often said:** "With RoPE, padding needs no position ids, only a mask."
# >
# > **What is so:** it needs *one* count, the same in prefill, in decode and in whoever reads the cache later. Which one
# > it is does not matter to RoPE. Learned positions need the count of tokens.
#
# > **This shipped.** unslothai/unsloth #3699: the position ids of a batch were the cache positions, one row for all
# > sequences. In a left-padded batch the longest prompt was continued well, and the shorter ones with garbage.
#
# How large is the damage? One text of 6 tokens, with ever more pads before it, in 20 seeded models:


# %%
def damage(kind, mask_of, at, n_pads, seed):
    """Mean logit difference of the last of 6 tokens, after n_pads pads."""
    model, text = TinyDecoder(positions=kind, seed=seed), np.random.default_rng(seed).integers(1, 64, 6)
    mask = (np.arange(n_pads + 6) >= n_pads).astype(int)[None]
    padded = np.pad(text, (n_pads, 0))[None]
    return np.abs(run(model, padded, at(mask), mask_of(mask, n_pads + 6))[0, -1] - model(text)[-1]).mean()


lines = {
    "learned, pads seen": ("learned", all_see, pad_positions, "wrong", "o"),
    "RoPE, pads seen": ("rope", all_see, pad_positions, "new", "s"),
    "learned, one row of positions": ("learned", ragged_mask, columns, "values", "d"),
    "RoPE, one row of positions": ("rope", ragged_mask, columns, "right", "^"),
}
counts = np.array([0, 1, 2, 4, 8, 16, 32])
drawn = {
    name: np.array([np.mean([damage(*line[:3], n, seed) for seed in range(20)]) for n in counts])
    for name, line in lines.items()
}

# %%
fig, ax = subplots()
for name, (*_, colour, marker) in lines.items():
    ax.plot(counts, drawn[name], color=COLORS[colour], marker=marker, label=name)
ax.set(xlabel="pads before the text (tokens)", ylabel="mean logit difference", title="Four ways to pad a text")
ax.legend()
alt = "Mean logit difference of a text's last token against the pads before it, for 1 and 32 pads. " + "; ".join(
    f"{name}: {gap[1]:.2f} and {gap[-1]:.2f}" for name, gap in drawn.items()
)
show(fig, alt=f"{alt}. Without pads all are 0.")

# %% [markdown]
# One pad is enough: a seen pad is a token of the text as far as the model is concerned, and more of them do more harm.
# A wrong learned position is simply another row of the table, and about as wrong after one pad as after 32.
#
# ## A row with nothing to look at
#
# A pad must be hidden from tokens. Must it be hidden from itself too? Then its row of the mask is all False, its
# scores are all -inf, and softmax divides 0 by 0. Below, two attention layers in plain NumPy over row 0 of the batch.


# %% tags=["nbval-check-output"]
def plain_layer(x, mask):
    """One head whose queries, keys and values are x; softmax without any care for empty rows."""
    scores = np.where(mask, x @ x.T, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ x


as_it_is = ragged_mask(attention_mask, n_new=7)[0]
pads_hidden = as_it_is & attention_mask[0].astype(bool)[:, None]
x = rng.standard_normal((7, 4))
with np.errstate(invalid="ignore"):  # -inf - -inf and 0 / 0 are what this cell is about
    for name, mask in {"pads hidden from themselves": pads_hidden, "pads see themselves": as_it_is}.items():
        layers = [plain_layer(x, mask), plain_layer(plain_layer(x, mask), mask)]
        broken = [int(np.isnan(out).any(axis=1).sum()) for out in layers]
        print(f"{name}: rows of nan after layer 1: {broken[0]} of 7, after layer 2: {broken[1]} of 7")

# %% [markdown]
# After one layer only the pads are nan, and nobody reads a pad. After two, the tokens are: their weight on a pad is 0,
# and **0 x nan is nan**. So a pad sees itself, which costs nothing and is read by nobody.
# The libraries have their own answers for an empty row:

# %% tags=["nbval-check-output"]
import torch

empty = torch.tensor([[False, False], [True, True]])
ones = torch.ones(1, 2, 4)
print("torch SDPA:", torch.nn.functional.scaled_dot_product_attention(ones, ones, ones, attn_mask=empty)[0, 0].tolist())
print("torch softmax:", torch.softmax(torch.full((2,), -torch.inf), dim=0).tolist())
for call in (
    lambda: attention(np.ones((1, 2, 4)), np.ones((1, 2, 4)), np.ones((1, 2, 4)), empty.numpy()),
    lambda: masks.ragged_mask(np.array([[0, 1], [0, 0]]), n_new=1),
):
    try:
        call()
    except ValueError as error:
        print("kvlab:", error)

# %% [markdown]
# > **This shipped.** pytorch/pytorch #103749: a boolean mask with an all-False row for a pad gave nan in
# > `scaled_dot_product_attention`. The version here returns zeros for such a row; torch's softmax still gives nan.
#
# `kvlab` refuses both: a row of a mask without True, and a sequence without a token, for which no logits are right.
#
# ## Pads on the right
#
# With pads on the right the prefill is simpler: the tokens stand at columns 0, 1, 2 ..., so the positions are right as
# they come, and the causal mask hides the pads from every token, since they come after it. One thing is not so simple:
# the logits that continue a row are in the column of its last *token*.

# %% tags=["nbval-check-output"]
lengths = np.array([len(prompt) for prompt in prompts])
right_ids = np.stack([np.pad(prompt, (0, 7 - len(prompt))) for prompt in prompts])
right_mask = (np.arange(7) < lengths[:, None]).astype(int)
caches = [model.make_caches() for _ in prompts]
logits = run(model, right_ids, columns(right_mask), all_see(right_mask, 7), caches)
for name, column in {"logits[:, -1]": [6, 6, 6], "logits[:, length - 1]": lengths - 1}.items():
    same = [bool(np.abs(logits[row, c] - alone[row][-1]).max() < 1e-12) for row, c in enumerate(column)]
    print(f"{name:23} continues each row as if alone: {same}")

# %% [markdown]
# `logits[:, -1]` is right for the longest row only, which is the one row of a quick test. Then decode one token. It is
# appended in slot 7 of every row, *after* the pads, so a short row has a hole in its middle: the hole must be hidden
# (the causal mask no longer does it) and must not be counted.

# %% tags=["nbval-check-output"]
new, wanted = np.array([text[-3:-2] for text in texts]), [model(text[:-2])[-1] for text in texts]
hidden = np.pad(right_mask, ((0, 0), (0, 1)), constant_values=1).astype(bool)[:, None, :]
for name, positions, mask in (
    ("hole hidden, tokens counted", lengths[:, None], hidden),
    ("hole hidden, slots counted", np.full((3, 1), 7), hidden),
    ("hole seen, tokens counted", lengths[:, None], np.ones_like(hidden)),
):
    caches = [model.make_caches() for _ in prompts]
    run(model, right_ids, columns(right_mask), all_see(right_mask, 7), caches)
    step = run(model, new, positions, mask, caches)[:, 0]
    same = [bool(np.abs(a - b).max() < 1e-12) for a, b in zip(step, wanted, strict=True)]
    print(f"{name:28} as if alone: {same}")

# %% [markdown]
# So both sides work, and both need the attention mask once a cache goes on. The left is the habit for generation,
# because column -1 is then right in every row.
#
# ## Who says stop
#
# Now generate. `write` decodes greedily over a left-padded batch: each step appends a column of ones to the attention
# mask, and the position ids are counted from it. A reply ends with its *end token*, here token 29. Replies have
# unequal lengths too, so when does the loop stop?


# %%
def write(model, prompts, limit, stop):
    """Greedy tokens (batch, n_steps), until stop(tokens) or the limit."""
    (ids, attention_mask), caches = left_pad(prompts), [model.make_caches() for _ in prompts]
    tokens = np.zeros((len(prompts), 0), dtype=int)
    while tokens.shape[1] < limit and not stop(tokens):
        ids = extend(model, ids, attention_mask, caches)[:, -1:].argmax(axis=-1)
        tokens = np.append(tokens, ids, axis=1)
        attention_mask = np.pad(attention_mask, ((0, 0), (0, 1)), constant_values=1)
    return tokens


# %% tags=["nbval-check-output"]
END, LIMIT = 29, 12
tokens = write(model, prompts, LIMIT, stop=lambda tokens: False)
print(tokens)
solo = np.array([generate(model, prompt, LIMIT)[len(prompt) :] for prompt in prompts])
print("every row writes what it writes alone:", (tokens == solo).all())
print("the end token comes at step", (tokens == END).argmax(axis=1) + 1)

# %% [markdown]
# Row 0 ends at step 5, row 1 at step 2, row 2 at step 7. (Row 1 goes on to write token 0, the id in our pads: do not
# look for pads by their id.) Three rules for the loop:

# %% tags=["nbval-check-output"]
rules = {
    "row 0 has ended": lambda t: END in t[0],
    "all end in this step": lambda t: t.size > 0 and (t[:, -1] == END).all(),
    "each row has ended": lambda t: (t == END).any(axis=1).all(),
}
for name, stop in rules.items():
    out = write(model, prompts, LIMIT, stop)
    replies = ["whole" if END in row else "cut short" for row in out]
    print(f"{name:21} stops after {out.shape[1]:2} of {LIMIT} steps, replies: {', '.join(replies)}")

# %% [markdown]
# The first rule is right in every test with one prompt. The second is right when all prompts are the same. Ended is
# something that a row *stays*: keep a flag for each row, stop when all are set, and cut each reply at its own end
# token.
#
# ## Where the slots went
#
# With the third rule the loop ran 7 steps. The last token is not fed in again, so each row has 7 + 6 slots filled, and
# a server that reserves for the limit holds 7 + 11. What is in them?

# %%
kinds = ["pad", "prompt", "reply", "end and after", "never written"]
slots = np.full((3, 7 + LIMIT - 1), 4)
slots[:, :7] = attention_mask
slots[:, 7:13] = np.where(np.arange(1, 7) < (tokens == END).argmax(axis=1)[:, None] + 1, 2, 3)
colours = [COLORS[c] for c in ("wrong", "cached", "right", "new", "weights")]
fig, ax = subplots(figsize=(6.4, 2.2))
for kind, (colour, hatch) in enumerate(zip(colours, ("//", "", "", "..", ""), strict=True)):
    row, slot = np.nonzero(slots == kind)
    ax.barh(row, 0.9, left=slot - 0.45, height=0.8, color=colour, hatch=hatch, label=kinds[kind])
ax.set(xlabel="slot", xticks=range(0, 18, 2), yticks=range(3), ylim=(2.6, -0.6))
ax.set(yticklabels=["row 0", "row 1", "row 2"])
ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=5)
ax.grid(False)
counted = [", ".join(f"{name} {(row == kind).sum()}" for kind, name in enumerate(kinds)) for row in slots]
show(fig, alt="The 18 slots of each row. " + " ".join(f"Row {i}: {said}." for i, said in enumerate(counted)))

# %% tags=["nbval-check-output"]
filled, useful = slots[:, :13].size, int(np.isin(slots, (1, 2)).sum())
print({name: int((slots == kind).sum()) for kind, name in enumerate(kinds)})
print(f"{filled} slots filled, {useful} of use, {filled - useful} wasted; {slots.size} reserved")

# %% [markdown]
# A finished row leaves a gap: its slots stay, and it is still computed at every step. Such gaps must be **reclaimed**.
# When row 1 ends, drop it; and since it was the longest prompt, two columns are now pads in all rows that are left:


# %%
def copy_rows(caches, start, end=None):
    """New caches that hold the slots start to end of these."""
    copies = [ConcatCache(cache.n_kv_heads, cache.head_dim) for cache in caches]
    for copy, cache in zip(copies, caches, strict=True):
        nothing = np.zeros((cache.n_kv_heads, 0, cache.head_dim))
        copy.append(*(rows[:, start:end] for rows in cache.append(nothing, nothing)))
    return copies


# %%
def write_and_drop(model, prompts, limit, end):
    """The replies, and the slots held in each step. A row that has ended goes, then columns of nothing but pads."""
    (ids, mask), caches = left_pad(prompts), [model.make_caches() for _ in prompts]
    rows, replies, held = np.arange(len(prompts)), [[] for _ in prompts], []
    while len(rows) and len(held) < limit:
        ids = extend(model, ids, mask, caches)[:, -1:].argmax(axis=-1)
        held.append(mask.size)
        for row, token in zip(rows, ids[:, 0].tolist(), strict=True):
            replies[row].append(token)
        keep = np.flatnonzero(ids[:, 0] != end)
        cut = mask[keep].argmax(axis=1).min(initial=mask.shape[1])
        if len(keep) < len(rows):
            caches = [copy_rows(caches[i], cut) for i in keep]
            mask = mask[keep, cut:]
        mask, ids, rows = np.pad(mask, ((0, 0), (0, 1)), constant_values=1), ids[keep], rows[keep]
    return replies, held


# %% tags=["nbval-check-output"]
replies, held = write_and_drop(model, prompts, LIMIT, END)
ends = (tokens == END).argmax(axis=1) + 1
print("replies as before:", replies == [row[:n].tolist() for row, n in zip(tokens, ends, strict=True)])
print("slots held, rows dropped:", held)
print("slots held, rows kept:   ", [3 * (7 + step) for step in range(7)])
print("rows computed over all steps:", sum(map(len, replies)), "and", 3 * 7)

# %% [markdown]
# In step 3 two rows of 7 slots are left, 14 in all: the next token went into slot 6 where it would have gone into
# slot 8, and its position id did not change. Slots may be moved; position ids may not.
#
# Dropping shrinks the batch. A server would rather put the next waiting prompt into the free row (lesson 14), and
# store rows in small blocks, so that nothing needs copying (lesson 10).
#
# ## How much is padding
#
# With 64 prompts of very unequal lengths, in batches of 8, the longest of each batch sets the width:

# %%
sizes = np.random.default_rng(0).lognormal(mean=5, sigma=1, size=64).astype(int) + 1
orders = {"as they come": sizes.reshape(8, 8), "sorted by length": np.sort(sizes).reshape(8, 8)}
fig, axes = subplots(1, 2, figsize=(6.4, 3), sharey=True)
for ax, (name, batches) in zip(axes, orders.items(), strict=True):
    of_use, held = batches.sum(axis=1), 8 * batches.max(axis=1)
    ax.bar(range(8), of_use, color=COLORS["cached"], label="tokens")
    ax.bar(range(8), held - of_use, bottom=of_use, color=COLORS["wrong"], hatch="//", label="pads")
    ax.set(title=f"{name}: {1 - of_use.sum() / held.sum():.0%} pads", xlabel="batch")
axes[0].set_ylabel("slots")
axes[0].legend()
fig.tight_layout()
alt = "Slots of 8 batches of 8 prompts, tokens and pads. " + "; ".join(
    f"{name}: {batches.sum():,} tokens in {(8 * batches.max(axis=1)).sum():,} slots" for name, batches in orders.items()
)
show(fig, alt=alt + ".")

# %% [markdown]
# As they come, most of the slots hold pads. Sorting helps, and makes a request wait for others of its length.
#
# ## Packed: no pads at all
#
# For the prefill there is another way: lay the prompts end to end in **one** row. Positions restart with each prompt,
# and the mask is a triangle for each, nothing across: it is *block-diagonal*. The diagram below the code has one causal
# triangle over all 12 tokens of three sequences of 4: every marked cell is one user's prompt read by another's.


# %% tags=["nbval-check-output"]
def packed_mask(lengths):
    """(n, n) for sequences of these lengths in one row: causal inside each, nothing across."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(sequence))
    return (at <= at[:, None]) & (sequence == sequence[:, None])


row = np.concatenate(prompts)
positions = np.concatenate([np.arange(n) for n in lengths])
starts = np.cumsum(lengths) - lengths
print("position ids:", positions)
print("first tokens: slots", starts, "position ids", positions[starts])
print("True entries:", packed_mask(lengths).sum(), "of", row.size**2)

# %%
MaskDiagram("causal", expected="packed", n_new=12, n_total=12, length=4)

# %% tags=["nbval-check-output"]
caches, packed_run = model.make_caches(), model.make_trace()
logits = model(row, caches, positions=positions, mask=packed_mask(lengths), trace=packed_run)
print("logits as in three prefills:", np.abs(logits - np.concatenate(alone)).max() < 1e-12)
nothing = np.zeros((2, 0, 8))
for i, (start, prompt) in enumerate(zip(starts, prompts, strict=True)):
    own = copy_rows(caches, start, start + len(prompt))
    pairs = zip((cache.append(nothing, nothing) for cache in own), model.keys_values(prompt), strict=True)
    same = all(np.allclose(ours, theirs, rtol=0, atol=1e-12) for ours, theirs in pairs)
    step = model(texts[i][-3:-2], own)[0]
    print(f"sequence {i}: keys and values as alone: {same}, decodes on: {np.abs(step - wanted[i]).max() < 1e-12}")

# %% [markdown]
# Each sequence's rows are cut out of the packed cache into a cache of its own, and from there decoding goes on as in
# any batch. Its cache positions start at 0 there, wherever its slots were in the packed row.
#
# ## What packing costs
#
# The prompts are 3, 7 and 5 tokens. A padded batch computes 3 squares of 7 x 7 scores a head, the packed row one
# square of 15 x 15, with a mask over it.

# %%
guess_3 = predict("Which computes more scores, when masked entries are computed too?", ["padded", "packed"])
guess_3

# %% tags=["nbval-check-output"]
ways = {  # queries and keys of each score rectangle
    "one by one": [(n, n) for n in lengths],
    "padded batch": [(7, 7)] * 3,
    "packed, masked entries computed": [(15, 15)],
    "packed, blocks only": [(n, n) for n in lengths],
}
scores = {name: sum(int(q * k) for q, k in ways[name]) for name in ways}
print(f"{'':33}reads of the weights  rows through them  scores a head")
for name, shapes in ways.items():
    reads = len(shapes) if name == "one by one" else 1
    print(f"{name:33}{reads:20}{sum(int(q) for q, _ in shapes):19}{scores[name]:15}")
print("counted in layer 0 of the packed run above:", packed_run.total("projected", 0), packed_run.total("scores", 0))
guess_3.reveal(f"packed, {15 * 15} to {3 * 7 * 7}", "Most of the big square is masked: 49 entries are True.")

# %% [markdown]
# Packing always saves rows: 15 pass through the weights and into the cache where padding has 21, and the weights are
# read once. Scores it saves only if the attention skips what is masked. Our NumPy does not, and computes more than
# padding. Kernels for *variable length* take the lengths in place of a mask and compute the blocks alone, as here:


# %% tags=["nbval-check-output"]
def attend_blocks(q, k, v, lengths):
    """Causal attention inside each sequence; scores across are never computed."""
    cuts = np.cumsum(lengths)[:-1]
    parts = zip(*(np.split(x, cuts, axis=1) for x in (q, k, v)), strict=True)
    return np.concatenate([attention(*part) for part in parts], axis=1)


q, k, v = rng.standard_normal((3, 2, 15, 8))
print("equal:", np.abs(attend_blocks(q, k, v, lengths) - attention(q, k, v, packed_mask(lengths))).max() < 1e-12)
for name, batches in orders.items():
    n_slots, n_scores = 8 * batches.max(axis=1), 8 * batches.max(axis=1) ** 2
    print(f"64 prompts, padded, {name:20}{n_slots.sum():7,} slots {n_scores.sum():11,} scores a head")
of_use, squares = orders["as they come"].sum(axis=1), (sizes**2).sum()
print(f"64 prompts, packed, masked computed     {of_use.sum():7,} slots {(of_use**2).sum():11,} scores a head")
print(f"64 prompts, packed, blocks only         {of_use.sum():7,} slots {squares:11,} scores a head")

# %% [markdown]
# ## What leaks
#
# Two things can be forgotten in a packed row: the blocks, and the restart of the positions. Each is tried, for the
# prefill and for one decode step from the caches cut out of it.


# %% tags=["nbval-check-output"]
def packed_gaps(model, mask, positions):
    """Worst logit difference to the prompts alone: (prefill, one decode step after cutting the caches apart)."""
    caches = model.make_caches()
    logits = model(row, caches, positions=positions, mask=mask)
    steps = [model(t[-3:-2], copy_rows(caches, s, s + len(t) - 3)) for s, t in zip(starts, texts, strict=True)]
    prefill = np.abs(logits - np.concatenate([model(prompt) for prompt in prompts])).max()
    return prefill, max(np.abs(a - model(t[:-2])[-1]).max() for a, t in zip(steps, texts, strict=True))


print(f"{'':38}learned: prefill  decode   rope: prefill  decode")
for name, mask, at in (
    ("blocks, positions restart", packed_mask(lengths), positions),
    ("blocks, positions run on", packed_mask(lengths), np.arange(15)),
    ("one triangle, positions restart", np.tri(15, dtype=bool), positions),
    ("one triangle, positions run on", np.tri(15, dtype=bool), np.arange(15)),
):
    gaps = [gap for kind in ("learned", "rope") for gap in packed_gaps(models[kind], mask, at)]
    verdict = ["right" if gap < 1e-12 else "WRONG" for gap in gaps]
    print(f"{name:38}{verdict[0]:>16}{verdict[1]:>8}{verdict[2]:>16}{verdict[3]:>8}")

# %% tags=["nbval-check-output"]
other = row.copy()
other[0] = (other[0] + 1) % 64
for name, mask in {"one triangle": np.tri(15, dtype=bool), "blocks": packed_mask(lengths)}.items():
    both = [model(r, positions=positions, mask=mask) for r in (row, other)]
    for said, gap in ("another first token in sequence 0 changes", both[1]), ("wrong", np.concatenate(alone)):
        parts = np.split(np.abs(both[0] - gap).max(axis=-1) > 1e-9, starts[1:])
        print(f"{name:13} {said}: sequences {[i for i, part in enumerate(parts) if part.any()]}")

# %% [markdown]
# With one triangle over everything the second user's logits depend on the first user's words. Nothing crashes, and the
# first sequence is right. The second line is RoPE again: the prefill hides positions that run on, and the first decode
# step from the cut caches shows them.
#
# ## Recap
#
# - You gave each row of a left-padded batch its own position ids and mask: all three rows equalled the same prompt
#   alone, to 1e-12 in the prefill and 3 decode steps, and token for token in 12. Slot, cache position and position id
#   of the next token were three numbers: of 12 slots, 7 filled in every row, position ids 3, 7 and 5.
# - You ran the usual mistakes. A seen pad was wrong in every model; one row of positions for all was wrong with
#   learned positions and right with RoPE, unless the decode steps counted differently from the prefill;
#   `logits[:, -1]` over right padding was right in one row of three; two of three stop rules failed. A pad that saw
#   nothing made all 7 rows nan after two layers.
# - You counted the waste: 13 of 39 filled slots. Dropping ended rows computed 14 rows where 21 were computed before,
#   and packing sent 15 rows through the weights where padding sent 21.
#
# One limit: a batch that starts together still waits for its longest reply. Lesson 14 refills it at every step, and
# lesson 10 takes away the need for one long stretch of slots a sequence.
#
# Practise: [`../exercises/09_ragged_batches.ipynb`](../exercises/09_ragged_batches.ipynb). Next: storage in blocks,
# [`10_paged_cache.ipynb`](10_paged_cache.ipynb).
