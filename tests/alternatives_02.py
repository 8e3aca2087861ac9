"""Right answers to lesson 02's exercises that look unlike the references."""

import numpy as np

from kvlab.attention import attention, merge_heads, split_heads


class ListCache:
    """One array a chunk, joined on each read."""

    def __init__(self, n_kv_heads, head_dim):
        self.n_kv_heads, self.head_dim = n_kv_heads, head_dim
        self.chunks = []

    def append(self, k_new, v_new):
        self.chunks.append((np.array(k_new), np.array(v_new)))
        return tuple(np.concatenate(parts, axis=1) for parts in zip(*self.chunks, strict=True))

    def __len__(self):
        return sum(k.shape[1] for k, _ in self.chunks)


class DoublingCache:
    """A buffer that doubles when it is full; returns views of the filled part, whose rows are never written again."""

    def __init__(self, n_kv_heads, head_dim):
        self.n_kv_heads, self.head_dim = n_kv_heads, head_dim
        self.kv = None
        self.n = 0

    def append(self, k_new, v_new):
        if self.kv is None:
            self.kv = np.empty((2, self.n_kv_heads, 1, self.head_dim), dtype=k_new.dtype)
        while self.n + k_new.shape[1] > self.kv.shape[2]:
            self.kv = np.concatenate([self.kv, np.empty_like(self.kv)], axis=2)
        self.kv[0, :, self.n : self.n + k_new.shape[1]] = k_new
        self.kv[1, :, self.n : self.n + k_new.shape[1]] = v_new
        self.n += k_new.shape[1]
        return [self.kv[0, :, : self.n], self.kv[1, :, : self.n]]

    def __len__(self):
        return self.n


class RowsCache:
    """A Python list of rows a head."""

    def __init__(self, n_kv_heads, head_dim):
        self.k, self.v, self.head_dim, self.dtype = (
            [[] for _ in range(n_kv_heads)],
            [[] for _ in range(n_kv_heads)],
            head_dim,
            None,
        )

    def append(self, k_new, v_new):
        self.dtype = self.dtype or k_new.dtype
        for rows, new in ((self.k, k_new), (self.v, v_new)):
            for h, head in enumerate(new):
                rows[h].extend(row.copy() for row in head)
        return self.array(self.k), self.array(self.v)

    def array(self, rows):
        return np.array(rows, dtype=self.dtype).reshape(len(rows), len(self), self.head_dim)

    def __len__(self):
        return len(self.k[0])


def step_by_einsum(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    def project(w, n):
        return np.einsum("td,dhc->htc", x, w.reshape(w.shape[0], n, -1))

    out = attention(project(wq, n_heads), *cache.append(project(wk, n_kv_heads), project(wv, n_kv_heads)))
    return np.einsum("htc->thc", out).reshape(len(x), -1) if len(x) else np.zeros((0, wq.shape[1]))


def step_with_fused_weights(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    fused = x @ np.concatenate([wq, wk, wv], axis=1)
    q, k, v = np.split(fused, [wq.shape[1], wq.shape[1] + wk.shape[1]], axis=1)
    k, v = cache.append(split_heads(k, n_kv_heads), split_heads(v, n_kv_heads))
    return merge_heads(attention(split_heads(q, n_heads), k, v))


def step_token_by_token(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    rows = []
    for token in x:
        q, k, v = (np.dot(token, w).reshape(n, 1, -1) for w, n in ((wq, n_heads), (wk, n_kv_heads), (wv, n_kv_heads)))
        rows.append(attention(q, *cache.append(k, v)).ravel())
    return np.array(rows).reshape(len(x), wq.shape[1])


def step_head_by_head(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    d = wq.shape[1] // n_heads
    k = np.stack([x @ wk[:, g * d : (g + 1) * d] for g in range(n_kv_heads)])
    v = np.stack([x @ wv[:, g * d : (g + 1) * d] for g in range(n_kv_heads)])
    k, v = cache.append(k, v)
    heads = []
    for h in range(n_heads):
        g = h // (n_heads // n_kv_heads)
        q = x @ wq[:, h * d : (h + 1) * d]
        heads.append(attention(q[None], k[g : g + 1], v[g : g + 1])[0])
    return np.concatenate(heads, axis=1)


def projections_by_sum(n):
    return sum(range(1, n + 1)), n


def projections_as_numpy(n):
    return np.arange(n + 1, dtype=np.int64).sum(), np.int64(n)


def projections_as_list(n):
    without = 0
    for t in range(1, n + 1):
        without += t
    return [without, n]


def scores_by_sum(n):
    return sum(t * t for t in range(n + 1)), sum(range(n + 1))


def scores_by_another_formula(n):
    return (2 * n**3 + 3 * n**2 + n) // 6, (n * n + n) // 2


def scores_from_binomials(n):
    pairs = n * (n + 1) // 2
    return pairs * (2 * n + 1) // 3, pairs


ALTERNATIVES = {
    "KVCache": [ListCache, DoublingCache, RowsCache],
    "step": [step_by_einsum, step_with_fused_weights, step_token_by_token, step_head_by_head],
    "projection_counts": [projections_by_sum, projections_as_numpy, projections_as_list],
    "score_counts": [scores_by_sum, scores_by_another_formula, scores_from_binomials],
}
