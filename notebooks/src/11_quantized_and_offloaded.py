# %% [markdown]
# # 11 Quantized and offloaded caches
#
# A cache that is too big can be held in fewer bits, or in a cheaper memory.
# **What does each cost, in exactness, in bytes and in time?**
#
# After this lesson you can
#
# - quantize keys and values, choose what one scale is shared over, and say what one outlier channel does;
# - build a cache that quantizes all but its newest rows, and count its bytes with the scales in them;
# - say what offloading costs, when fewer bits are faster, and what both do to a real model.
#
# About 40 minutes. Needs no GPU; the last section needs the model that `make model` writes.

# %%
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from kvlab.attention import attention, attention_weights, repeat_kv
from kvlab.caches import ConcatCache
from kvlab.predict import predict
from kvlab.roofline import HARDWARE, ModelShape, decode_floor_ms, forward_bytes, forward_flops
from kvlab.sizes import FORMATS, load_config
from kvlab.style import COLORS, show, subplots

# %% [markdown]
# ## A number in a few bits
#
# With 4 bits there are 16 codes. Lay 16 levels evenly between the smallest and the largest of some numbers, and store
# for each number the code of its nearest level. To read it back you need two more numbers, which all of them share:
#
# - `zero`, the lowest level, here the minimum;
# - `scale`, the step from one level to the next: (max - min) / (2**n_bits - 1).
#
# The number is then about `codes * scale + zero`, and off by half a step at most. `axis` says what one scale is shared
# over. A slice of equal numbers has a step of 0, and must not be divided by it.


# %% tags=["nbval-check-output"]
def quantize(x, n_bits, axis):
    """(codes uint8, scale, zero): one scale and zero for all numbers along `axis`, kept as size 1."""
    if n_bits not in range(2, 9):
        raise ValueError(f"n_bits: expected 2 to 8, got {n_bits}")
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / (2**n_bits - 1)
    steps = (x - zero) / np.where(scale > 0, scale, 1)
    codes = np.clip(np.rint(steps), 0, 2**n_bits - 1).astype(np.uint8)
    return codes, scale, zero


def dequantize(codes, scale, zero):
    """The numbers that the codes stand for."""
    return codes * scale + zero


x = np.array([-1.0, -0.6, 0.1, 0.3, 2.0])
codes, scale, zero = quantize(x, n_bits=2, axis=0)
print("codes", codes, " step", scale[0], " zero", zero[0], " back", dequantize(codes, scale, zero))

# %% [markdown]
# One more bit halves the step, nearly. Below, a line of numbers at 2, 3 and 4 bits; then the error of 1,000 random
# numbers, and the constant slice.

# %%
rng = np.random.default_rng(0)
sample = np.sort(rng.standard_normal(1000))
fig, ax = subplots(figsize=(5.2, 2.6))
line = np.linspace(-3, 3, 601)
ax.plot(line, line, color=COLORS["quiet"], linestyle="--", label="exact")
for n_bits, colour in ((2, "wrong"), (3, "new"), (4, "cached")):
    ax.step(line, dequantize(*quantize(line, n_bits, 0)), where="mid", color=COLORS[colour], label=f"{n_bits} bits")
ax.set(xlabel="number", ylabel="number read back", title="4, 8 and 16 levels")
ax.legend()
alt = (
    "Staircases against the diagonal, from -3 to 3: 4 wide steps at 2 bits, 8 at 3 bits, "
    "16 narrow ones at 4 bits. Each stays within half a step of the diagonal."
)
show(fig, alt=alt)

# %% tags=["nbval-check-output"]
for n_bits in (2, 4, 8):
    codes, scale, zero = quantize(sample, n_bits, 0)
    error = np.abs(dequantize(codes, scale, zero) - sample)
    within = (error <= scale / 2 + 1e-12).all()
    print(f"{n_bits} bits: step {scale[0]:.3f}, mean error {error.mean():.4f}, within half a step: {within}")
flat = np.full(5, 0.1)
print("a constant slice comes back exactly:", (dequantize(*quantize(flat, 4, 0)) == flat).all())

# %% [markdown]
# ## Wrong in ways that run
#
# Each version below looks right and runs. The error is in steps: 0.5 is what you may have. `uint8` wraps around, so a
# code of 256 becomes 0; here the levels were counted as 2**n_bits, one too many.


# %% tags=["nbval-check-output"]
def largest_error(read):
    return np.abs(read - sample).max() / scale[0]


codes, scale, zero = quantize(sample, 8, 0)
cut = np.floor((sample - zero) / scale)
short = (sample.max() - sample.min()) / 256
wrapped = np.rint((sample - zero) / short).astype(np.uint8)
zero_in_steps = np.trunc(zero / scale)
print(f"right                        {largest_error(dequantize(codes, scale, zero)):6.1f} steps")
print(f"codes rounded towards zero   {largest_error(cut * scale + zero):6.1f}")
print(f"a code outside the range     {largest_error(wrapped * short + zero):6.1f}")
print(f"zero point forgotten         {largest_error(codes * scale):6.1f}")
print(f"zero point in whole steps    {largest_error((codes + zero_in_steps) * scale):6.1f}")
with np.errstate(invalid="ignore"):
    print("constant slice, divided by its step:", ((flat - flat.min()) / (flat.max() - flat.min()))[:2])

