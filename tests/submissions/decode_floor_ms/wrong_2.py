"""The larger of the two reads, as if they went on at once."""


def decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s):
    return max(weight_bytes, kv_bytes) / bandwidth_bytes_per_s * 1000
