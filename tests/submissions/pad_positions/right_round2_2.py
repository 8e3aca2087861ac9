# row by row, into an array of int32
import numpy as np


def pad_positions(attention_mask):
    out = np.zeros(np.shape(attention_mask), dtype=np.int32)
    for row, marks in zip(out, np.asarray(attention_mask)):
        (where,) = marks.nonzero()
        row[where] = range(len(where))
    return out
