# WRONG: positions are uint8: a row of more than 256 tokens starts at 0 again.
import numpy as np


def pad_positions(attention_mask):
    mask = np.asarray(attention_mask)
    return np.where(mask == 1, np.cumsum(mask, axis=1) - 1, 0).astype(np.uint8)
