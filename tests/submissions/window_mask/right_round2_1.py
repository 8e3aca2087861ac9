# two triangles, one minus the other
import numpy as np


def window_mask(n_new, n_total, window):
    upto = np.tri(n_new, n_total, n_total - n_new, dtype=bool)
    gone = np.tri(n_new, n_total, n_total - n_new - window, dtype=bool)
    return upto ^ gone
