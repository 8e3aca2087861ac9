# Stops when token 0 comes (taken for the end of the text): fewer than n_new ids come back then.
import numpy as np


def decode(model, caches, ids, n_new):
    feed, out = np.array(ids), []
    for _ in range(n_new):
        token = int(model(feed, caches)[-1].argmax())
        out.append(token)
        if not token:
            break
        feed = np.array([token])
    return np.array(out, dtype=int)
