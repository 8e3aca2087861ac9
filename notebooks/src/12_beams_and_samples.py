# %% [markdown]
# # 12 Beams and samples
#
# One prompt, several continuations at once.
# **Whose keys and values does each of them read, and how often is the prompt stored?**
#
# After this lesson you can
#
# - write beam search with a cache, and say what happens when the cache does not follow the beams;
# - run the same search over block tables, where a reorder copies no row, and say what is shared and what is copied;
# - draw several samples from one prefill, and price both ways to keep them.
#
# About 40 minutes. Needs no GPU.

# %%
import numpy as np

from kvlab.beams import copied_step, paged_step
from kvlab.caches import BlockPool
from kvlab.decoder import TinyDecoder, generate
from kvlab.predict import predict
from kvlab.roofline import HARDWARE
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import BlockTable

# %% [markdown]
# ## The likeliest text is not made of the likeliest tokens
#
# Greedy generation takes the likeliest token each time. A text's probability is the *product* of its tokens'
# probabilities, so a first token that looks a little worse may lead to a better text. With two new tokens and a
# vocabulary of 64 there are 4,096 continuations: few enough to price them all.

# %%
guess_1 = predict(
    "Is the greedy continuation of two tokens the likeliest of all 4,096?", ["yes, always", "here yes", "here no"]
)
guess_1

# %%
model = TinyDecoder(seed=6)
prompt = np.array([3, 1, 4, 1, 5])


