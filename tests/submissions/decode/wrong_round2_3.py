# WRONG: `if not token` is meant for None: the id 0 ends the text early, fewer than n_new ids come back.
import numpy as np


def decode(model, caches, ids, n_new):
    feed, new = np.asarray(ids, dtype=int), []
    for _ in range(n_new):
        logits = model(feed, caches)
        token = int(np.argmax(logits[-1]))
        new.append(token)
        if not token:
            break
        feed = np.array([token])
    return np.array(new, dtype=int)
