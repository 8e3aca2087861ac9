"""Wrong: no check, heads that do not divide give some heads one more reader."""

import numpy as np


def repeat_kv(x, n_heads):
    return x[np.arange(n_heads) * x.shape[0] // n_heads]
