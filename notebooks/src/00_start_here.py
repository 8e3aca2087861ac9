# %% [markdown]
# # 00 Start here
#
# **How does this course work, and what does this machine have?**
#
# After this lesson you can
#
# - run a cell, type a prediction and see it beside the result, and find the exercise of a lesson;
# - say in one sentence what a KV cache holds, and read the shape of its arrays;
# - read what the environment check says about this machine, and act on it.
#
# Minutes: 10. GPU: not needed.

# %% [markdown]
# ## Running a cell
#
# A notebook is text cells like this one and code cells like the next. Click a code cell and press **Shift+Enter**:
# its code runs and the selection moves on. `[*]` beside a cell means that it is running, a number that it has run.
# Run the cells from top to bottom: a cell sees the names that earlier cells have made.
#
# *Run > Run All Cells* runs the whole page. *Kernel > Restart Kernel* forgets every name and starts again: the remedy
# when cells were run out of order. Change a cell and run it again as often as you like.
#
# If the next cell says `No module named 'kvlab'`, this notebook runs in another Python than the course's: close it,
# type `make lab` in the course's folder and open it from there.

# %% tags=["nbval-check-output"]
import numpy as np

from kvlab.decoder import TinyDecoder

print("this cell ran")

# %% [markdown]
# ## What a KV cache is
#
# A language model writes one token at a time. In each of its attention layers, every token of the text so far is
# present as a row of numbers called its *key* and another called its *value*. The new token compares its *query* with
# all the keys and takes a weighted mean of the values. The keys and values of earlier tokens do not change when a token
# is added, so they can be kept instead of computed again at every step. The arrays that keep them are the KV cache. The
# course builds it by hand, shows what it saves and what it costs, and breaks it in the ways in which it has been broken
# before.
#
# Here is one growing. `TinyDecoder` has random weights and the arithmetic of a real model. It takes five token ids,
# then three more, one at a time.

# %% tags=["nbval-check-output"]
model = TinyDecoder()
caches = model.make_caches()  # one a layer
stored = []
for new in ([3, 1, 4, 1, 5], [9], [2], [6]):
    model(np.array(new), caches)
    stored.append(len(caches[0]))
    print(f"{len(new)} in, {stored[-1]} stored")

# %% [markdown]
# The five tokens of the first call are the *prompt*; reading them in one call is the *prefill*. Each later call is a
# *decode step*: one token goes in, one row is written, and all the rows before it stay as they are.

# %%
from kvlab.style import COLORS, show, subplots

calls, past, new = ["prefill", "step 1", "step 2", "step 3"], [0, *stored[:-1]], np.diff([0, *stored])
fig, ax = subplots(figsize=(6.4, 2.2))
ax.barh(calls, past, color=COLORS["cached"], label="kept")
ax.barh(calls, new, left=past, color=COLORS["new"], hatch="//", edgecolor="white", label="written now")
ax.invert_yaxis()
ax.set_xlabel("rows of keys in one layer (one row a token)")
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
show(fig, alt="Four bars, one a call. Prefill writes 5 rows. Steps 1 to 3 keep 5, 6 and 7 rows and write 1 each.")

# %% [markdown]
# ## The words
#
# One word per idea, in the text, the code and the pictures:
#
# | word | meaning |
# |---|---|
# | `n_heads` | query heads of a layer |
# | `n_kv_heads` | heads that have keys and values of their own; equal to `n_heads` or fewer |
# | `head_dim` | numbers in one query, key or value of one head |
# | `n_new` | tokens that go in at this call |
# | `n_past` | tokens that the cache held before it |
# | `n_total` | `n_past + n_new` |
#
# NumPy arrays in the course are (heads, tokens, head_dim), PyTorch arrays (batch, heads, tokens, head_dim).

# %% [markdown]
# ## Predict
#
# Before a result that is worth guessing, a lesson asks. Type a guess and press Enter, or click an option, even when you
# are not sure. It is kept and shown beside the result. If you run all cells at once, nothing waits for you and the
# guess stays empty; type it then, and run the cell with the result again.

# %%
from kvlab.predict import predict

guess = predict("The keys of this layer have 2 KV heads and a head_dim of 8. What is k.shape after the eight tokens?")
guess

# %% tags=["nbval-check-output"]
nothing = np.zeros((2, 0, 8))
k, v = caches[0].append(nothing, nothing)  # appending no rows returns what is stored
guess.reveal(k.shape, "n_kv_heads, n_total, head_dim; v has the same shape.")

