"""Widgets that draw a run's own numbers, each with a static twin that stands in for it where no kernel runs.

A class is loaded when it is first asked for, so that `import kvlab.widgets` stays quick and needs no anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.widgets.cache_growth import CacheGrowth
    from kvlab.widgets.mask_diagram import MaskDiagram

__all__ = ["CacheGrowth", "MaskDiagram"]

_MODULES = {"CacheGrowth": "cache_growth", "MaskDiagram": "mask_diagram"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kvlab.widgets' has no attribute {name!r}")
    return getattr(import_module(f"kvlab.widgets.{_MODULES[name]}"), name)
