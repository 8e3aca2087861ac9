import numpy as np


class QuantizedCache:
    # token by token into a buffer of `residual` rows; arithmetic in float64, scales kept in the cache's dtype
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        if n_bits < 2 or n_bits > 8:
            raise ValueError(n_bits)
        self.h, self.d, self.bits, self.r = n_kv_heads, head_dim, n_bits, residual
        self.buffer, self.used, self.packs, self.dtype = None, 0, [], None

    def _pack(self, x, axis):
        wide = x.astype(np.float64)
        zero = wide.min(axis, keepdims=True)
        step = (wide.max(axis, keepdims=True) - zero) / (2**self.bits - 1)
        codes = np.floor((wide - zero) / np.where(step > 0, step, 1) + 0.5).astype(np.uint8)
        return codes, step.astype(self.dtype), zero.astype(self.dtype)

    def append(self, k_new, v_new):
        if self.dtype is None:
            self.dtype = k_new.dtype
            self.buffer = np.zeros((2, self.h, self.r, self.d), self.dtype)
        for t in range(k_new.shape[1]):
            self.buffer[0, :, self.used] = k_new[:, t]
            self.buffer[1, :, self.used] = v_new[:, t]
            self.used += 1
            if self.used == self.r:
                self.packs.append(self._pack(self.buffer[0], 1) + self._pack(self.buffer[1], 2))
                self.used = 0
        out = np.empty((2, self.h, len(self), self.d), self.dtype)
        for g, (kc, ks, kz, vc, vs, vz) in enumerate(self.packs):
            here = slice(g * self.r, (g + 1) * self.r)
            out[0, :, here], out[1, :, here] = kc * ks + kz, vc * vs + vz
        out[:, :, len(self) - self.used :] = self.buffer[:, :, : self.used]
        return out[0], out[1]

    def __len__(self):
        return len(self.packs) * self.r + self.used

    @property
    def n_bytes(self):
        if self.dtype is None:
            return 0
        one = self.dtype.itemsize
        numbers = 2 * self.h * self.r * self.d
        scales = 2 * self.h * (self.d + self.r)  # a scale and a zero each
        return len(self.packs) * (numbers * self.bits / 8 + scales * one) + 2 * self.h * self.used * self.d * one
