import numpy as np


def decode(model, caches, ids, n_new):
    # prompt and answer in one preallocated array, fed in slice by slice
    n = len(ids)
    text = np.empty(n + n_new, dtype=np.int64)
    text[:n] = ids
    start = 0
    for end in range(n, n + n_new):
        row = model(text[start:end].copy(), caches)[end - start - 1]
        text[end] = max(range(len(row)), key=row.__getitem__)
        start = end
    return text[n:]
