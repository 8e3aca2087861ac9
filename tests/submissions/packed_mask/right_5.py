import numpy as np


def packed_mask(lengths):
    rows, n = [], sum(lengths)
    for length in lengths:
        start = len(rows)
        for i in range(length):
            rows.append([start <= t <= start + i for t in range(n)])
    return np.array(rows, dtype=np.bool_).reshape(n, n)
