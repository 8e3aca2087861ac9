# A pad query sees the pads before it too: wrong when the second or a later pad is a query.
import numpy as np


def ragged_mask(attention_mask, n_new):
    n_total = attention_mask.shape[1]
    causal = np.tri(n_total, dtype=bool)[n_total - n_new :]
    same = attention_mask[:, None, :] == attention_mask[:, n_total - n_new :, None]
    return causal & same
