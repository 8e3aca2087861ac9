"""Unusual: pure Python loops over rows, with math.exp and math.fsum."""

import math

import numpy as np


def softmax(x):
    n = x.shape[-1]
    out = np.zeros(x.shape)
    for where in np.ndindex(x.shape[:-1]):
        row = [float(a) for a in x[where]]
        top = max(row)
        weights = [math.exp(a - top) for a in row]
        total = math.fsum(weights)
        for i in range(n):
            out[(*where, i)] = weights[i] / total
    return out
