# %% [markdown]
# # 10 The cache in blocks
#
# A server decodes many sequences at once, and nobody knows how long each will become.
# **How can their caches share one memory without waste, and share tokens without getting in each other's way?**
#
# After this lesson you can
#
# - keep a sequence in fixed blocks behind a block table, and show that attention over them is exact;
# - count the waste and the sequences that fit under three ways of allocating, and say what the count leaves out;
# - share a prompt between sequences with counts, copy-on-write and hashes, and name seven bugs that this invites.
#
# About 40 minutes. Needs no GPU.

# %%
from collections import deque
from hashlib import sha256

import numpy as np

from kvlab import caches
from kvlab.attention import attention
from kvlab.decoder import TinyDecoder
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.widgets import BlockTable

# %% [markdown]
# ## Room for how many?
#
# Lesson 06's `StaticCache` holds `max_len` slots from the first token on. A server that gives one to each request must
# choose `max_len` for the longest. Below are 200 requests: prompts and replies of random length, many short and few
# long, as in chats (these numbers are made up). The model accepts 2,048 tokens.

# %% tags=["nbval-check-output"]
rng = np.random.default_rng(10)
prompt = np.minimum(rng.geometric(1 / 160, 200), 1024)
reply = np.minimum(rng.geometric(1 / 340, 200), 1024)
print(f"mean prompt {prompt.mean():.0f} tokens, mean reply {reply.mean():.0f}")
print("prompt and reply together:", np.percentile(prompt + reply, [10, 50, 90, 100]).astype(int), "(10, 50, 90, 100 %)")

# %%
guess_1 = predict(
    "Each running request has 2,048 slots. What share of the slots holds a token, on average while others wait?",
    ["about 20 %", "about 40 %", "about 60 %"],
)
guess_1

# %% [markdown]
# ## A pool of blocks
#
# Operating systems met this problem with programs. The answer was to cut memory into pages of one size, to hand them
# out as they are needed, and to keep a table for each program that says where its pages are. Kwon et al. 2023
# ("Efficient Memory Management for Large Language Model Serving with PagedAttention") do the same for the cache.
# A **block** has room for `block_size` tokens. A **pool** owns all blocks and counts how many sequences hold each.


# %%
class BlockPool:
    """Blocks of slots for keys and values, with a count of holders for each. A block with count 0 is free."""

    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros_like(self.k)
        self.counts, self.free = [0] * n_blocks, list(range(n_blocks))[::-1]

    def allocate(self):
        if not self.free:
            raise MemoryError(f"all {len(self.counts)} blocks are in use")
        block = self.free.pop()
        self.counts[block] = 1
        return block

    def retain(self, block):
        self.counts[self.in_use(block)] += 1

    def release(self, block):
        self.counts[self.in_use(block)] -= 1
        if self.counts[block] == 0:
            self.free.append(block)

    def in_use(self, block):
        if block not in range(len(self.counts)) or self.counts[block] == 0:
            raise ValueError(f"block {block} is not in use")
        return block

    def count(self, block):
        return self.counts[self.in_use(block)]

    @property
    def n_free(self):
        return len(self.free)


# %% [markdown]
# A sequence is then a **block table**, the list of its blocks in order, and a length. Token t is in slot
# `t % block_size` of block `block_table[t // block_size]`. The table is indexed by the *logical* block (first, second,
# third of this sequence) and holds the *physical* one (its number in the pool).
#
# An append first makes sure of all blocks that it needs. Only then does it change anything.


