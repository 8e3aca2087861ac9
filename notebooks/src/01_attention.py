# %% [markdown]
# # 01 Attention
#
# **Which numbers of a transformer stay the same when one more token arrives?**
#
# After this lesson you can
#
# - write softmax and causal multi-head attention in NumPy, and name the damage when a piece is left out;
# - show by a run why the keys and values of earlier tokens can be kept, and where that stops being so;
# - say why queries are not kept, and what computing everything again costs.
#
# Minutes: 40. GPU: not needed.

# %%
import numpy as np

from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots

rng = np.random.default_rng(0)

# %% [markdown]
# ## Softmax: scores into weights
#
# Attention compares one vector with many and gets one *score* for each. Softmax turns a row of scores into weights:
# positive, summing to 1, larger for larger scores. On paper it is $e^{x_i} / \sum_j e^{x_j}$. It depends on differences
# only: adding 1,000 to every score of a row changes nothing.


# %%
def softmax_on_paper(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


question = "The scores 1, 2, 3 get the weights 0.09, 0.24, 0.67. What does this code give for 1001, 1002, 1003?"
overflow_guess = predict(
    question, options=["the same weights", "three equal weights", "three times nan", "an exception"]
)
overflow_guess

# %% tags=["nbval-check-output"]
print(softmax_on_paper(np.array([1.0, 2.0, 3.0])).round(2))
with np.errstate(over="ignore", invalid="ignore"):  # the overflow is what this cell is about
    broken = softmax_on_paper(np.array([1001.0, 1002.0, 1003.0]))
overflow_guess.reveal(broken, f"exp overflows above {np.log(np.finfo(np.float64).max):.2f}, and inf / inf is nan.")

# %% [markdown]
# Nothing stopped; NumPy warns, and the nan travels on. Since only differences count, subtract the largest score of the
# row first. Then the largest exponent is 0, its exp is 1, and the sum is at least 1: nothing overflows, and the divisor
# is never 0. A score of `-inf` gets the weight 0, which is how entries are hidden below.
#
# The maximum must be that *of the row*. With the maximum of the whole array, a row far below it has only exponents
# under about -745, every exp rounds to 0, and the row becomes 0/0. The second cell sends thirteen rows with the same
# differences (0, 1, 2), each 100 higher than the one before, through all three versions.


# %% tags=["nbval-check-output"]
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


print(softmax(np.array([1001.0, 1002.0, 1003.0])).round(2))
print(softmax(np.array([1000.0, 1000.0, -np.inf])))

# %% tags=["nbval-check-output"]
rows = np.arange(0, 1300, 100)[:, None] + np.array([0.0, 1.0, 2.0])
with np.errstate(over="ignore", invalid="ignore"):
    by_paper, by_array, by_row = softmax_on_paper(rows), softmax_on_paper(rows - rows.max()), softmax(rows)
weights = {"nothing subtracted": by_paper, "maximum of the array": by_array, "maximum of the row": by_row}
finite = {name: np.isfinite(w).all(axis=1) for name, w in weights.items()}
print("finite rows of 13:", {name: int(ok.sum()) for name, ok in finite.items()})

# %%
fig, ax = subplots(figsize=(6.4, 1.9))
for name, ok in finite.items():
    ax.plot(rows[ok, 0], [name] * ok.sum(), "o", color=COLORS["right"])
    ax.plot(rows[~ok, 0], [name] * (~ok).sum(), "x", color=COLORS["wrong"], markersize=7)
ax.set(xlabel="smallest score of the row      (o weights are right, x weights are nan)", ymargin=0.3)
alt = "Thirteen rows, scores 0 to 1,200. Nothing subtracted: nan from 800 on. Maximum of the array: nan up to 400."
show(fig, alt=f"{alt} Maximum of the row: all right.")

# %% [markdown]
# ## One head
#
# The papers' letters: Q holds a *query* a token (what it looks for), K a *key* (what it can be found by), V a *value*
# (what it hands over). Every query is compared with every key by a dot product; the weights then average the values:
#
# $$\text{softmax}(Q K^T / \sqrt{\text{head\_dim}})\, V$$
#
# (Vaswani et al. 2017, section 3.2.1). For now every token may look at every other.
#
# Why divide by $\sqrt{\text{head\_dim}}$? A dot product adds `head_dim` terms. If each number has variance 1, the sum
# has variance `head_dim` (same paper, footnote 4), so wider heads would have larger scores for no reason of meaning.
# Leave the division out and the largest weight of a row goes to 1: the query copies a single value. Divide by
# `head_dim` itself and all weights become equal: the query sees the plain mean. The second cell measures it.


# %% tags=["nbval-check-output"]
def full_attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return softmax(scores) @ v


q, k, v = rng.standard_normal((3, 6, 8))  # one head, 6 tokens, head_dim 8
print("scores", (q @ k.T).shape, "output", full_attention(q, k, v).shape)


# %% tags=["nbval-check-output"]
def largest_weight(head_dim, divisor):
    q, k = rng.standard_normal((2000, 1, head_dim)), rng.standard_normal((2000, 32, head_dim))
    return softmax(q @ k.swapaxes(-1, -2) / divisor).max(axis=-1).mean()


widths = [8, 32, 128, 512]
largest = {power: [largest_weight(d, d**power) for d in widths] for power in (0, 0.5, 1)}
print({f"head_dim ** {power}": [f"{weight:.2f}" for weight in row] for power, row in largest.items()})

# %%
fig, ax = subplots()
labels = {0: "not divided: saturates", 0.5: "divided by sqrt(head_dim)", 1: "divided by head_dim: flattens"}
for (power, label), style in zip(labels.items(), ("s-", "o-", "^-"), strict=True):
    ax.plot(widths, largest[power], style, label=label, color=COLORS["right" if power == 0.5 else "wrong"])
ax.axhline(1 / 32, color=COLORS["quiet"], linestyle=":", label="1/32: all 32 keys equal")
ax.set(xlabel="head_dim", ylabel="largest weight of a row (mean)", xscale="log", xticks=widths, xticklabels=widths)
ax.minorticks_off()
ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.45))
alt = "Largest of 32 weights against head_dim 8 to 512. Not divided: 0.49 rising to 0.94. By the root: 0.16 throughout."
show(fig, alt=f"{alt} By head_dim: 0.06 falling to 0.03, close to 1/32.")

