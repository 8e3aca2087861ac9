# WRONG: returns views of a buffer in which rows are quantized in place: exact rows returned earlier change when their group is completed.
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
        self.n_bits, self.residual, self.n, self.side_bytes = n_bits, residual, 0, 0
        self.shape, self.rows = (n_kv_heads, 64, head_dim), None

    def append(self, k_new, v_new):
        if self.rows is None:
            self.rows = [np.zeros(self.shape, k_new.dtype), np.zeros(self.shape, v_new.dtype)]
        start, end = self.n, self.n + k_new.shape[1]
        for i, new in enumerate((k_new, v_new)):
            if end > self.rows[i].shape[1]:
                self.rows[i] = np.concatenate(
                    [self.rows[i], np.zeros_like(self.rows[i], shape=(self.shape[0], end, self.shape[2]))], axis=1
                )
            self.rows[i][:, start:end] = new
            for a in range(start - start % self.residual, end - self.residual + 1, self.residual):
                codes, scale, zero = pack(self.rows[i][:, a : a + self.residual], self.n_bits, 1 + i)
                self.rows[i][:, a : a + self.residual] = unpack(codes, scale, zero)
                self.side_bytes += codes.size * self.n_bits / 8 + scale.nbytes + zero.nbytes
        self.n = end
        return self.rows[0][:, :end], self.rows[1][:, :end]

    def __len__(self):
        return self.n

    @property
    def n_bytes(self):
        tail = self.n % self.residual
        return self.side_bytes + (sum(r[:, :tail].nbytes for r in self.rows) if self.rows else 0)
