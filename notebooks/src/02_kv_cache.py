# %% [markdown]
# # 02 The KV cache
#
# **The question:** what must a decoder keep from earlier tokens, so that the next token costs one token's projections
# and the answer stays the same?
#
# After this lesson you can
#
# - write `KVCache.append` and a `step` that serves prefill, chunked prefill, decode and an empty chunk;
# - say by how much the cache cuts the projections and the scores, and which cost it leaves;
# - prove that a cache was used, which is more than showing that the answer is right.
#
# 40 minutes. Needs no GPU.

# %%
import numpy as np

from kvlab.attention import attention, attention_weights, merge_heads, split_heads
from kvlab.decoder import TinyDecoder, generate, rms_norm, swiglu
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.trace import counted
from kvlab.widgets import CacheGrowth

# %% [markdown]
# ## What has to be kept
#
# Lesson 01 showed that in a causal decoder the key and value rows of a token never change once they are computed.
# A row that never changes can be computed once and kept. Which rows are needed again?
#
# Here is one layer without a cache. `attention` is given for now: each query looks at its own token and those before
# it, and a few KV heads serve many query heads. Lessons 03 and 04 open it.


# %%
def full_pass(x, wq, wk, wv, n_heads, n_kv_heads):
    """Attention of one layer over all rows of x, nothing kept: (n_tokens, d_model) -> (n_tokens, width)."""
    q = split_heads(x @ wq, n_heads)
    k = split_heads(x @ wk, n_kv_heads)
    v = split_heads(x @ wv, n_kv_heads)
    return merge_heads(attention(q, k, v))


guess_1 = predict(
    "Which part of a decoder gives its last token another output when the earlier tokens are taken away?",
    options=["embedding", "norm", "MLP", "attention", "output head"],
)
guess_1

# %% tags=["nbval-check-output"]
model, prompt = TinyDecoder(), np.array([3, 1, 4, 1, 5])
layer, embed = model.weights["layers"][0], model.weights["embed"]
parts = {
    "embedding": lambda ids: embed[ids],
    "norm": lambda ids: rms_norm(embed[ids], layer["attn_norm"]),
    "MLP": lambda ids: swiglu(embed[ids], layer["w_gate"], layer["w_up"], layer["w_down"]),
    "attention": lambda ids: full_pass(embed[ids], layer["wq"], layer["wk"], layer["wv"], n_heads=4, n_kv_heads=2),
    "output head": lambda ids: embed[ids] @ embed.T,
}
needs = {name: bool(np.abs(part(prompt)[-1] - part(prompt[-1:])[-1]).max() > 1e-12) for name, part in parts.items()}
for name, earlier in needs.items():
    print(f"{name:12} needs earlier tokens: {earlier}")
guess_1.reveal(", ".join(name for name in needs if needs[name]), "So the cache lives in the attention layers only.")

# %% [markdown]
# Nothing is kept for embeddings, norms, MLPs or the output head. Inside attention, the last query reads the keys and
# values of all tokens, so those two are kept. Earlier queries are not read again, so they are not.
#
# **A picture in words.** A meeting keeps no minutes, so before each new remark everybody repeats all that was said.
# With minutes, each remark is written down once, and whoever speaks next reads them. Keys and values are the minutes.
# The picture breaks in one place: minutes are a summary, shorter than the meeting. A cache holds one exact row a token
# and gets longer with every token. You will check both.
#
# ## A first cache, with a fault
#
# Storage that starts empty and grows along the token axis. Arrays are (n_kv_heads, tokens, head_dim).


# %% tags=["nbval-check-output"]
class FirstTry:
    def __init__(self, n_kv_heads, head_dim):
        self.k = np.zeros((n_kv_heads, 0, head_dim))
        self.v = np.zeros((n_kv_heads, 0, head_dim))

    def append(self, k_new, v_new):
        self.k = np.concatenate([self.k, k_new], axis=1)
        self.v = np.concatenate([self.v, v_new], axis=1)
        return self.k, self.v


