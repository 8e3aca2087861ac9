"""Wrong: refuses only n_heads below n_kv_heads, 5 for 2 gives 4 heads."""

import numpy as np


def repeat_kv(x, n_heads):
    if n_heads < x.shape[0]:
        raise ValueError("fewer heads than KV heads")
    return np.repeat(x, n_heads // x.shape[0], axis=0)
