# %% [markdown]
# # 07 Decode timing
#
# **The question:** how long must one token take, and how do you measure it without fooling yourself?
#
# After this lesson you can
#
# - time a decode step so that the number means what it says, and name the ways in which it would not;
# - say from bytes and FLOPs what bounds prefill, decode and a batch, and compute the least time a step can take;
# - write online softmax, and say why its sums are kept in float32.
#
# 40 minutes. Uses a GPU when there is one, and does the same on the CPU when there is none.

# %%
from queue import Queue
from statistics import median
from threading import Thread
from time import perf_counter, sleep

import numpy as np
import torch

from kvlab.bench import columns, describe, load, machine, measured_devices, rows_of
from kvlab.predict import predict
from kvlab.style import COLORS, show, subplots
from kvlab.timing import pick_device, synchronizer

# %% [markdown]
# Two kinds of timings appear below. A cell marked *Live* times the machine you sit at, for a second or two, and its
# numbers differ at every run. All other timings are read from `results/`, where `make bench` put them together with the
# machine, the versions and the date; `make bench` on your machine replaces them with yours.

# %%
device = pick_device()
measured = (measured_devices() or ["cpu"])[0]
results = {name: load(name, measured) for name in ("ceilings", "context", "batch", "append", "dtype")}
print(f"live cells run on: {device}")
print("\n".join(describe(result) for result in results.values()))
if measured == "cpu":
    print("no results of a GPU are here, these numbers are still owed: `make bench` on a machine with one makes them")

# %% [markdown]
# ## A clock that does not wait
#
# A GPU works beside the program that drives it. PyTorch puts a step's kernels in a queue (a CUDA *stream*) and returns;
# the work is done later. A clock read at that moment has timed the queueing.
#
# So that this can be seen on any machine, here is a stand-in for a stream: a queue, and a thread that works it off.
# Its kernel only sleeps, so you know the right answer.


# %%
class QueueDevice:
    """Like a CUDA stream: `launch` puts work in a queue and returns, `synchronize` waits until the queue is done."""

    def __init__(self):
        self.queue = Queue()
        Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            sleep(self.queue.get())
            self.queue.task_done()

    def launch(self, seconds):
        self.queue.put(seconds)

    def synchronize(self):
        self.queue.join()


guess_1 = predict(
    "A step keeps the device busy for 5 ms. What does a clock say that is read right before and right after step()?",
    options=["far less than 5 ms", "5 ms", "far more than 5 ms"],
)
guess_1

# %% [markdown]
# *Live.* The same step timed without waiting, with `synchronize()` before every reading of the clock, and with one
# `synchronize()` before the first step only.


# %%
def clock_once(step, wait):
    wait()
    start = perf_counter()
    step()
    wait()
    return 1000 * (perf_counter() - start)


fake = QueueDevice()
not_waiting_ms = median(clock_once(lambda: fake.launch(0.005), lambda: None) for _ in range(9))
waiting_ms = median(clock_once(lambda: fake.launch(0.005), fake.synchronize) for _ in range(9))
fake.synchronize()  # once, as at the end of a warm-up
waited_once_ms = median(clock_once(lambda: fake.launch(0.005), lambda: None) for _ in range(9))
print(f"never waiting {not_waiting_ms:.3f} ms, once {waited_once_ms:.3f} ms, every time {waiting_ms:.3f} ms")

# %% tags=["nbval-check-output"]
print("waiting every time, at least 5 ms:", waiting_ms >= 5)
print("waiting once, under half of that:", waited_once_ms < 2.5)
guess_1.reveal(
    "far less than 5 ms" if not_waiting_ms < 2.5 else "5 ms", "It timed the queue: nothing was computed yet."
)