rows = np.ones((2, 5, 16), np.float32)
k, v = FirstTry(n_kv_heads=2, head_dim=16).append(rows, rows)
print("given:", rows.dtype, f"{2 * rows.nbytes:,} bytes;", "kept:", k.dtype, f"{k.nbytes + v.nbytes:,} bytes")

# %% [markdown]
# > **Often said:** "Start with an empty buffer and concatenate."
# >
# > **What is so:** `np.zeros` makes float64, and concatenating promotes: float32 rows come back as float64. The cache
# > takes twice the bytes, attention computes in float64 from then on, and no error says so. The dtype must follow what
# > is stored.
#
# ## The cache
#
# What `append` promises: it returns all keys and values so far, oldest first; it keeps its own copy; what it returned
# earlier does not change later; the dtype is that of the first append; `len` is the number of tokens stored.


# %%
class KVCache:
    """Keys and values of one sequence in one attention layer, oldest first."""

    def __init__(self, n_kv_heads, head_dim):
        self.n_kv_heads, self.head_dim = n_kv_heads, head_dim
        self.k = self.v = None

    def append(self, k_new, v_new):
        if self.k is None:
            self.k, self.v = k_new.copy(), v_new.copy()
        else:
            self.k = np.concatenate([self.k, k_new.astype(self.k.dtype)], axis=1)
            self.v = np.concatenate([self.v, v_new.astype(self.v.dtype)], axis=1)
        return self.k, self.v

    def __len__(self):
        return 0 if self.k is None else self.k.shape[1]


# %% tags=["nbval-check-output"]
cache = KVCache(n_kv_heads=2, head_dim=16)
k, v = cache.append(rows, rows)
rows[:] = 7  # the caller uses its array again
k_later, _ = cache.append(rows[:, :1], rows[:, :1])
print("earlier return:", k.shape, k.dtype, "still all 1:", bool((k == 1).all()))
print("later return:  ", k_later.shape, k_later.dtype, "len:", len(cache))

# %% [markdown]
# ## One function for every kind of step
#
# `step` projects only the rows it is given, appends their keys and values, and attends over everything stored.
# Prefill is one step with the whole prompt, decode a step with one row, chunked prefill a few steps of some rows each.
#
# The test: 8 query heads, 2 KV heads, head_dim 16, d_model 64, 13 tokens. Wherever the tokens are cut into chunks,
# the rows that come out must be those of the full pass.


# %%
def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    """(n_new, d_model) -> (n_new, n_heads * head_dim), attending over the cache and the new rows."""
    q = split_heads(x @ wq, n_heads)
    k, v = cache.append(split_heads(x @ wk, n_kv_heads), split_heads(x @ wv, n_kv_heads))
    return merge_heads(attention(q, k, v))


# %%
n_heads, n_kv_heads, head_dim, d_model = 8, 2, 16, 64
rng = np.random.default_rng(2)
x = rng.standard_normal((13, d_model))
wq, wk, wv = weights = [rng.standard_normal((d_model, n * head_dim)) / 8 for n in (n_heads, n_kv_heads, n_kv_heads)]
full = full_pass(x, wq, wk, wv, n_heads, n_kv_heads)
k_all, v_all = split_heads(x @ wk, n_kv_heads), split_heads(x @ wv, n_kv_heads)


def run(step, sizes, cache):
    """Feed x in chunks of these sizes; return the rows that came out."""
    chunks = np.split(x, np.cumsum(sizes)[:-1])
    return np.concatenate([step(chunk, wq, wk, wv, cache, n_heads, n_kv_heads) for chunk in chunks])


def agree(ours, theirs):
    return bool(np.abs(ours - theirs).max() < 1e-12)


# %% tags=["nbval-check-output"]
one_by_one = [5] + [1] * 8  # prefill 5, then decode
for sizes in ([13], one_by_one, [1] * 13, [4, 4, 5], [5, 0, 3, 5]):
    out = run(step, sizes, KVCache(n_kv_heads, head_dim))
    print(f"{sizes!s:40}", out.shape, "gap below 1e-12:", agree(out, full))
