"""functools.reduce over the arguments as they come in."""

from functools import reduce
from operator import mul


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return reduce(mul, locals().copy().values(), 2)
