"""Structural pattern matching on the dict."""


def bytes_per_token(config):
    match config:
        case {"head_dim": int(head_dim)}:
            pass
        case {"hidden_size": width, "num_attention_heads": heads}:
            head_dim = width // heads
    match config:
        case {"num_key_value_heads": int(kv_heads)}:
            pass
        case {"num_attention_heads": kv_heads}:
            pass
    return 4 * head_dim * kv_heads * config["num_hidden_layers"]
