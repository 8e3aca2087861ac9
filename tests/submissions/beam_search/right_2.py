import numpy as np


def beam_search(step, prompt, n_beams, n_new):
    # python lists and sorted tuples; the cache is reordered just before it is used
    hyps = [(0.0, [])]
    if n_new == 0:
        hyps = hyps * n_beams
    feed, cache = [list(map(int, prompt))], None
    for _ in range(n_new):
        log_probs, cache = step(np.array(feed, dtype=np.int64), cache)
        options = []
        for beam, (score, words) in enumerate(hyps):
            for token, lp in enumerate(log_probs[beam]):
                options.append((-(score + float(lp)), beam, token))
        options = sorted(options)[:n_beams]
        cache = [(np.stack([k[b] for _, b, _ in options]), np.stack([v[b] for _, b, _ in options])) for k, v in cache]
        hyps = [(-s, hyps[b][1] + [t]) for s, b, t in options]
        feed = [[t] for _, _, t in options]
    tokens = np.array([w for _, w in hyps], dtype=np.int64).reshape(len(hyps), n_new)
    return tokens, np.array([s for s, _ in hyps])
