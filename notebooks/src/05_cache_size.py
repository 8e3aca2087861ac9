# %% [markdown]
# # 05 Cache size
#
# **How many bytes does a cache take, and how many users does that leave room for?**
#
# After this lesson you can
#
# - compute the bytes of a cache from a model's `config.json`, and say where each factor comes from,
# - find the context at which the cache outgrows the weights, and how many sequences fit on a GPU,
# - spot a published number that is wrong by a factor.
#
# About 35 minutes. No GPU needed.

# %%
import numpy as np

from kvlab import sizes
from kvlab.decoder import TinyDecoder
from kvlab.predict import predict
from kvlab.sizes import config_names, load_config, price
from kvlab.style import COLORS, show, subplots

GiB, GB = 2**30, 10**9

# %% [markdown]
# ## Count what is stored
#
# For every token of every sequence, every layer stores a key and a value for each of its KV heads. So the size is a
# product with no surprises in it:
#
# bytes = 2 (K and V) x batch x seq_len x layers x KV heads x head_dim x bytes per element


# %%
def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    elements = 2 * batch * seq_len * n_layers * n_kv_heads * head_dim
    return int(elements * bytes_per_element)


# %% [markdown]
# Try it on the course's tiny decoder: 2 layers, 4 query heads, 2 KV heads, head width 8, 16-bit numbers.

# %%
guess = predict("How many bytes does one token of the tiny decoder leave in its cache?")
guess

# %% tags=["nbval-check-output"]
per_token = cache_bytes(batch=1, seq_len=1, n_layers=2, n_kv_heads=2, head_dim=8, bytes_per_element=2)
print("8 tokens:", cache_bytes(1, 8, 2, 2, 8, 2), "bytes")
guess.reveal(f"{per_token} bytes", "2 x 2 layers x 2 KV heads x 8 numbers x 2 bytes; the 4 query heads do not appear.")

# %% [markdown]
# A formula can forget something. Run the decoder on 8 tokens in 16 bits and look at the arrays it stored.

# %% tags=["nbval-check-output"]
model = TinyDecoder(dtype=np.float16)
caches = model.make_caches()
model(np.arange(8), caches)
for layer, (k, v) in enumerate(model.keys_values(np.arange(8))):
    print(f"layer {layer}: keys {k.shape}, values {v.shape}, {k.dtype}, {k.nbytes + v.nbytes} bytes")
print("in the caches:", sum(cache.n_bytes for cache in caches), "bytes")

# %% [markdown]
# The arrays agree with the formula to the byte.
#
# ## A real size
#
# 32 layers, head width 128, fp16, one sequence of 4,096 tokens. The size is linear in every factor: twice the context
# is twice the bytes, and so is twice the batch.

# %% tags=["nbval-check-output"]
for n_kv_heads in (32, 8, 1):
    n_bytes = cache_bytes(1, 4096, 32, n_kv_heads, 128, 2)
    print(f"{n_kv_heads:2d} KV heads: {n_bytes:,} bytes = {n_bytes / GiB} GiB")
print("8 KV heads, twice the context:", cache_bytes(1, 8192, 32, 8, 128, 2) / GiB, "GiB")
print("8 KV heads, twice the batch:", cache_bytes(2, 4096, 32, 8, 128, 2) / GiB, "GiB")

# %% [markdown]
# The factors multiply, so a forgotten one makes the answer too small by exactly that factor.

# %% tags=["nbval-check-output"]
right = {"batch": 4, "seq_len": 4096, "n_layers": 32, "n_kv_heads": 8, "head_dim": 128, "bytes_per_element": 2}
print(f"right: {cache_bytes(**right) / GiB} GiB")
for factor in right:
    wrong = cache_bytes(**(right | {factor: 1}))
    print(f"forgot {factor:17s} {cache_bytes(**right) // wrong:4d} times too small")
print(f"forgot K or V {2:15d} times too small")

# %% [markdown]
# > **Even they.** One popular lesson on this subject gives a cache that is 32 times too small. For a model of 32
# > layers that is one forgotten factor.
#
# ## GiB is not GB
#
# 1 GiB is 2^30 bytes, 1 GB is 10^9. Some engines and tables count the first and print the second. The gap is small
# enough to be overlooked and large enough to run out of memory.

# %% tags=["nbval-check-output"]
print(f"1 GiB = {GiB / GB:.4f} GB, {GiB / GB - 1:.1%} more")
print(f"1 KiB = {2**10 / 10**3} kB, 1 MiB = {2**20 / 10**6:.4f} MB")

