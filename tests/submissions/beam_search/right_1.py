import numpy as np


def _reorder(cache, index):
    return [(k[index], v[index]) for k, v in cache]


def beam_search(step, prompt, n_beams, n_new):
    if n_new == 0:
        return np.zeros((n_beams, 0), dtype=int), np.zeros(n_beams)
    feed, cache = np.array(prompt)[None, :], None
    tokens, scores = np.zeros((1, 0), dtype=int), np.zeros(1)
    for i in range(n_new):
        log_probs, cache = step(feed, cache)
        total = scores[:, None] + log_probs
        best = np.argsort(-total, axis=None, kind="stable")[:n_beams]
        beam, token = np.unravel_index(best, total.shape)
        scores = total[beam, token]
        tokens = np.hstack([tokens[beam], token[:, None]])
        feed, cache = token[:, None], _reorder(cache, beam)
    return tokens, scores
