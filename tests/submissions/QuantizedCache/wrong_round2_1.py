# WRONG: a chunk that completes several groups has them quantized as one: their keys share one scale a channel (and n_bytes is too small); one group at a time is right.
import numpy as np


def pack(x, n_bits, axis):
    if not 2 <= n_bits <= 8:
        raise ValueError("n_bits must be 2 to 8")
    zero = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - zero) / x.dtype.type(2**n_bits - 1)
    scale[scale == 0] = 1
    return np.rint((x - zero) / scale).astype(np.uint8), scale, zero


def unpack(codes, scale, zero):
    return codes.astype(scale.dtype) * scale + zero


class QuantizedCache:
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        self.shape, self.n_bits, self.residual, self.n = (n_kv_heads, 0, head_dim), n_bits, residual, 0
        self.groups, self.tail = ([], []), None

    def append(self, k_new, v_new):
        if self.tail is None:
            self.tail = [np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)]
        self.n += k_new.shape[1]
        out = []
        for i, new in enumerate((k_new, v_new)):
            dtype = self.tail[i].dtype
            tail = np.concatenate([self.tail[i], new.astype(dtype)], axis=1)
            whole = tail.shape[1] - tail.shape[1] % self.residual
            if whole:
                self.groups[i].append(pack(tail[:, :whole], self.n_bits, 1 + i))
                tail = tail[:, whole:]
            self.tail[i] = tail.copy()
            out.append(np.concatenate([unpack(*g) for g in self.groups[i]] + [tail], axis=1))
        return tuple(out)

    def __len__(self):
        return self.n

    @property
    def n_bytes(self):
        groups = self.groups[0] + self.groups[1]
        bits = sum(codes.size for codes, _, _ in groups) * self.n_bits
        exact = sum(t.nbytes for t in self.tail) if self.tail else 0
        return bits / 8 + sum(s.nbytes + z.nbytes for _, s, z in groups) + exact
