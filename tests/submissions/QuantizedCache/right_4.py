import numpy as np


class QuantizedCache:
    # all full groups of a chunk in one go: (heads, groups, residual, head_dim); one big array of codes that grows
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        self.levels = {n: 2**n for n in range(2, 9)}.get(n_bits)
        if self.levels is None:
            raise ValueError(f"{n_bits} bits")
        self.bits, self.r = n_bits, residual
        self.k = self.v = None  # (codes, scale, zero, exact)

    def _grow(self, state, new, axis):
        if state is None:
            h, _, d = new.shape
            small = (h, 0, 1, d) if axis == 2 else (h, 0, self.r, 1)
            empty = np.zeros(small, new.dtype)
            state = np.zeros((h, 0, self.r, d), np.uint8), empty, empty, new[:, :0]
        codes, scale, zero, exact = state
        h, _, d = exact.shape
        rows = np.concatenate([exact, new.astype(exact.dtype)], axis=1)
        n = rows.shape[1] // self.r
        x = rows[:, : n * self.r].reshape(h, n, self.r, d)
        low = x.min(axis=axis, keepdims=True)
        step = np.ptp(x, axis=axis, keepdims=True) / x.dtype.type(self.levels - 1)
        c = np.divide(x - low, step, out=np.zeros_like(x), where=step > 0).round().astype(np.uint8)
        join = lambda a, b: np.concatenate([a, b], axis=1)
        return join(codes, c), join(scale, step), join(zero, low), rows[:, n * self.r :].copy()

    def _read(self, state):
        codes, scale, zero, exact = state
        h, _, d = exact.shape
        old = (codes * scale + zero).reshape(h, codes.shape[1] * self.r, d)
        return np.concatenate([old, exact], axis=1)

    def append(self, k_new, v_new):
        self.k, self.v = self._grow(self.k, k_new, 2), self._grow(self.v, v_new, 3)
        return self._read(self.k), self._read(self.v)

    def __len__(self):
        return 0 if self.k is None else self.k[0].shape[1] * self.r + self.k[3].shape[1]

    @property
    def n_bytes(self):
        if self.k is None:
            return 0
        return sum(c.size * self.bits / 8 + s.nbytes + z.nbytes + e.nbytes for c, s, z, e in (self.k, self.v))
