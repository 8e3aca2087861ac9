"""Unusual: everything in long double, a wider dtype than the input's."""

import numpy as np


def softmax(x):
    x = np.asarray(x, dtype=np.longdouble)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
