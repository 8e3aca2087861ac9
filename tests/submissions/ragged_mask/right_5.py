import numpy as np


def ragged_mask(attention_mask, n_new):
    a = np.asarray(attention_mask, dtype=np.float64)
    n_total = a.shape[1]
    tri = np.tri(n_total)[n_total - n_new :]
    eye = np.eye(n_total)[n_total - n_new :]
    seen = np.einsum("bq,bk,qk->bqk", a[:, n_total - n_new :], a, tri)
    return seen + eye > 0
