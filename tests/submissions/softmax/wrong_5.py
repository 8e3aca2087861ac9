"""Wrong: computes in float32 and casts back, so float64 inputs get seven digits."""

import numpy as np


def softmax(x):
    y = x.astype(np.float32)
    e = np.exp(y - y.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)
