"""Unusual: works from bytes, nbytes over the bytes that one token takes in all heads."""

import numpy as np


def count_tokens(k):
    k = np.asarray(k)
    bytes_per_token = k.itemsize * k.shape[0] * k.shape[-1]
    return int(k.nbytes // bytes_per_token)