# %% [markdown]
# A zero point in whole steps is a common form: it is stored as an integer, so that 0.0 is a level. Rounded towards zero
# it shifts *every* number by up to a whole step, on top of the half step. Rounded to the nearest, and with the codes
# taken after it, it costs at most half a step more, and only at one end. This course keeps the minimum as it is.
#
# ## What shares a scale
#
# Keys are (n_kv_heads, n_tokens, head_dim). Three choices, by the axes that one scale is shared over:
#
# | name | `axis` | scales for 64 tokens of 16 channels, one head |
# |---|---|---|
# | per tensor | all | 1 |
# | per token | channels | 64 |
# | per channel | tokens | 16 |
#
# A *channel* is one of the head_dim numbers of a row. In the models that Liu et al. 2024 looked at (KIVI,
# section 3), Llama-2-13B among them, a few key channels are much larger than the rest. Such a channel stands far to one
# side of 0 in the model at the end of this lesson. Here is one head with one, around 12, among ordinary ones around 0.

# %%
keys = rng.standard_normal((1, 64, 16))
keys[:, :, 3] = 12 + 2 * keys[:, :, 3]
queries, values = rng.standard_normal((1, 64, 16)), rng.standard_normal((1, 64, 16))
AXES = {"per tensor": (0, 1, 2), "per token": 2, "per channel": 1}
guess_1 = predict(
    "4 bits, one scale for the whole tensor. How many of the 16 codes does an ordinary channel use?",
    ["all 16", "about 4", "1"],
)
guess_1

# %% tags=["nbval-check-output"]
codes, _, _ = quantize(keys, 4, AXES["per tensor"])
used = [len(np.unique(codes[:, :, c])) for c in range(16)]
few = f"{min(used)} to {sorted(used)[-2]}"
guess_1.reveal(few, "The one channel has stretched the levels over its own range and the way to it.")
print("codes used by each channel, per tensor: ", *used)
codes, _, _ = quantize(keys, 4, AXES["per channel"])
print("codes used by each channel, per channel:", *(len(np.unique(codes[:, :, c])) for c in range(16)))


# %%
def back(x, n_bits, name):
    return dequantize(*quantize(x, n_bits, AXES[name]))


fig, axes = subplots(1, 4, figsize=(7.2, 2.7), sharey=True, constrained_layout=True)
axes[0].imshow(np.abs(keys[0]), cmap="Blues", vmax=14, aspect="auto")
axes[0].set(title="|keys|, 0 to 14", ylabel="token")
for ax, name in zip(axes[1:], AXES, strict=True):
    errors = ax.imshow(np.abs(back(keys, 4, name) - keys)[0], cmap="Oranges", vmin=0, vmax=1, aspect="auto")
    ax.set(title=name)
for ax in axes:
    ax.set(xlabel="channel", xticks=[0, 3, 8, 15])
    ax.grid(False)
fig.colorbar(errors, ax=axes[-1], label="error at 4 bits")
worst = {name: np.abs(back(keys, 4, name) - keys).mean() for name in AXES}
alt = (
    "Heat maps of 64 tokens by 16 channels. Left: the sizes of the keys, channel 3 a dark stripe. Then the errors at 4 "
    f"bits: per tensor large in all channels, mean {worst['per tensor']:.2f}; per token about half of that, "
    f"mean {worst['per token']:.2f}; per channel pale, mean {worst['per channel']:.2f}, channel 3 a little darker."
)
show(fig, alt=alt)

# %% [markdown]
# Per token does not rescue the keys: every token has the large channel in it. Per channel, the large channel has a
# scale of its own and nobody else pays for it. And what becomes of attention? A score is a sum over all channels, so an
# error in every channel is an error in every score:

# %% tags=["nbval-check-output"]
exact = queries @ keys.transpose(0, 2, 1) / 4
weights = attention_weights(queries, keys)
ordinary = np.arange(16) != 3
print(f"{'':21}{'ordinary channels':>18}{'scores':>8}{'scores off by > 0.1':>21}{'weight moved':>14}")
for n_bits in (8, 4):
    for name in AXES:
        k = back(keys, n_bits, name)
        off = np.abs(queries @ k.transpose(0, 2, 1) / 4 - exact)
        moved = np.abs(attention_weights(queries, k) - weights).sum(axis=-1).mean() / 2
        channel = np.abs(k - keys)[..., ordinary].mean()
        shares = f"{(off > 0.1).mean():21.0%}{moved:14.1%}"
        print(f"{n_bits} bits  {name:13}{channel:18.3f}{off.mean():8.3f}{shares}")

# %% [markdown]
# One outlier channel puts an error into every ordinary channel, and so into most scores. A scale for each channel cures
# it. "Weight moved" is the share of the attention weights that went to another key.
#
# ## An error in a key and an error in a value
#
# They do not travel the same way. The weights sum to 1, so the output is an average of the values: **an error of
# values is averaged, and never larger in the output than in the values.** A key's error is first multiplied by the
# query and then goes through exp: **a score that is off by e multiplies its key's weight by exp(e)** before the
# weights are made to sum to 1 again. It grows with the query. Below, the same random error, 0.1 in size, goes into the
# keys or into the values, for short queries (weights spread over many keys) and long ones (weights on one or two).

