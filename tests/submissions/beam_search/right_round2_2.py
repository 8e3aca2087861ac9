# back pointers, followed at the end; np.lexsort
import numpy as np


def beam_search(step, prompt, n_beams, n_new):
    score, links, cache = np.zeros(1), [], None
    for i in range(n_new):
        if i:
            parent, newest = links[-1]
            cache = [(np.take(k, parent, 0), np.take(v, parent, 0)) for k, v in cache]
            feed = newest.reshape(-1, 1)
        else:
            feed = np.array([prompt])
        log_probs, cache = step(feed, cache)
        total = np.add(score.reshape(-1, 1), log_probs, dtype=float)
        beam, token = np.indices(total.shape).reshape(2, -1)
        order = np.lexsort((token, beam, -total.ravel()))[:n_beams]
        score = total.ravel()[order]
        links.append((beam[order], token[order]))
    tokens = np.zeros((n_beams, n_new), dtype=int)
    at = np.arange(n_beams)
    for i in reversed(range(n_new)):
        parent, newest = links[i]
        tokens[:, i] = newest[at]
        at = parent[at]
    return tokens, score if n_new else np.zeros(n_beams)