def log_softmax(logits):
    """log(softmax(logits)) over the last axis; no probability is formed that could underflow to 0."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# %%
first = log_softmax(model(prompt)[-1])
second = log_softmax(np.stack([model(np.append(prompt, token))[-1] for token in range(64)]))
both = first[:, None] + second  # the log of the product is the sum of the logs

# %% tags=["nbval-check-output"]
greedy = tuple(int(token) for token in generate(model, prompt, 2)[5:])
best = tuple(int(i) for i in np.unravel_index(both.argmax(), both.shape))
guess_1.reveal("here no" if greedy != best else "here yes", "Greedy is not even second.")
print(f"greedy: tokens {greedy}, log-probability {both[greedy]:.2f}; better texts: {(both > both[greedy]).sum()}")
print(f"best:   tokens {best}, log-probability {both[best]:.2f}")
print(f"its first token alone: {first[best[0]]:.2f}, greedy's first token: {first[greedy[0]]:.2f}")

# %%
rows = np.argsort(-first)[:8]
fig, ax = subplots(figsize=(6.4, 2.4))
image = ax.imshow(both[rows], vmin=-12, cmap="Blues", interpolation="nearest", aspect="auto")
for text, name, colour in ((greedy, "greedy", "wrong"), (best, "likeliest", "right")):
    at = text[1], int(np.flatnonzero(rows == text[0])[0])
    ax.plot(*at, "s", markersize=11, markerfacecolor="none", markeredgewidth=2.5, color=COLORS[colour])
    ax.annotate(name, at, xytext=(11, -4), textcoords="offset points", bbox={"fc": "w", "ec": COLORS[colour]})
ax.set(xlabel="second token", ylabel="first token", yticks=range(8), yticklabels=rows)
ax.set_title("Texts of two tokens, the 8 likeliest first tokens from the top")
ax.grid(False)
fig.colorbar(image, label="log-prob. (nats)")
alt = (
    f"Heat map of the log-probability of two tokens, rows in the order of the first one's. Greedy, {greedy}, is in the "
    f"top row with {both[greedy]:.2f}; the likeliest, {best}, is darker with {both[best]:.2f}, and in row "
    f"{int(np.flatnonzero(rows == best[0])[0]) + 1}."
)
show(fig, alt=alt)

# %% [markdown]
# **Beam search** keeps the `n_beams` best beginnings at each step, extends each of them by every token, and keeps the
# best again. It needs a score for a beginning, and there are two ways to get it wrong.
#
# Probabilities of a text's tokens are *multiplied*. Adding them prefers another text. Multiplying them as they are
# works on paper; in a computer the product becomes 0, and then all beams look alike. The sum of the logarithms is the
# logarithm of the product and never underflows.

# %% tags=["nbval-check-output"]
added = np.exp(first)[:, None] + np.exp(second)
chosen = tuple(int(i) for i in np.unravel_index(added.argmax(), added.shape))
print(f"adding probabilities chooses {chosen}: log-probability {both[chosen]:.2f}, the best has {both[best]:.2f}")
text = generate(model, prompt, 400, model.make_caches())
each = np.exp(log_softmax(model(text[:-1]))[np.arange(4, 404), text[5:]])
for dtype in (np.float32, np.float64):
    zero = np.flatnonzero(np.multiply.accumulate(each.astype(dtype)) == 0)
    print(f"the product in {np.dtype(dtype).name} is 0 before token 400: {len(zero) > 0}", end="")
    print(f", from token {zero[0] + 1} on" if len(zero) else f", it is {each.astype(dtype).prod():.0e}")
print(f"the sum of the logarithms at token 400: {np.log(each).sum():.0f}")

# %% [markdown]
# ## A step, and what its cache is made of
#
# From here on a model is a function `step(tokens, cache) -> (log_probs, cache)`. `tokens` is (n, t): n texts of t new
# tokens each. `log_probs` (n, vocab) are for the token that follows each row. The cache is a list with one `(k, v)` a
# layer, **beams on axis 0**: (n_beams, n_kv_heads, n_total, head_dim). `copied_step` makes such a step from the tiny
# decoder, which takes one text at a time.
#
# The prompt goes in once, as one row, with `cache=None`. So after the prompt the cache has 1 row. When the first
# tokens are chosen, all new beams go on from that row: beam 0, again and again. One function does that and every later
# reorder: `beam_index[i]` says which old beam new beam i goes on from, and an entry may repeat.


# %% tags=["nbval-check-output"]
def reorder_cache(cache, beam_index):
    """For each layer (k, v) with the beams on axis 0: new beam i goes on from old beam beam_index[i]."""
    return [(k[beam_index], v[beam_index]) for k, v in cache]


step = copied_step(model)
log_probs, cache = step(prompt[None], None)
print("after the prompt: log_probs", log_probs.shape, " keys of layer 0", cache[0][0].shape)
first_ids = np.argsort(-log_probs[0], kind="stable")[:4]
cache = reorder_cache(cache, np.array([0, 0, 0, 0]))
print("four beams of row 0: keys", cache[0][0].shape)
log_probs, cache = step(first_ids[:, None], cache)
print("one token for each: log_probs", log_probs.shape, " keys", cache[0][0].shape)

# %% [markdown]
# Indexing with an array of ints copies: no two beams share a row, so each can append its own token.
#
# ## The search
#
# `totals` holds the score of every beam extended by every token. Flattened row by row, a stable sort settles equal
# scores: the lower beam first, then the lower id. Three things follow the chosen beams: the tokens so far, the scores,
# and the cache.


# %%
def beam_search(step, prompt, n_beams, n_new, reorder=reorder_cache):
    """The n_beams best continuations found by keeping n_beams at every step: (tokens, scores), best first."""
    if n_new == 0:
        return np.zeros((n_beams, 0), int), np.zeros(n_beams)
    tokens, scores, cache, fed = np.zeros((1, 0), int), np.zeros(1), None, prompt[None]
    for i in range(n_new):
        log_probs, cache = step(fed, cache)
        totals = scores[:, None] + log_probs
        chosen = np.argsort(-totals, axis=None, kind="stable")[:n_beams]
        beam_index, ids = np.unravel_index(chosen, totals.shape)
        tokens, scores = np.concatenate([tokens[beam_index], ids[:, None]], axis=1), totals[beam_index, ids]
        # Nobody goes on after the last token: with an empty beam_index a cache lets go of all it holds.
        cache = reorder(cache, beam_index if i + 1 < n_new else beam_index[:0])
        fed = ids[:, None]
    return tokens, scores


# %%
fed, moves = [], []


def watched(tokens, cache):
    fed.append(tokens[:, -1])
    return step(tokens, cache)


def remember(cache, beam_index):
    moves.append([int(beam) for beam in beam_index])
    return reorder_cache(cache, beam_index)


# %% tags=["nbval-check-output"]
tokens, scores = beam_search(watched, prompt, n_beams=4, n_new=12, reorder=remember)
for row, score in zip(tokens, scores, strict=True):
    print(f"{score:.2f} ", row)
print("beam_index:", *moves[:-1])
kept = [index == [0, 1, 2, 3] for index in moves[1:-1]]
print(f"reorders between the first and the last choice: {len(kept)}, of which change nothing: {sum(kept)}")

# %% [markdown]
# Is it right? The same search without any cache, which sends each beam's whole text through the model at every step,
# must find the same. Its "cache" is the texts, and reordering them is indexing.


# %%
def recomputing(tokens, texts):
    texts = tokens if texts is None else np.concatenate([texts, tokens], axis=1)
    counts.append(texts.size)
    return log_softmax(np.stack([model(row)[-1] for row in texts])), texts


# %% tags=["nbval-check-output"]
counts = []
again, scores_again = beam_search(recomputing, prompt, 4, 12, reorder=lambda texts, index: texts[index])
print("same tokens:", np.array_equal(tokens, again), " same scores:", np.abs(scores - scores_again).max() < 1e-9)
one, _ = beam_search(step, prompt, 1, 12)
print("one beam is greedy:", np.array_equal(one[0], generate(model, prompt, 12)[5:]))
print(f"tokens through the model: {prompt.size + 4 * 11} with the cache, {sum(counts)} without")

# %% [markdown]
# The picture shows where each beam came from. A grey line leads to a beam that has no descendant in the end. The
# twelfth tokens are not drawn: they are chosen and never fed.

# %%
alive = [{0, 1, 2, 3}]
for index in moves[10:0:-1]:
    alive.insert(0, {index[beam] for beam in alive[0]})
fig, ax = subplots(figsize=(6.4, 2.4))
for t in range(11):
    for beam in range(4):
        colour = COLORS["right"] if beam in alive[t] else COLORS["quiet"]
        start = (t, moves[t][beam]) if t else (0, 1.5)
        ax.plot([start[0], t + 1], [start[1], beam], color=colour, linewidth=2.2 if beam in alive[t] else 0.8)
        box = {"fc": "w", "ec": colour}
        ax.text(t + 1, beam, str(fed[t + 1][beam]), ha="center", va="center", fontsize=8, bbox=box)
ax.set(xlabel="choice", ylabel="beam, best first", title="Tokens chosen, and the beam each goes on from")
ax.set(xticks=range(1, 12), yticks=range(4), ylim=(3.5, -0.5))
ax.grid(False)
alone = max(t for t in range(11) if len(alive[t]) == 1) + 1
alt = (
    f"Four beams over 11 choices, each joined to the one it goes on from. Beams change places at every choice. "
    f"The four beams of choice 11 all go back to one beam of choice {alone}; the other branches end in grey."
)
show(fig, alt=alt)

# %% [markdown]
# ## Leave the reorder out
#
# Say the cache is spread over four rows after the prompt and then left alone: row i stays row i, whatever beam stands
# there now.

# %%
guess_2 = predict("What does the search do?", ["it crashes", "the same texts", "other texts, no error"])
guess_2


# %%
def stay(cache, beam_index):
    return reorder_cache(cache, beam_index if len(cache[0][0]) == 1 else np.arange(len(beam_index)))


def values_from_keys(cache, beam_index):
    return [(k[beam_index], k[beam_index]) for k, _ in cache]


def first_layer_only(cache, beam_index):
    return reorder_cache(cache[:1], beam_index) + stay(cache[1:], beam_index)


reorders = {f.__name__.replace("_", " "): f for f in (reorder_cache, stay, values_from_keys, first_layer_only)}


# %%
def true_score(row):
    """The sum of log-probabilities that the model itself gives this continuation, in one pass."""
    text = np.append(prompt, row)
    return log_softmax(model(text[:-1])[4:])[np.arange(12), row].sum()


# %% tags=["nbval-check-output"]
outcomes = {}
for name, reorder in reorders.items():
    found, claimed = beam_search(step, prompt, 4, 12, reorder=reorder)
    outcomes[name] = "same texts" if np.array_equal(found, tokens) else "other texts"
    print(f"{name:17} {outcomes[name]}; best: claimed {claimed[0]:.2f}, true {true_score(found[0]):.2f}")
guess_2.reveal(f"{outcomes['stay']}, no error", "The scores that are reported are not those of the texts.")

# %% [markdown]
# The search reports scores that its texts do not have: it ranked them by what the model says about *other* texts.
# To see it step by step, let the true texts travel with the cache, and compare the log-probabilities that the search
# saw with those that each beam's text really has. `stay` is the cache left alone.


# %%
def errors(reorder):
    """At each step, the largest log-probability error of a beam, averaged over the beams."""
    gaps = []

    def checked(tokens, cache):
        layers, texts = (None, tokens[:, :0]) if cache is None else cache
        log_probs, layers = step(tokens, layers)
        texts = np.concatenate([texts, tokens], axis=1)
        true = log_softmax(np.stack([model(text)[-1] for text in texts]))
        gaps.append(np.abs(log_probs - true).max(axis=1).mean())
        return log_probs, (layers, texts)

    beam_search(checked, prompt, 4, 12, lambda cache, index: (reorder(cache[0], index), cache[1][index]))
    return np.array(gaps)


# %%
gaps = {name: errors(reorder) for name, reorder in reorders.items()}
fig, ax = subplots(figsize=(5, 2.8))
for (name, gap), colour, marker in zip(gaps.items(), ("right", "wrong", "values", "new"), "^osd", strict=True):
    ax.plot(range(1, 13), gap, marker=marker, color=COLORS[colour], label=name)
ax.set(xlabel="call of step (the first is the prompt)", ylabel="log-probability error (nats)")
ax.set(title="What the search believes about its beams", xticks=range(1, 13), ylim=(-0.2, 7.5))
ax.legend(ncols=2, loc="upper left")
said = [f"{name}: {g[1]:.1f} at call 2, {g[2:].min():.1f} to {g[2:].max():.1f} after it" for name, g in gaps.items()]
alt = f"Error of the log-probabilities by call, mean over four beams, 0 for all at call 1. {'. '.join(said)}."
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
for name, gap in gaps.items():
    wrong_from = np.flatnonzero(gap > 1e-9)
    print(f"{name:17} wrong from call {wrong_from[0] + 1} on" if len(wrong_from) else f"{name:17} never wrong")

# %% [markdown]
# With the cache left alone the second call is still right: all four rows hold the same prompt, so it does not matter
# whose they are. A test with one or two new tokens does not find this bug, and neither does a single beam.
#
# > **This shipped.** huggingface/transformers #46612: beam search reordered the cache only where it was kept under the
# > usual name. Models that keep theirs under another (Mamba, RWKV and others) went on with states of other beams, with
# > no error. ggml-org/llama.cpp #3802: one context served all beams, so a beam could read tokens of another.
# >
# > **This shipped.** huggingface/transformers #34232: a reorder that filled the values from the keys. Shapes agree.
#
# ## The same search over block tables
#
# Copying whole caches at every step moves the shared beginning again and again. Lesson 10's blocks do not need that:
# `fork` shares a table's blocks and counts one more holder for each, `free` counts one less, and a shared block is
# copied only when one of its holders writes into it. A reorder is then: **fork every beam that goes on, as often as it
# goes on, then free the old ones.** In this order, since a block whose count reaches 0 goes back to the pool.


# %%
def reorder_tables(tables, beam_index):
    """For each beam one PagedCache a layer: fork the chosen ones, then let go of all the old ones."""
    forked = [[cache.fork() for cache in tables[beam]] for beam in beam_index]
    for beam in tables:
        for cache in beam:
            cache.free()
    return forked


# %% tags=["nbval-check-output"]
pools = [BlockPool(n_blocks=40, block_size=4, n_kv_heads=2, head_dim=8) for layer in range(2)]
tokens_paged, scores_paged = beam_search(paged_step(model, pools), prompt, 4, 12, reorder=reorder_tables)
print("same tokens:", np.array_equal(tokens, tokens_paged), " same scores:", np.abs(scores - scores_paged).max() < 1e-9)
print("blocks still in use afterwards:", [pool.n_blocks - pool.n_free for pool in pools])

# %% [markdown]
# `paged_step` is `copied_step` with other caches: for each beam one `PagedCache` a layer, all in one pool a layer. The
# search itself did not change.
#
# The widget replays what happened in layer 0's pool during a smaller search: 3 beams, 6 new tokens, blocks of 4. Step
# through it: at a reorder only counts change, and a copy comes when a beam writes its token into a shared block. The
# last events free everything; the picture shows the pool just before that.

# %%
events = []
small = [BlockPool(12, 4, 2, 8, events=events if layer == 0 else None) for layer in range(2)]
beam_search(paged_step(model, small), prompt, 3, 6, reorder=reorder_tables)
table = BlockTable(events[:-3], n_blocks=12, block_size=4)
table

# %% tags=["nbval-check-output"]
for do in ("allocate", "write", "fork", "copy", "release"):
    print(f"{do}: {sum(event['do'] == do for event in events)}")
shared = sum(count > 1 for count in table.now.counts)
print(f"before the end: 3 beams, {sum(table.now.n_tokens.values())} rows in their tables,", end=" ")
print(f"{sum(count > 0 for count in table.now.counts)} blocks in use, {shared} of them shared")
print("rule broken on the way:", table.problems or "none")

# %% [markdown]
# ## What each of them holds and moves
#
# Now a longer case: a prompt of 64 tokens, 4 beams, 48 new tokens, blocks of 8. Both runs note, after every call, what
# they hold: all rows of all beams, or the blocks in use.

# %%
guess_3 = predict("At the end of this search, how many times as much memory do the copies take as the blocks?")
guess_3


# %%
long_prompt = np.random.default_rng(0).integers(0, 64, 64)


def noting(step, notes, size):
    """The same step, which after each call appends size(cache) to notes."""

    def noted(tokens, cache):
        log_probs, cache = step(tokens, cache)
        notes.append(size(cache))
        return log_probs, cache

    return noted


# %%
def held_by(run, n_beams, block_size=8):
    """Bytes held after each call: by copies, by blocks; then block copies in layer 0 and bytes of a block."""
    copied, paged, events = [], [], []
    pools = [BlockPool(200, block_size, 2, 8, events=events if layer == 0 else None) for layer in range(2)]
    in_rows = noting(step, copied, lambda cache: sum(k.nbytes + v.nbytes for k, v in cache))
    in_blocks = noting(paged_step(model, pools), paged, lambda tables: sum(p.n_blocks - p.n_free for p in pools))
    one, two = run(in_rows, n_beams, reorder_cache), run(in_blocks, n_beams, reorder_tables)
    assert np.array_equal(one, two)
    block_bytes, n_copies = pools[0].block_bytes, sum(event["do"] == "copy" for event in events)
    return np.array(copied), np.array(paged) * block_bytes, n_copies, block_bytes


# %%
def searching(step, n_beams, reorder):
    return beam_search(step, long_prompt, n_beams, 48, reorder)[0]


copied, paged, n_copies, block_bytes = held_by(searching, 4)

# %% tags=["nbval-check-output"]
guess_3.reveal(f"{copied[-1] / paged[-1]:.1f}", "The prompt is stored once, and so is what the beams have in common.")
print(f"after the prompt: {copied[0] // 1024} KiB of rows, {paged[0] // 1024} KiB in {paged[0] // block_bytes} blocks")
print(f"at the end: {copied[-1] // 1024} KiB of copies, {paged[-1] // 1024} KiB in {paged[-1] // block_bytes} blocks")
rows, n_bytes = np.arange(64, 111), 2 * 2 * 2 * 8 * 8  # layers, k and v, KV heads, head_dim, bytes
by_copies, by_blocks = 4 * rows.sum() * n_bytes, 2 * n_copies * block_bytes
print(f"moved by 47 reorders that copy: {by_copies // 1024:,} KiB")
print(f"moved by block copies in the same search: {by_blocks // 1024:,} KiB, {by_copies / by_blocks:.0f} times less")
print(f"a reorder of tables rewrites at most {2 * 4 * -(-111 // 8)} table entries")

# %% [markdown]
# While a reorder copies, the old rows and the new ones exist together, so for that moment the copies need twice what
# the figure shows. And a copy is paid at every step, even when only two beams changed places.
#
# The same arithmetic at a real size: Llama 3.1 8B holds 131,072 bytes a token (lesson 05). Its 16-bit weights are
# 16.06 GB with the embedding table, of which a step looks up one row a beam (lesson 07).

# %% tags=["nbval-check-output"]
per_token, n_tokens, n_beams = 131_072, 8192, 4
bandwidth = HARDWARE["H100 SXM"].bandwidth_bytes_per_s
all_rows = n_beams * n_tokens * per_token
print(f"{n_beams} beams of {n_tokens:,} tokens: {all_rows / 2**30:.0f} GiB copied at every step,", end=" ")
print(f"read and written in {1000 * 2 * all_rows / bandwidth:.2f} ms on an H100")
blocks = n_beams * n_tokens // 16
print(f"as blocks of 16: {blocks:,} table entries rewritten, {blocks * 4 // 2**10} KiB,", end=" ")
print(f"and up to {n_beams - 1} blocks of {16 * per_token // 2**20} MiB copied on write")
weights = 16_060_522_496 - 2 * 128_256 * 4096  # without the table: vocabulary x d_model, 2 bytes each
floor = 1000 * (weights + all_rows) / bandwidth
print(f"a decode step reads weights and all beams' rows in at least {floor:.2f} ms")

# %% [markdown]
# The step itself still *reads* every beam's rows, shared or not, unless the attention kernel reads a shared block
# once for all beams that hold it. What block tables save is memory and the copying.
#
# ## Parallel samples from one prefill
#
# Four different answers to one prompt: the prompt goes in once, its row becomes four, and from then on every row draws
# its own token. Nothing is ever reordered. One thing goes wrong easily. The prefill gives *one* row of
# log-probabilities, and whoever draws the first token from it before spreading the cache draws *once*.


# %%
def parallel_samples(step, prompt, n_samples, n_new, rng, reorder=reorder_cache, first_draw_for_all=False):
    """(n_samples, n_new) tokens drawn from one prefill."""

    def draw(log_probs):
        return np.array([rng.choice(len(row), p=np.exp(row)) for row in log_probs])

    log_probs, cache = step(prompt[None], None)
    rows = np.zeros(n_samples, int)
    tokens = [draw(log_probs)[rows] if first_draw_for_all else draw(log_probs[rows])]
    cache = reorder(cache, rows)
    for _ in range(n_new - 1):
        log_probs, cache = step(tokens[-1][:, None], cache)
        tokens.append(draw(log_probs))
    reorder(cache, rows[:0])
    return np.stack(tokens, axis=1)


# %% tags=["nbval-check-output"]
for name, bug in (("one draw each", False), ("first draw for all", True)):
    drawn = parallel_samples(step, prompt, 4, 8, np.random.default_rng(0), first_draw_for_all=bug)
    many = parallel_samples(step, prompt, 400, 1, np.random.default_rng(1), first_draw_for_all=bug)[:, 0]
    print(f"{name}: {len(set(drawn[:, 0].tolist()))} different first tokens in 4 samples,", end=" ")
    print(f"{len(set(many.tolist()))} in 400")
log_probs, _ = step(prompt[None], None)
print(f"two draws agree with probability {(np.exp(log_probs[0]) ** 2).sum():.3f}")

# %%
shown = np.argsort(-log_probs[0])[:10]
likely = np.exp(log_probs[0][shown])
fig, ax = subplots()
ax.plot(range(10), likely, "_", markersize=22, color=COLORS["quiet"], label="the model's probability")
for bug, label, colour in ((False, "one draw each", "right"), (True, "first draw for all", "wrong")):
    many = parallel_samples(step, prompt, 400, 1, np.random.default_rng(1), first_draw_for_all=bug)[:, 0]
    share = [(many == token).mean() for token in shown]
    ax.bar(np.arange(10) + (0.2 if bug else -0.2), share, 0.4, color=COLORS[colour], label=label)
ax.set(xlabel="token id, likeliest first", ylabel="share of 400 samples", xticks=range(10), xticklabels=shown)
ax.set(title="The first token of 400 samples from one prefill")
ax.legend()
alt = (
    f"Share of 400 samples by first token, for the ten likeliest. One draw each: near the model's probabilities, from "
    f"{likely[0]:.3f} for token {shown[0]} down. First draw for all: token {many[0]} has share 1, all others 0."
)
show(fig, alt=alt)

# %% [markdown]
# Samples stand in independent rows, so nobody sees the bug in one answer. It shows as answers that all begin with the
# same token, where the model would rarely repeat one.
#
# Samples share their prompt for good and nothing else: each draws its own way at once. Beams share more, since they
# are thinned out to a few common ancestors. Four of each, over the same 64 tokens of prompt:


# %%
def sampling(step, n_samples, reorder):
    return parallel_samples(step, long_prompt, n_samples, 48, np.random.default_rng(2), reorder)


# %%
held = {"4 beams": (copied, paged), "4 samples": held_by(sampling, 4)[:2]}
fig, axes = subplots(1, 2, figsize=(7.6, 2.8), sharey=True)
for ax, (name, sizes) in zip(axes, held.items(), strict=True):
    for size, label, colour in zip(sizes, ("copied", "shared blocks"), ("uncached", "cached"), strict=True):
        ax.step(range(1, 49), size / 1024, where="post", color=COLORS[colour], label=label)
    ax.set(xlabel="call of step (the first is the prompt)", title=name, ylim=(0, 240))
    blocks = ax.secondary_yaxis("right", functions=(lambda k: k * 1024 / block_bytes, lambda n: n * block_bytes / 1024))
axes[0].set_ylabel("held (KiB)")
axes[0].legend(loc="center right")
blocks.set_ylabel(f"the same in blocks of {block_bytes / 1024:.0f} KiB")
ends = {name: [f"{size[-1] / 1024:.0f}" for size in sizes] for name, sizes in held.items()}
alt = (
    f"Memory held after each call, in KiB and in blocks. Both start at {copied[0] / 1024:.0f} KiB. Copied: "
    f"{copied[1] / 1024:.0f} KiB from the second call, {ends['4 beams'][0]} at the end, in both panels. Shared blocks: "
    f"{ends['4 beams'][1]} KiB at the end for beams, {ends['4 samples'][1]} for samples."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
for name, (of_copies, of_blocks) in held.items():
    saved = 1 - of_blocks[-1] / (4 * -(-111 // 8) * 2 * block_bytes)
    print(f"{name} at the end: {of_copies[-1] // 1024} KiB copied, {of_blocks[-1] // 1024} KiB in blocks,", end=" ")
    print(f"{of_blocks[-1] // block_bytes} of them; saved by sharing: {saved:.0%}")
for n in (1, 2, 4, 8):
    of_copies, of_blocks, *_ = held_by(sampling, n)
    print(f"{n} samples: after the second call {of_copies[1] // 1024} KiB copied, {of_blocks[1] // 1024} KiB in blocks")

# %% [markdown]
# Kwon et al. 2023 (section 6.3) count the same thing, blocks saved by sharing over blocks without it: 37.6 to 55.2 %
# for beam search and 6.1 to 9.8 % for parallel samples on the Alpaca requests, 44.3 to 66.3 % and 16.2 to 30.5 % on
# ShareGPT, whose prompts are longer. Our prompt is longer still against the reply, and we count at the end of one
# request where they average over a whole load.
#
# > **Often said:** "Beams and samples multiply the cache by their number."
# >
# > **What is so:** they do when each has rows of its own. With the prefix stored once, only what comes after the point
# > where they part is multiplied.
#
# ## Equal to Hugging Face
#
# `to_llama` puts the tiny decoder's weights into `transformers.LlamaForCausalLM`, which has a beam search of its own.
# By default it divides a score by a power of the length: `length_penalty=0` turns that off. There is no end token here,
# so nothing stops early.

# %%
import torch

from kvlab.torch_decoder import TorchDecoder, to_llama

torch.set_num_threads(1)  # on tensors this small threads only wait for each other
llama, ids = to_llama(TorchDecoder.from_numpy(model)), torch.from_numpy(prompt)[None]
options = {"length_penalty": 0.0, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
options |= {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 12}

# %% tags=["nbval-check-output"]
for n in (2, 4, 7):
    theirs = llama.generate(ids, num_beams=n, num_return_sequences=n, **options)
    tokens_n, scores_n = beam_search(step, prompt, n, 12)
    same = np.array_equal(theirs.sequences[:, 5:].numpy(), tokens_n)
    close = np.abs(theirs.sequences_scores.numpy() - scores_n).max() < 1e-4
    print(f"{n} beams: all {n} x 12 tokens equal: {same}, scores equal to 1e-4: {close}")

# %% [markdown]
# Token for token, for all beams that come back. Hugging Face keeps its scores in float32, hence 1e-4.
#
# ## What beam search costs, and where it stops
#
# A decode step for n beams is a batch of n: the weights are read once, and every beam's rows are read. The prefill does
# not change. What do more beams buy?

# %% tags=["nbval-check-output"]
for n in (1, 2, 4, 8, 16):
    tokens_n, scores_n = beam_search(step, prompt, n, 12)
    in_common = next((t for t in range(12) if len(set(tokens_n[:, t].tolist())) > 1), 12)
    print(f"{n:2} beams: best {scores_n[0]:.2f}; all begin with the same {in_common} tokens")

# %% [markdown]
# > **Often said:** "A wider beam finds a likelier text."
# >
# > **What is so:** every width is a guess. Above, 4 beams end lower than 2 did, and 16 lower than 8: the text that wins
# > in the end was thrown out on the way. Only a beam as wide as all beginnings, `vocab ** (n_new - 1)`, is sure to be
# > exact.
#
# And the beams resemble each other: the four above are one text with four endings. Beam search is at home where one
# right answer is wanted and its likelihood says how right it is: translation, speech recognition, constrained decoding.
# For open text the likeliest continuation is dull and repeats itself (Holtzman et al. 2020; the tiny decoder above says
# 28 over and over), so chat models sample instead. vLLM, whose block tables were made with beam search in mind, took it
# out of its engine's core in 2024 for being complex and rarely used (vllm-project/vllm #6226, #9105).
#
# ## Recap
#
# - You wrote beam search with a cache: 49 tokens through the model instead of 489, and the texts of a search that
#   recomputes everything, and of Hugging Face. Left unreordered, the cache raised no error, gave other texts, and
#   claimed -25.85 for a text of -37.89. Two calls cannot show it, the third does.
# - You ran the same search over block tables: fork, then free. At the end of 48 tokens after a prompt of 64, 4 beams
#   took 68 KiB in blocks against 222 KiB of copies, and 47 reorders moved 37 times fewer bytes.
# - You drew samples from one prefill, each with a draw of its own, and priced both ways to keep them: the prompt once
#   and the replies apart, or everything as often as there are samples.
#
# One limit: no text ended here. With an end token, finished texts leave the beam and compete with the unfinished ones,
# and then a rule has to say how scores of different lengths compare.
#
# Practise: [`../exercises/12_beams_and_samples.ipynb`](../exercises/12_beams_and_samples.ipynb). Next: all of this in a
# real model, [`13_a_real_model.ipynb`](13_a_real_model.ipynb).
