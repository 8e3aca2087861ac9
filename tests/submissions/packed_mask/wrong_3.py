# Sequences are told apart by their length: neighbours of equal length ([2, 2]) see each other.
import numpy as np


def packed_mask(lengths):
    lengths = np.array(lengths, dtype=int)
    seq = np.repeat(lengths, lengths)
    return np.equal.outer(seq, seq) & np.tri(len(seq), dtype=bool)