# %% [markdown]
# ## The causal mask
#
# A model that writes text from left to right must not look ahead: in training it would read the answer, and in use the
# later tokens do not exist yet. The causal mask lets token i see tokens 0 to i. Rows are queries, columns are keys.
#
# Hidden scores are set to `-inf` *before* softmax. No row is all `-inf`, because every token sees at least itself: the
# diagonal is always open.

# %%
from kvlab.widgets import MaskDiagram

mask = np.tril(np.ones((6, 6), dtype=bool))
MaskDiagram(mask)

# %% [markdown]
# ## Many heads
#
# Several heads look for different things at once. A token's row of `n_heads * head_dim` numbers is cut into heads, each
# head attends on its own, and the results are joined again. Cutting needs a reshape *and* a transpose. A reshape alone
# gives an array of the right shape with the wrong numbers in it. Names instead of numbers show it, for four tokens and
# two heads: with the reshape alone, what is called head 0 holds both heads of tokens 0 and 1, and nothing of the rest.
#
# After that comes the whole of causal attention, for arrays (n_heads, n_tokens, head_dim), as the exercise asks for it.
# It computes all n_tokens x n_tokens scores of a head, 36 for six tokens, and hides 15 of them.


# %% tags=["nbval-check-output"]
def split_heads(x, n_heads):
    return x.reshape(len(x), n_heads, -1).transpose(1, 0, 2)