# %% tags=["nbval-check-output"]
plain, noise = rng.standard_normal((1, 64, 16)), 0.1 * rng.standard_normal((1, 64, 16))
for sharpness in (1, 4, 16):
    q = sharpness * queries
    out = attention(q, plain, values)
    by_key = np.abs(attention(q, plain + noise, values) - out).mean()
    by_value = np.abs(attention(q, plain, values + noise) - out).mean()
    within = np.abs(attention(q, plain, values + noise) - out).max() <= np.abs(noise).max()
    print(f"queries x {sharpness:2}: output off by {by_key:.3f} for keys, {by_value:.3f} for values, within: {within}")
print(f"a score off by 0.7 multiplies a weight by {np.exp(0.7):.1f}")

# %% [markdown]
# ## A cache that quantizes as it grows
#
# Values are quantized **per token**: a new row brings its own scale, and no row waits for another. Keys should be
# **per channel**, and a channel's scale is shared over tokens that have not come yet. So the newest rows stay exact
# until a group of `residual` rows has gathered, and that group is quantized together. This *residual window* costs
# exact bytes for fewer than `residual` rows, and keeps the newest ones without error. Values need not wait, but here
# they do, so that keys and values have the same groups.
#
# `axes` names what a scale is shared over in keys and in values. Codes are held one to a byte here, and counted at
# n_bits each; `kvlab.caches.QuantizedCache` packs them.


# %%
class QuantizedCache:
    """All rows but the newest in n_bits: keys per channel, values per token, in groups of `residual` rows."""

    axes = 1, 2

    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        self.shape, self.n_bits, self.residual = (n_kv_heads, 0, head_dim), n_bits, residual
        self.groups, self.exact = [], None

    def append(self, k_new, v_new):
        if self.exact is None:
            self.exact = [np.zeros(self.shape, k_new.dtype)] * 2
        rows = zip(self.exact, (k_new, v_new), strict=True)
        self.exact = [np.concatenate([old, new.astype(old.dtype)], axis=1) for old, new in rows]
        while self.exact[0].shape[1] >= self.residual:
            first = zip((rows[:, : self.residual] for rows in self.exact), self.axes, strict=True)
            self.groups.append([quantize(rows, self.n_bits, axis) for rows, axis in first])
            self.exact = [rows[:, self.residual :] for rows in self.exact]
        return tuple(
            np.concatenate([*(dequantize(*group[i]) for group in self.groups), self.exact[i]], axis=1) for i in (0, 1)
        )

    def __len__(self):
        return len(self.groups) * self.residual + (0 if self.exact is None else self.exact[0].shape[1])

    @property
    def n_bytes(self):
        """Codes at n_bits each, every scale and zero, and the exact rows."""
        stored = [part for group in self.groups for part in group]
        codes = sum(codes.size for codes, _, _ in stored) * self.n_bits // 8
        shared = sum(scale.nbytes + zero.nbytes for _, scale, zero in stored)
        return codes + shared + sum(rows.nbytes for rows in self.exact or [])


# %% tags=["nbval-check-output"]
cache = QuantizedCache(n_kv_heads=1, head_dim=16, n_bits=4, residual=16)
for part in np.split(np.arange(60), [37, 38, 45]):
    k, v = cache.append(keys[:, part], values[:, part])
whole = QuantizedCache(1, 16, 4, 16).append(keys[:, :60], values[:, :60])
print("rows", len(cache), " groups of 16:", len(cache.groups), " exact rows:", cache.exact[0].shape[1])
print("the newest 12 rows are exact:", (k[:, 48:] == keys[:, 48:60]).all(), (v[:, 48:] == values[:, 48:60]).all())
print("chunks of 37, 1, 7, 15 give what one chunk gives:", (k == whole[0]).all() and (v == whole[1]).all())
for name, rows, true, i in (("keys", k, keys, 0), ("values", v, values, 1)):
    steps = np.concatenate([np.broadcast_to(group[i][1], (1, 16, 16)) for group in cache.groups], axis=1)
    within = (np.abs(rows - true[:, :60])[:, :48] <= steps / 2 + 1e-12).all()
    print(f"{name} within half a step of their group:", within)

# %%
fig, ax = subplots(figsize=(5.6, 2.6))
by_row = {"keys": (k, keys), "values": (v, values)}
for name, (rows, true) in by_row.items():
    ax.plot(np.abs(rows - true[:, :60]).mean(axis=(0, 2)), drawstyle="steps-mid", color=COLORS[name], label=name)
for edge in (16, 32, 48):
    ax.axvline(edge - 0.5, color=COLORS["quiet"], linestyle=":")
