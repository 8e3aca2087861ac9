# step is called once more after the last token: n_new + 1 calls.
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
        best = np.argsort(-total.ravel(), kind="stable")[:n_beams]
        beam, token = best // total.shape[1], best % total.shape[1]
        scores = total.ravel()[best]
        tokens = np.concatenate([tokens[beam], token[:, None]], axis=1)
        cache = _reorder(cache, beam)
        log_probs, cache = step(token[:, None], cache)
    return tokens, scores
