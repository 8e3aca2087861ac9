import numpy as np


class QuantizedCache:
    # the codes really packed to bits; groups in one list of dicts, exact rows in a list of tokens
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        if n_bits not in range(2, 9):
            raise ValueError("2 <= n_bits <= 8")
        self.shape, self.n_bits, self.residual = (n_kv_heads, residual, head_dim), n_bits, residual
        self.groups, self.rows, self.dtype = [], [], None

    def _pack(self, x, axis):
        zero, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
        scale = (high - zero) / self.dtype.type(2**self.n_bits - 1)
        safe = np.where(scale == 0, self.dtype.type(1), scale)
        codes = np.rint((x - zero) / safe).astype(np.uint8)
        bits = np.unpackbits(codes.reshape(-1, 1), axis=1)[:, 8 - self.n_bits :]
        return {"bits": np.packbits(bits), "scale": scale, "zero": zero}

    def _read(self, group):
        n = int(np.prod(self.shape))
        bits = np.unpackbits(group["bits"])[: n * self.n_bits].reshape(n, self.n_bits)
        codes = bits @ (1 << np.arange(self.n_bits)[::-1])
        return codes.reshape(self.shape).astype(self.dtype) * group["scale"] + group["zero"]

    def append(self, k_new, v_new):
        self.dtype = self.dtype or k_new.dtype
        for t in range(k_new.shape[1]):
            self.rows.append(np.stack([k_new[:, t], v_new[:, t]]).astype(self.dtype))
            if len(self.rows) == self.residual:
                k, v = np.stack(self.rows, axis=2)
                self.groups.append((self._pack(k, 1), self._pack(v, 2)))
                self.rows = []
        out = []
        for i in (0, 1):
            parts = [self._read(g[i]) for g in self.groups] + [r[i][:, None] for r in self.rows]
            empty = np.empty((self.shape[0], 0, self.shape[2]), self.dtype)
            out.append(np.concatenate([empty] + parts, axis=1))
        return out[0], out[1]

    def __len__(self):
        return self.residual * len(self.groups) + len(self.rows)

    @property
    def n_bytes(self):
        n = 0
        for pair in self.groups:
            for g in pair:
                n += int(np.prod(self.shape)) * self.n_bits / 8 + g["scale"].nbytes + g["zero"].nbytes
        return n + sum(r.nbytes for r in self.rows)
