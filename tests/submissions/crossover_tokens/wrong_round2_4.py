"""Returns a float."""

import numpy as np


def crossover_tokens(weight_bytes, per_token, batch):
    return float(np.floor_divide(weight_bytes, per_token * batch) + 1)