ax.axvspan(47.5, 59.5, color=COLORS["right"], alpha=0.15, label="exact")
ax.set(xlabel="row of the cache", ylabel="mean error", title="4 bits: three groups of 16 rows, then 12 exact rows")
ax.legend(ncols=3, loc="upper right", bbox_to_anchor=(1, 1.02))
ax.set_ylim(-0.005, 0.25)
low, high = (f(np.abs(k - keys[:, :60])[:, :48].mean(axis=(0, 2))) for f in (min, max))
alt = (
    f"Mean error by row. Keys {low:.2f} to {high:.2f} and values about {np.abs(v - values[:, :60])[:, :48].mean():.2f} "
    "in rows 0 to 47, three groups of 16. Both are 0 in rows 48 to 59, the residual window."
)
show(fig, alt=alt)

# %% [markdown]
# > **This shipped.** rajveer43/VeloxQuant-MLX #97: the rows were dequantized with a group size written into the code,
# > while the cache had been quantized with another one. Nothing crashes as long as there is a scale for each row.
#
# The scales know their group: 4 of them for 128 rows means 32 rows each. Read as groups of 64, rows 32 to 63 get the
# scales of rows 0 to 31, and half of the scales are never used:

# %% tags=["nbval-check-output"]
rows = rng.standard_normal((128, 16)) * np.repeat([1, 4, 2, 8], 32)[:, None]
codes, scale, zero = quantize(rows.reshape(4, 32, 16), 4, axis=1)
for group_size in (32, 64):
    of_row = np.arange(128) // group_size
    read = dequantize(codes.reshape(128, 16), scale[of_row, 0], zero[of_row, 0])
    print(f"read in groups of {group_size}: shape {read.shape}, mean error {np.abs(read - rows).mean():.2f}")

# %% [markdown]
# ## What it costs: bytes
#
# Scales are numbers too. A group of 32 codes with one 16-bit scale takes 16 / 32 = 0.5 bits more a code; with a scale
# and a zero it is 1 bit. Below, `q8_0`, `q4_0` and `q4_1` are block formats of ggml, the library under llama.cpp.

# %%
guess_2 = predict(
    "A 16-bit cache goes to 8 bits, in blocks of 32 with a 16-bit scale each. What is left?",
    ["a quarter", "a half", "a little more than half"],
)
guess_2

# %% tags=["nbval-check-output"]
for name in ("fp8", "q8_0", "q4_0", "q4_1"):
    form = FORMATS[name]
    bits = 8 * form.n_bytes / form.values
    print(f"{name:5} {bits:4.1f} bits a number, {bits / 16:.3f} of a 16-bit cache   ({form.layout})")
q8_0 = FORMATS["q8_0"].n_bytes / FORMATS["q8_0"].values / 2
guess_2.reveal(f"{q8_0:.3f}", "8.5 bits of 16: the scales are the half bit.")
rows = rng.standard_normal((2, 2, 1024, 64)).astype(np.float16)
print("\n4-bit cache, 1,024 tokens of 16-bit rows, scales and zeros of 16 bits:")
for residual in (1, 8, 32, 128):
    cache = QuantizedCache(n_kv_heads=2, head_dim=64, n_bits=4, residual=residual)
    cache.append(*rows)
    print(f"groups of {residual:3} rows: {cache.n_bytes / rows.nbytes:.3f} of the 16-bit bytes", end="")
    print(f", codes alone {4 / 16:.3f}, {8 * cache.n_bytes / rows.size:.2f} bits a number")

# %% [markdown]
# A group of one row is the reverse of a saving: each channel holds one number, which *is* its zero, so the keys come
# back exactly and take more bytes than before. A count that leaves the scales out says 0.250 for every line.
#
# > **Often said:** "FP8 quarters the cache."
# >
# > **What is so:** 8 bits, integer or float, *halve* a 16-bit cache; 4 bits quarter it. FP8 is a quarter of *float32*.
# > Scales come on top: 8-bit blocks of 32 are 8.5 bits. FP8 often has one scale a tensor, which costs next to nothing.
#
# ## fp8: the bits of a float
#
# An integer code has the same step everywhere. A float's step grows with the number: `e4m3` has 4 exponent and 3
# mantissa bits, `e5m2` 5 and 2. So fp8 needs no zero point, and its *relative* error is about the same for small and
# large numbers, down to a smallest one. What it has is an end. Torch is needed in this section and the next only.

# %% tags=["nbval-check-output"]
import torch

numbers = torch.tensor([0.1, 3.3, 448.0, 500.0, 57344.0, 70000.0, float("inf")])
print(f"{'':5}", *(f"{n:>8g}" for n in numbers.tolist()), "  largest")
KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
for name, kind in KINDS.items():
    read = numbers.to(kind).float().tolist()
    print(f"{name:5}", *(f"{n:8.5g}" for n in read), f"{torch.finfo(kind).max:9g}")


# %% tags=["nbval-check-output"]
def relative(read):
    return np.abs(read - keys)[..., ordinary].mean() / np.abs(keys)[..., ordinary].mean()


print("error of the ordinary channels beside an outlier channel, one scale for the whole tensor, relative:")
print(f"8-bit integers               {relative(back(keys, 8, 'per tensor')):.4f}")
for name, kind in KINDS.items():
    scale = np.abs(keys).max() / torch.finfo(kind).max
    read = (torch.from_numpy(keys) / scale).to(kind).double().numpy() * scale
    print(f"{name}                         {relative(read):.4f}")
print(f"8-bit integers, per channel: {relative(back(keys, 8, 'per channel')):.4f}")

