"""One row at a time in plain Python with math.fsum."""

import math

import numpy as np


def softmax(x):
    x = np.asarray(x)
    out = np.empty(x.shape, dtype=np.float64)
    for idx in np.ndindex(*x.shape[:-1]):
        row = [float(a) for a in x[idx]]
        top = max(row)
        e = [math.exp(a - top) for a in row]
        total = math.fsum(e)
        out[idx] = [a / total for a in e]
    return out.astype(x.dtype) if x.dtype.kind == "f" else out
