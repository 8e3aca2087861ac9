"""The formula of a plain cache, and what it leaves room for. Exact: ints and fractions, never a rounded float."""

import math
import numbers
from fractions import Fraction
from typing import Any

from kvlab.shapes import expect_count

Amount = int | float | Fraction


def cache_bytes(
    batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: Amount
) -> int:
    """Bytes that the keys and values of `batch` sequences of `seq_len` tokens take.

    2 x batch x seq_len x n_layers x n_kv_heads x head_dim x bytes_per_element; the 2 is for K and V.

    Args:
        batch: sequences, each with rows of its own; 0 is allowed.
        seq_len: tokens stored in each; 0 is allowed.
        n_layers: attention layers, each with a cache of its own.
        n_kv_heads: heads that are stored, not query heads.
        head_dim: numbers in one key; a value is as wide.
        bytes_per_element: 2 for fp16 and bf16, 1 for int8 and fp8, 0.5 for 4 bits. Scales of a quantized cache are
            not in it.

    Returns:
        Bytes; a last part of a byte counts as a whole one.

    Raises:
        ValueError: a count that is no whole number in its range, or bytes_per_element that is not above 0.

    >>> cache_bytes(batch=1, seq_len=8, n_layers=2, n_kv_heads=2, head_dim=8, bytes_per_element=2)
    1024
    >>> cache_bytes(1, 4096, 32, 8, 128, 2) / 2**30
    0.5
    """
    elements = 2 * expect_count("batch", batch) * expect_count("seq_len", seq_len)
    elements *= expect_count("n_layers", n_layers, 1) * expect_count("n_kv_heads", n_kv_heads, 1)
    elements *= expect_count("head_dim", head_dim, 1)
    return math.ceil(elements * exact_amount("bytes_per_element", bytes_per_element))


def crossover_tokens(weight_bytes: Amount, per_token: Amount, batch: int) -> int:
    """The smallest context per sequence, in tokens, at which the cache of the batch is larger than the weights.

    Equal is not larger: floor(weight_bytes / (per_token x batch)) + 1.

    Args:
        weight_bytes: of the model.
        per_token: cache bytes one token takes, as `bytes_per_token` gives it.
        batch: sequences that are cached at once, each at this context.

    Raises:
        ValueError: negative weights, a per_token that is not above 0, a batch below 1.

    >>> crossover_tokens(weight_bytes=1024, per_token=128, batch=1)
    9
    """
    per_context_token = exact_amount("per_token", per_token) * expect_count("batch", batch, 1)
    return exact_amount("weight_bytes", weight_bytes, zero=True) // per_context_token + 1


def max_sequences(memory_bytes: Amount, weight_bytes: Amount, per_token: Amount, seq_len: int) -> int:
    """Whole sequences of `seq_len` tokens whose cache fits beside the weights; 0 when not even the weights do.

    floor((memory_bytes - weight_bytes) / (per_token x seq_len)). Activations and what the runtime takes for itself are
    not in it: subtract them from memory_bytes first.

    Raises:
        ValueError: negative memory or weights, a per_token that is not above 0, a seq_len below 1.

    >>> max_sequences(memory_bytes=80 * 10**9, weight_bytes=16_060_522_496, per_token=131_072, seq_len=8192)
    59
    """
    per_sequence = exact_amount("per_token", per_token) * expect_count("seq_len", seq_len, 1)
    free = exact_amount("memory_bytes", memory_bytes, zero=True) - exact_amount("weight_bytes", weight_bytes, zero=True)
    return max(0, free // per_sequence)


def exact_amount(name: str, value: Any, zero: bool = False) -> Fraction:
    """The number as an exact fraction; ValueError unless it is finite and above 0 (or 0, where `zero` allows it)."""
    exact = None
    if isinstance(value, numbers.Rational) and not isinstance(value, bool):
        exact = Fraction(int(value.numerator), int(value.denominator))
    elif isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        exact = Fraction(*value.as_integer_ratio())  # type: ignore[attr-defined]
    if exact is None or exact < 0 or (exact == 0 and not zero):
        raise ValueError(f"{name}: expected a number {'of at least' if zero else 'above'} 0, got {value!r}")
    return exact
