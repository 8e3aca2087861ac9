"""Wrong: works in place, so the caller's array is overwritten."""

import numpy as np


def softmax(x):
    x -= x.max(axis=-1, keepdims=True)
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)
