import numpy as np


def window_mask(n_new, n_total, window):
    distance = np.subtract.outer(np.arange(n_total), np.arange(n_total))[n_total - n_new :]
    return np.isin(distance, np.arange(min(window, n_total)))