# %% [markdown]
# Above 448 `e4m3` **saturates**, infinity included (it has no code for it), and `e5m2` **overflows** to inf beyond
# 57,344. In attention the first is a wrong number, the second soon a nan. Saturating is what torch 2.13 does here; in
# older versions the same cast gave nan (changed in pytorch/pytorch #178817), so clamp before you cast if it must run on
# both.
#
# With an outlier in the tensor, `e4m3` does a little better than 8-bit integers that share one scale, and integers with
# a scale for each channel do better than both: 256 evenly spaced levels are more than 3 mantissa bits, once they fit
# the range.
#
# ## Production: Hugging Face
#
# In transformers 5.24 the class is `QuantizedCache(backend, config, nbits, axis_key, axis_value, q_group_size,
# residual_length)`, or `generate(cache_implementation="quantized", cache_config={...})`. Backends `"quanto"` (2 or 4
# bits) and `"hqq"` (1, 2, 3, 4, 8) need a package each; `"fp8"` needs none. Two differences from yours: the prompt is
# attended exactly and quantized in one piece, and when the residual fills, *everything* is dequantized and quantized
# again. The fp8 backend has one scale a tensor, frozen at the first update:

# %% tags=["nbval-check-output"]
from transformers import LlamaConfig
from transformers import QuantizedCache as HuggingFaceCache

config = LlamaConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
for backend in ("quanto", "hqq", "fp8"):
    try:
        theirs = HuggingFaceCache(backend=backend, config=config)
        print(backend, "works here")
    except ImportError as error:
        print(backend, "is missing:", str(error).split(" in order")[0])
prompt = torch.ones(1, 2, 5, 8)
theirs.update(prompt, prompt, layer_idx=0)
k, _ = theirs.update(3 * prompt[:, :, :1], 3 * prompt[:, :, :1], layer_idx=0)
print("a prompt of 1.0, then a key of 3.0, read back:", round(k[0, 0, -1, 0].item(), 2))

# %% [markdown]
# A later key that is larger than all of the prompt's is cut to the prompt's largest. A scale that is chosen once must
# be chosen for what comes later too.
#
# ## Offload: exact, and a transfer
#
# The other way out keeps every bit and moves the rows to a memory that is larger and slower: from the GPU to the host,
# from the host to a disk. On a CPU the same thing can be shown with a file that is mapped into memory:

# %% tags=["nbval-check-output"]
rows = rng.standard_normal((2, 8, 4096, 128)).astype(np.float16)
with tempfile.TemporaryDirectory() as folder:
    away = np.memmap(Path(folder) / "layer_0.kv", dtype=rows.dtype, mode="w+", shape=rows.shape)
    away[:] = rows
    away.flush()
    fetched = np.array(np.memmap(away.filename, dtype=rows.dtype, mode="r", shape=rows.shape))
    on_disk = Path(away.filename).stat().st_size
    del away
print("bit for bit the same:", np.array_equal(fetched.view(np.uint16), rows.view(np.uint16)))
print(f"one layer of Llama 3.1 8B, 4,096 tokens: {on_disk / 2**20:.0f} MiB out, as many back")

# %% [markdown]
# Exact, and not free: each byte crosses a link. What follows is **computed, not measured**: 64 GB/s is what PCIe Gen5
# with 16 lanes can carry one way (NVIDIA's H100 data sheet: 128 GB/s, both ways together); the GPU is the H100 of
# `kvlab.roofline`, from its data sheet too. Real transfers are slower than both.

# %% tags=["nbval-check-output"]
LINK_BYTES_PER_S = 64e9
gpu, llama = HARDWARE["H100 SXM"], ModelShape.from_config(load_config("llama-3.1-8b"))
kv_bytes = forward_bytes(llama, 8192) - forward_bytes(llama, 0)
step_ms = decode_floor_ms(forward_bytes(llama, 0), kv_bytes, gpu.bandwidth_bytes_per_s)
move_ms = 1000 * kv_bytes / LINK_BYTES_PER_S
again_ms = 1000 * forward_flops(llama, 8192) / gpu.bf16_flops_per_s
print(f"cache of 8,192 tokens: {kv_bytes / 2**30:.0f} GiB, in GPU memory a decode step takes {step_ms:.1f} ms or more")
print(f"fetched over the link at every step: {move_ms:.1f} ms, {move_ms / step_ms:.1f} times the step")
print(f"GPU memory is {gpu.bandwidth_bytes_per_s / LINK_BYTES_PER_S:.0f} times as fast as the link")
print(f"a paused chat: fetched back once in {move_ms:.0f} ms, prefilled again in {again_ms:.0f} ms or more")

# %% [markdown]
# So offloading the cache of a *running* sequence makes the link the bound: layer by layer the next one can be fetched
# while this one computes, which hides at most the time of the step itself. Offloading a *paused* sequence pays once,
# and is much cheaper than a second prefill. Hugging Face: `DynamicCache(config=..., offloading=True)` or
# `generate(cache_implementation="offloaded")`, which keeps one layer on the GPU and fetches the next ahead.
#
# | | exact | bytes on the GPU | costs |
# |---|---|---|---|
# | offload | yes | those of a layer or two | a transfer over the link |
# | quantize | no | a half to a quarter, and the scales | an error, and work at each read |
#
# ## Faster or slower
#
# Fewer bits mean fewer bytes to read, and a multiplication and an addition for every number that is read. Which one
# wins depends on what bounds the step. Below is the bound by bytes, computed for the same GPU: 16 bits against 4.5 bits
# (4-bit blocks).

