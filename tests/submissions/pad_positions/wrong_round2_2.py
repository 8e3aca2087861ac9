# WRONG: looks for the last pad from the right and finds 'column n - 1' in a row without pads: such a row gets only zeros.
import numpy as np


def pad_positions(attention_mask):
    mask = np.asarray(attention_mask)
    n = mask.shape[1]
    last_pad = n - 1 - np.argmax(mask[:, ::-1] == 0, axis=1)
    return np.maximum(np.arange(n) - last_pad[:, None] - 1, 0)
