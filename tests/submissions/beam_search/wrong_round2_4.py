# WRONG: the cache is left as it is when every beam goes on exactly once, also if they have changed places (parents a permutation, as [1, 0]).
import numpy as np


def beam_search(step, prompt, n_beams, n_new):
    if n_new == 0:
        return np.zeros((n_beams, 0), dtype=int), np.zeros(n_beams)
    feed, cache = np.array(prompt, dtype=int)[None, :], None
    scores, tokens = np.zeros(1), np.zeros((1, 0), dtype=int)
    for i in range(n_new):
        log_probs, cache = step(feed, cache)
        n, vocab = log_probs.shape
        flat = (scores[:, None] + log_probs).ravel()
        best = np.argsort(-flat, kind="stable")[:n_beams]
        parents, ids = best // vocab, best % vocab
        scores = flat[best]
        tokens = np.concatenate([tokens[parents], ids[:, None]], axis=1)
        if sorted(parents) != list(range(n)):
            cache = [(k[parents], v[parents]) for k, v in cache]
        feed = ids[:, None]
    return tokens, scores
