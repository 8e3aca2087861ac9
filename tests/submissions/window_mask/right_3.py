import numpy as np


def window_mask(n_new, n_total, window):
    # two triangles: up to the query, minus what has left the window
    past = n_total - n_new
    return np.tri(n_new, n_total, past, dtype=bool) ^ np.tri(n_new, n_total, past - window, dtype=bool)
