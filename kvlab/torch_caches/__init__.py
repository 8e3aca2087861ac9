"""The caches of `kvlab.caches` in PyTorch, with a batch axis: update with new rows, get back the rows to attend to.

Tensors are (batch, n_kv_heads, tokens, head_dim), the layout that Hugging Face and scaled_dot_product_attention use.
`attendable(cache, k, v)` is the one call a model needs: it updates any of them and returns (k, v, mask).
"""

from kvlab.torch_caches.contiguous import ConcatCache, StaticCache, update_cache
from kvlab.torch_caches.paged import BlockPool, PagedCache
from kvlab.torch_caches.protocol import AXES, AnyRows, Attendable, Pair, Rows, TorchCache, attendable, visible
from kvlab.torch_caches.quantized import QuantizedCache, dequantize, quantize
from kvlab.torch_caches.windowed import RingCache, SinkCache

__all__ = [
    "AXES",
    "AnyRows",
    "Attendable",
    "BlockPool",
    "ConcatCache",
    "PagedCache",
    "Pair",
    "QuantizedCache",
    "RingCache",
    "Rows",
    "SinkCache",
    "StaticCache",
    "TorchCache",
    "attendable",
    "dequantize",
    "quantize",
    "update_cache",
    "visible",
]
