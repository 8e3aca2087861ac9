"""Two reading times, added."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    read_weights = weight_bytes / bandwidth_bytes_per_s
    read_cache = kv_bytes / bandwidth_bytes_per_s
    return (read_weights + read_cache) * 1e3
