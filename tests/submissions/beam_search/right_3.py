import numpy as np


def beam_search(step, prompt, n_beams, n_new):
    # keeps only back pointers, and walks back at the end
    if not n_new:
        return np.empty((n_beams, 0), np.int64), np.zeros((n_beams,))
    log_probs, cache = step(np.asarray(prompt).reshape(1, -1).copy(), None)
    scores, trail = np.zeros(1), []
    while True:
        total = np.add(scores.reshape(-1, 1), log_probs).ravel()
        order = np.lexsort((np.arange(total.size), -total))[:n_beams]
        parent, token = order // log_probs.shape[1], order % log_probs.shape[1]
        scores = total[order]
        trail.append((parent, token))
        if len(trail) == n_new:
            break
        cache = [(np.take(k, parent, 0), np.take(v, parent, 0)) for k, v in cache]
        log_probs, cache = step(token.reshape(-1, 1), cache)
    out = np.empty((len(scores), n_new), np.int64)
    at = np.arange(len(scores))
    for i in range(n_new - 1, -1, -1):
        parent, token = trail[i]
        out[:, i], at = token[at], parent[at]
    return out, scores
