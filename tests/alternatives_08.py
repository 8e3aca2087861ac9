"""Right answers to lesson 08's exercises that look unlike the references."""

from collections import deque

import numpy as np


def mask_by_two_triangles(n_new, n_total, window):
    past = n_total - n_new
    ones = np.ones((n_new, n_total), dtype=bool)
    return np.tril(ones, past) & ~np.tril(ones, past - window)


def mask_by_loops(n_new, n_total, window):
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        at = n_total - n_new + i
        mask[i, max(at - window + 1, 0) : at + 1] = True
    return mask


def mask_by_last_rows(n_new, n_total, window):
    at = np.arange(n_total)
    whole = (at <= at[:, None]) & (at > at[:, None] - window)
    return whole[n_total - n_new :]


class RingOfSlots:
    """Slots reused in turn, allocated once, written token by token."""

    def __init__(self, n_kv_heads, head_dim, window):
        self.k = np.zeros((n_kv_heads, window, head_dim))
        self.v = np.zeros((n_kv_heads, window, head_dim))
        self.window, self.seen = window, 0

    def append(self, k_new, v_new):
        n_new = k_new.shape[1]
        first = max(0, self.seen - self.window + 1)
        slots = [p % self.window for p in range(first, self.seen)]
        k = np.concatenate([self.k[:, slots], k_new], axis=1)
        v = np.concatenate([self.v[:, slots], v_new], axis=1)
        for i in range(n_new):
            self.k[:, self.seen % self.window] = k_new[:, i]
            self.v[:, self.seen % self.window] = v_new[:, i]
            self.seen += 1
        return k, v, np.arange(first, self.seen)

    def __len__(self):
        return self.seen


class RingByConcatenation:
    """Grows and cuts; keeps window - 1 rows, as views of the last answer's memory; answers with lists."""

    def __init__(self, n_kv_heads, head_dim, window):
        self.shape, self.window, self.count, self.rows = (n_kv_heads, 0, head_dim), window, 0, None

    def append(self, k_new, v_new):
        if self.rows is None:
            self.rows = [np.empty(self.shape, k_new.dtype), np.empty(self.shape, v_new.dtype)]
        k, v = (np.concatenate(pair, axis=1) for pair in zip(self.rows, (k_new, v_new), strict=True))
        self.count += k_new.shape[1]
        n_kept = min(self.window - 1, k.shape[1])
        self.rows = [k[:, k.shape[1] - n_kept :], v[:, v.shape[1] - n_kept :]]
        return [k, v, list(range(self.count - k.shape[1], self.count))]

    def __len__(self):
        return self.count


class RingOfTokens:
    """A deque with a limit, one entry a token."""

    def __init__(self, n_kv_heads, head_dim, window):
        self.nothing = np.zeros((n_kv_heads, 0, head_dim))
        self.held, self.n_seen = deque(maxlen=window), 0

    def append(self, k_new, v_new):
        held = list(self.held)[-(self.held.maxlen - 1) :] if self.held.maxlen > 1 else []
        for i in range(k_new.shape[1]):
            token = (self.n_seen, k_new[:, i : i + 1].copy(), v_new[:, i : i + 1].copy())
            held.append(token)
            self.held.append(token)
            self.n_seen += 1
        k = np.concatenate([self.nothing, *(key for _, key, _ in held)], axis=1)
        v = np.concatenate([self.nothing, *(value for _, _, value in held)], axis=1)
        return k, v, np.array([position for position, _, _ in held])

    def __len__(self):
        return self.n_seen


class SinksBesideARing:
    """A ring of any kind, and the sinks in arrays of their own."""

    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.ring = RingOfSlots(n_kv_heads, head_dim, window)
        self.n_sinks, self.window = n_sinks, window
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim))

    def append(self, k_new, v_new):
        missing = self.n_sinks - self.k.shape[1]
        k, v, positions = self.ring.append(k_new, v_new)
        first = len(self.ring) - len(positions) if len(positions) else max(len(self.ring) - self.window + 1, 0)
        away = min(self.k.shape[1], first)
        answer = (
            np.concatenate([self.k[:, :away], k], axis=1),
            np.concatenate([self.v[:, :away], v], axis=1),
            np.concatenate([np.arange(away), positions]),
        )
        self.k = np.concatenate([self.k, k_new[:, :missing]], axis=1)
        self.v = np.concatenate([self.v, v_new[:, :missing]], axis=1)
        return answer

    def __len__(self):
        return len(self.ring)


class SinksByPosition:
    """Rows in a dict by position; what is neither a sink nor near is deleted afterwards."""

    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.nothing = np.zeros((n_kv_heads, 0, head_dim))
        self.n_sinks, self.window, self.rows, self.n = n_sinks, window, {}, 0

    def append(self, k_new, v_new):
        first = self.n - self.window + 1
        shown = [p for p in self.rows if p < self.n_sinks or p >= first]
        for i in range(k_new.shape[1]):
            self.rows[self.n] = k_new[:, i : i + 1].copy(), v_new[:, i : i + 1].copy()
            shown.append(self.n)
            self.n += 1
        shown.sort()
        k = np.concatenate([self.nothing] + [self.rows[p][0] for p in shown], axis=1)
        v = np.concatenate([self.nothing] + [self.rows[p][1] for p in shown], axis=1)
        self.rows = {p: row for p, row in self.rows.items() if p < self.n_sinks or p >= self.n - self.window}
        return k, v, tuple(shown)

    def __len__(self):
        return self.n


class SinksByConcatenation:
    """Everything joined, then selected by position, once for the answer and once for what stays."""

    def __init__(self, n_kv_heads, head_dim, n_sinks, window):
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim), np.float32)
        self.at = np.zeros(0, dtype=np.int32)
        self.n_sinks, self.window = n_sinks, window
        self.total = 0

    def append(self, k_new, v_new):
        past, self.total = self.total, self.total + k_new.shape[1]
        at = np.append(self.at, np.arange(past, self.total, dtype=np.int32))
        k, v = np.concatenate([self.k, k_new], 1), np.concatenate([self.v, v_new], 1)
        seen = (at < self.n_sinks) | (at > past - self.window)
        stay = (at < self.n_sinks) | (at >= self.total - self.window)
        self.k, self.v, self.at = k[:, stay], v[:, stay], at[stay]
        return k[:, seen], v[:, seen], at[seen]

    def __len__(self):
        return self.total


ALTERNATIVES = {
    "window_mask": [mask_by_two_triangles, mask_by_loops, mask_by_last_rows],
    "RingCache": [RingOfSlots, RingByConcatenation, RingOfTokens],
    "SinkCache": [SinksBesideARing, SinksByPosition, SinksByConcatenation],
}
