# all groups of a chunk at once by a reshape; float64 inside; codes in one array
import numpy as np


class Side:
    def __init__(self, like, n_bits, residual, axis):
        heads, _, dim = like.shape
        self.dtype, self.n_bits, self.residual, self.axis = like.dtype, n_bits, residual, axis
        self.tail = np.empty((heads, 0, dim), like.dtype)
        self.codes = np.empty((heads, 0, residual, dim), np.uint8)
        self.scale = self.zero = np.empty((heads, 0, 1 if axis == 2 else residual, dim if axis == 2 else 1), like.dtype)

    def append(self, new):
        rows = np.concatenate([self.tail, new], axis=1, dtype=self.dtype, casting="unsafe")
        heads, n, dim = rows.shape
        whole = n - n % self.residual
        x = rows[:, :whole].reshape(heads, whole // self.residual, self.residual, dim).astype(float)
        low, high = x.min(self.axis, keepdims=True), x.max(self.axis, keepdims=True)
        scale = (high - low) / (2**self.n_bits - 1)
        codes = np.rint(np.divide(x - low, scale, out=np.zeros_like(x), where=scale > 0))
        self.codes = np.concatenate([self.codes, codes.astype(np.uint8)], axis=1)
        self.scale = np.concatenate([self.scale, scale.astype(self.dtype)], axis=1)
        self.zero = np.concatenate([self.zero, low.astype(self.dtype)], axis=1)
        self.tail = rows[:, whole:].copy()
        back = self.codes.astype(self.dtype) * self.scale + self.zero
        return np.concatenate([back.reshape(heads, back.shape[1] * self.residual, dim), self.tail], axis=1)

    def n_bytes(self):
        return self.codes.size * self.n_bits / 8 + self.scale.nbytes + self.zero.nbytes + self.tail.nbytes


class QuantizedCache:
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        if n_bits not in range(2, 9):
            raise ValueError("n_bits")
        self.setting = n_bits, residual
        self.sides, self.n = None, 0

    def append(self, k_new, v_new):
        if self.sides is None:
            self.sides = Side(k_new, *self.setting, axis=2), Side(v_new, *self.setting, axis=3)
        self.n += k_new.shape[1]
        return self.sides[0].append(k_new), self.sides[1].append(v_new)

    def __len__(self):
        return self.n

    @property
    def n_bytes(self):
        return sum(side.n_bytes() for side in self.sides or ())
