"""Right answers to lesson 04's exercises that look unlike the references."""

import numpy as np


def check_multiple(n_heads, n_kv_heads):
    if n_kv_heads == 0 or n_heads % n_kv_heads != 0:
        raise ValueError(f"{n_heads} heads cannot share {n_kv_heads} KV heads")
    return n_heads // n_kv_heads


def repeat_by_indexing(x, n_heads):
    group = check_multiple(n_heads, x.shape[0])
    return x[np.arange(n_heads) // group]


def repeat_by_broadcast(x, n_heads):
    h, t, d = x.shape
    group = check_multiple(n_heads, h)
    return np.broadcast_to(x[:, None], (h, group, t, d)).reshape(n_heads, t, d)


def repeat_by_list(x, n_heads):
    group = check_multiple(n_heads, len(x))
    return np.array([head for head in x for _ in range(group)])


def weights(scores):
    n_new, n_total = scores.shape[-2:]
    hidden = np.arange(n_total) > np.arange(n_total - n_new, n_total)[:, None]
    scores = np.where(hidden, -np.inf, scores)
    scores = scores - scores.max(axis=-1, keepdims=True)
    e = np.exp(scores)
    return e / e.sum(axis=-1, keepdims=True)


def grouped_by_broadcast(q, k, v):
    h, t, d = q.shape
    g = k.shape[0]
    scores = q.reshape(g, h // g, t, d) @ k[:, None].swapaxes(-1, -2) * d**-0.5
    return (weights(scores) @ v[:, None]).reshape(h, t, d)


def grouped_by_einsum(q, k, v):
    h, t, d = q.shape
    grouped = q.reshape(len(k), h // len(k), t, d)
    scores = np.einsum("grtd,gsd->grts", grouped, k) / np.sqrt(d)
    return np.einsum("grts,gsd->grtd", weights(scores), v).reshape(h, t, d)


def grouped_by_loops(q, k, v):
    out = np.zeros(q.shape)
    group = len(q) // len(k)
    for h in range(len(q)):
        for t in range(q.shape[1]):
            seen = k.shape[1] - q.shape[1] + t + 1
            scores = k[h // group, :seen] @ q[h, t] / np.sqrt(q.shape[2])
            w = np.exp(scores - scores.max())
            out[h, t] = w @ v[h // group, :seen] / w.sum()
    return out


def pool_by_loops(w, n_heads, n_kv_heads):
    d, group = w.shape[1] // n_heads, n_heads // n_kv_heads
    columns = [w[:, h * d : (h + 1) * d] for h in range(n_heads)]
    return np.concatenate([sum(columns[g * group : (g + 1) * group]) / group for g in range(n_kv_heads)], axis=1)


def pool_by_matrix(w, n_heads, n_kv_heads):
    group = n_heads // n_kv_heads
    mix = np.kron(np.eye(n_kv_heads), np.full((group, 1), 1 / group))
    return w @ np.kron(mix, np.eye(w.shape[1] // n_heads))


def pool_by_einsum(w, n_heads, n_kv_heads):
    cut = w.reshape(w.shape[0], n_kv_heads, n_heads // n_kv_heads, -1)
    return np.einsum("mgrd->mgd", cut).reshape(w.shape[0], -1) / cut.shape[2]


ALTERNATIVES = {
    "repeat_kv": [repeat_by_indexing, repeat_by_broadcast, repeat_by_list],
    "grouped_attention": [grouped_by_broadcast, grouped_by_einsum, grouped_by_loops],
    "pool_kv_heads": [pool_by_loops, pool_by_matrix, pool_by_einsum],
}
