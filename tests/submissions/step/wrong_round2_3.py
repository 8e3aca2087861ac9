"""head_dim is taken as d_model // n_heads: wrong when n_heads * head_dim is not d_model."""

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    n, d_model = x.shape
    d = d_model // n_heads

    def heads(w, count):
        return (x @ w)[:, : count * d].reshape(n, count, d).transpose(1, 0, 2)

    k, v = cache.append(heads(wk, n_kv_heads), heads(wv, n_kv_heads))
    return attention(heads(wq, n_heads), k, v).transpose(1, 0, 2).reshape(n, n_heads * d)
