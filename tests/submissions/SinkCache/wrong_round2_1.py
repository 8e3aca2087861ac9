# WRONG: the sinks are taken from the first chunk and completed by later ones, but an empty append before all sinks were seen ends the taking: the missing sinks are never kept (first append has n_new = 0).
import numpy as np


class SinkCache:
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.n, self.seen = n_sinks, window, 0
        empty = np.zeros((n_kv_heads, 0, head_dim), np.float32)
        self.sinks, self.recent = (empty, empty), (empty, empty)
        self.taking = True

    def append(self, k_new, v_new):
        n_new, n_old = k_new.shape[1], min(self.seen, self.n - 1)
        missing = self.n_sinks - self.seen if self.taking else 0
        self.taking = 0 < n_new < missing
        start = self.seen - n_old
        lead = min(self.sinks[0].shape[1], start)
        self.seen += n_new
        out = []
        for i, new in enumerate((k_new, v_new)):
            held = self.recent[i][:, self.recent[i].shape[1] - n_old :]
            out.append(np.concatenate([self.sinks[i][:, :lead], held, new], axis=1))
        self.sinks = tuple(np.concatenate([s, x[:, :missing]], axis=1) for s, x in zip(self.sinks, (k_new, v_new)))
        self.recent = tuple(x[:, max(lead, x.shape[1] - self.n) :].copy() for x in out)
        return out[0], out[1], np.r_[0:lead, start : self.seen]

    def __len__(self):
        return self.seen