print("an empty chunk gives", step(x[:0], wq, wk, wv, KVCache(n_kv_heads, head_dim), n_heads, n_kv_heads).shape)

# %% tags=["nbval-check-output"]
cache = KVCache(n_kv_heads, head_dim)
out = run(step, one_by_one, cache)
print("tokens:", len(x), "rows kept:", len(cache), "shape:", cache.k.shape)
print("kept = computed again, keys:", agree(cache.k, k_all), "values:", agree(cache.v, v_all))

# %% [markdown]
# The minutes are complete and exact. The gap of the outputs is about 1e-15, a few units in the last place of a float64.
# It need not be zero: the library that multiplies matrices adds up one row in another order than 13 rows.

# %%
print("prefill 5, then one by one, gap on this machine:", np.abs(out - full).max())
guess_2 = predict(
    "5 prompt tokens are stored and one new token comes in. What shape have its attention weights, in one head?",
    options=["(1, 1)", "(1, 5)", "(1, 6)", "(6, 6)"],
)
guess_2

# %% tags=["nbval-check-output"]
cache = KVCache(n_kv_heads, head_dim)
cache.append(k_all[:, :5], v_all[:, :5])
k, v = cache.append(k_all[:, 5:6], v_all[:, 5:6])
first_decode = attention_weights(split_heads(x[5:6] @ wq, n_heads), k)
print("all heads:", first_decode.shape, "rows sum to 1:", bool(np.allclose(first_decode.sum(axis=-1), 1)))
guess_2.reveal(first_decode[0].shape, "One new query; past + new = 6 keys, its own among them.")

# %% [markdown]
# ## What it costs
#
# Now count. A weight made by `counted` multiplies as before and counts the token rows that went through it. 8 tokens
# are generated one at a time from nothing.

# %%
guess_3 = predict("8 tokens, one at a time, no cache: how many token rows go through the key projection in all?")
guess_3

# %% tags=["nbval-check-output"]
wk_full, wk_step = counted(wk), counted(wk)
cache = KVCache(n_kv_heads, head_dim)
for t in range(8):
    full_pass(x[: t + 1], wq, wk_full, wv, n_heads, n_kv_heads)
    step(x[t : t + 1], wq, wk_step, wv, cache, n_heads, n_kv_heads)
guess_3.reveal(wk_full.rows_seen, f"With the cache: {wk_step.rows_seen}.")

# %% [markdown]
# Without a cache, step t projects t tokens: 1 + 2 + ... + n = n (n + 1) / 2. With one it projects 1.
# Scores are counted per head and dense, as a matrix product computes them: t x t without a cache, 1 x t with one.


# %% tags=["nbval-check-output"]
def projection_counts(n):
    """Tokens projected while generating n tokens one at a time from nothing: (without_cache, with_cache)."""
    return n * (n + 1) // 2, n


def score_counts(n):
    """Dense score entries per head in the same run: (without_cache, with_cache)."""
    return n * (n + 1) * (2 * n + 1) // 6, n * (n + 1) // 2


for n in (8, 1024):
    (tokens, tokens_cached), (scores, scores_cached) = projection_counts(n), score_counts(n)
    print(f"{n:,} tokens: projected {tokens:,} against {tokens_cached:,}, {tokens / tokens_cached} times")
    print(f"    scores per head {scores:,} against {scores_cached:,}")
