"""Takes the larger of the two reads instead of their sum: close when one dominates."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return max(weight_bytes, kv_bytes) / bandwidth_bytes_per_s * 1e3
