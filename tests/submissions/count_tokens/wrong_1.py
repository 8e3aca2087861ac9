"""Wrong: squeezes first, so one head, one token or head_dim 1 moves the axes."""

import numpy as np


def count_tokens(k):
    return np.squeeze(k).shape[1]
