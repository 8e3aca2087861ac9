# one array for prompt and new ids, fed by slices
import numpy as np


def decode(model, caches, ids, n_new):
    n = len(ids)
    text = np.zeros(n + n_new, dtype=np.int64)
    text[:n] = ids
    start = 0
    for end in range(n, n + n_new):
        row = model(text[start:end].copy(), caches)[-1]
        text[end] = max(range(len(row)), key=row.__getitem__)
        start = end
    return text[n:]