# %% tags=["nbval-check-output"]
print(f"{'':32}{'cache share':>12}{'16-bit ms':>11}{'4.5-bit ms':>12}{'at most':>10}")
for batch, n_total in ((1, 4096), (1, 131_072), (32, 16_384)):
    weights_read = forward_bytes(llama, 0)
    kv_16 = forward_bytes(llama, n_total, batch) - weights_read
    ms = [decode_floor_ms(weights_read, kv, gpu.bandwidth_bytes_per_s) for kv in (kv_16, kv_16 * 4.5 / 16)]
    case, share = f"batch {batch:2}, {n_total:,} tokens each", kv_16 / (kv_16 + weights_read)
    print(f"{case:32}{share:12.0%}{ms[0]:11.2f}{ms[1]:12.2f}{ms[0] / ms[1]:9.2f}x")

# %% [markdown]
# At batch 1 and 4,096 tokens the cache is 3 % of the bytes, and quantizing it can bring next to nothing; with long
# contexts or big batches it can bring much, **if** the dequantization is fused into the attention kernel, so that the
# wide numbers never reach memory. In NumPy nothing is fused. *Live*, on your machine: one decode step's append and
# read over 4,096 rows.

# %%
rows = rng.standard_normal((2, 2, 4096, 64)).astype(np.float32)
for name, cache in (("float32", ConcatCache(2, 64)), ("4 bits", QuantizedCache(2, 64, 4, 64))):
    cache.append(*rows)
    times = []
    for _ in range(5):
        begin = perf_counter()
        cache.append(*rows[:, :, :1])
        times.append(perf_counter() - begin)
    print(f"{name:8} {1000 * min(times):6.2f} ms a step, {cache.n_bytes / 2**20:.2f} MiB held")

# %% [markdown]
# ## On a real model
#
# This section needs `make model`; without it its cells are skipped. The model is SmolLM2-135M-Instruct: 30 layers,
# 9 query heads, 3 KV heads, head_dim 64. First its keys and values for a story of its own: are there outlier channels?

# %% tags=["needs-model"]
from kvlab.llama import load, load_tokenizer

text = """The keeper of the lighthouse had counted ships for thirty-one years. Every evening he climbed the 214 steps,
lit the lamp, and wrote the names of the boats that passed into a green notebook. On the ninth of March a boat came
that he did not know. It carried no flag, and its name, the Marigold, was painted over an older name that could still
be read beneath the new one. He wrote both names down, because he had learned that what is painted over is not gone.
The next morning the harbour master rowed out to him and asked whether he had seen a boat in the night. The keeper
opened the green notebook and showed him the page. The harbour master read the two names, sat down on the stairs, and
said nothing for a long time. Then he told the keeper that the older name was that of a boat which had been lost eleven
winters ago with four men, and that one of the four had been his brother. They waited together for the evening. They
carried bread, coffee and a second lamp up the 214 steps, and when it grew dark they put both lamps into the window
that looks to the north. At ten the wind turned. At eleven they heard an engine. A little before midnight the Marigold
came round the point, slower than the night before, and stopped below the tower."""
model = load()
ids = np.asarray(load_tokenizer().encode(" ".join(text.split())))[:257]
real = model.keys_values(ids[:256])

# %% tags=["needs-model"]
fig, axes = subplots(1, 2, figsize=(7.0, 2.7), sharey=True, constrained_layout=True)
sizes = [np.array([np.abs(pair[i]).mean(axis=1).ravel() for pair in real]) for i in (0, 1)]
for ax, name, size in zip(axes, ("keys", "values"), sizes, strict=True):
    image = ax.imshow(size[:, :64], cmap="Blues", vmin=0, vmax=10, aspect="auto", interpolation="nearest")
    ax.set(title=f"{name} of KV head 0", xlabel="channel", xticks=[0, 16, 32, 48, 63])
    ax.grid(False)
axes[0].set_ylabel("layer")
fig.colorbar(image, ax=axes, label="mean size, 256 tokens")
ratios = [(size.max(axis=1) / np.median(size, axis=1)) for size in sizes]
few, rest = np.sort(sizes[0][:, :64], axis=1)[:, -2:], np.median(sizes[0][:, :64])
alt = (
    "Mean size of each of the 64 channels of KV head 0, by layer. Keys: two broken dark stripes, in nearly every layer "
    f"one near channel 24 and one near 55 far above the rest, up to {few.max():.0f} where the median is {rest:.1f}. "
    f"Values: pale throughout, median {np.median(sizes[1][:, :64]):.1f}, no stripes, at most "
    f"{sizes[1][:, :64].max():.0f}, in the last layers."
)
show(fig, alt=alt)

