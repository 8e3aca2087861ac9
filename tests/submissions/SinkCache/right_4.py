import numpy as np


class _Ring:
    def __init__(self, window):
        self.window, self.n, self.k, self.v = window, 0, None, None

    def append(self, k_new, v_new):
        parts = ([self.k, k_new], [self.v, v_new]) if self.n else ([k_new], [v_new])
        k, v = (np.concatenate(p, axis=1) for p in parts)
        self.n += k_new.shape[1]
        cut = max(0, k.shape[1] - self.window + 1)
        self.k, self.v = np.array(k[:, cut:]), np.array(v[:, cut:])
        return k, v, np.arange(self.n - k.shape[1], self.n)


class SinkCache:
    # built on a ring: the sinks are held apart, those the ring still returns are left out
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self._ring, self._n_sinks, self._sinks = _Ring(window), n_sinks, None

    def append(self, k_new, v_new):
        old = self._sinks
        if old is None:
            old = (k_new[:, :0], v_new[:, :0])
        missing = self._n_sinks - old[0].shape[1]
        self._sinks = tuple(np.concatenate([s, x[:, :missing]], axis=1) for s, x in zip(old, (k_new, v_new)))
        k, v, positions = self._ring.append(k_new, v_new)
        first = positions[0] if len(positions) else self._ring.n
        lost = min(first, self._sinks[0].shape[1])
        return (
            np.concatenate([self._sinks[0][:, :lost], k], axis=1),
            np.concatenate([self._sinks[1][:, :lost], v], axis=1),
            np.concatenate([np.arange(lost), positions]),
        )

    def __len__(self):
        return self._ring.n
