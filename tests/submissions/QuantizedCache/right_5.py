import numpy as np


class _Group:
    def __init__(self, before, k, v, n_bits):
        self.before, self.n_bits = before, n_bits
        self.parts = [self._one(k, (1,)), self._one(v, (2,))]

    def _one(self, x, axis):
        if not 2 <= self.n_bits <= 8:
            raise ValueError("n_bits")
        zero, top = np.min(x, axis, keepdims=True), 2**self.n_bits - 1
        scale = ((np.max(x, axis, keepdims=True) - zero) / top).astype(x.dtype)
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = np.where(scale == 0, 0, np.rint((x - zero) / scale))
        return codes.astype(np.uint8), scale, zero

    def read(self, i):
        codes, scale, zero = self.parts[i]
        mine = (codes * scale + zero).astype(scale.dtype)
        return [mine] if self.before is None else self.before.read(i) + [mine]

    def size(self):
        mine = sum(c.size * self.n_bits / 8 + s.nbytes + z.nbytes for c, s, z in self.parts)
        return mine + (self.before.size() if self.before else 0)


class QuantizedCache:
    # a chain of groups; n_bits is refused when the first group is quantized; numpy int lengths
    def __init__(self, n_kv_heads, head_dim, n_bits, residual):
        self.n_bits, self.residual, self.n = int(n_bits), int(residual), 0
        self.last, self.open, self.dtype = None, [], None

    def append(self, k_new, v_new):
        if self.dtype is None:
            self.dtype = k_new.dtype
            self.empty = k_new[:, :0].copy()
        start, n_new = 0, k_new.shape[1]
        while start < n_new:
            held = self.n % self.residual
            stop = min(n_new, start + self.residual - held)
            self.open.append([np.array(x[:, start:stop], dtype=self.dtype) for x in (k_new, v_new)])
            self.n += stop - start
            start = stop
            if self.n % self.residual == 0:
                k, v = (np.concatenate([o[i] for o in self.open], axis=1) for i in (0, 1))
                self.last, self.open = _Group(self.last, k, v, self.n_bits), []
        out = []
        for i in (0, 1):
            old = self.last.read(i) if self.last else []
            out.append(np.concatenate([self.empty, *old, *(o[i] for o in self.open)], axis=1))
        return tuple(out)

    def __len__(self):
        return self.n

    @property
    def n_bytes(self):
        return (self.last.size() if self.last else 0) + sum(k.nbytes + v.nbytes for k, v in self.open)
