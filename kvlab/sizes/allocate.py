"""What an engine allocates for a cache: never less than it needs."""

from dataclasses import dataclass

from kvlab.shapes import expect_count
from kvlab.sizes.kinds import CROSS
from kvlab.sizes.price import Price, Row


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` tokens, as vLLM hands them out; a window may straddle one block more than it fills."""

    size: int = 16

    def tokens(self, need: Price, row: Row) -> int:
        size = expect_count("size", self.size, 1)
        n_blocks = -(-need.tokens // size)
        if row.group.holds is not None:
            n_blocks = min(n_blocks, -(-(row.group.holds - 1) // size) + 1)
        return n_blocks * size


@dataclass(frozen=True)
class Cells:
    """llama.cpp's cells: the context padded to a multiple of `multiple`, and a window by the micro-batch too."""

    multiple: int = 256
    micro_batch: int = 512

    def tokens(self, need: Price, row: Row) -> int:
        multiple = expect_count("multiple", self.multiple, 1)
        padded = -(-need.tokens // multiple) * multiple
        if row.group.holds is None:
            return padded
        wanted = row.group.holds + expect_count("micro_batch", self.micro_batch)
        return min(padded, -(-wanted // multiple) * multiple)


@dataclass(frozen=True)
class ReserveMax:
    """Every sequence gets `max_len` tokens at once, whatever it will use; a window no more than its size."""

    max_len: int

    def tokens(self, need: Price, row: Row) -> int:
        if need.tokens > expect_count("max_len", self.max_len, 1):
            raise ValueError(f"max_len: {self.max_len} tokens are reserved, the sequences have {need.tokens}")
        return row.held(self.max_len)


Policy = Blocks | Cells | ReserveMax


def allocated_bytes(need: Price, policy: Policy) -> int:
    """Bytes of keys and values that an engine sets aside for what `need` asks; recurrent states are not in it.

    Args:
        need: a priced cache.
        policy: `Blocks` (vLLM), `Cells` (llama.cpp) or `ReserveMax`.

    Raises:
        ValueError: a policy's number out of range, or sequences longer than what is reserved.

    >>> from kvlab.sizes import Blocks, Cells, ReserveMax, load_config, price
    >>> need = price(load_config("llama-3.1-8b"), tokens=100)
    >>> [allocated_bytes(need, p) // 131072 for p in (Blocks(16), Cells(), ReserveMax(8192))]
    [112, 256, 8192]
    """
    total = 0
    for row in need.rows:
        held = row.tokens if row.group.kind == CROSS else policy.tokens(need, row)
        total += row.group.n_layers * row.row_bytes * held
    return need.sequences * total
