import numpy as np


def _best(total, n):
    # n times the largest one not taken yet; argmax takes the first of equals
    total, taken = total.ravel(), []
    left = np.arange(total.size)
    while len(taken) < n and left.size:
        i = int(np.argmax(total[left]))
        taken.append(int(left[i]))
        left = np.delete(left, i)
    return np.array(taken)


def beam_search(step, prompt, n_beams, n_new):
    beams = np.zeros((n_beams if n_new == 0 else 1, 0), dtype=np.int32)
    scores = np.zeros(len(beams))
    cache = None
    for i in range(n_new):
        x = beams[:, -1:] if i else np.asarray([prompt])
        lp, cache = step(x.astype(np.int64), cache)
        total = scores[:, None] + lp.astype(np.float64)
        index = _best(total, n_beams)
        old, new = np.divmod(index, lp.shape[1])
        beams = np.concatenate([beams[old], new[:, None].astype(np.int32)], axis=1)
        scores = total.ravel()[index]
        cache = [(k[old], v[old]) for k, v in cache]
    return beams, scores
