"""Unusual: online softmax, one pass over the columns with a running maximum and a running sum."""

import numpy as np


def softmax(x):
    top = np.full(x.shape[:-1], -np.inf)
    total = np.zeros(x.shape[:-1])
    for i in range(x.shape[-1]):
        column = x[..., i].astype(np.float64)
        new_top = np.maximum(top, column)
        safe = np.where(np.isneginf(new_top), 0.0, new_top)
        total = total * np.exp(top - safe) + np.exp(column - safe)
        top = new_top
    return np.exp(x - top[..., None]) / total[..., None]
