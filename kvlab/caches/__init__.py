"""The NumPy caches of the course, behind one protocol: append new rows, get back the rows that attention may read."""

from kvlab.caches.contiguous import ConcatCache, StaticCache
from kvlab.caches.paged import BlockPool, PagedCache
from kvlab.caches.prefix import PrefixIndex, block_keys
from kvlab.caches.protocol import Attendable, Cache, New, Stored, attendable
from kvlab.caches.quantized import QuantizedCache, dequantize, quantize
from kvlab.caches.windowed import RingCache, SinkCache

__all__ = [
    "Attendable",
    "BlockPool",
    "Cache",
    "ConcatCache",
    "New",
    "PagedCache",
    "PrefixIndex",
    "QuantizedCache",
    "RingCache",
    "SinkCache",
    "StaticCache",
    "Stored",
    "attendable",
    "block_keys",
    "dequantize",
    "quantize",
]
