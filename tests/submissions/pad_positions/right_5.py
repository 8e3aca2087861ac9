import numpy as np


def pad_positions(attention_mask):
    # tokens strictly before each column, counted by a matrix product
    mask = np.array(attention_mask, dtype=np.int64)
    n = mask.shape[1]
    before = np.triu(np.ones((n, n), dtype=np.int64), 1)
    return np.einsum("bi,ij->bj", mask, before)
