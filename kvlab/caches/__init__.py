"""The NumPy caches of the course, behind one protocol: append new rows, get back the rows that attention may read."""

from kvlab.caches.contiguous import ConcatCache, StaticCache
from kvlab.caches.protocol import Attendable, Cache, New, Stored, attendable

__all__ = ["Attendable", "Cache", "ConcatCache", "New", "StaticCache", "Stored", "attendable"]
