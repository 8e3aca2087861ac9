# Raises for an array without rows, (2, 0, 3): n_new may be 0 wherever it appears.
import numpy as np


def quantize(x, n_bits, axis):
    # the shared axes are moved to the end and folded into one; codes by searchsorted between the levels
    if int(n_bits) not in range(2, 9):
        raise ValueError(f"{n_bits} bits")
    axes = tuple(np.atleast_1d(axis) % x.ndim)
    kept = [a for a in range(x.ndim) if a not in axes]
    order = kept + list(axes)
    rows = x.transpose(order).reshape([x.shape[a] for a in kept] + [-1])
    lead = rows.shape[:-1]
    flat = rows.reshape(-1, rows.shape[-1]).astype(float)
    codes, steps, lows = [], [], []
    for row in flat:
        low, high = row.min(), row.max()
        levels = np.linspace(low, high, 2**n_bits)
        between = (levels[1:] + levels[:-1]) / 2
        codes.append(np.searchsorted(between, row) if high > low else np.zeros(len(row)))
        steps.append((high - low) / (2**n_bits - 1))
        lows.append(low)
    shape = [x.shape[a] for a in order]
    codes = np.array(codes).astype(np.uint8).reshape(shape).transpose(np.argsort(order))
    small = [1 if a in axes else x.shape[a] for a in range(x.ndim)]
    assert np.prod(lead) == len(flat)
    return codes, np.reshape(steps, small), np.reshape(lows, small)
