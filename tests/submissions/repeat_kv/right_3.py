"""Unusual: fancy indexing with a list of head numbers; its own subclass of ValueError."""


class HeadsDoNotDivide(ValueError):
    pass


def repeat_kv(x, n_heads):
    n_kv_heads = len(x)
    if n_heads % n_kv_heads:
        raise HeadsDoNotDivide(f"n_heads={n_heads}, n_kv_heads={n_kv_heads}")
    return x[[h // (n_heads // n_kv_heads) for h in range(n_heads)]]
