# WRONG: sinks are copied aside after the eviction: when the chunk that completes them also makes the text longer than the window, the wrong rows are kept (e.g. a first chunk longer than the window).
import numpy as np


class SinkCache:
    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.n_sinks, self.n, self.seen = n_sinks, window, 0
        empty = np.zeros((n_kv_heads, 0, head_dim), np.float32)
        self.sinks, self.recent = (empty, empty), (empty, empty)

    def append(self, k_new, v_new):
        n_new, n_old = k_new.shape[1], min(self.seen, self.n - 1)
        missing = max(0, self.n_sinks - self.seen)
        start = self.seen - n_old
        lead = min(self.n_sinks, start)
        self.seen += n_new
        out = []
        for i, new in enumerate((k_new, v_new)):
            held = self.recent[i][:, self.recent[i].shape[1] - n_old :]
            out.append(np.concatenate([self.sinks[i][:, :lead], held, new], axis=1))
        self.recent = tuple(x[:, max(lead, x.shape[1] - self.n) :].copy() for x in out)
        if missing:
            sat = self.sinks[0].shape[1]
            skip = min(sat, self.recent[0].shape[1])
            self.sinks = tuple(
                np.concatenate([s, x[:, skip : skip + min(missing, n_new)]], axis=1)
                for s, x in zip(self.sinks, self.recent)
            )
        return out[0], out[1], np.r_[0:lead, start : self.seen]

    def __len__(self):
        return self.seen
