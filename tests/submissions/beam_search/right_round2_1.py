# plain tuples, sorted by Python
import numpy as np


def beam_search(step, prompt, n_beams, n_new):
    beams = [(0.0, ())]
    feed, cache = np.array(prompt, dtype=int)[None, :], None
    for left in range(n_new, 0, -1):
        log_probs, cache = step(feed, cache)
        new = [
            (-(beams[b][0] + float(log_probs[b][t])), b, t)
            for b in range(len(beams))
            for t in range(log_probs.shape[1])
        ]
        new = sorted(new)[:n_beams]
        beams = [(-score, beams[b][1] + (t,)) for score, b, t in new]
        if left > 1:
            parents = [b for _, b, _ in new]
            cache = [(k[parents], v[parents]) for k, v in cache]
            feed = np.array([[t] for _, _, t in new])
    if n_new == 0:
        beams = beams * n_beams
    return np.array([b[1] for b in beams], dtype=int).reshape(n_beams, n_new), np.array(
        [b[0] for b in beams], dtype=float
    )