def merge_heads(x):
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


names = np.array([[f"t{t}h{h}" for h in range(2)] for t in range(4)])
print("split_heads, head 0: ", *split_heads(names, 2)[0, :, 0])
print("reshape only, head 0:", *names.reshape(2, 4, 1)[0, :, 0])


# %% tags=["nbval-check-output"]
def causal_attention(q, k, v):
    n_tokens, head_dim = q.shape[1:]
    scores = q @ k.transpose(0, 2, 1) / head_dim**0.5
    visible = np.tril(np.ones((n_tokens, n_tokens), dtype=bool))
    return softmax(np.where(visible, scores, -np.inf)) @ v


q, k, v = rng.standard_normal((3, 2, 6, 8))  # 2 heads, 6 tokens, head_dim 8
out = causal_attention(q, k, v)
print(out.shape, "keys seen by each query:", mask.sum(axis=1), "hidden:", (~mask).sum())
print("token 0 sees itself only, so it gets its own value:", bool(np.abs(out[:, 0] - v[:, 0]).max() < 1e-12))

# %% [markdown]
# ## Five ways to get it wrong
#
# None of these raises an exception, and four of the five give ordinary numbers. The test that tells them apart is
# *influence*: nudge token j and see which outputs move. In causal attention output i moves if and only if j <= i.

# %%
wq, wk, wv = rng.standard_normal((3, 16, 16)) / 4


