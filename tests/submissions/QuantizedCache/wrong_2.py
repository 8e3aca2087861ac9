# A chunk that completes two or more groups is quantized as one large group: keys share a scale over all of it, so the result depends on the chunks.
import numpy as np


def _quantize(x, n_bits, axis):
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / x.dtype.type(2**n_bits - 1)
    codes = np.rint((x - zero) / np.where(scale == 0, x.dtype.type(1), scale))
    return codes.astype(np.uint8), scale, zero


class QuantizedCache:
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        if not 2 <= n_bits <= 8:
            raise ValueError("n_bits must be 2 to 8")
        self.n_bits, self.residual, self.groups, self.rest = n_bits, residual, [], None

    def append(self, k_new, v_new):
        new = [k_new, v_new]
        if self.rest is None:
            self.rest = [x[:, :0].copy() for x in new]
        rest = [np.concatenate([r, x.astype(r.dtype)], axis=1) for r, x in zip(self.rest, new)]
        while rest[0].shape[1] >= self.residual:
            full = rest[0].shape[1] // self.residual * self.residual
            group = [r[:, :full] for r in rest]
            self.groups.append((_quantize(group[0], self.n_bits, 1), _quantize(group[1], self.n_bits, 2)))
            rest = [r[:, full:] for r in rest]
        self.rest = [r.copy() for r in rest]
        out = []
        for i in (0, 1):
            parts = [g[i][0] * g[i][1] + g[i][2] for g in self.groups]
            out.append(np.concatenate(parts + [self.rest[i]], axis=1))
        return tuple(out)

    def __len__(self):
        rows = 0 if self.rest is None else self.rest[0].shape[1]
        return sum(g[0][0].shape[1] for g in self.groups) + rows

    @property
    def n_bytes(self):
        total = 0 if self.rest is None else sum(r.nbytes for r in self.rest)
        for group in self.groups:
            for codes, scale, zero in group:
                total += codes.size * self.n_bits / 8 + scale.nbytes + zero.nbytes
        return total
