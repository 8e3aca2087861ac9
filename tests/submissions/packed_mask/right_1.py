import numpy as np


def packed_mask(lengths):
    sizes = np.asarray(lengths, dtype=np.int64)
    owner = np.repeat(np.arange(sizes.size), sizes)
    return (owner[:, None] == owner[None, :]) & np.tri(owner.size, dtype=bool)