# %% [markdown]
# ## Read the config, do not guess
#
# The counts of a real model stand in its `config.json`. The package holds a few, cut down to the fields that matter,
# each with its source.

# %% tags=["nbval-check-output"]
llama = load_config("llama-3.1-8b")
for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
    print(f"{field}: {llama[field]}")
print("head_dim:", llama.get("head_dim"))

# %% [markdown]
# Two fields may be absent or null, and each then has a meaning:
#
# - no `num_key_value_heads`: as many as query heads. The field came with GQA; Llama-style configs from before it are
#   MHA.
# - no `head_dim`: `hidden_size / num_attention_heads`. Only then; where the field is given, it counts.


# %% tags=["nbval-check-output"]
def bytes_per_token(config):
    n_heads = config.get("num_attention_heads")
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
    return cache_bytes(1, 1, config["num_hidden_layers"], n_kv_heads, head_dim, 2)


per_token = bytes_per_token(llama)
print(f"Llama 3.1 8B: {per_token:,} bytes = {per_token // 2**10} KiB a token")
print(f"8,192 tokens: {8192 * per_token / GiB} GiB")

# %% [markdown]
# Now three wrong ways to read it.


# %% tags=["nbval-check-output"]
def wrong_by(name, **guessed):
    config = load_config(name)
    return f"{name} comes out {bytes_per_token(config | guessed) / bytes_per_token(config):g} times its size"


