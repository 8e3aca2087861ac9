# The owner is a parity bit: the third sequence sees the first ([1, 1, 1]).
import numpy as np


def packed_mask(lengths):
    flip, owner = False, []
    for m in lengths:
        owner += [flip] * m
        flip = not flip
    owner = np.array(owner, dtype=bool)
    n = len(owner)
    return (owner[:, None] == owner) & np.tri(n, dtype=bool)
