# Token ids go through int16: a token above 32,767 (SmolLM2 has 49,152) comes back negative.
import numpy as np


def decode(model, caches, ids, n_new):
    out = np.zeros(n_new, dtype=np.int16)
    feed = np.array(ids)
    for i in range(n_new):
        out[i] = np.argmax(model(feed, caches)[-1]).astype(np.int16)
        feed = out[i : i + 1].astype(np.int64)
    return out.astype(np.int64)