# %% tags=["needs-model", "nbval-check-output"]
for name, ratio in zip(("keys", "values"), ratios, strict=True):
    low, middle, high = np.percentile(ratio, [0, 50, 100])
    print(f"{name}: largest channel over median channel {low:.0f} to {high:.0f}, median layer {middle:.0f}")
aside = [np.abs(k.mean(axis=1)) / k.std(axis=1) for k, _ in real]
largest = [a.ravel()[size.argmax()] for a, size in zip(aside, sizes[0], strict=True)]
print(f"mean of the largest key channel over its spread: {np.median(largest):.0f}, of all: {np.median(aside):.1f}")

# %%
guess_3 = predict(
    "At 4 bits and equal bytes, which error does more to the output of attention?",
    ["the keys'", "the values'", "it depends on what shares a scale"],
)
guess_3

# %% [markdown]
# Keys have outlier channels in every layer, always 7 times the median or more. In values the largest is 4 times the
# median in the median layer, and 13 times in one layer.
#
# To judge scores you need the model's queries. A cache never sees them, so the loop below walks through the layers
# once more, with the keys and values it already has. Per token and per channel get equally many scales: 64 channels
# share one, or 64 tokens do.

# %% tags=["needs-model", "nbval-check-output"]
from kvlab.attention import merge_heads, split_heads
from kvlab.decoder import rms_norm, swiglu
from kvlab.positions import rotate

c, x, real_queries = model.config, model.weights.embed[ids[:256]], []
for layer, (k, v) in zip(model.weights.layers, real, strict=True):
    heads = split_heads(rms_norm(x, layer.attn_norm, c.norm_eps) @ layer.qkv.T, c.n_heads + 2 * c.n_kv_heads)
    real_queries.append(rotate(heads[: c.n_heads], np.arange(256), c.rope_base))
    x = x + merge_heads(attention(real_queries[-1], k, v)) @ layer.wo.T
    gate, up = np.split(layer.gate_up, 2)
    x = x + swiglu(rms_norm(x, layer.mlp_norm, c.norm_eps), gate.T, up.T, layer.w_down.T)
logits = rms_norm(x, model.weights.final_norm, c.norm_eps) @ model.weights.head.T
print("the loop gives the model's own logits:", np.abs(logits - model(ids[:256])).max() < 0.01)


# %% tags=["needs-model"]
def off(read, exact):
    """Size of the error over the size of the thing."""
    return np.linalg.norm(read - exact) / np.linalg.norm(exact)


def grouped(x, n_bits, name):
    """Quantized and read back: one scale for everything, or in groups of 64 rows."""
    parts = [x] if name == "per tensor" else np.split(x, 4, axis=1)
    return np.concatenate([back(part, n_bits, name) for part in parts], axis=1)


def errors(q, k, v, k_read, v_read):
    """Of the keys, the values, the scores, and the output with only the keys or only the values quantized."""
    scores = (q @ repeat_kv(k_read - k, 9).transpose(0, 2, 1) / 8)[:, np.tri(256, dtype=bool)]
    out = attention(q, k, v)
    by_key, by_value = off(attention(q, k_read, v), out), off(attention(q, k, v_read), out)
    return off(k_read, k), off(v_read, v), np.sqrt((scores**2).mean()), by_key, by_value


# %% tags=["needs-model", "nbval-check-output"]
layers = [(q, k, v) for q, (k, v) in zip(real_queries, real, strict=True)]
table = {
    name: np.array([errors(q, k, v, grouped(k, 4, name), grouped(v, 4, name)) for q, k, v in layers]) for name in AXES
}
print("4 bits, mean of 30 layers   keys  values   scores   output by keys  output by values  keys worse in")
more_harm = {}
for name, rows in table.items():
    keys_off, values_off, scores, by_key, by_value = rows.mean(axis=0)
    worse = (rows[:, 3] > rows[:, 4]).sum()
    print(f"{name:25}{keys_off:7.2f}{values_off:8.2f}{scores:9.1f}{by_key:17.2f}{by_value:18.2f}{worse:10} layers")
    more_harm[name] = "the keys'" if by_key > by_value else "the values'"
one = len(set(more_harm.values())) == 1
guess_3.reveal(more_harm["per token"] if one else "it depends on what shares a scale", str(more_harm))

# %% tags=["needs-model"]
fig, axes = subplots(1, 2, figsize=(6.8, 2.5), sharey=True, constrained_layout=True)
for ax, name in zip(axes, ("per token", "per channel"), strict=True):
    ax.step(range(30), table[name][:, 3], where="mid", color=COLORS["keys"], label="keys")
    ax.step(range(30), table[name][:, 4], where="mid", color=COLORS["values"], linestyle="--", label="values")
    ax.set(xlabel="layer", title=f"{name}, 4 bits")
axes[0].set_ylabel("relative error of output")
axes[0].legend(ncols=2, loc="upper left")
axes[0].set_ylim(0, 0.45)
spans = {n: [(r[:, i].min(), r[:, i].max()) for i in (3, 4)] for n, r in table.items()}
alt = "Relative error of the attention output by layer, keys or values quantized at 4 bits. " + " ".join(
    f"{n.capitalize()}: keys {spans[n][0][0]:.2f} to {spans[n][0][1]:.2f}, values {spans[n][1][0]:.2f} to "
    f"{spans[n][1][1]:.2f}, keys above values in {(table[n][:, 3] > table[n][:, 4]).sum()} of 30 layers."
    for n in ("per token", "per channel")
)
show(fig, alt=alt)