# %% [markdown]
# ## Exercises: check and hint
#
# Every lesson has an exercise notebook, linked at its end. An exercise is a card (the goal, about how many lines, the
# shapes in and out), a function for you to fill in, and two calls:
#
# - `check(your_function)` runs it and answers *passed*, *incorrect*, *not attempted* or *your code raised*. When it is
#   incorrect, it shows the smallest input that fails, what was expected and what came, and names the misunderstanding
#   if your code behaves like a known one.
# - `hint("name_of_the_exercise")` gives one hint, and a further one at each call.
#
# The exercise of this lesson takes two minutes: write `count_tokens(k)`, which reads the number of stored tokens from
# an array like the one above. Open [exercises/00_start_here.ipynb](../exercises/00_start_here.ipynb).

# %% [markdown]
# ## What this machine has
#
# On a page that nobody has run yet, the next two outputs are from the machine that built the page. Run them for yours.

# %%
from kvlab import environment

facts = environment.look()
print(environment.describe(facts))

# %%
missing = environment.check(facts)
print(*missing or ["Nothing is missing."], sep="\n")

# %% [markdown]
# A GPU is never required. Lesson 07 times one when there is one and the CPU otherwise, and says which. The BLAS line
# names the matrix library under NumPy and the processor family it picked its code for: two machines that differ there
# may differ in the last digits of a product, one reason why the course compares to 1e-12 and not with `==`.
#
# So that you know what the check says when it does find something, here it looks at a machine that does not exist: an
# old Python, an old NumPy, no torch, little memory.

# %% tags=["nbval-check-output"]
from dataclasses import replace

poor = replace(facts, python=(3, 9, 2), python_floor="3.11", memory_bytes=2**30, has_nvidia_driver=False)
poor = replace(poor, versions=facts.versions | {"numpy": "1.26.4", "torch": None}, has_model=True)
print(*environment.check(poor), sep="\n\n")

# %% [markdown]
# The same report in a terminal, with the course's Python: `python -m kvlab.environment`.
#
# ## The map
#
# | lesson | what you build |
# |---|---|
# | 00 start here | nothing yet: this page |
# | [01 attention](01_attention.ipynb) | softmax, heads and the causal mask, and why a cache can exist |
# | [02 the KV cache](02_kv_cache.ipynb) | the cache, and the proof that it is used |
# | [03 masks and positions](03_offset_mask.ipynb) | the mask and the positions of tokens that come after a cache |
# | [04 grouped queries](04_grouped_queries.ipynb) | fewer KV heads than query heads |
# | [05 cache size](05_cache_size.ipynb) | bytes, for real models |
# | [06 a PyTorch decoder](06_pytorch_decoder.ipynb) | the cache in a trainable model, and the generate loop |
# | [07 decode timing](07_decode_timing.ipynb) | milliseconds, and how far they are from the floor |
# | [08 windows and sinks](08_windows_and_sinks.ipynb) | caches that drop tokens, and what must not be dropped |
# | [09 ragged batches](09_ragged_batches.ipynb) | masks and positions for sequences of unequal length |
# | [10 the cache in blocks](10_paged_cache.ipynb) | a pool, block tables, sharing and copy-on-write |
# | [11 quantized and offloaded](11_quantized_and_offloaded.ipynb) | keys and values in 8 bits and fewer |
# | [12 beams and samples](12_beams_and_samples.ipynb) | several continuations of one prompt |
# | [13 a real model](13_a_real_model.ipynb) | a language model of 135 million parameters on your cache |
#
# 00 to 07 are the core; 08 to 13 are what production adds. Each lesson starts from a fresh kernel and needs no other
# notebook to have run, so you can enter anywhere. The order above is the order in which each idea is first needed.

# %% [markdown]
# ## Recap
#
# - You ran cells, made a prediction and know where exercises, checks and hints are.
# - You saw a KV cache hold 5 rows after the prefill and 8 after three decode steps: an array k of shape (2, 8, 8) in a
#   layer, and a v of the same shape.
# - You read what this machine has, and what the check says when Python, NumPy, torch or memory fall short.
#
# One limit: the check reads version numbers and looks for a device. It does not prove that a package works.
#
# Exercise (two minutes): [count the tokens](../exercises/00_start_here.ipynb).
# Next: [01 attention](01_attention.ipynb), why a cache can exist at all.
