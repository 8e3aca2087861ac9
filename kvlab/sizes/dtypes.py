"""What one row of a cache takes in each storage format: plain numbers, and blocks that carry their scales with them."""

from typing import NamedTuple

from kvlab.shapes import expect_count


class Format(NamedTuple):
    """`values` numbers are stored together in `n_bytes` bytes; `bits` is what the format's name promises."""

    values: int
    n_bytes: int
    bits: int
    layout: str


_FLOAT = "no scales"
_BLOCK = "ggml block of 32 values with its scales"
FORMATS = {
    "f32": Format(1, 4, 32, _FLOAT),
    "f16": Format(1, 2, 16, _FLOAT),
    "bf16": Format(1, 2, 16, _FLOAT),
    "fp8": Format(1, 1, 8, "one scale for the whole tensor, not stored with the rows"),
    "q8_0": Format(32, 34, 8, _BLOCK),
    "q5_0": Format(32, 22, 5, _BLOCK),
    "q5_1": Format(32, 24, 5, _BLOCK),
    "q4_0": Format(32, 18, 4, _BLOCK),
    "q4_1": Format(32, 20, 4, _BLOCK),
    "iq4_nl": Format(32, 18, 4, _BLOCK),
    "mxfp8": Format(32, 33, 8, "OCP MX 1.0: 32 values and one 8-bit scale"),
    # FlashMLA's layout, vLLM's `fp8_ds_mla`: 512 bytes of fp8, four float32 scales, the rotated part in bf16.
    "fp8_ds_mla": Format(576, 656, 8, "512 fp8 values, 4 float32 scales, 64 bf16 values"),
}
_SAME = {
    **dict.fromkeys(("float32", "fp32"), "f32"),
    **dict.fromkeys(("float16", "fp16", "half"), "f16"),
    "bfloat16": "bf16",
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), "fp8"),
}
INDEX_KEY = Format(128, 132, 8, "128 fp8 values and one float32 scale")


def storage_format(name: str) -> Format:
    """The format called `name`, such as "f16" or "q8_0"; the names of torch's dtypes serve too.

    Raises:
        ValueError: no such format. "int8" and "int4" are none: where their scales lie differs between engines.

    >>> storage_format("q8_0").n_bytes
    34
    """
    found = FORMATS.get(name) or FORMATS.get(_SAME.get(name, ""))
    if found is None:
        raise ValueError(f"dtype {name!r} is not known, there are: {', '.join(FORMATS)}")
    return found


def row_bytes(name: str, n_heads: int, width: int, what: str = "head_dim") -> int:
    """Bytes of `n_heads` keys (or values) of `width` numbers each.

    Raises:
        ValueError: the width is no whole number of blocks; llama.cpp refuses to start then.

    >>> row_bytes("q8_0", 8, 128), row_bytes("f16", 8, 128)
    (1088, 2048)
    """
    found = storage_format(name)
    n_blocks, rest = divmod(expect_count("width", width), found.values)
    if rest:
        raise ValueError(f"dtype {name}: {found.values} values make a block, {what} {width} is no multiple of it")
    return n_heads * n_blocks * found.n_bytes
