"""Wrong: counts only the rows that are not all zero, so a token with a zero key is lost."""

import numpy as np


def count_tokens(k):
    return int(np.any(k != 0, axis=(0, 2)).sum())