def layer(x, weigh, split=split_heads, merge=merge_heads):
    q, k, v = (split(x @ w, 2) for w in (wq, wk, wv))
    weights = weigh(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return merge(weights @ v), weights


def influence(f, x):
    moved = [np.abs(f(x + np.eye(len(x))[:, [j]]) - f(x)).max(axis=1) > 1e-9 for j in range(len(x))]
    return np.array(moved).T  # [i, j]: output i moves when token j does


# %%
def hidden(scores, visible):
    return np.where(visible, scores, -np.inf)


strict = np.tril(np.ones((6, 6), dtype=bool), k=-1)
variants = {
    "causal": {"weigh": lambda s: softmax(hidden(s, mask))},
    "mask after softmax": {"weigh": lambda s: softmax(s) * mask},
    "mask times scores": {"weigh": lambda s: softmax(s * mask)},
    "softmax over queries": {"weigh": lambda s: softmax(hidden(s, mask).swapaxes(1, 2)).swapaxes(1, 2)},
    "strict mask": {"weigh": lambda s: softmax(hidden(s, strict))},
    "heads mixed": {
        "weigh": lambda s: softmax(hidden(s, mask)),
        "split": lambda x, n_heads: x.reshape(n_heads, len(x), -1),
        "merge": lambda x: x.reshape(x.shape[1], -1),
    },
}

# %% tags=["nbval-check-output"]
x = rng.standard_normal((6, 16))
seen = {}
with np.errstate(invalid="ignore"):  # the strict mask's first row
    for name, parts in variants.items():
        seen[name] = influence(lambda x, parts=parts: layer(x, **parts)[0], x)
        row_sum = layer(x, **parts)[1][0, 0].sum()
        leaked, lost = (seen[name] & ~mask).sum(), (~seen[name] & mask).sum()
        print(f"{name:21} weights of row 0 sum to {row_sum:4.2f}, {leaked:2} leaked, {lost:2} lost")

# %%
fig, axes = subplots(2, 3, figsize=(6.4, 4.6), sharex=True, sharey=True, layout="constrained")
for ax, (name, moves) in zip(axes.flat, seen.items(), strict=True):
    ax.set(title=name, xticks=range(6), yticks=range(6))
    ax.grid(False)
    ax.imshow(moves, cmap="Blues", vmin=0, vmax=1.6)
    for i, j in np.argwhere(moves != mask):
        mark, color = ("+", "white") if moves[i, j] else ("−", COLORS["wrong"])
        ax.text(j, i, mark, color=color, ha="center", va="center")
fig.supxlabel("token nudged      (+ leaked from the future, − lost from the past)", fontsize=10)
fig.supylabel("output that moves", fontsize=10)
alt = "Outputs that move. Causal: the lower triangle. Mask after softmax, times scores, softmax over queries: all 36."
show(fig, alt=f"{alt} Strict mask: outputs 0 and 1 miss their own token. Heads mixed: two triangles, 9 pairs lost.")

# %% [markdown]
# - **Mask after softmax, not renormalised.** The hidden keys get no weight but stay in the denominator: the rows do not
#   sum to 1, and the future leaks in through the sum.
# - **Mask multiplied into the scores.** A score of 0 is not "hidden": $e^0 = 1$.
# - **Softmax over the queries.** The weights of a key sum to 1, those of a query do not.
# - **Strict mask.** No token sees its own key and value (its output still moves with it, through the query). Token 0
#   sees nothing at all: its row is all `-inf`, its output nan.
# - **Heads mixed.** The last three tokens see nothing of the first three: 9 of the 15 pairs of a token and an earlier
#   one are lost.
#
# ## Why a cache can exist
#
# A model is a stack of such layers. The output of a layer, added to its input, is the input of the next. Here are two,
# keeping the keys and values that each makes.

# %%
stack = rng.standard_normal((2, 3, 16, 16)) / 4  # two layers of wq, wk, wv


def keys_values(x, attend):
    made = []
    for wq, wk, wv in stack:
        q, k, v = (split_heads(x @ w, 2) for w in (wq, wk, wv))
        made += [k, v]
        x = x + merge_heads(attend(q, k, v))
    return made  # k and v of layer 0, k and v of layer 1


question = "A seventh token is appended to six. With the causal mask, which of the first six rows of K and V change?"
appended_guess = predict(
    question, options=["none", "those of layer 1", "those of both layers", "the last of each layer"]
)
appended_guess

# %% tags=["nbval-check-output"]
tokens, change = rng.standard_normal((7, 16)), {}
for attend in (causal_attention, full_attention):
    pairs = zip(keys_values(tokens, attend), keys_values(tokens[:6], attend), strict=True)
    change[attend.__name__] = np.array([np.abs(after[:, :6] - before).max(axis=(0, 2)) for after, before in pairs])
    print(attend.__name__, "unchanged to 1e-12, k1 v1 k2 v2:", (change[attend.__name__] < 1e-12).all(axis=1))
n_changed = {name: int((gaps > 1e-12).sum()) for name, gaps in change.items()}
appended_guess.reveal(n_changed, "rows changed, of 4 x 6. With the causal mask none; without it all of layer 1.")

# %%
fig, axes = subplots(1, 2, figsize=(6.8, 2.3), sharey=True, layout="constrained")
for ax, (name, rows) in zip(axes, change.items(), strict=True):
    ax.imshow(rows, vmin=0, vmax=1.0, cmap="Oranges", aspect="auto")
    ax.grid(False)
    ax.set(title=name, xlabel="token", xticks=range(6), yticks=range(4))
    ax.set_yticklabels(["layer 0 keys", "layer 0 values", "layer 1 keys", "layer 1 values"])
    for i, j in np.ndindex(4, 6):
        ax.text(j, i, "0" if rows[i, j] < 1e-12 else f"{rows[i, j]:.1f}", ha="center", va="center", fontsize=9)
alt = "How far each earlier row moved when a token was appended. Causal: 0 in all 24 cells. No mask: 0 in layer 0,"
show(fig, alt=f"{alt} 0.1 to 0.6 in all 12 cells of layer 1.")

# %% [markdown]
# Why? Layer 0 makes the keys and values of a token from that token's own vector, one row times a matrix: they cannot
# change, mask or no mask. Its attention then mixes rows, and this is the only place where tokens meet. With the causal
# mask, row t of the output is a mix of rows 0 to t, so the input of layer 1 at t depends on tokens 0 to t, and so do
# its keys and values. The same step leads to layer 3 and on. Without the mask, row t also mixes in the token that has
# just arrived, and layer 1 starts from other numbers.
#
# Influence says it directly, on the keys themselves.


# %% tags=["nbval-check-output"]
def keys_moved(layer_index, attend):
    return influence(lambda x: merge_heads(keys_values(x, attend)[2 * layer_index]), tokens[:6])


print("layer 0 keys move with their own token only:", np.array_equal(keys_moved(0, causal_attention), np.eye(6)))
print("layer 1 keys at t move with tokens 0 to t:  ", np.array_equal(keys_moved(1, causal_attention), mask))
print("layer 1 keys, no mask, move with every token:", bool(keys_moved(1, full_attention).all()))

# %% [markdown]
# The rest of a real layer (norms, MLP, the positions of lesson 03) works on one token at a time, so it changes nothing
# about this. The course's `TinyDecoder` has all of it.
#
# Why 1e-12 and not `==`? On paper the rows are the same. In floating point the order of additions shows in the last
# bits, and the matrix library picks another routine for another number of rows: one row is a matrix times a vector, a
# few rows a small block. How often it shows depends on the machine; the second cell counts it on this one.

# %% tags=["nbval-check-output"]
from kvlab.decoder import TinyDecoder

model, ids, see_all = TinyDecoder(), np.array([3, 1, 4, 1, 5, 9, 2]), np.ones((7, 7), dtype=bool)
for name, sees in (("causal", np.tril(see_all)), ("no mask", see_all)):
    six, seven = (sum(model.keys_values(ids[:n], sees[:n, :n]), ()) for n in (6, 7))
    same = [bool(np.abs(after[:, :6] - before).max() < 1e-12) for before, after in zip(six, seven, strict=True)]
    print(f"{name:8} unchanged to 1e-12, k1 v1 k2 v2:", same)

# %%
w, long = rng.standard_normal((96, 96)), rng.standard_normal((65, 96))
pairs = [(long[:n] @ w, (long[: n + 1] @ w)[:n]) for n in range(1, 65)]
differ = sum(not np.array_equal(short, cut) for short, cut in pairs)
gap = max(np.abs(short - cut).max() for short, cut in pairs)
print(f"on this machine: {differ} of {len(pairs)} lengths differ in some bit, by at most {gap:.1e}")

# %% [markdown]
# ## Why queries are not kept
#
# To choose the next token, a model needs the last row of the last layer. That row comes from *one* query, the newest,
# and from *all* keys and values. Each query is used in the step in which it is made, and never again: the thing is a KV
# cache, not a QKV cache. Below, the earlier queries are replaced by nan, then left out altogether; then a key is lost.

# %% tags=["nbval-check-output"]
last = causal_attention(q, k, v)[:, -1:]
lost_q, lost_k = q.copy(), k.copy()
lost_q[:, :-1] = lost_k[:, 0] = np.nan
for what, out in {
    "every earlier query is nan": causal_attention(lost_q, k, v)[:, -1:],
    "only the newest query is given": full_attention(q[:, -1:], k, v),
    "one earlier key is nan": causal_attention(q, lost_k, v)[:, -1:],
}.items():
    print(f"{what:30} last output unchanged to 1e-12: {bool(np.abs(out - last).max() < 1e-12)}")

# %% [markdown]
# The second line is the decode step of the next lesson: one query, all keys, no mask, because nothing is ahead of the
# newest token.
#
# ## What it costs to compute everything again
#
# Without a cache, step t sends all t tokens through the whole model. A token meets each weight once, for one
# multiplication and one addition: about 2 N FLOPs a token for N parameters, so **2 N t at step t**. Count it: the
# weights of the decoder are wrapped so that each knows how many token rows it was multiplied with, and a trace counts
# the scores.

# %%
from kvlab.trace import counted


def count_flops(t):
    model, matrices = TinyDecoder(), []
    for layer in model.weights["layers"]:
        layer.update({name: counted(w) for name, w in layer.items() if w.ndim == 2})
        matrices += [w for w in layer.values() if w.ndim == 2]
    trace = model.make_trace()
    model(rng.integers(64, size=t), trace=trace)
    head = 2 * t * model.weights["embed"].size  # the logits of all t tokens, from the tied embedding table
    attention = 4 * 4 * 8 * trace.total("scores")  # 4 heads of 8: a score takes 8 multiply-adds, its use as many
    return head + sum(2 * w.rows_seen * w.size for w in matrices), attention


# %% tags=["nbval-check-output"]
steps, n, c = [1, 16, 64, 128, 256], model.n_params, model.config
counts = {t: count_flops(t) for t in steps}
print(f"N = {n:,}")
for t, (in_weights, in_attention) in counts.items():
    print(f"t = {t:3}: 2 N t = {2 * n * t:9,}, products with weights {in_weights:9,}, attention {in_attention:10,}")
print(f"attention reaches 2 N t at t = {n / (2 * c.n_layers * c.n_heads * c.head_dim):,.0f}")
n_llama = 8_030_261_248 - 128_256 * 4_096  # Llama 3.1 8B without its looked-up table
print(f"attention reaches 2 N t in Llama 3.1 8B at t = {n_llama / (2 * 32 * 32 * 128):,.0f}")

# %%
fig, ax = subplots()
weights, scores = np.array(list(counts.values())).T / 1e6
ax.plot(steps, weights + scores, "s-", color=COLORS["uncached"], label="all t tokens, attention included")
ax.plot(steps, weights, "o-", color=COLORS["quiet"], label="all t tokens, products with weights: about 2 N t")
ax.plot(steps, (weights + scores) / steps, "^-", color=COLORS["cached"], label="the newest token alone")
ax.set(xlabel="step t (tokens so far)", ylabel="MFLOP in this step")
ax.legend()
alt = "MFLOP of step t, 1 to 256. All tokens: 25.7 at 256, of which 8.9 in products with weights, a straight line."
show(fig, alt=f"{alt} The newest token alone: 0.1 at 256.")

# %% [markdown]
# Only the lowest line is needed: the rows of the earlier tokens come out as they did a step before.
#
# **Where 2 N t stops being true.** Attention's own products, scores and weighted means, grow with $t^2$ and are not in
# it. They reach 2 N t where t = N / (2 n_layers n_heads head_dim), when all t x t scores are computed as they are here.
# And N leaves out a table that is only looked up. `TinyDecoder` uses its embedding table a second time, as the output
# head, so it counts once; Llama 3.1 8B (32 layers, 32 heads of 128, 8,030,261,248 parameters, by its config.json and
# safetensors index on Hugging Face) has an input table of its own, 128,256 x 4,096, which multiplies nothing.

# %% [markdown]
# ## Recap
#
# - You wrote softmax, which stays finite at scores of 1,000 because the row's maximum is subtracted, and causal
#   attention for many heads. Five wrong versions gave no exception; influence showed up to 15 pairs of tokens that
#   leaked and up to 9 that were lost.
# - You appended a token: every earlier row of keys and values of both layers was unchanged to 1e-12. Without the mask,
#   layer 0 was unchanged and every row of layer 1 changed.
# - You lost all earlier queries and the last output stayed. Computing everything again cost 2 N t FLOPs at step t:
#   8,912,896 in products with weights at t = 256 for 17,568 parameters, and 16,777,216 more in attention.
#
# One limit: the kept rows are right only as long as what comes before them stays. Change token 2, and in layer 1 every
# row from 2 on is wrong.
#
# Exercise: [softmax and causal_attention](../exercises/01_attention.ipynb).
# Next: [02 the KV cache](02_kv_cache.ipynb), which keeps the rows.
