"""How big the cache is: the formula, the fields of a config.json that go into it, and the memory it must share.

Every size is an exact number of bytes: ints and fractions, never a rounded float. `cache_bytes` and `bytes_per_token`
are the plain decoder's formula; `price` prices any model, `allocated_bytes` what an engine sets aside for it.
"""

from kvlab.sizes.allocate import Blocks, Cells, Policy, ReserveMax, allocated_bytes
from kvlab.sizes.dtypes import FORMATS
from kvlab.sizes.explain import explain
from kvlab.sizes.files import config_names, load_config
from kvlab.sizes.formula import Amount, cache_bytes, crossover_tokens, max_sequences
from kvlab.sizes.layers import Layers, read_layers
from kvlab.sizes.plain import BYTES_16_BIT, CacheShape, bytes_per_token, cache_shape
from kvlab.sizes.price import Fit, Price, fit, price, price_layers

__all__ = [
    "BYTES_16_BIT",
    "FORMATS",
    "Amount",
    "Blocks",
    "CacheShape",
    "Cells",
    "Fit",
    "Layers",
    "Policy",
    "Price",
    "ReserveMax",
    "allocated_bytes",
    "bytes_per_token",
    "cache_bytes",
    "cache_shape",
    "config_names",
    "crossover_tokens",
    "explain",
    "fit",
    "load_config",
    "max_sequences",
    "price",
    "price_layers",
    "read_layers",
]
