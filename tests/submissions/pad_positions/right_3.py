import numpy as np


def pad_positions(attention_mask):
    first = np.argmax(attention_mask, axis=-1)  # the first 1 of each row
    n = np.shape(attention_mask)[-1]
    return np.maximum(np.arange(n) - first[:, None], 0)
