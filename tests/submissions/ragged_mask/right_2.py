import numpy as np


def ragged_mask(attention_mask, n_new):
    batch, n_total = np.shape(attention_mask)
    out = np.zeros((batch, n_new, n_total), dtype=bool)
    for b in range(batch):
        for i in range(n_new):
            q = n_total - n_new + i
            out[b, i, q] = True
            if attention_mask[b][q]:
                for t in range(q):
                    out[b, i, t] = attention_mask[b][t] == 1
    return out
