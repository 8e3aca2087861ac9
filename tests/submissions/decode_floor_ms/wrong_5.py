"""Takes a thousand for 1,024."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return (weight_bytes + kv_bytes) / bandwidth_bytes_per_s * 1024
