# Taken candidates are marked with -inf: with fewer than n_beams finite candidates the same one is taken twice.
import numpy as np


def _reorder(cache, index):
    return [(k[index], v[index]) for k, v in cache]


def beam_search(step, prompt, n_beams, n_new):
    if n_new == 0:
        return np.zeros((n_beams, 0), dtype=int), np.zeros(n_beams)
    log_probs, cache = step(np.array(prompt)[None, :], None)
    tokens, scores = np.zeros((1, 0), dtype=int), np.zeros(1)
    for i in range(n_new):
        total = scores[:, None] + log_probs
        flat = total.flatten()
        best = np.zeros(min(n_beams, flat.size), dtype=int)
        for j in range(len(best)):
            best[j] = np.argmax(flat)
            flat[best[j]] = -np.inf
        beam, token = best // total.shape[1], best % total.shape[1]
        scores = total.ravel()[best]
        tokens = np.concatenate([tokens[beam], token[:, None]], axis=1)
        if i < n_new - 1:
            cache = _reorder(cache, beam)
            log_probs, cache = step(token[:, None], cache)
    return tokens, scores