print("query heads counted:", wrong_by("llama-3.1-8b", num_key_value_heads=32))
print("hidden_size / num_attention_heads:", wrong_by("gemma-7b", head_dim=3072 // 16))
print("hidden_size / num_attention_heads:", wrong_by("mistral-nemo-12b", head_dim=5120 // 32))
print("missing num_key_value_heads read as 1:", wrong_by("llama-13b", num_key_value_heads=1))

# %% [markdown]
# > **Proposed, and caught in review.** vllm-project/vllm #29736: an estimator script multiplied by `hidden_size`,
# > which counts query heads: 4 times too big for Llama 3 8B.
#
# > **This shipped.** LMCache/LMCache #688: a cache size calculator took `hidden_size / num_attention_heads` as the
# > head width, wrong for models whose config sets another one.
#
# ## Ten models, priced

# %% tags=["nbval-check-output"]
print(f"{'':17s} layers  KV heads  width  KiB a token  GiB at 8,192")
for name in config_names():
    shape, size = sizes.cache_shape(load_config(name)), bytes_per_token(load_config(name))
    print(f"{name:17s} {shape.n_layers:6d} {shape.n_kv_heads:9d} {shape.head_dim:6d}", end=" ")
    print(f"{size / 2**10:12.1f} {size * 8192 / GiB:13.2f}")

# %%
models = sorted(config_names(), key=lambda name: load_config(name)["_parameters"])
kib = [bytes_per_token(load_config(name)) / 2**10 for name in models]
fig, ax = subplots(figsize=(6.4, 3.6))
ax.barh(models, kib, color=COLORS["cached"])
for y, (name, size) in enumerate(zip(models, kib, strict=True)):
    billions = load_config(name)["_parameters"] / 1e9
    ax.annotate(f" {size:.1f}  ({billions:.1f} billion parameters)", (size, y), va="center", fontsize=8)
ax.set(xlabel="16-bit cache per token (KiB)", xlim=(0, 1300))
show(
    fig,
    alt="Cache per token of ten models, sorted by parameters from 0.1 to 70.6 billion. The bars do not grow with the "
    f"model: Llama 13B takes {kib[models.index('llama-13b')]:.0f} KiB, Llama 3.1 70B only "
    f"{kib[models.index('llama-3.1-70b')]:.0f}; Gemma 7B {kib[models.index('gemma-7b')]:.0f}, Qwen2.5 7B "
    f"{kib[models.index('qwen2.5-7b')]:.0f}.",
)

# %% [markdown]
# > **Often said:** "A bigger model has a bigger cache."
# >
# > **What is so:** the parameter count does not enter the formula. Llama 13B takes 2.5 times what Llama 3.1 70B
# > takes, because it stores 40 KV heads in each layer and the larger model 8.
#
# ## When the formula does not hold
#
# Some models do not store one key and one value per token, KV head and layer. A window drops old tokens, multi-head
# latent attention (MLA) stores a small latent instead, hybrids mix in layers with a fixed state.
# `kvlab.sizes.bytes_per_token` is the formula above, and refuses such a config: an error is worth more than a number
# that is wrong without saying so. `kvlab.sizes.price` reads what each layer keeps. It refuses what contradicts itself,
# and says what it had to assume.

# %% tags=["nbval-check-output"]
windowed = llama | {"sliding_window": 4096}
for ask in (lambda: sizes.bytes_per_token(windowed), lambda: price(llama | {"num_key_value_heads": 5}, tokens=1)):
    try:
        ask()
    except ValueError as error:
        print(error)
print([price(config, tokens=32768).kv_bytes / GiB for config in (llama, windowed)], "GiB without and with the window")
print(price(llama | {"model_type": "llama_next"}, tokens=1).warnings[0])

# %% [markdown]
# Three real models, by the fields of their `config.json`: DeepSeek R1 keeps a latent, Gemma 3 27B a window of 1,024
# tokens in five layers of six, Qwen3.6 27B keys and values only in every fourth layer.

# %% tags=["nbval-check-output"]
deepseek = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168}
deepseek |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
gemma = {"model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "hidden_size": 5376}
gemma |= {"num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6}
qwen = {"model_type": "qwen3_5_text", "num_hidden_layers": 64, "num_attention_heads": 24, "full_attention_interval": 4}
qwen |= {"num_key_value_heads": 4, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 48}
qwen |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
for name, config in [("DeepSeek R1", deepseek), ("Gemma 3 27B", gemma), ("Qwen3.6 27B", qwen)]:
    needed, formula = price(config, tokens=32768).kv_bytes, bytes_per_token(config) * 32768
    print(f"{name}: {needed / GiB:.2f} GiB at 32,768 tokens; the formula says {formula / needed:.1f} times that")

# %% [markdown]
# `explain` says where each factor comes from, beside what the naive formula puts in its place: all layers, and
# `hidden_size / num_attention_heads` as the head width. From a terminal, `kvlab size config.json --tokens 32768` does
# the same for any `config.json`, and more: how many sequences fit on a GPU, other formats, and what engines
# *allocate*, which is more than what is *needed*.

# %% tags=["nbval-check-output"]
print(sizes.explain(price(gemma, tokens=32768)))

# %% [markdown]
# ## Cache against weights
#
# The cache is not alone on the GPU. How large are the weights? For this architecture every matrix can be counted: the
# input embedding and the output head, and per layer four attention matrices, three of the MLP and two norms.

# %% tags=["nbval-check-output"]
d, d_ff, vocab = llama["hidden_size"], llama["intermediate_size"], llama["vocab_size"]
attention = d * 4096 + 2 * d * 8 * 128 + 4096 * d  # wq; wk and wv for 8 KV heads; wo
n_params = 2 * vocab * d + 32 * (attention + 3 * d * d_ff + 2 * d) + d
weight_bytes = 2 * n_params
print(f"{n_params:,} parameters, as published: {n_params == llama['_parameters']}")
print(f"in 16 bits {weight_bytes:,} bytes = {weight_bytes / GB:.2f} GB = {weight_bytes / GiB:.2f} GiB")

# %%
guess = predict("At how many tokens is the cache of one sequence larger than these weights?")
guess


# %% tags=["nbval-check-output"]
def crossover_tokens(weight_bytes, per_token, batch):
    """The smallest context per sequence at which the cache is larger than the weights."""
    return weight_bytes // (per_token * batch) + 1


print("equal is not larger: 1,024 bytes of weights, 128 a token:", crossover_tokens(1024, 128, 1))
for batch in (1, 4, 16, 64):
    print(f"batch {batch:2d}: {crossover_tokens(weight_bytes, per_token, batch):,} tokens each")
guess.reveal(f"{crossover_tokens(weight_bytes, per_token, 1):,}", "Within the 131,072 tokens that the model takes.")

# %%
batches = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
fig, ax = subplots()
for name, style in [("llama-3.1-8b", "-"), ("llama-2-7b", "--"), ("qwen2.5-7b", ":"), ("gemma-7b", "-.")]:
    c = load_config(name)
    tokens = [crossover_tokens(2 * c["_parameters"], bytes_per_token(c), int(b)) for b in batches]
    ax.plot(batches, tokens, style, label=name)
ax.set(xscale="log", yscale="log", xlabel="batch (sequences)", ylabel="context of each (tokens)")
ax.set_title("Above its line, a model's cache is larger than its weights")
ax.set_xticks(batches, [str(b) for b in batches])
ax.legend()
show(
    fig,
    alt="Context at which the 16-bit cache outgrows the 16-bit weights, against the batch, on logarithmic axes: four "
    "parallel falling lines. At batch 1 Qwen2.5 7B needs about 266,000 tokens, Llama 3.1 8B 123,000, Gemma 7B 37,000 "
    "and Llama 2 7B 26,000; each doubling of the batch halves it.",
)

# %% [markdown]
# > **Often said:** "The cache is small change next to the weights."
# >
# > **What is so:** at batch 1 and a short context, yes. All sequences share the weights, and each has a cache of its
# > own. With 16 sequences the cache of Llama 3.1 8B is the larger of the two from 7,659 tokens on.
#
# ## How many fit on an 80 GB GPU?
#
# First, which 80? The box says 80 GB, 80 x 10^9 bytes. The driver reports more: 81,559 MiB for an H100 80GB, 81,920
# MiB for an A100 80GB (thundergolfer.com/blog/nvidia-gpu-memory-capacity). This lesson counts the cautious 80 x 10^9
# and shows the H100's other number beside it.

# %%
guess = predict("Llama 3.1 8B in 16 bits, 8,192 tokens for each user: how many users fit in 80 GB?")
guess


# %% tags=["nbval-check-output"]
def max_sequences(memory_bytes, weight_bytes, per_token, seq_len):
    """Whole sequences that fit beside the weights."""
    return max(0, (memory_bytes - weight_bytes) // (per_token * seq_len))


print("tokens each     in 80 GB  in 81,559 MiB  in 24 GB")
for seq_len in (2048, 8192, 32768, 131072):
    fits = [max_sequences(m, weight_bytes, per_token, seq_len) for m in (80 * GB, 81559 * 2**20, 24 * GB)]
    print(f"{seq_len:11,} {fits[0]:12d} {fits[1]:14d} {fits[2]:9d}")
guess.reveal(max_sequences(80 * GB, weight_bytes, per_token, 8192), "Whole sequences beside the weights.")
big = load_config("llama-3.1-70b")
print("of Llama 3.1 70B, whose weights alone are larger:", max_sequences(80 * GB, 2 * big["_parameters"], 327680, 1))

# %%
context = np.arange(0, 131073, 1024)
fig, ax = subplots(figsize=(6.4, 3.6))
ax.fill_between(context, 0, weight_bytes / GB, color=COLORS["weights"], alpha=0.5)
ax.annotate("weights", (65536, 8), ha="center", va="center")
labels = {1: ("-", 105000, 35), 4: ("--", 70000, 60), 16: ("-.", 42000, 88), 64: (":", 11500, 90)}
for batch, (style, x, y) in labels.items():
    (line,) = ax.plot(context, (weight_bytes + batch * per_token * context) / GB, style)
    ax.annotate(f"batch {batch}", (x, y), ha="left" if batch > 4 else "right", color=line.get_color())
ax.axhline(80, color="black", linewidth=1)
ax.annotate("80 GB", (80000, 81), va="bottom")
ax.set(xlabel="context of each sequence (tokens)", ylabel="weights and cache (GB)", ylim=(0, 100))
show(
    fig,
    alt="Memory of Llama 3.1 8B in 16 bits against context. Weights are a flat band of 16 GB. With the cache, batch 1 "
    "rises to 33 GB at 131,072 tokens, batch 4 to 85 GB, crossing the 80 GB line near 122,000 tokens; batch 16 crosses "
    "it near 30,000 and batch 64 near 7,600.",
)

# %% [markdown]
# The batch is capped by memory: at 8,192 tokens each, the sixtieth sequence does not fit in 80 GB, however fast the
# GPU is. Lesson 07 shows why a larger batch is wanted: one read of the weights serves all of it.
#
# These counts are upper bounds. Activations, the runtime's own memory and allocators that reserve more than is used
# are not in them.
#
# Move every factor yourself. The weights stay those of the model; the explorer starts from any `config.json`, also
# from one with windows or latents: `MemoryExplorer(config, weight_bytes=...)`.

# %%
from kvlab.widgets import MemoryExplorer

MemoryExplorer("llama-3.1-8b", batch=16, seq_len=8192)

# %% [markdown]
# ## When it is too big
#
# | what | what shrinks | exact? | where |
# |---|---|---|---|
# | fewer KV heads (GQA, MQA) | KV heads | no: another model, trained that way | lesson 04 |
# | a window | tokens kept in a layer | no, unless the model was trained with it | lesson 08 |
# | quantization to 8 or 4 bits | bytes per element; scales are added | no | lesson 11 |
# | offload to host memory | bytes on the GPU, not the bytes in all | yes; costs the transfer | lesson 11 |
# | blocks ("paged") | memory reserved and never used; not the cache itself | yes | lesson 10 |
# | a shared prompt stored once | copies of the same rows | yes | lesson 10 |
#
# Fewer bits look like this for Llama 3.1 8B (scales left out; lesson 11 counts them):

# %% tags=["nbval-check-output"]
for bits, bytes_per_element in [(16, 2), (8, 1), (4, 0.5)]:
    n_bytes = cache_bytes(1, 8192, 32, 8, 128, bytes_per_element)
    fits = max_sequences(80 * GB, weight_bytes, n_bytes // 8192, 8192)
    print(f"{bits:2d} bits: {n_bytes / GiB} GiB at 8,192 tokens, {fits} sequences in 80 GB")

# %% [markdown]
# ## Even they
#
# > **Five public numbers that are wrong.**
# >
# > 1. Llama 3.1 405B, 1k tokens: 0.984 GB in a well-known table (huggingface.co/blog/llama31, asked about in
# >    huggingface/blog #2345). It counts 16 KV heads; the model has 126 layers and 8 (arXiv:2407.21783, table 3).
# > 2. Gemma 3 27B, 32,768 tokens: an engine held 15,872 MiB (ikawrakow/ik_llama.cpp, discussion #334). Every layer
# >    kept every token; 52 of the 62 never look further back than 1,024.
# > 3. LLaMA 30B, 512 tokens: 1,560 MB, "twice large" (abetlen/llama-cpp-python #66). The binding stored f32, and the
# >    MB are MiB.
# > 4. A model of 48 layers, priced in a comment with 64 (guoqingbao/xinfer #195).
# > 5. Qwen3.6 27B, 4 sequences of 65,536 tokens: 60 % too much in a user interface (lmstudio-ai/lmstudio-bug-tracker
# >    #1862). Only every fourth layer has keys and values.
#
# Beside them, `hidden_size // num_attention_heads`, or `n_embd // n_head`, taken for the head width of two models that
# set their own. What is so:

# %% tags=["nbval-check-output"]
big = {"model_type": "llama", "num_hidden_layers": 126, "num_key_value_heads": 8, "head_dim": 128}
old = {"model_type": "llama", "num_hidden_layers": 60, "num_attention_heads": 52, "hidden_size": 6656}
gib, with_16 = (price(big | {"num_key_value_heads": n}, tokens=1024).kv_bytes / GiB for n in (8, 16))
print(f"1. {gib:.3f} GiB with 8 KV heads; the table's number needs 16: {with_16:.3f} GiB")
mib = price(gemma, tokens=32768).kv_bytes / 2**20
print(f"2. {mib:,.0f} MiB are needed, {15872 / mib:.1f} times less")
f16, f32 = (price(old, tokens=512, k_dtype=name, v_dtype=name).kv_bytes / 2**20 for name in ("f16", "f32"))
print(f"3. {f16:,.0f} MiB in f16, {f32:,.0f} MiB in f32")
print(f"4. 64 layers for 48: {64 / 48 - 1:.0%} too large")
need = price(qwen, tokens=65536, sequences=4)
print(f"5. {need.kv_bytes / GiB:.0f} GiB of keys and values, {need.state_bytes / 2**20} MiB of state")
print(f"Mistral Nemo 12B: 5120 // 32 = {5120 // 32}, head_dim is 128: {5120 // 32 / 128 - 1:+.0%}")
print(f"gpt-oss-120b: 2880 // 64 = {2880 // 64}, head_dim is 64: {2880 // 64 / 64 - 1:+.0%}")

# %% [markdown]
# ## Recap
#
# - You computed cache sizes from `config.json`: 128 bytes a token for the toy, 128 KiB for Llama 3.1 8B and 1 GiB at
#   8,192 tokens, with KV heads and `head_dim` read, not derived.
# - You found where the cache outgrows the weights (122,533 tokens at batch 1, 7,659 at batch 16) and how many
#   sequences of 8,192 tokens fit beside them in 80 GB: 59.
# - You spotted wrong numbers by their factor: 4 where query heads were counted, 2 in a 405B row, 5.3 where a window was
#   not seen, 32 where 32 layers are forgotten.
#
# One limit: your `bytes_per_token` is for the plain decoder. Windows, latents and hybrids need `price`, and engines
# *allocate* more than is needed.
#
# Exercise: [05 Cache size](../exercises/05_cache_size.ipynb).
#
# Next lesson: [06 A PyTorch decoder](06_pytorch_decoder.ipynb).
