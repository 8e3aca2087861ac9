"""Widgets that draw a run's own numbers, each with a static twin that stands in for it where no kernel runs.

A class is loaded when it is first asked for, so that `import kvlab.widgets` stays quick and needs no anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.widgets.block_table import BlockTable
    from kvlab.widgets.cache_growth import CacheGrowth
    from kvlab.widgets.head_map import HeadMap
    from kvlab.widgets.mask_diagram import MaskDiagram
    from kvlab.widgets.memory_explorer import MemoryExplorer
    from kvlab.widgets.position_drift import PositionDrift
    from kvlab.widgets.roofline_explorer import RooflineExplorer

__all__ = ["BlockTable", "CacheGrowth", "HeadMap", "MaskDiagram", "MemoryExplorer", "PositionDrift", "RooflineExplorer"]

_MODULES = {
    "BlockTable": "block_table",
    "CacheGrowth": "cache_growth",
    "HeadMap": "head_map",
    "MaskDiagram": "mask_diagram",
    "MemoryExplorer": "memory_explorer",
    "PositionDrift": "position_drift",
    "RooflineExplorer": "roofline_explorer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kvlab.widgets' has no attribute {name!r}")
    return getattr(import_module(f"kvlab.widgets.{_MODULES[name]}"), name)