print("8 tokens, no cache, if hidden entries were skipped:", sum(t * (t + 1) // 2 for t in range(1, 9)), "scores")

# %% [markdown]
# Projection work a step goes from O(t) to O(1), over a reply from O(n²) to O(n). Score work a step goes from O(t²) to
# O(t): the last query still meets every key.
#
# > **Often said:** "With a KV cache the time per token is flat."
# >
# > **What is so:** the projections are flat, the scan over the cache is not. Here is the work of one decode step of
# > this layer, in multiply-adds.

# %% tags=["nbval-check-output"]
projections = d_model * (n_heads + 2 * n_kv_heads) * head_dim
for t in (8, 48, 1024, 8192):
    scan = 2 * n_heads * t * head_dim  # the scores, then the weighted sum of values
    print(f"{t:5,} tokens stored: projections {projections:,}, attention {scan:9,}, ratio {scan / projections:.1f}")

# %% [markdown]
# The step looks flat while the weights dominate. This small layer spends as much on the scan as on its projections at
# 48 tokens. A large model has more weights a layer, so its crossing comes later; beyond it, the time per token grows
# linearly with the context. Lesson 07 measures it.
#
# ## In a whole decoder
#
# `TinyDecoder` has two layers, 2 KV heads and head_dim 8. Each layer owns a cache, each sequence has rows of its own.
# The model asks a cache for `append` and `len` only, so yours fits. Stacking two sequences gives the usual shape,
# (batch, n_kv_heads, seq_len, head_dim) per layer.


# %% tags=["nbval-check-output"]
def new_caches():
    """One empty cache for each layer of the model."""
    return [KVCache(2, 8) for _ in range(model.config.n_layers)]


prompts = [prompt, np.array([9, 2, 6, 5, 3])]
batch = [new_caches() for _ in prompts]
logits = [model(ids, caches) for ids, caches in zip(prompts, batch, strict=True)]
keys = [np.stack([caches[i].k for caches in batch]) for i in range(2)]
print("layer 0 keys:", keys[0].shape, "layer 1 keys:", keys[1].shape, "equal:", np.allclose(keys[0], keys[1]))
print("sequence 0 and 1 equal:", np.allclose(keys[0][0], keys[0][1]))
print("prefill also returned logits", logits[0].shape, "and so the first new token:", logits[0][-1].argmax())

# %% [markdown]
# Prefill does two things: it fills the caches, and its last row of logits already scores the first new token.
# Now generate 8 tokens, with caches and without, and let each run report to a trace.

# %% tags=["nbval-check-output"]
with_cache, without, caches = model.make_trace(), model.make_trace(), new_caches()
reply = generate(model, prompt, 8, caches, trace=with_cache)
reply_again = generate(model, prompt, 8, trace=without)
print("reply:", reply[5:], "the same without a cache:", np.array_equal(reply, reply_again))
print("tokens fed in each call:", [s.n_new for s in with_cache.steps])
print("rows stored after it:   ", [s.n_past + s.n_new for s in with_cache.steps])
print("tokens in all:", len(reply), "rows at the end:", len(caches[0]))

# %% [markdown]
# > **Often said:** "The cache grows only during decode."
# >
# > **What is so:** prefill writes a row for every prompt token, 5 of the 12 here.
#
# > **Often said:** "Generating n tokens takes n decode steps."
# >
# > **What is so:** the prompt pass gives the first token, n - 1 decode steps follow: 7 for 8 tokens. The last token is
# > never fed in, so it is never stored: 13 tokens, 12 rows.
#
# The picture is drawn from the two traces. With a kernel, step through it.

# %%
CacheGrowth(with_cache, without)

# %% [markdown]
# Two lines of its totals (in a live picture: at the last step): *tokens projected*, 24 against 136, and *rows read*,
# 136 both times. A cache saves computing, not reading.
#
# Now a longer run, 64 tokens from a prompt of one. The counts of layer 0 are those of the formulas.


# %% tags=["nbval-check-output"]
def per_step(trace, quantity):
    """One number a call, of layer 0."""
    return [s.total(quantity, layer=0) for s in trace.steps]


with_cache, without = model.make_trace(), model.make_trace()
generate(model, prompt[:1], 64, new_caches(), trace=with_cache)
generate(model, prompt[:1], 64, trace=without)
for quantity in ("projected", "scores"):
    cached, uncached = per_step(with_cache, quantity), per_step(without, quantity)
    print(f"{quantity}: step 64 {uncached[63]:,} against {cached[63]},", end=" ")
    print(f"first 8 steps {sum(uncached[:8])} against {sum(cached[:8])}")

# %%
fig, axes = subplots(1, 2, figsize=(8.4, 3.2))
for ax, quantity, unit in zip(axes, ("projected", "scores"), ("tokens a layer", "entries a head"), strict=True):
    for trace, name in ((without, "uncached"), (with_cache, "cached")):
        ax.plot(range(1, 65), per_step(trace, quantity), color=COLORS[name], label=name)
    ax.set(xlabel="step (tokens so far)", ylabel=f"{quantity} ({unit})")
axes[1].set_yscale("log")
axes[0].legend()
show(
    fig,
    alt="Two panels over 64 steps. Left, tokens projected a layer: uncached rises in a straight line from 1 to 64, "
    "cached stays at 1. Right, score entries a head, logarithmic: uncached rises from 1 to 4,096, cached from 1 to 64.",
)

# %% [markdown]
# ## Break it on purpose
#
# Two caches that look right, and a loop: the third mistake still feeds the whole sequence to `step` each time, as
# before there was a cache. None of them makes a shape that the next line would refuse.


# %%
class ReadsFirst(KVCache):
    """Returns what was stored before the new rows went in."""

    def append(self, k_new, v_new):
        before = (self.k, self.v) if len(self) else (k_new, v_new)
        super().append(k_new, v_new)
        return before


class SlotZero:
    """A buffer of max_len slots; every append starts at slot 0."""

    def __init__(self, n_kv_heads, head_dim, max_len=13):
        self.k, self.v = np.zeros((2, n_kv_heads, max_len, head_dim))
        self.length = 0

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        self.k[:, :n_new], self.v[:, :n_new] = k_new, v_new  # should start at self.length
        self.length += n_new
        return self.k[:, : self.length], self.v[:, : self.length]


# %% [markdown]
# > **This shipped.** harvard-edge/cs249r_book #1953: the step read the cache back without the row it had just computed,
# > so the current token was missing from its own attention.
#
# A recorder keeps what each append returned, which is what attention read.


# %%
class Recorder:
    """A cache that also keeps a copy of the keys each append returned."""

    def __init__(self, cache):
        self.cache, self.read = cache, []

    def append(self, k_new, v_new):
        k, v = self.cache.append(k_new, v_new)
        self.read.append(k.copy())
        return k, v


makers = {"right": KVCache, "read before append": ReadsFirst, "slot 0": SlotZero, "whole sequence fed": KVCache}
recorders = {name: Recorder(make(n_kv_heads, head_dim)) for name, make in makers.items()}
guess_4 = predict(
    "How many of the three mistakes raise an error in 13 tokens?", options=["none", "one", "two", "three"]
)
guess_4

# %% tags=["nbval-check-output"]
outputs = {name: run(step, one_by_one, recorders[name]) for name in list(makers)[:3]}
fed = [x[:5]] + [x[: t + 1] for t in range(5, 13)]
last = recorders["whole sequence fed"]
rows_out = [step(rows, wq, wk, wv, last, n_heads, n_kv_heads) for rows in fed]
outputs["whole sequence fed"] = np.concatenate([rows_out[0]] + [rows[-1:] for rows in rows_out[1:]])
for name, out in outputs.items():
    gap = np.abs(out - full).max(axis=1)
    verdicts = f"prompt right: {gap[:5].max() < 1e-12!s:5} decode right: {gap[5:].max() < 1e-12!s:5}"
    print(f"{name:19} {verdicts} largest gap: {gap.max():.1f}")
n_raised = len(makers) - len(outputs)
guess_4.reveal(n_raised or "none", "All three finish; every prompt row is right, and the decode rows are not.")

# %% [markdown]
# A test that looks at the prompt only would pass all three. What did the query of token 7, the third decode step, read?
# The key in each slot is looked up among the 13 true keys.


# %% tags=["nbval-check-output"]
def tokens_in(k):
    """The token whose key each slot holds, by KV head 0; -1 where it is no token's."""
    gap = np.abs(k[0][:, None] - k_all[0]).max(axis=-1)
    return np.where(gap.min(axis=1) < 1e-9, gap.argmin(axis=1), -1)


slots = {name: tokens_in(recorder.read[3]) for name, recorder in recorders.items()}
for name, tokens in slots.items():
    print(f"{name:19}", *tokens)

# %%
fig, ax = subplots(figsize=(8.4, 2.2))
for row, tokens in enumerate(slots.values()):
    for slot, token in enumerate(tokens):
        color = COLORS["quiet" if token < 0 else "wrong" if token in tokens[:slot] else "keys"]
        label = "-" if token < 0 else str(token)
        ax.text(slot, row, label, color="white", backgroundcolor=color, ha="center", va="center", family="monospace")
ax.set(xlim=(-1, 26), ylim=(3.6, -0.6), xlabel="slot read by the query of token 7", yticks=range(4), yticklabels=slots)
ax.set_title("the token in each slot: blue once, orange again, grey none")
ax.grid(False)
show(
    fig,
    alt="Four rows of slots, each with the number of its token. Right: 0 to 7. Read before append: 0 to 6, token 7 is "
    "missing. Slot 0: 7, 1, 2, 3, 4, then three slots of no token. Whole sequence fed: 26 slots, tokens 0 to 4 four "
    "times each, 5 three times, 6 twice, 7 once.",
)

# %% [markdown]
# > **This shipped.** software-mansion/react-native-executorch #819: the whole sequence went in on every step although a
# > cache was kept, so keys were stored again and again.
#
# ## One cache too few
#
# `[cache] * n_layers` makes a list of one object, n times: both layers append to the same rows. And caches that are not
# renewed between prompts carry the first conversation into the second. Nothing raises in either case.

# %% tags=["nbval-check-output"]
shared, used = [KVCache(2, 8)] * 2, new_caches()
print("a cache a layer: ", reply[5:], "rows:", len(caches[0]))
print("one for both:    ", generate(model, prompt, 8, shared)[5:], "rows:", len(shared[0]))
generate(model, prompts[0], 8, used)
print("second prompt, new caches: ", generate(model, prompts[1], 8, new_caches())[5:])
print("second prompt, used caches:", generate(model, prompts[1], 8, used)[5:], "rows:", len(used[0]))

# %% [markdown]
# > **This shipped.** time-series-foundation-models/lag-llama #81: the cache was not reset between prompts.
#
# ## Right now, changed later
#
# This buffer keeps the newest row in the last slot and moves the others down, in place. What it returns is a view of
# the buffer. Every output is right. What somebody kept from an earlier step is not.


# %%
class MovingView:
    """A buffer of max_len slots, newest last; returns views of it."""

    def __init__(self, n_kv_heads, head_dim, max_len=13):
        self.kv = np.zeros((2, n_kv_heads, max_len, head_dim))
        self.max_len, self.length = max_len, 0

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        self.kv[:] = np.roll(self.kv, -n_new, axis=2)
        self.kv[:, :, self.max_len - n_new :] = k_new, v_new
        self.length += n_new
        return tuple(self.kv[:, :, self.max_len - self.length :])


# %% tags=["nbval-check-output"]
print("all outputs right:", agree(run(step, one_by_one, MovingView(n_kv_heads, head_dim)), full))
for make in (MovingView, KVCache):
    cache = make(n_kv_heads, head_dim)
    kept, _ = cache.append(k_all[:, :5], v_all[:, :5])
    before = tokens_in(kept)
    cache.append(k_all[:, 5:6], v_all[:, 5:6])
    print(f"{make.__name__:10} kept the keys of tokens", before, "and after one more append", tokens_in(kept))

# %% [markdown]
# Whoever keeps keys across steps meets this: a picture of step 5, a second sequence that branches off, a test that
# compares two steps. A test must look at an earlier return after a later append.
#
# ## Equal is not proof
#
# So far every test compared results. Here is a `step` that passes them all. It fills the cache, returns the right rows,
# and saves nothing: it keeps the inputs too and runs the full pass each time.


# %%
def fake_step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    cache.append(split_heads(x @ wk, n_kv_heads), split_heads(x @ wv, n_kv_heads))
    cache.inputs = np.concatenate([getattr(cache, "inputs", x[:0]), x])
    rows = full_pass(cache.inputs, wq, wk, wv, n_heads, n_kv_heads)
    return rows[len(rows) - len(x) :]


guess_5 = predict(
    "Prefill 5, then 8 tokens one by one: how many rows does step project to keys, and how many fake_step?"
)
guess_5

# %% tags=["nbval-check-output"]
for candidate in (step, fake_step):
    cache = KVCache(n_kv_heads, head_dim)
    decode = agree(run(candidate, one_by_one, cache), full)
    chunks = agree(run(candidate, [5, 0, 3, 5], KVCache(n_kv_heads, head_dim)), full)
    print(f"{candidate.__name__:9} decode: {decode}, chunks: {chunks}, rows kept: {len(cache)}, exact:", end=" ")
    print(agree(cache.k, k_all))

# %% tags=["nbval-check-output"]
projected = {}
for candidate in (step, fake_step):
    wk_seen, cache, totals = counted(wk), KVCache(n_kv_heads, head_dim), [0]
    for chunk in np.split(x, np.cumsum(one_by_one)[:-1]):
        candidate(chunk, wq, wk_seen, wv, cache, n_heads, n_kv_heads)
        totals.append(wk_seen.rows_seen)
    projected[candidate.__name__] = np.diff(totals)
    print(f"{candidate.__name__:9} {projected[candidate.__name__]} in all {totals[-1]}")
print("each call of step projects what it was given:", projected["step"].tolist() == one_by_one)
guess_5.reveal(" and ".join(str(rows.sum()) for rows in projected.values()), "Equal results, unequal work.")

# %%
fig, ax = subplots()
for offset, name, color in ((-0.2, "step", "cached"), (0.2, "fake_step", "uncached")):
    ax.bar(np.arange(9) + offset, projected[name], 0.4, color=COLORS[color], label=name)
ax.set(xlabel="call (0 is the prefill of 5 tokens)", ylabel="rows projected to keys (tokens)", xticks=range(9))
ax.legend()
show(
    fig,
    alt="Rows projected to keys in each of 9 calls. step: 5 in the prefill, then 1 a call. fake_step: 10 in the "
    "prefill, then 7 in call 1 and one more in every call, up to 14 in call 8.",
)

# %% [markdown]
# A cache is used when each call projects exactly the rows it was given and the results are still equal. Neither is
# enough alone: the cache that reads before it appends projects the right number of rows, too.
#
# > **This shipped.** rasbt/LLMs-from-scratch #981: a cache was built and returned while attention computed everything
# > again. The answers were right and nothing was saved.
#
# The counter has a limit. It sees `@`, `np.matmul`, `np.dot`, `np.einsum` and their kin. A weight that was first turned
# into a plain array is out of its sight and counts 0 rows: too few, which is no proof either.

# %% [markdown]
# ## Recap
#
# - You wrote `KVCache.append` and a `step` that served prefill, decode, chunks of 4, 4 and 5 and an empty chunk, each
#   within 1e-12 of the full pass over 13 tokens.
# - You counted 36 against 8 projected tokens for a reply of 8, 524,800 against 1,024 for 1,024 (512.5 times), and 204
#   against 36 scores. The scan over the stored rows is left, and grows with each token.
# - You proved a cache used: 13 rows projected for 13 tokens, where a fake with equal results projected 94.
#
# One limit: this cache copies all its rows at each append. Lesson 06 says what that costs, and what avoiding it costs.
#
# **Exercise:** [write KVCache, step and the counts](../exercises/02_kv_cache.ipynb).
# **Next:** [03, the offset mask](03_offset_mask.ipynb), where you write what `attention` hides from each query.
