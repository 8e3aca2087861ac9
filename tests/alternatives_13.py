"""Right in unusual ways: lesson 13."""

from itertools import islice

import numpy as np


def decode_into_a_buffer(model, caches, ids, n_new):
    text = np.concatenate([ids, np.zeros(n_new, ids.dtype)])
    start = 0
    for end in range(len(ids), len(text)):
        text[end] = np.argmax(model(text[start:end], caches), axis=-1)[-1]
        start = end
    return text[len(ids) :]


def decode_by_generator(model, caches, ids, n_new):
    def tokens():
        fed = ids
        while True:
            token = model(fed, caches)[-1:].argmax(-1)
            yield token.item()
            fed = token

    return list(islice(tokens(), n_new))


def decode_by_recursion(model, caches, ids, n_new):
    if n_new == 0:
        return np.array([])
    token = model(ids, list(caches))[len(ids) - 1].argmax()
    rest = decode_by_recursion(model, tuple(caches), np.array([token]), n_new - 1)
    return np.array([token, *rest], dtype=np.int32)


ALTERNATIVES = {"decode": [decode_into_a_buffer, decode_by_generator, decode_by_recursion]}
