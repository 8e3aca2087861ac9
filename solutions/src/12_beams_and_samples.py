# %% [markdown]
# # 12 Exercises: beam search with a cache
#
# Several continuations of one prompt are alive at once, and they change places at every step. Their keys and values
# have to go with them.
#
# Lesson: [12 Beams and samples](../notebooks/12_beams_and_samples.ipynb).

# %%
import numpy as np

from kvlab.checks import check, hint, progress

# %% [markdown]
# ## 1. reorder_cache
#
# {card reorder_cache}
#
# The cache is a list with one `(k, v)` a layer, beams on axis 0. Beam i of the new cache has the rows of beam
# `beam_index[i]` of the old one, in every layer, keys and values alike. An entry may repeat or be missing, and there
# may be more or fewer new beams than old ones. After the prompt the cache has one beam, and `beam_index` is all zeros:
# this is how one row becomes `n_beams` rows.
#
# The result is a new list of new arrays of the same dtype: the old cache stays as it is, and a later write to one new
# beam reaches neither the old cache nor another new beam.


# %%
def reorder_cache(cache, beam_index):
    """For each layer (k, v) with the beams on axis 0: new beam i goes on from old beam beam_index[i]."""
    ### BEGIN SOLUTION
    return [(k[beam_index], v[beam_index]) for k, v in cache]
    ### END SOLUTION


# %%
check(reorder_cache)

# %% [markdown]
# ## 2. beam_search
#
# {card beam_search}
#
# `step(tokens, cache)` takes ints (n, t) and returns `(log_probs, cache)`: log-probabilities (n, vocab) of the token
# that follows each row, and the cache grown by t tokens, one `(k, v)` a layer, n beams on axis 0.
#
# - The first call gets the prompt as one row and `cache=None`. Every later call gets the newest token of each beam,
#   (n, 1), and a cache whose row i belongs to beam i: use your `reorder_cache`. There are exactly `n_new` calls.
# - A beam's score is the sum of the log-probabilities of its new tokens. At each step every beam is extended by every
#   token, and the `n_beams` best of all these go on. While there are fewer than `n_beams` of them, all go on.
# - Of equal scores the one of the lower beam comes first (beams are numbered best first), then the lower token id.
#   `-inf` is a score like any other, the lowest.
# - Return `(tokens, scores)`: ints (n_beams, n_new) without the prompt, and floats (n_beams,), best first. For
#   `n_new = 0` that is (n_beams, 0) and n_beams zeros, without a call of `step`. `n_beams` is at most
#   `vocab ** n_new` otherwise.
# - `prompt` (n_prompt,) stays as it is.


# %%
def beam_search(step, prompt, n_beams, n_new):
    """The n_beams best continuations of n_new tokens found by keeping n_beams at each step: (tokens, scores)."""
    ### BEGIN SOLUTION
    if n_new == 0:
        return np.zeros((n_beams, 0), dtype=int), np.zeros(n_beams)
    tokens, scores, cache = np.zeros((1, 0), dtype=int), np.zeros(1), None
    fed = prompt[None, :]
    for _ in range(n_new):
        log_probs, cache = step(fed, cache)
        totals = scores[:, None] + log_probs
        best = np.argsort(-totals, axis=None, kind="stable")[:n_beams]
        beam_index, ids = best // totals.shape[1], best % totals.shape[1]
        tokens = np.concatenate([tokens[beam_index], ids[:, None]], axis=1)
        scores = totals[beam_index, ids]
        cache = reorder_cache(cache, beam_index)
        fed = ids[:, None]
    return tokens, scores
    ### END SOLUTION


# %%
check(beam_search)

# %% [markdown]
# ## Try it
#
# A stand-in for a model: after token t the tokens t + 1 and t + 2 (modulo 5) are likely. Its cache is empty, so that
# only your search is at work.

# %%
try:

    def step(tokens, cache):
        ahead = (np.arange(5)[None, :] - tokens[:, -1:]) % 5
        return np.log(np.array([0.1, 0.4, 0.3, 0.1, 0.1]))[ahead], []

    tokens, scores = beam_search(step, np.array([0]), 3, 4)
    print(tokens)
    print(scores.round(3))
except NotImplementedError as still_to_do:
    print(still_to_do)

# %% [markdown]
# ## Hints and progress

# %%
hint("beam_search")

# %% tags=["exercise-only"]
progress()
