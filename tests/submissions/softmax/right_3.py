"""Unusual: subtracts log-sum-exp (np.logaddexp.reduce) and exponentiates once."""

import numpy as np


def softmax(x):
    log_total = np.logaddexp.reduce(x, axis=-1, keepdims=True)
    return np.exp(x - log_total)