# %% [markdown]
# Waiting once does not help: the first step then starts from an empty queue, and all of them are still timed by their
# queueing.
#
# > **This shipped.** TristanBilot/mlx-benchmark #21: a comparison of processors read the clock without waiting for
# > CUDA, and its GPU results were implausibly fast; the report has a matrix product at 0.03 ms without synchronize and
# > at 1.36 ms with it. LMCache/LMCache #142 is the same fault.
#
# ## More ways to a wrong number
#
# - *No warm-up.* The first steps run cold: memory is not there yet, kernels are not chosen yet.
# - *A mean.* One step that something else on the machine held up moves it; the median stays.
# - *Seconds for milliseconds.* `perf_counter` counts seconds.
# - *Different work on the two sides.* A decoder that returns logits for the whole prompt does more than one that
#   returns those of the last position, which are the only ones wanted.
#
# Twenty step times, made up: two cold ones, seventeen of 10 ms, and one that was held up. Four readings of them, and
# the work of two prefills of 1,024 tokens by Llama 3.1 8B:

# %% tags=["nbval-check-output"]
from kvlab.roofline import ModelShape, forward_flops
from kvlab.sizes import load_config

times_s = np.array([0.210, 0.034] + [0.010] * 10 + [0.150] + [0.010] * 7)
print(f"mean of all {1000 * times_s.mean():.1f} ms, mean after warm-up {1000 * times_s[2:].mean():.1f} ms")
print(f"median after warm-up {1000 * np.median(times_s[2:]):.1f} ms; seconds read as ms: {np.median(times_s[2:]):.3f}")
llama = ModelShape.from_config(load_config("llama-3.1-8b"))
logits_flops = [forward_flops(llama, 1024, n_logits=n) for n in (1024, 1)]
print(f"all logits against the last: {logits_flops[0] / logits_flops[1]:.3f} x the FLOPs")

# %% [markdown]
# One more is in the name of the number. **TTFT**, the time to the first token, is the prefill of the prompt. **TPOT**,
# the time per output token, is a decode step; its reciprocal is the decode rate in tokens per second. All tokens over
# all the time is neither. From the results, a reply of 32 tokens to a prompt of 1,024:

# %%
context = results["context"]
ttft, tpot = ({r["context"]: r["ms_min"] for r in rows_of(context, v)}[1024] for v in ("prefill", "cached"))
print(f"{machine(context)}: TTFT {ttft:.0f} ms, TPOT {tpot:.1f} ms, decode rate {1000 / tpot:.1f} tokens/s")
print(f"32 tokens over everything: {32_000 / (ttft + 31 * tpot):.1f} tokens/s, since the prefill was counted in")

# %% [markdown]
# ## The right way, in full
#
# Steps that are not counted, then steps timed one by one; the device is waited for before *every* reading of the clock;
# the median; milliseconds. `synchronize` and `clock` are arguments, so that it can be tested without a device: with a
# clock made of a list, steps of 4, 2, 9 and 5 ms have the median 4.5, the mean of the middle two. On the stand-in it
# finds the 5 ms that were put in, or a little more, since `sleep` never wakes early.


