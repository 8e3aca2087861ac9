# The prompt is fed in before the loop, also for n_new = 0: one call where there may be none.
import numpy as np


def decode(model, caches, ids, n_new):
    logits = model(np.array(ids), caches)
    out = []
    while len(out) < n_new:
        out.append(int(np.argmax(logits[-1])))
        if len(out) < n_new:
            logits = model(np.array(out[-1:]), caches)
    return np.array(out, dtype=int)
