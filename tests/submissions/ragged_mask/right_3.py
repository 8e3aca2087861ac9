import numpy as np


def ragged_mask(attention_mask, n_new):
    # left padded: token query q sees the span first..q; a pad query sees q..q
    mask = np.array(attention_mask)
    batch, n_total = mask.shape
    first = mask.argmax(axis=1)
    q = np.arange(n_total - n_new, n_total)
    low = np.minimum(first[:, None], q[None, :])
    t = np.arange(n_total)
    return np.logical_and(low[..., None] <= t, t <= q[:, None])