# %%
def time_decode(step, n_warmup, n_steps, synchronize, clock):
    """Median milliseconds of a step; clock() is in seconds."""
    for _ in range(n_warmup):
        step()
    times_s = []
    for _ in range(n_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        times_s.append(clock() - start)
    return 1000 * median(times_s)


# %% tags=["nbval-check-output"]
ticks = iter([0.0, 0.004, 1.0, 1.002, 2.0, 2.009, 3.0, 3.005])
print(f"{time_decode(lambda: None, 2, 4, synchronize=lambda: None, clock=lambda: next(ticks)):.3f} ms")
fake_ms = time_decode(lambda: fake.launch(0.005), 2, 9, fake.synchronize, perf_counter)
print("the stand-in takes at least 5 ms:", fake_ms >= 5)

# %% [markdown]
# *Live.* A real decode step: a decoder of Llama's architecture with random weights, and a preallocated cache that holds
# 512 tokens when the step ends. Its first step ever is printed beside the median.
#
# Then, *live and with a GPU only*, two steps up. *Events* are marks in the stream that the GPU times by its own clock,
# with no waiting between the steps; what stays in are gaps in which the GPU has no kernel yet. A *CUDA graph* closes
# those: it records the kernels of one step and launches all at once, where the host would queue them one by one.

# %%
from kvlab.bench.benchmarks import SHAPES
from kvlab.bench.model import BenchDecoder

decoder = BenchDecoder(SHAPES["small"], "float32", device, max_len=512)
buffers, token = decoder.make_buffers(batch=1, max_len=512), torch.zeros(1, 1, dtype=torch.long, device=device)


def decode_step():
    buffers.length = 511
    decoder(token, buffers)


first_ms = clock_once(decode_step, synchronizer(device))
step_ms = time_decode(decode_step, 3, 15, synchronizer(device), perf_counter)
print(f"{decoder.shape.n_params:,} weights on {device}: first step {first_ms:.1f} ms, median {step_ms:.1f} ms")

# %%
if device == "cuda":
    from kvlab.bench.cuda import captured, event_times_ms

    graph_ms = time_decode(captured(decode_step), 3, 15, torch.cuda.synchronize, perf_counter)
    print(f"not waiting {time_decode(decode_step, 3, 15, lambda: None, perf_counter):.3f} ms: wrong")
    print(f"events {median(event_times_ms(decode_step, 3, 15)):.3f} ms, as a graph {graph_ms:.3f} ms")
else:
    print("no CUDA device here: nothing was timed in this cell")

# %% [markdown]
# ## With and without the cache
#
# One token at a time, with the cache and without it, at growing contexts. Without a cache a step is a prefill of
# everything so far, of which all but the last position is thrown away.

# %%
guess_2 = predict(
    "At a context of 2,048 tokens: how many times longer does a step take without the cache than with it?"
)
guess_2

# %%
fig, ax = subplots()
for variant, color, line in (("uncached", "uncached", "o-"), ("prefill", "quiet", "s:"), ("cached", "cached", "o-")):
    n, low, middle = columns(context, variant, "context", "ms_min", "ms_median")
    ax.loglog(n, low, line, color=COLORS[color], label=variant)
    ax.fill_between(n, low, middle, color=COLORS[color], alpha=0.2)
ax.set(xlabel="context (tokens)", ylabel="time of a step (ms)", title=machine(context))
ax.legend()
cached, uncached = ({r["context"]: r["ms_min"] for r in rows_of(context, v)} for v in ("cached", "uncached"))
ends = [f"{ms[n]:.1f} ms at {n} tokens" for ms in (uncached, cached) for n in (min(ms), max(ms))]
show(
    fig,
    alt=f"Time of a step against context, both logarithmic; lines are minima, bands reach to the median. Uncached from "
    f"{ends[0]} to {ends[1]}, a prefill of as many tokens beside it; cached from {ends[2]} to {ends[3]}.",
)

# %%
for n, tpot in cached.items():
    beside = f", uncached {uncached[n]:8.1f} ms, {uncached[n] / tpot:5.1f} x" if n in uncached else ""
    print(f"context {n:6}: TPOT {tpot:6.1f} ms{beside}")
guess_2.reveal(f"{uncached[2048] / cached[2048]:.0f} times", f"Measured on {machine(context)}.")

# %% [markdown]
# The lower curve is not flat: it bends upward as the cache becomes as large as the weights. What is saved is counted in
# tokens that pass through the N weights, at 2N FLOPs each.
#
# > **Often said:** "1,000 tokens after a prompt of 1,000: 2N x 1,500,500 FLOPs without a cache, 2N x 1,000 with it. The
# > cache saves 1,500x."
# >
# > **What is so:** the first count has the prompt in every pass, the second leaves it out. With the prefill on both
# > sides it is 750x.
#
# A loop runs slightly fewer passes: the prompt's pass already gives the first token, and the last token is never fed
# in. The trace of a run of 10 + 10 tokens confirms that count. For Llama 3.1 8B the ratio is smaller again, since no
# score of the new queries is saved and 2N leaves those out.

# %% tags=["nbval-check-output"]
prompt, new = 1000, 1000
without_cache = sum(range(prompt + 1, prompt + new + 1))
print(f"{without_cache:,} token passes against {new:,}: {without_cache / new:,.1f} x")
print(f"{without_cache:,} token passes against {prompt + new:,}: {without_cache / (prompt + new):,.2f} x")
loop = sum(range(prompt, prompt + new)), prompt + new - 1
print(f"as the loop runs: {loop[0]:,} against {loop[1]:,}: {loop[0] / loop[1]:,.2f} x")

# %% tags=["nbval-check-output"]
from kvlab.decoder import TinyDecoder, generate

tiny = TinyDecoder()
for caches, expected in ((None, sum(range(10, 20))), (tiny.make_caches(), 10 + 10 - 1)):
    trace = tiny.make_trace()
    generate(tiny, np.arange(10), 10, caches, trace)
    print(f"10 + 10 tokens, {trace.total('projected', layer=0)} token passes, expected {expected}")
recomputed = sum(forward_flops(llama, n) for n in range(1000, 2000))
kept = forward_flops(llama, 1000) + sum(forward_flops(llama, 1, n) for n in range(1000, 1999))
print(f"Llama 3.1 8B with its attention counted: {recomputed / kept:.0f} x")

# %% [markdown]
# ## The cache removes recomputation, not reading
#
# Each step still reads every weight once, and now the cache besides. Llama 3.1 8B in bf16, one step at 2,048 tokens:

# %% tags=["nbval-check-output"]
from kvlab.roofline import HARDWARE, attainable_flops_per_s, decode_floor_ms, forward_bytes, ridge_point

work = {
    "without a cache": (forward_flops(llama, 2048), forward_bytes(llama, 0)),
    "with a cache": (forward_flops(llama, 1, 2047), forward_bytes(llama, 2048)),
}
for name, (flops, n_bytes) in work.items():
    print(f"{name:15} {flops / 1e9:9,.0f} GFLOP, {n_bytes / 1e9:5.2f} GB read, {flops / n_bytes:7,.1f} FLOPs a byte")
h100 = HARDWARE["H100 SXM"]
ridge = ridge_point(h100.bf16_flops_per_s, h100.bandwidth_bytes_per_s)
print(f"ridge of an H100: {ridge:.0f} FLOPs a byte")

# %% [markdown]
# That is the difference between the phases. Prefill multiplies a matrix of tokens with a matrix of weights: each weight
# that is read serves all of them, and arithmetic is the bound (*compute bound*). Decode multiplies one vector with the
# matrix: each weight is read for one multiplication and one addition, and memory is the bound (*bandwidth bound*).
# FLOPs a byte are called *arithmetic intensity*. One bound gives way to the other at the ridge of the *roofline*,
# min(peak, FLOPs a byte x bandwidth).
#
# For this machine both are measured: reading, on an array far larger than the last-level cache; arithmetic, on a
# product of two large matrices.

# %%
peaks = {row["dtype"]: row["per_s"] for row in rows_of(results["ceilings"], "matmul")}
bandwidth = max(result["read_bandwidth_bytes_per_s"] for result in results.values())
peak = max(result["peak_flops_per_s"] for result in results.values())
for row in rows_of(results["ceilings"], "read"):
    print(f"reading, {row['kernel']:22} {row['per_s'] / 1e9:8.1f} GB/s")
for dtype, per_s in peaks.items():
    print(f"matrix product in {dtype:13} {per_s / 1e9:8.0f} GFLOP/s")
print(
    f"best of all runs: {bandwidth / 1e9:.1f} GB/s and {peak / 1e9:.0f} GFLOP/s in {context['model']['dtype']}, ",
    end="",
)
print(f"so the ridge is at {ridge_point(peak, bandwidth):.1f} FLOPs a byte")

# %%
fig, ax = subplots()
x = np.geomspace(0.2, 4000, 200)
ax.loglog(x, [attainable_flops_per_s(i, peak, bandwidth) / 1e9 for i in x], color=COLORS["quiet"], label="roofline")
prefills = columns(context, "prefill", "flops_per_byte", "gflop_per_s", "context")
decodes = columns(results["batch"], "cached", "flops_per_byte", "gflop_per_s", "batch")
ax.loglog(*prefills[:2], "s", color=COLORS["uncached"], label=f"prefill, {prefills[2][0]} to {prefills[2][-1]} tokens")
ax.loglog(*decodes[:2], "o", color=COLORS["cached"], label=f"decode, batch {decodes[2][0]} to {decodes[2][-1]}")
ax.set(xlabel="FLOPs a byte", ylabel="GFLOP/s", title=f"Roofline, {machine(results['ceilings'])}")
ax.legend()
show(
    fig,
    alt=f"Roofline: a slope of {bandwidth / 1e9:.0f} GB/s up to {ridge_point(peak, bandwidth):.1f} FLOPs a byte, flat "
    f"from there at {peak / 1e9:.0f} GFLOP/s. Prefills stand to the right, from {prefills[0][0]:.0f} FLOPs a byte on; "
    f"decode steps at {decodes[0][0]:.1f}, moving right to {decodes[0][-1]:.1f} as the batch grows.",
)

# %% [markdown]
# The same two points for a real model on the GPUs of the data sheets:

# %%
from kvlab.widgets import RooflineExplorer

RooflineExplorer("llama-3.1-8b")

# %% [markdown]
# For a bandwidth-bound step one number says how good it is: the bytes it had to read over the time it took, beside the
# bandwidth measured in the same run. What is missing can be traced. The last lines time the matrix-vector products of a
# step alone, with nothing between them: a step cannot be faster than its products.

# %%
ceiling = context["read_bandwidth_bytes_per_s"] / 1e9
for n, rate in zip(*columns(context, "cached", "context", "gb_per_s"), strict=True):
    print(f"context {n:6}: {rate:7.1f} GB/s of {ceiling:.1f}: {ceiling / rate:4.1f} x the floor")
for row in rows_of(results["ceilings"], "matvec"):
    print(f"products alone, {row['kernel']}: {row['per_s'] / 1e9:.1f} GB/s")

# %% [markdown]
# ## A batch shares the weights
#
# Several sequences decoded in one step share one reading of the weights. Each still has a cache of its own.

# %%
guess_3 = predict("Sixteen sequences in one step instead of one: how many times more tokens a second?")
guess_3

# %%
batch, ms, rate, n_bytes = columns(results["batch"], "cached", "batch", "ms_min", "tokens_per_s", "bytes")
fig, (left, right) = subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(batch, ms, "o-", color=COLORS["cached"])
left.set(
    xlabel="batch (sequences)", ylabel="time of a step (ms)", ylim=0, xticks=batch, title=machine(results["batch"])
)
right.plot(batch, rate, "o-", color=COLORS["right"], label="measured")
right.plot(batch, rate[0] * batch, "--", color=COLORS["quiet"], label="if a step took no longer")
right.set(xlabel="batch (sequences)", ylabel="tokens a second, all sequences", ylim=0, xticks=batch)
right.legend()
show(
    fig,
    alt=f"Left: a step takes {ms[0]:.1f} ms for one sequence and {ms[-1]:.1f} ms for {batch[-1]}. Right: tokens a "
    f"second go from {rate[0]:.0f} to {rate[-1]:.0f}, below the straight line that a constant step would give.",
)
by_bytes = (16 * n_bytes[0] / n_bytes[batch == 16])[0]
guess_3.reveal(
    f"{rate[batch == 16][0] / rate[0]:.1f} times",
    f"By bytes alone it would be {by_bytes:.1f} times: arithmetic and the kernels take the rest.",
)

# %% [markdown]
# In bytes, for Llama 3.1 8B at 4,096 tokens a sequence: the weights' part of a token shrinks with the batch, the
# cache's part does not.

# %% tags=["nbval-check-output"]
weights = forward_bytes(llama, 0)
for n_sequences in (1, 2, 4, 8, 16):
    n_bytes = forward_bytes(llama, 4096, n_sequences)
    parts = f"weights {weights / n_sequences / 1e9:5.2f}, cache {(n_bytes - weights) / n_sequences / 1e9:.2f}"
    print(f"batch {n_sequences:2}: {n_bytes / n_sequences / 1e9:5.2f} GB a token: {parts}")

# %% [markdown]
# Two other costs of a step, from the results: storing one token's rows by concatenation or in place (lesson 06), and
# the same step in 16-bit numbers, which halve the bytes. Whether they halve the time is up to the machine's kernels.

# %%
for variant in ("concat", "static"):
    row = rows_of(results["append"], variant)[-1]
    print(f"storing one token at context {row['context']}, {variant}: {row['ms_min']:.3f} ms for all layers")
for row in rows_of(results["dtype"], "cached"):
    print(f"a step in {row['dtype']}: {row['bytes'] / 1e6:.0f} MB, {row['ms_min']:.1f} ms")

# %% [markdown]
# ## The floor of a real model
#
# The same division gives a bound for hardware that is not here: bytes over the bandwidth of the data sheet.
#
# > **Often said:** "Llama 3.1 8B in bf16 at 4,096 tokens on an H100: (16.06 + 0.54) GB over 3.35 TB/s, so no token
# > takes less than 4.95 ms."
# >
# > **What is so:** the 16.06 GB include the input embedding table, of which a step looks up one row. Without those
# > 1.05 GB it is 4.64 ms. (A tied table is read whole, as the output head; Llama 3.1 8B's is not tied.)

# %% tags=["nbval-check-output"]
kv, table = forward_bytes(llama, 4096) - weights, 2 * llama.n_embedding_params
print(f"weights {2 * llama.n_params:,} B, cache {kv:,} B, embedding table {table:,} B")
print(f"as usually given       {decode_floor_ms(2 * llama.n_params, kv, h100.bandwidth_bytes_per_s):.2f} ms")
print(f"with the table left out {decode_floor_ms(weights, kv, h100.bandwidth_bytes_per_s):.2f} ms")
print(f"source: {h100.source}")
for name, gpu in HARDWARE.items():
    floor = decode_floor_ms(weights, kv, gpu.bandwidth_bytes_per_s)
    print(
        f"{name:14} {gpu.bandwidth_bytes_per_s / 1e12:4.2f} TB/s, {floor:5.2f} ms, {1000 / floor:3.0f} tokens/s at most"
    )

# %% [markdown]
# The bandwidths are NVIDIA's, each with its source in `kvlab.roofline.HARDWARE`. No step is faster than its floor. How
# near do real steps come? A model of 135 million parameters on a CPU, the bandwidth measured in the same run (lesson 13
# says what closes the gap):

# %%
from kvlab.bench.decode.show import load_decode, row_of, source_line

real = load_decode("cpu")
print(source_line(real, 256))
for decoder in ("kvlab-lean", "kvlab-llama", "hf-dynamic"):
    row = row_of(real, decoder, "float32", 256)
    times = f"{row['ms_min']:5.1f} ms, floor {row['floor_ms']:.1f} ms"
    print(f"{decoder:12} {times}: {row['ratio_to_floor']:.1f} times the floor")

# %% [markdown]
# > **Often said:** "In decode the GPU waits for the KV cache."
# >
# > **What is so:** at batch 1 and 4,096 tokens it waits for the weights, and the cache is 3 % of the bytes. With long
# > contexts and large batches the cache dominates.

# %% tags=["nbval-check-output"]
per_token = forward_bytes(llama, 1) - weights


def kv_share(n_tokens, n_sequences):
    """Percent of the bytes of a decode step that are cache."""
    return 100 * n_sequences * n_tokens * per_token / (weights + n_sequences * n_tokens * per_token)


for n_sequences in (1, 8, 64):
    shares = ", ".join(f"{kv_share(n, n_sequences):.0f} % at {n:,}" for n in (4096, 131072))
    print(f"batch {n_sequences:2}: {shares} tokens; half at {weights / (n_sequences * per_token):,.0f}")

# %%
fig, ax = subplots()
n_tokens = np.geomspace(256, 131072, 100)
for n_sequences, color in ((64, "uncached"), (8, "new"), (1, "cached")):
    ax.semilogx(n_tokens, kv_share(n_tokens, n_sequences), color=COLORS[color], label=f"batch {n_sequences}")
ax.plot(4096, kv_share(4096, 1), "o", color=COLORS["cached"])
ax.set(xlabel="context a sequence (tokens)", ylabel="cache, % of bytes read", ylim=(0, 100), title="Llama 3.1 8B, bf16")
ax.legend()
show(
    fig,
    alt="Share of the cache in the bytes of a decode step of Llama 3.1 8B against context. At batch 1 it is 3 % at "
    "4,096 tokens (marked) and passes half near 115,000; at batch 8 near 14,000; at batch 64 near 1,800.",
)

# %% [markdown]
# ## Reading the cache once: online softmax
#
# Softmax needs the largest score and the sum of all exponentials, which seems to need the whole row first. It does not.
# Read the keys in blocks, and keep three running things: the largest score so far, the sum, and the weighted values.
# When a block brings a larger score, both sums are rescaled by $e^{m_{old} - m_{new}}$ (Milakov and Gimelshein 2018,
# algorithm 3; FlashAttention, Dao et al. 2022, builds on it). The score row is never held, and each key and value is
# read once.


# %%
def streamed_attention(q, k, v, block):
    """Attention of one query (head_dim,) over keys and values (n_total, head_dim), read `block` rows at a time."""
    q = q.astype(np.float32) / np.sqrt(np.float32(len(q)))
    top, total, out = np.float32(-np.inf), np.float32(0), np.zeros(v.shape[1], np.float32)
    for start in range(0, len(k), block):
        scores = k[start : start + block].astype(np.float32) @ q
        new_top = max(top, scores.max())
        rescale, weights = np.exp(top - new_top), np.exp(scores - new_top)
        total = total * rescale + weights.sum()
        out = out * rescale + weights @ v[start : start + block].astype(np.float32)
        top = new_top
    return out / total


# %% tags=["nbval-check-output"]
from kvlab.attention import attention

rng = np.random.default_rng(7)
q, k, v = 40 * rng.standard_normal(64), rng.standard_normal((1000, 64)), rng.standard_normal((1000, 64))
full = attention(q[None, None], k[None], v[None])[0, 0]
for block in (1, 7, 64, 1000, 4096):
    gap = np.abs(streamed_attention(q, k, v, block) - full).max()
    print(f"block {block:4}: equal to full attention within 1e-4: {gap < 1e-4}")

# %% [markdown]
# The sums are float32 whatever the keys are. bfloat16 has 8 significant bits. A running sum of ones stops at 256, where
# the next 1 is half of the last bit and is rounded away. Scores suffer too: between 16 and 32 they are 0.125 apart, and
# 0.125 in a score is 13 % in a weight.

# %% tags=["nbval-check-output"]
for dtype in (torch.float32, torch.bfloat16):
    running = torch.zeros((), dtype=dtype)
    for _ in range(4096):
        running += 1
    print(f"4,096 ones in {dtype}: {int(running)}")
print("20.06 and 20.07 in bfloat16:", torch.tensor([20.06, 20.07], dtype=torch.bfloat16).tolist())
print(f"0.125 more in a score: {np.exp(0.125):.2f} times the weight")


# %%
def streamed_in_bfloat16(q, k, v, block):
    """What not to do: scores and running sums in the bfloat16 of q, k and v (torch; NumPy has no bfloat16)."""
    top, total, out = q.new_tensor(-torch.inf), q.new_zeros(()), q.new_zeros(v.shape[1])
    for start in range(0, len(k), block):
        scores = k[start : start + block] @ (q / len(q) ** 0.5)
        new_top = torch.maximum(top, scores.max())
        rescale, weights = (top - new_top).exp(), (scores - new_top).exp()
        total, out = total * rescale + weights.sum(), out * rescale + weights @ v[start : start + block]
        top = new_top
    return out / total


# %% [markdown]
# Both forms below read the *same* bfloat16 keys and values, as a cache holds them, in blocks of 64. They differ in what
# they compute and add up in. The error is the largest difference from attention in float64, in % of its largest output.


# %%
def errors_at(n_total):
    q, k, v = 4 * rng.standard_normal(64), rng.standard_normal((n_total, 64)), rng.random((n_total, 64))
    held = [torch.from_numpy(a).bfloat16() for a in (q, k, v)]
    q, k, v = (t.double().numpy() for t in held)
    right = attention(q[None, None], k[None], v[None])[0, 0]
    ours = streamed_attention(q, k, v, 64), streamed_in_bfloat16(*held, 64).double().numpy()
    return [100 * np.abs(result - right).max() / np.abs(right).max() for result in ours]


lengths = [256, 1024, 4096, 16384, 65536]
in_float32, in_bfloat16 = np.transpose([errors_at(n) for n in lengths])
fig, ax = subplots()
ax.loglog(lengths, in_bfloat16, "o-", color=COLORS["wrong"], label="bfloat16 throughout")
ax.loglog(lengths, in_float32, "o-", color=COLORS["right"], label="float32 scores and sums")
ax.set(xlabel="context (tokens)", ylabel="error (%)", title="One head, keys and values in bfloat16")
ax.legend()
show(
    fig,
    alt=f"Error against context. bfloat16 throughout: {in_bfloat16[0]:.1f} % at 256 tokens and "
    f"{in_bfloat16[-1]:.1f} % at 65,536. float32 scores and sums: {in_float32.max():.1g} % at most.",
)

# %% tags=["nbval-check-output"]
print("float32 scores and sums, at most 0.001 % off:", in_float32.max() < 0.001)
print("bfloat16 throughout, over 1 % off at 65,536 tokens:", in_bfloat16[-1] > 1)
print("and further off there than at 256:", in_bfloat16[-1] > in_bfloat16[0])

# %% [markdown]
# ## Recap
#
# - You timed a step that was known to take 5 ms, once wrong and once right, and met six ways to a wrong number: no
#   synchronize, no warm-up, a mean (17.8 ms for steps of 10), seconds for milliseconds, unequal work, and a prefill in
#   the decode rate. `time_decode` has none of the first four; the other two are yours to keep out.
# - You bounded a step by bytes over bandwidth: 4.64 ms for Llama 3.1 8B on an H100 at 4,096 tokens, with the cache 3 %
#   of the bytes. Sixteen sequences share the weights, and a token then costs 1.47 GB instead of 15.55. The cache cut
#   the token passes of 1,000 + 1,000 tokens by 750x, and not one byte of weights.
# - You wrote online softmax for blocks of any size, and saw a bfloat16 sum stop at 256.
#
# One limit: a floor counts bytes and nothing else. It knows nothing of launches, of a kernel that leaves a core idle,
# or of a batch so large that arithmetic is the bound; how many times the floor a step takes says what those cost.
#
# Exercise: [07_decode_timing](../exercises/07_decode_timing.ipynb). This was the last lesson of the core.
#
# Next lesson, the first of what production adds: [08 Windows and sinks](08_windows_and_sinks.ipynb).