# %%
class PagedCache:
    """One sequence's keys and values, in blocks of a pool that others use too."""

    def __init__(self, pool):
        self.pool, self.size = pool, pool.k.shape[2]
        self.block_table, self.length = [], 0

    def append(self, k_new, v_new):
        end = self.length + k_new.shape[1]
        self.reserve(end)
        for start in range(self.length, end):
            block, slot = self.block_table[start // self.size], start % self.size
            self.pool.k[block, :, slot] = k_new[:, start - end]
            self.pool.v[block, :, slot] = v_new[:, start - end]
        self.length = end

    def n_blocks(self, n_tokens):
        return -(-n_tokens // self.size)  # rounded up

    def reserve(self, end):
        more = self.n_blocks(end) - len(self.block_table)
        if more > self.pool.n_free:
            raise MemoryError(f"{more} more blocks are needed, {self.pool.n_free} are free")
        self.block_table += [self.pool.allocate() for _ in range(more)]

    def gather(self):
        return self.in_order(self.pool.k), self.in_order(self.pool.v)

    def in_order(self, blocks):
        _, n_kv_heads, size, head_dim = blocks.shape
        own = blocks[self.block_table].transpose(1, 0, 2, 3)  # heads first, then the tokens of block after block
        return own.reshape(n_kv_heads, len(self.block_table) * size, head_dim)[:, : self.length]

    def __len__(self):
        return self.length


# %% tags=["nbval-check-output"]
def rows(n_heads, n_tokens, head_dim=8):
    return rng.standard_normal((n_heads, n_tokens, head_dim))


pool = BlockPool(n_blocks=8, block_size=4, n_kv_heads=2, head_dim=8)
first, second = PagedCache(pool), PagedCache(pool)
for n_first, n_second in ((3, 5), (4, 1), (2, 3)):
    first.append(rows(2, n_first), rows(2, n_first))
    second.append(rows(2, n_second), rows(2, n_second))
print("first: ", len(first), "tokens in blocks", first.block_table, " second:", len(second), "in", second.block_table)
for t in (0, 3, 4, 8):
    print(f"token {t} of the first: block {first.block_table[t // 4]}, slot {t % 4}")

# %% [markdown]
# The two grew side by side, so their blocks lie between one another. Neither needs a run of neighbouring blocks.
#
# ## The same numbers
#
# A paged cache must give what a contiguous one gives. Chunks of uneven sizes go into both, and queries attend after
# each. `gather` copies the rows into order; the rows are *equal*, since copying does not round.

# %% tags=["nbval-check-output"]
plain, paged = caches.ConcatCache(n_kv_heads=2, head_dim=8), PagedCache(BlockPool(10, 4, 2, 8))
for n_new in (5, 3, 0, 6, 1, 1):
    q, k_new, v_new = rows(4, n_new), rows(2, n_new), rows(2, n_new)
    k, v = plain.append(k_new, v_new)
    paged.append(k_new, v_new)
    same_rows = np.array_equal(k, paged.gather()[0]) and np.array_equal(v, paged.gather()[1])
    same_out = np.abs(attention(q, k, v) - attention(q, *paged.gather())).max(initial=0) < 1e-12
    print(f"{len(paged):2} tokens: rows equal {same_rows}, attention equal {same_out}")

# %% [markdown]
# Gathering copies the whole cache at each step, which production code does not do. It attends **block by block, where
# the blocks lie**, with the running maximum and sum of lesson 07's `streamed_attention`: a softmax can be put together
# from parts. The table is looked up once a block.


# %%
def paged_attention(q, cache):
    """One query (n_heads, 1, head_dim) over the blocks of a table in place: no row is copied into order."""
    n_heads, _, head_dim = q.shape
    q = q.reshape(cache.pool.k.shape[1], -1, head_dim)  # query heads of one KV head side by side
    peak, total, out = -np.inf, 0.0, 0.0
    for i, block in enumerate(cache.block_table):
        filled = min(cache.size, len(cache) - i * cache.size)  # the last block may have empty slots
        scores = q @ cache.pool.k[block, :, :filled].transpose(0, 2, 1) / np.sqrt(head_dim)
        new_peak = np.maximum(peak, scores.max(axis=-1, keepdims=True))
        weights, kept = np.exp(scores - new_peak), np.exp(peak - new_peak)
        total = kept * total + weights.sum(axis=-1, keepdims=True)
        out = kept * out + weights @ cache.pool.v[block, :, :filled]
        peak = new_peak
    return (out / total).reshape(n_heads, 1, head_dim)


# %% tags=["nbval-check-output"]
q = rows(4, 1)
in_place = paged_attention(q, paged)
print("block by block equals contiguous:", np.abs(in_place - attention(q, k, v)).max() < 1e-12)
in_the_pool = [np.shares_memory(paged.pool.k[block, :, :4], paged.pool.k) for block in paged.block_table]
print(f"rows that gather copies: {2 * len(paged)}; table look-ups in place: {len(paged.block_table)}", end=", ")
print("each gives a view of the pool:", all(in_the_pool))

# %% [markdown]
# ## One block at a time
#
# A block is taken when the first token that needs it comes. So a sequence never has more than `block_size - 1` empty
# slots, whatever its length. The picture sets the slots taken beside the tokens held.

# %%
grown = PagedCache(BlockPool(8, 16, 1, 1))
taken = []
for _ in range(100):
    grown.append(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    taken.append(16 * len(grown.block_table))
tokens = np.arange(1, 101)

fig, ax = subplots()
ax.step(tokens, taken, where="mid", color=COLORS["cached"], label="slots taken, blocks of 16")
ax.plot(tokens, tokens, color=COLORS["right"], label="tokens held")
ax.set(xlabel="tokens", ylabel="slots", title="Growth a block at a time")
ax.legend()
alt = (
    f"Slots taken against tokens. The line of tokens rises to 100. Blocks of 16 make a staircase above it, from "
    f"{taken[0]} to {taken[-1]} slots, never more than {max(taken - tokens)} above the line."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
waste = np.array(taken) - tokens
print("empty slots over the 100 tokens: at most", waste.max(), " on average", waste.mean())
print("blocks at 16, 17 and 32 tokens:", [taken[n - 1] // 16 for n in (16, 17, 32)])

# %% [markdown]
# ## Three ways to serve 200 requests
#
# One memory of 16,384 slots, all 200 requests waiting from the start. At each step every running request gets one
# token, and a waiting one starts as soon as its memory can be had, first come first served.
#
# 1. **Reserve the maximum**: 2,048 neighbouring slots for each.
# 2. **Contiguous, exact**: each gets neighbouring slots for exactly its final length. No server knows that number.
# 3. **Blocks** of 16, taken as tokens come.


# %%
class Contiguous:
    """Neighbouring slots for a length fixed when the request starts; the first gap that is wide enough."""

    def __init__(self, n_slots, lengths):
        self.n_slots, self.lengths, self.held = n_slots, lengths, {}

    def start(self, r, n_tokens):
        at = 0
        for begin, end in sorted(self.held.values()):
            if begin - at >= self.lengths[r]:
                break
            at = end
        fits = at + self.lengths[r] <= self.n_slots
        if fits:
            self.held[r] = (at, at + self.lengths[r])
        return fits

    def grow(self, r, n_tokens):
        return True

    def end(self, r):
        del self.held[r]

    def n_taken(self):
        return sum(end - begin for begin, end in self.held.values())


# %%
class InBlocks:
    """Blocks as tokens come. A request starts only if `spare` blocks stay free for those that run."""

    def __init__(self, n_slots, size, spare=0):
        self.pool, self.size, self.spare, self.tables = BlockPool(n_slots // size, size, 1, 1), size, spare, {}

    def start(self, r, n_tokens):
        n_blocks = -(-n_tokens // self.size)
        fits = n_blocks + self.spare <= self.pool.n_free or (not self.tables and n_blocks <= self.pool.n_free)
        if fits:
            self.tables[r] = [self.pool.allocate() for _ in range(n_blocks)]
        return fits

    def grow(self, r, n_tokens):
        full = n_tokens > self.size * len(self.tables[r])
        if full and self.pool.n_free:
            self.tables[r].append(self.pool.allocate())
        return n_tokens <= self.size * len(self.tables[r])

    def end(self, r):
        for block in self.tables.pop(r):
            self.pool.release(block)

    def n_taken(self):
        return self.size * (len(self.pool.counts) - self.pool.n_free)


# %% [markdown]
# With blocks, the memory can run out while everyone is halfway. Then the request that came last is **preempted**: it
# gives its blocks back and goes to the head of the queue. When it starts again, its prompt and the tokens it had
# generated are run once more. The run counts those tokens.


# %%
def serve(memory):
    """Serve all requests; what the memory held at each step while others waited, steps in all, tokens run again."""
    waiting, running, done = deque(range(200)), [], [0] * 200
    seen, n_steps, n_again = [], 0, 0
    while waiting or running:
        while waiting and memory.start(waiting[0], prompt[waiting[0]] + done[waiting[0]]):
            running.append(waiting.popleft())
        if waiting:
            seen.append((len(running), sum(prompt[r] + done[r] for r in running), memory.n_taken()))
        for r in list(running):
            while r in running and not memory.grow(r, prompt[r] + done[r] + 1):
                last = running.pop()
                memory.end(last)
                waiting.appendleft(last)
                n_again += prompt[last] + done[last]
            if r in running:
                done[r] += 1
                if done[r] == reply[r]:
                    running.remove(r)
                    memory.end(r)
        n_steps += 1
    return np.mean(seen, axis=0), n_steps, n_again


# %% tags=["nbval-check-output"]
n_slots = 16_384
ways = {
    "reserve the maximum": Contiguous(n_slots, np.full(200, 2048)),
    "contiguous, exact": Contiguous(n_slots, prompt + reply),
    "blocks of 16": InBlocks(n_slots, 16),
    "blocks, 64 kept spare": InBlocks(n_slots, 16, spare=64),
}
print(f"{'':22}{'running':>8}{'tokens':>8}{'empty':>8}{'not taken':>11}{'steps':>7}{'run again':>11}")
results = {name: serve(memory) for name, memory in ways.items()}
for name, ((n_running, n_tokens, n_taken), n_steps, n_again) in results.items():
    shares = [f"{n / n_slots:.1%}" for n in (n_tokens, n_taken - n_tokens, n_slots - n_taken)]
    print(f"{name:22}{n_running:8.1f}{shares[0]:>8}{shares[1]:>8}{shares[2]:>11}{n_steps:7,}{n_again:11,}")

# %%
paper = {"reserve the maximum": 20.4, "contiguous, exact": 38.2, "blocks of 16": 96.3}
names = list(paper)
shares = np.array([results[name][0][1:] for name in names]) / n_slots * 100
held, empty = shares[:, 0], shares[:, 1] - shares[:, 0]
fig, ax = subplots()
at = np.arange(3)
ax.bar(at - 0.2, held, 0.36, color=COLORS["cached"], label="here: holds a token")
ax.bar(at - 0.2, empty, 0.36, bottom=held, color=COLORS["new"], hatch="//", label="here: taken, empty")
ax.bar(
    at - 0.2,
    100 - shares[:, 1],
    0.36,
    bottom=shares[:, 1],
    color="none",
    edgecolor=COLORS["quiet"],
    label="here: not taken",
)
ax.bar(at + 0.2, list(paper.values()), 0.36, color=COLORS["values"], label="Kwon et al. 2023: holds a token")
ax.set_xticks(at, names)
ax.set(ylabel="share of the memory, %", title="What the memory holds while requests wait", ylim=(0, 150))
ax.legend(loc="upper left", ncols=2)
alt = "Share of the memory that holds tokens, here and in the paper. " + " ".join(
    f"{name}: {h:.0f} % here and {p} % there; {e:.0f} % taken and empty, {100 - h - e:.0f} % not taken."
    for name, h, e, p in zip(names, held, empty, paper.values(), strict=True)
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
guess_1.reveal(
    f"{results['reserve the maximum'][0][1] / n_slots:.0%}", "The rest is reserved for tokens that come late or never."
)
steps = {name: n_steps for name, (_, n_steps, _) in results.items()}
for name in list(ways)[:2]:
    print(f"steps with {name} against blocks of 16: {steps[name] / steps['blocks of 16']:.1f} times as many")
for name in list(ways)[2:]:
    print(f"{name}: run again {results[name][2] / (prompt + reply).sum():.0%} of all tokens there are")

# %% [markdown]
# Reserving the maximum runs 8 requests at once, because 8 times 2,048 is all there is. Knowing the final length helps:
# but the slots of late tokens stand empty until then, and the gaps between requests are too narrow for the next one
# (15 % not taken). With blocks only the last block of each request has empty slots.
#
# **Beside it, the paper** (Figure 2): 20.4 % for Orca when it reserves the maximum, 38.2 % for Orca when it is told the
# final length, and 96.3 % for vLLM, which has blocks. It reports 2 to 4 times the throughput of FasterTransformer and
# Orca at the same latency. Ours is a count of slots and steps. It leaves out that
#
# - a step with more requests takes longer, and where it is bound by arithmetic more requests bring nothing;
# - prompts take time, and so do the tokens run again: without spare blocks 55 % of all tokens there are, because a
#   request starts as soon as its prompt fits and soon has to give way. 64 spare blocks bring it to 9 %;
# - the real lengths, the arrival of requests over time, and how the other systems round sizes up.
#
# > **Often said:** "Paged attention makes attention faster."
# >
# > **What is so:** it makes attention *slower*: looking up the table costs the kernel 20 to 26 % in the paper (section
# > 7.1). What is gained is room: more sequences share each read of the weights.
#
# ## Sharing: fork, and copy on write
#
# Two replies to one prompt begin with the same tokens, so they can hold the same blocks. `fork` copies the *table* and
# adds one to each count. Full blocks are never written again. The last block may have free slots, and whoever writes
# there first must copy that block, or it would write into the other's text.

# %%
guess_2 = predict(
    "A sequence of 10 tokens in blocks of 4 is forked, and both copies get a token. How many blocks are in use?"
)
guess_2


# %%
class PagedCache(PagedCache):
    """The cache above, which can be shared: copy on write."""

    def fork(self):
        other = type(self)(self.pool)
        for block in self.block_table:
            self.pool.retain(block)
        other.block_table, other.length = list(self.block_table), self.length
        return other

    def free(self):
        for block in self.block_table:
            self.pool.release(block)
        self.block_table, self.length = [], 0

    def reserve(self, end):
        writes_last = end > self.length and self.length % self.size > 0
        shared = writes_last and self.pool.count(self.block_table[-1]) > 1
        more = self.n_blocks(end) - len(self.block_table)
        if more + shared > self.pool.n_free:
            raise MemoryError(f"{more + shared} more blocks are needed, {self.pool.n_free} are free")
        if shared:
            old, new = self.block_table[-1], self.pool.allocate()
            self.pool.k[new], self.pool.v[new] = self.pool.k[old], self.pool.v[old]
            self.pool.release(old)
            self.block_table[-1] = new
        self.block_table += [self.pool.allocate() for _ in range(more)]


# %% tags=["nbval-check-output"]
pool = BlockPool(8, 4, 2, 8)
a = PagedCache(pool)
a.append(rows(2, 10), rows(2, 10))
b = a.fork()
print("after the fork:  ", a.block_table, b.block_table, " counts", [pool.count(x) for x in b.block_table])
before = a.gather()[0]
b.append(rows(2, 1), rows(2, 1))
print("b has one more:  ", a.block_table, b.block_table, " a is as it was:", np.array_equal(a.gather()[0], before))
a.append(rows(2, 1), rows(2, 1))
print("a has one more:  ", a.block_table, b.block_table, " counts", [pool.count(x) for x in a.block_table])

# %% tags=["nbval-check-output"]
guess_2.reveal(8 - pool.n_free, "Two full blocks shared, and a last block for each: the divergence copied one block.")
a.free()
print("a has ended:", 8 - pool.n_free, "blocks in use, b reads", b.gather()[0].shape[1], "tokens")
c = PagedCache(pool)
try:
    c.append(rows(2, 30), rows(2, 30))
except MemoryError as error:
    print("c:", error, "; nothing changed:", (c.block_table, len(c), pool.n_free) == ([], 0, 5))

# %% [markdown]
# `a` wrote in place: by then it held the old block alone. And an append that does not fit changes nothing. This is
# more than neatness: a decoder has a cache for each layer, and if layer 5 fails halfway, layers 0 to 4 hold a token
# that the others do not.
#
# ## Finding a prefix again
#
# A fork needs the sequence at hand. Requests of strangers also begin with the same tokens: the system prompt of a
# product, the examples of a task. So full blocks are looked up by **what they hold**. A key or value depends on all
# tokens before it, so the name of a block is a hash of its tokens *and of the name of the block before it*.


# %%
def block_keys(ids, size):
    """A key for each full block: the hash of its tokens behind the key of its parent."""
    keys, key = [], b""
    for start in range(0, len(ids) - size + 1, size):
        key = sha256(key + ids[start : start + size].tobytes()).digest()
        keys.append(key)
    return keys


class PrefixIndex:
    """Full blocks by key. The index holds each block it knows, so that none is handed out for other tokens."""

    def __init__(self, pool, keys=block_keys):
        self.pool, self.keys, self.blocks = pool, keys, {}

    def start(self, ids):
        cache = PagedCache(self.pool)
        for key in self.keys(ids[:-1], cache.size):  # at least one token is left to run
            if key not in self.blocks:
                break
            self.pool.retain(self.blocks[key])
            cache.block_table.append(self.blocks[key])
        cache.length = len(cache.block_table) * cache.size
        return cache

    def keep(self, ids, cache):
        for key, block in zip(self.keys(ids, cache.size), cache.block_table, strict=False):
            if key not in self.blocks:
                self.pool.retain(block)
                self.blocks[key] = block


# %% [markdown]
# Here the two-layer decoder serves three questions behind one system prompt of 40 tokens, in blocks of 8. Each layer
# has a pool and an index. `answer` runs what is not found, and compares with a run without any cache.

# %%
model = TinyDecoder()


def make_indexes(kind=PrefixIndex, n_blocks=40, size=8, **more):
    return [kind(BlockPool(n_blocks, size, 2, 8), **more) for _ in range(2)]


def answer(ids, indexes):
    """Run a prompt over what is stored of it: its caches, one a layer, and what happened in words."""
    held = [index.start(ids) for index in indexes]
    n_found = len(held[0])
    logits = model(ids[n_found:], held)
    for index, cache in zip(indexes, held, strict=True):
        index.keep(ids, cache)
    right = np.abs(logits[-1] - model(ids)[-1]).max() < 1e-12
    return held, f"{n_found} tokens found, {len(ids) - n_found} run, logits {'right' if right else 'WRONG'}"


# %% tags=["nbval-check-output"]
system = rng.integers(0, 64, 40)
questions = [rng.integers(0, 64, n) for n in (7, 12, 5)]
indexes = make_indexes()
alive = []
for question in questions:
    held, said = answer(np.concatenate([system, question]), indexes)
    alive.append(held[0])
    print(said)
print("tables in layer 0:", [cache.block_table for cache in alive])
print("blocks in use:", 40 - indexes[0].pool.n_free, " without sharing:", sum(len(c.block_table) for c in alive))

# %% [markdown]
# The 40 tokens stand in five blocks, stored and run once. **What it saves** at full size: 100 users behind a system
# prompt of 1,000 tokens, on Llama 3.1 8B, whose cache takes 128 KiB a token (lesson 05). Only full blocks are shared.

# %% tags=["nbval-check-output"]
per_token, n_users, n_system, size = 131_072, 100, 1000, 16
n_shared = n_system // size * size
copied = n_users * n_system * per_token / 2**30
once = (n_shared + n_users * (n_system - n_shared)) * per_token / 2**30
print(f"a copy for each user: {copied:.2f} GiB; {n_shared} tokens once and {n_system - n_shared} each: {once:.2f} GiB")
print(f"prompt tokens to run: {n_users * n_system:,} or {n_system + (n_users - 1) * (n_system - n_shared):,}")

# %% [markdown]
# The saved tokens need not be run either, so the first token comes sooner. What it costs: the blocks are held until
# somebody evicts them (`kvlab.caches.PrefixIndex.evict` lets go of those used longest ago), and a hash for each block.
#
# ## The same, watched
#
# The package's pool records what its caches do. This trace is of the decoder's first layer: `a` runs a prompt of 10
# tokens in blocks of 4 and the index keeps its two full blocks, `b` begins with them, `c` is forked from `b` and
# writes, and `a` ends. The picture stands at the copy, where a shared block is about to be written. Step through it.

# %% tags=["nbval-check-output"]
events = []
watched = caches.BlockPool(n_blocks=12, block_size=4, n_kv_heads=2, head_dim=8, events=events)
index, ids = caches.PrefixIndex(watched), rng.integers(0, 64, 10)
k, v = model.keys_values(ids)[0]
a = index.start(ids, name="a")
a.append(k, v)
index.keep(ids, a)
b = index.start(ids, name="b")
b.append(k[:, len(b) :], v[:, len(b) :])
c = b.fork(name="c")
for cache, n_new in ((c, 1), (b, 3), (c, 2)):
    cache.append(rows(2, n_new), rows(2, n_new))
a.free()
print([f"{e['do']} {e['sequence']}" for e in events])

# %%
table = BlockTable(events, n_blocks=12, block_size=4)
table.step = [e["do"] for e in events].index("copy") + 1
table

# %% [markdown]
# `index` stands among the sequences because it is one more holder. When `a` ends, blocks 0 and 1 stay in use.
#
# ## Seven bugs
#
# Four lie in the bookkeeping: a shared block is written, a block is freed while another holds it, it is released
# twice, it is taken a token late or early. Each variant below is the right code with a method or two replaced. In the
# run, `a` gets 6 tokens, `b` is forked from it and gets 3, `a` gets one more and ends. It is freed twice, which must do
# no harm. Then `c` and `d` take free blocks. A cache is right when it reads exactly the rows that it was given.


# %%
class SharedWritten(PagedCache):
    def reserve(self, end):
        self.block_table += [self.pool.allocate() for _ in range(self.n_blocks(end) - len(self.block_table))]


class TableKept(PagedCache):
    def free(self):
        for block in self.block_table:
            self.pool.release(block)


class OneLate(PagedCache):
    def n_blocks(self, n_tokens):
        return max(1, -(-(n_tokens - 1) // self.size))


class OneEarly(PagedCache):
    def n_blocks(self, n_tokens):
        return n_tokens // self.size + 1


# %%
class Unchecked(BlockPool):
    def in_use(self, block):
        return block

    def release(self, block):
        self.counts[block] -= 1
        if self.counts[block] <= 0:
            self.free.append(block)


class FreedAtOnce(Unchecked):
    def release(self, block):
        self.counts[block] = 0
        self.free.append(block)


# %%
def play(pool_kind, cache_kind):
    """The run: for each sequence whether it reads its own rows, then the blocks in use."""
    pool, given, seen = pool_kind(12, 4, 2, 8), {}, {}
    a = cache_kind(pool)

    def append(name, cache, n_new, before=()):
        given[name] = [*before, rows(2, n_new)]
        cache.append(given[name][-1], given[name][-1])

    def look(name, cache):
        same = np.array_equal(cache.gather()[0], np.concatenate(given[name], axis=1))
        seen[name] = "right" if same else "WRONG"

    try:
        append("a", a, 6)
        b = a.fork()
        append("b", b, 3, given["a"])
        append("a", a, 1, given["a"])
        look("a", a)
        a.free()
        a.free()
        c, d = cache_kind(pool), cache_kind(pool)
        append("c", c, 8)
        append("d", d, 6)
        for name, cache in (("b", b), ("c", c), ("d", d)):
            look(name, cache)
    except (IndexError, ValueError) as error:
        return [seen.get(name, "-") for name in "abcd"] + [type(error).__name__]
    return [seen[name] for name in "abcd"] + [f"{12 - pool.n_free} blocks"]


# %% tags=["nbval-check-output"]
variants = {
    "right": (BlockPool, PagedCache),
    "shared block written": (BlockPool, SharedWritten),
    "freed at the first release": (FreedAtOnce, PagedCache),
    "released twice, unchecked": (Unchecked, TableKept),
    "released twice, checked": (BlockPool, TableKept),
    "block one token late": (BlockPool, OneLate),
    "block one token early": (BlockPool, OneEarly),
}
print(f"{'':28}{'a':>8}{'b':>8}{'c':>8}{'d':>8}{'at the end':>14}")
for name, kinds in variants.items():
    a, b, c, d, end = play(*kinds)
    print(f"{name:28}{a:>8}{b:>8}{c:>8}{d:>8}{end:>14}")

# %% [markdown]
# "WRONG" is a text that reads another's tokens, without a crash. The pool that checks turns one of these into an
# error. A block taken early is only waste: `c` of 8 tokens holds a third block. Taken late it raises here, because the
# table is asked for the block of the token's own number. Code that writes to the *last* block of the table would
# overwrite an old token instead.
#
# > **Argued over.** GeeeekExplorer/nano-vllm #66: a new block is taken when `len % block_size == 1`. That is a token
# > late if the length leaves out the token to be written, and right if it counts it. Say which one a length means.
# >
# > **This shipped.** vllm-project/vllm #5188: blocks that were not full had hashes too, and these had to be mended. A
# > part-filled block still changes; here only full ones get a key, and what is not full is copied before it is written.
#
# Three bugs lie in looking prefixes up. First, **a hash without the parent**. The text x y z is served, then y z. The
# block y is known, but it was computed behind x, eight positions further on.


# %% tags=["nbval-check-output"]
def keys_without_parent(ids, size):
    return [sha256(ids[i : i + size].tobytes()).digest() for i in range(0, len(ids) - size + 1, size)]


x, y, z = (rng.integers(0, 64, 8) for _ in range(3))
for keys in (block_keys, keys_without_parent):
    indexes = make_indexes(keys=keys)
    answer(np.concatenate([x, y, z]), indexes)
    _, said = answer(np.concatenate([y, z]), indexes)
    print(f"{keys.__name__:20} {said}")

# %% [markdown]
# > **This shipped.** vllm-project/vllm #8240: the hash took in the tokens and not which adapter (LoRA) computed them,
# > so that two adapters could share blocks of one text. Whatever changes keys and values belongs in the key: earlier
# > tokens, model, adapter, images.
#
# Second, **a stale hash**. The index below remembers blocks without holding them. When a text ends, its blocks go back
# to the pool and are handed out for another text, and the index still finds the first text in them.


# %% tags=["nbval-check-output"]
class NotHeld(PrefixIndex):
    def keep(self, ids, cache):
        self.blocks |= dict(zip(self.keys(ids, cache.size), cache.block_table, strict=False))


for kind in (PrefixIndex, NotHeld):
    indexes = make_indexes(kind)
    for cache in answer(np.concatenate([x, y, z]), indexes)[0]:
        cache.free()
    answer(np.concatenate([z, x, y]), indexes)  # goes on running
    print(f"{kind.__name__:12} {answer(np.concatenate([x, y, z]), indexes)[1]}")

# %% [markdown]
# > **This shipped.** GeeeekExplorer/nano-vllm #163: a reused block's old hash stayed in the table. vllm-project/vllm
# > #4761: a block taken back by the evictor stayed on the list of cached ones. Either the index holds the block, as
# > here, or handing a block out must delete its key.
#
# Third, **a hit of 100 %**. All 16 tokens of a prompt are found: what is left to run?


# %% tags=["nbval-check-output"]
class NothingLeft(PrefixIndex):
    def start(self, ids):
        return super().start(np.append(ids, 0))  # the last token may be found as well


for kind in (PrefixIndex, NothingLeft):
    indexes = make_indexes(kind)
    answer(np.concatenate([x, y]), indexes)
    try:
        print(f"{kind.__name__:12} {answer(np.concatenate([x, y]), indexes)[1]}")
    except IndexError:
        logits = model(np.array([], dtype=int), [index.start(np.concatenate([x, y])) for index in indexes])
        print(f"{kind.__name__:12} logits of shape {logits.shape}: no last row to choose the next token from")

# %% [markdown]
# > **Often said:** "A prompt that was seen before costs nothing."
# >
# > **What is so:** the next token is chosen from the logits of the last one, and they need its *query*, which no cache
# > holds (lesson 01). At least one token has to run. Our index gives up the last full block, so 8 tokens run.
# >
# > **This shipped.** GeeeekExplorer/nano-vllm #144: a prompt of whole blocks, all found, gave attention no query, and
# > the engine crashed.
#
# ## When the pool is empty
#
# The simulation preempted requests. Here it is with the decoder: three texts in pools too small for all. The last to
# come gives its blocks back, and the others go on. It starts over from its text so far, prompt and generated tokens.
# That an append which does not fit changes nothing is what makes trying safe.


# %%
def decode_all(prompts, n_new, n_blocks):
    """Greedy, side by side, a pool for each layer; the texts, who was preempted, and all tokens run."""
    pools = [BlockPool(n_blocks, 4, 2, 8) for _ in range(2)]
    texts, held, preempted, n_run = [list(p) for p in prompts], {}, [], 0
    unfinished = set(range(len(texts)))
    while unfinished:
        for i in sorted(unfinished):
            mine = held.setdefault(i, [PagedCache(pool) for pool in pools])
            fed = np.array(texts[i][len(mine[0]) :])  # the newest token, or everything that is not stored
            try:
                logits = model(fed, mine)
            except MemoryError:
                leaves = max(held)  # the last to come
                preempted.append(leaves)
            else:
                texts[i].append(int(logits[-1].argmax()))
                n_run += len(fed)
                leaves = i if len(texts[i]) == len(prompts[i]) + n_new else None
                unfinished -= {leaves}
            if leaves is not None:
                for cache in held.pop(leaves):
                    cache.free()
    return texts, preempted, n_run


# %% tags=["nbval-check-output"]
prompts = [rng.integers(0, 64, n).tolist() for n in (9, 6, 11)]
alone = [decode_all([p], n_new=12, n_blocks=20)[0][0] for p in prompts]
for n_blocks in (20, 12, 8):
    texts, preempted, n_run = decode_all(prompts, n_new=12, n_blocks=n_blocks)
    print(
        f"{n_blocks:2} blocks: {len(preempted):2} times preempted, {n_run} tokens run, texts as alone: {texts == alone}"
    )

# %% [markdown]
# The texts are the same, at a price: what was stored and thrown away is run again.
#
# Recomputing costs one prefill and no traffic. The alternative is to **swap**: copy the blocks to the host's memory and
# back, exact as well, at the price of the transfer (lesson 11). The paper has both (sections 4.5 and 7.3): the latest
# requests are preempted first, all blocks of a sequence together, since attention needs them all. Swapping small blocks
# is slow, recomputing does not depend on the block size, and with blocks of 16 to 64 the two come out alike.
#
# ## What it costs
#
# - **Gathering** copies every row at each step: `2 * n` rows for n tokens. Attending in place copies none, and needs
#   attention code that knows the table.
# - **Look-ups**: one entry of the table a block and step, and reads that jump at each block's end.
# - **Block size** pulls both ways. Small blocks waste little and share much; large ones need few look-ups. Below, for
#   the 200 requests at their final lengths and a shared system prompt of 100 tokens.

# %% tags=["nbval-check-output"]
lengths = prompt + reply
print(f"{'block size':>10}{'empty slots':>13}{'waste':>8}{'look-ups a step':>17}{'tokens of 100 shared':>22}")
for size in (1, 4, 16, 64, 256):
    n_blocks = -(-lengths // size)
    n_empty = n_blocks * size - lengths
    waste = n_empty.sum() / (n_blocks * size).sum()
    print(f"{size:10}{n_empty.mean():13.1f}{waste:8.1%}{n_blocks.mean():17.1f}{100 // size * size:22}")

# %% [markdown]
# The mean of the empty slots is near half a block, `(block_size - 1) / 2`. The paper settles on 16 (section 7.2):
# smaller blocks read the memory in pieces too short for a GPU, larger ones waste more and share less.
#
# ## Recap
#
# - You kept sequences in blocks behind a block table. The gathered rows *equalled* the contiguous ones, and attention
#   block by block agreed to 1e-12 without copying a row. No sequence had more than 15 empty slots in blocks of 16.
# - You served 200 requests from 16,384 slots. Reserving the maximum, 20 % of the slots held a token and 8 requests
#   ran; with the exact length 50 % and 20; in blocks 97 % and 42, with 55 % of the tokens run again.
# - You shared tokens: a fork of 10 tokens that diverged copied one block, and a system prompt of 40 tokens was stored
#   and run once for three questions. Five of the seven bugs gave wrong texts without an error.
#
# One limit: blocks save room. They make no step faster by themselves, and a cache that fits anyway gains nothing.
#
# Practise: [`../exercises/10_paged_cache.ipynb`](../exercises/10_paged_cache.ipynb). Next: fewer bits for each number,
# [`11_quantized_and_offloaded.ipynb`](11_quantized_and_offloaded.ipynb).
