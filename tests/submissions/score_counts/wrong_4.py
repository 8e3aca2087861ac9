"""Wrong: int32 arithmetic that wraps around for a few thousand tokens."""

import numpy as np


def score_counts(n):
    t = np.arange(1, n + 1, dtype=np.int32)
    return int(np.sum(t * t, dtype=np.int32)), int(t.sum(dtype=np.int32))
