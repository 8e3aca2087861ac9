"""Wrong: replaces -inf by -1000, so hidden entries leak when the scores are about -1000."""

import numpy as np


def softmax(x):
    x = np.where(np.isneginf(x), -1e3, x)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