# %% [markdown]
# Read the table with care, since the usual sentence, "keys are more sensitive than values", is only one of its rows.
#
# - **Per tensor and per token the keys do more harm**, in 21 and in 29 of 30 layers. Per channel it is the values, in
#   every layer. Equal bits say nothing before it is said what shares a scale.
# - Keys per channel beat keys per token in every column: the outlier channels, as in the toy.
# - Values are odd. Per channel, their *own* error is the smaller one. Yet the *output* is better per token. The error
#   that counts is not the one in the numbers.
#
# Why? Attention in this model puts much of its weight on the first token (the *attention sink* of lesson 08), and its
# value is small. Per token that value has a small scale of its own; per channel it shares its scales with larger
# ones. Put the first token's value back exactly, and most of the difference should go:

# %% tags=["needs-model", "nbval-check-output"]
share, size, outputs = [], [], {name: [] for name in ("per token", "per channel")}
for q, k, v in layers:
    share.append(attention_weights(q, k)[:, 32:, 0].mean())
    lengths = np.linalg.norm(v, axis=-1)
    size.append(lengths[:, 0].mean() / np.median(lengths))
    for name, found in outputs.items():
        read = grouped(v, 4, name)
        read[:, 0] = v[:, 0]
        found.append(off(attention(q, k, read), attention(q, k, v)))
print(f"weight on token 0: {np.mean(share):.1f}, its value is {np.median(size):.1f} times as long as the median value")
for name, found in outputs.items():
    print(f"values {name}: output off by {table[name][:, 4].mean():.2f}, with token 0 exact {np.mean(found):.2f}")

# %% [markdown]
# With the first token exact the two are nearly the same. So the rule of KIVI, keys per channel and values per token,
# holds here for two different reasons: the channels of the keys, and where the weight of the attention lies.
#
# ## The cache in the model
#
# Last, your `QuantizedCache` in all 30 layers, groups of 32 rows. The 256 tokens go in as one chunk, so each query
# sees every earlier full group quantized, its own group too: harder than decoding, where the newest rows are exact.
# "Same choice" is the share of positions where the largest logit is that of the exact cache. The last line quantizes
# keys per token.


# %% tags=["needs-model"]
class KeysPerToken(QuantizedCache):
    axes = 2, 2


def run(make):
    """(mean loss in nats, share of equal next tokens, bits a number) of the story on these caches."""
    caches = model.make_caches(make)
    found = model(ids[:256], caches).astype(np.float64)
    loss = np.log(np.exp(found).sum(axis=-1)) - found[np.arange(256), ids[1:257]]
    return loss.mean(), (found.argmax(axis=-1) == logits.argmax(axis=-1)).mean(), caches[0].n_bytes / (256 * 6 * 64) * 8


runs = {"exact, float32": run(lambda: ConcatCache(3, 64))}
for n_bits in (8, 4, 2):
    runs[f"{n_bits} bits"] = run(lambda n_bits=n_bits: QuantizedCache(3, 64, n_bits, 32))
runs["4 bits, keys per token"] = run(lambda: KeysPerToken(3, 64, 4, 32))

# %% tags=["needs-model", "nbval-check-output"]
print(f"{'':24}{'loss':>6}{'same choice':>13}{'bits a number':>15}")
for name, (loss, same, bits) in runs.items():
    print(f"{name:24}{loss:6.1f}{same:13.1f}{bits:15.1f}")

# %% [markdown]
# At 8 bits the model does not notice. At 4 bits the loss stays and about one choice in ten falls on another token: the
# text may differ from there on. At 2 bits it is damaged. Keys per token at 4 bits lose more choices than keys per
# channel do; their 5.0 bits are fewer because 64 numbers share a scale there, and 32 in a channel's group. The scales
# here are float32; in 16 bits they would take half of their share. A small model on 256 tokens of one story: the order
# of the lines is the finding, not the digits.
#
# ## Recap
#
# - You quantized keys and values in a few bits, within half a step. One key channel far from 0 left the others 3 to 5
#   of 16 codes under one scale for all; per channel each had its own range. **On the real model keys per channel and
#   values per token were best, and which of the two suffers more depended on what shared a scale.**
# - You built a cache whose newest rows stay exact and whose answer does not depend on the chunks, and counted its bytes
#   with the scales: 8.5 bits for 8-bit blocks of 32, and for groups of one row more than the cache had before.
# - You can say what it costs: offload is exact, and at 8,192 tokens the link takes 3.5 times the whole decode step;
#   fewer bits bring at most 1.03x at batch 1 and 4,096 tokens, and up to 2.44x where the cache is 82 % of the bytes.
#
# One limit: this cache reads back every group at each step. A kernel that reads codes directly is what makes fewer
# bits faster, and that is not shown here.
#
# Practise: [`../exercises/11_quantized_and_offloaded.ipynb`](../exercises/11_quantized_and_offloaded.ipynb). Next:
# beams and samples, [`12_beams_and_samples.ipynb`](12_beams_and_samples.ipynb).
