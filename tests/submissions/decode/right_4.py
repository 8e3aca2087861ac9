import numpy as np


def _tokens(model, caches, feed):
    while True:
        logits = model(feed, caches)
        feed = np.argmax(logits, axis=-1)[-1:]
        yield feed[0]


def decode(model, caches, ids, n_new):
    stream = _tokens(model, caches, np.array(list(ids), dtype=np.int64))
    return [next(stream) for _ in range(n_new)]
