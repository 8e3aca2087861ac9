"""Caches that are broken on purpose, each in one way that has been met: what the contract must refuse.

`FAULTS` maps a name to (the form whose place it takes, the class).
"""

import numpy as np
import torch

from kvlab import caches, torch_caches
from kvlab.caches import quantized

FAULTS: dict[str, tuple[str, type]] = {}


def fault(form: str, says: str):
    def keep(cls: type) -> type:
        FAULTS[f"{form}: {says}"] = (form, cls)
        return cls

    return keep


# Contiguous


@fault("numpy concat", "drops the first token, its empty branch returning early")
class DropsFirst(caches.ConcatCache):
    def append(self, k_new, v_new):
        if self._k is None and k_new.shape[1]:
            super().append(k_new[:, :0], v_new[:, :0])
            return k_new, v_new
        return super().append(k_new, v_new)


@fault("numpy concat", "puts the new rows in front")
class NewestFirst(caches.ConcatCache):
    def append(self, k_new, v_new):
        old = (self._k, self._v) if self._k is not None else (k_new[:, :0], v_new[:, :0])
        self._k, self._v = (np.concatenate([new, x], axis=1) for new, x in zip((k_new, v_new), old, strict=True))
        return self._k, self._v


@fault("numpy concat", "returns what came before the new tokens")
class ReadsBeforeAppend(caches.ConcatCache):
    def append(self, k_new, v_new):
        before = (self._k, self._v) if self._k is not None else (k_new[:, :0], v_new[:, :0])
        super().append(k_new, v_new)
        return before


@fault("numpy concat", "keeps the caller's own array")
class KeepsCallersArray(caches.ConcatCache):
    def append(self, k_new, v_new):
        if self._k is None:
            self._k, self._v = k_new, v_new
            return k_new, v_new
        return super().append(k_new, v_new)


@fault("numpy concat", "scales its input in place")
class ChangesInput(caches.ConcatCache):
    def append(self, k_new, v_new):
        k, v = super().append(k_new, v_new)
        k_new *= 0.5
        return k, v


@fault("numpy concat", "stores values of the dtype it prefers")
class OwnDtype(caches.ConcatCache):
    def append(self, k_new, v_new):
        return super().append(k_new.astype(np.float32), v_new.astype(np.float32))


@fault("numpy concat", "does nothing at a reset")
class NeverResets(caches.ConcatCache):
    def reset(self):
        pass


@fault("numpy concat", "counts keys and forgets the values' bytes")
class HalfTheBytes(caches.ConcatCache):
    @property
    def n_bytes(self):
        return 0 if self._k is None else self._k.nbytes


@fault("numpy static", "wraps past its capacity")
class Wraps(caches.StaticCache):
    def append(self, k_new, v_new):
        if self._length + k_new.shape[1] > self.max_len:
            self._length = 0
        return super().append(k_new[:, : self.max_len], v_new[:, : self.max_len])


@fault("numpy static", "cuts off what does not fit")
class Truncates(caches.StaticCache):
    def append(self, k_new, v_new):
        room = self.max_len - self._length
        return super().append(k_new[:, :room], v_new[:, :room])


@fault("numpy static", "refuses one token too early")
class RefusesLastSlot(caches.StaticCache):
    def append(self, k_new, v_new):
        if self._length + k_new.shape[1] >= self.max_len:
            raise ValueError("cache full")
        return super().append(k_new, v_new)


@fault("numpy static", "writes what fits, then refuses")
class WritesThenRefuses(caches.StaticCache):
    def append(self, k_new, v_new):
        room = self.max_len - self._length
        if k_new.shape[1] > room:
            super().append(k_new[:, :room], v_new[:, :room])
            raise ValueError("cache full")
        return super().append(k_new, v_new)


@fault("numpy static", "hands out unwritten slots")
class AllSlots(caches.StaticCache):
    def append(self, k_new, v_new):
        super().append(k_new, v_new)
        return self._k, self._v


@fault("numpy static", "clears the rows at a reset and leaves the length")
class ResetLeavesLength(caches.StaticCache):
    def reset(self):
        self._k[:] = self._v[:] = 0


@fault("numpy static", "allocates as it goes")
class GrowsStorage(caches.StaticCache):
    @property
    def n_bytes(self):
        return self._k[:, : self._length].nbytes + self._v[:, : self._length].nbytes


# Windows


def rows_held(cache: caches.RingCache, positions: np.ndarray):
    slots = cache._slots(positions)
    return cache._k[:, slots], cache._v[:, slots], positions


@fault("numpy ring", "evicts before the chunk has attended")
class EvictsFirst(caches.RingCache):
    def append(self, k_new, v_new):
        super().append(k_new, v_new)
        return rows_held(self, self._kept(len(self), self.window))


@fault("numpy ring", "hands out slots in slot order, with positions in time order")
class SlotOrder(caches.RingCache):
    def append(self, k_new, v_new):
        k, v, positions = super().append(k_new, v_new)
        order = np.argsort(positions % self.window, kind="stable")
        return k[:, order], v[:, order], positions


@fault("numpy ring", "lets a query see one token too many")
class WindowPlusOne(caches.RingCache):
    def __init__(self, n_kv_heads, head_dim, window):
        super().__init__(n_kv_heads, head_dim, window + 1)


@fault("numpy ring", "lets a query see one token too few")
class WindowMinusOne(caches.RingCache):
    def append(self, k_new, v_new):
        k, v, positions = super().append(k_new, v_new)
        keep = positions > len(self) - k_new.shape[1] - self.window + 1
        return k[:, keep], v[:, keep], positions[keep]


@fault("numpy ring", "has one counter for tokens seen and rows held")
class OneCounter(caches.RingCache):
    def __len__(self):
        return self.n_rows


@fault("numpy ring", "never evicts")
class NeverEvicts(caches.RingCache):
    def append(self, k_new, v_new):
        self._all = [*getattr(self, "_all", []), k_new.copy(), v_new.copy()]
        return super().append(k_new, v_new)

    @property
    def n_bytes(self):
        return sum(x.nbytes for x in getattr(self, "_all", []))


@fault("numpy ring", "starts the ring anew at every chunk")
class ChunkInSlotZero(caches.RingCache):
    def append(self, k_new, v_new):
        answer = super().append(k_new, v_new)
        m = min(k_new.shape[1], self.window)
        self._k[:, :m], self._v[:, :m] = k_new[:, k_new.shape[1] - m :], v_new[:, v_new.shape[1] - m :]
        return answer


@fault("numpy ring", "forgets the window when one token comes")
class ForgetsWindowInDecode(caches.RingCache):
    def append(self, k_new, v_new):
        k, v, positions = super().append(k_new, v_new)
        return (k, v) if k_new.shape[1] == 1 else (k, v, positions)


@fault("numpy ring", "forgets the rows and keeps the position at a reset")
class RingResetKeepsPosition(caches.RingCache):
    def reset(self):
        self._k = self._v = None


@fault("numpy sink", "evicts its sinks")
class EvictsSinks(caches.SinkCache):
    def _kept(self, n_seen, n_last):
        return np.arange(max(n_seen - n_last, 0), n_seen)


@fault("numpy sink", "counts the sinks as a part of the window")
class SinksInsideWindow(caches.SinkCache):
    def _kept(self, n_seen, n_last):
        return super()._kept(n_seen, max(n_last - self.n_sinks, 0))


@fault("numpy sink", "hands a sink out twice while it is in the window")
class SinksTwice(caches.SinkCache):
    def append(self, k_new, v_new):
        n_past = len(self)
        k, v, positions = super().append(k_new, v_new)
        if not 0 < n_past < self.window:
            return k, v, positions
        again = min(self.n_sinks, n_past)
        return *(np.concatenate([x[:, :again], x], axis=1) for x in (k, v)), np.r_[positions[:again], positions]


@fault("numpy sink", "numbers the rows it holds from 0")
class RenumbersRows(caches.SinkCache):
    def append(self, k_new, v_new):
        k, v, positions = super().append(k_new, v_new)
        return k, v, np.arange(len(positions))


# Pages


@fault("numpy paged", "forgets to copy on write")
class WritesSharedBlock(caches.PagedCache):
    def _reserve(self, n_new):
        n_more = -(-(self._length + n_new) // self.pool.block_size) - len(self.block_table)
        if n_more > self.pool.n_free:
            raise MemoryError("pool empty")
        self.block_table += [self.pool.allocate() for _ in range(n_more)]


@fault("numpy paged", "copies on write and keeps hold of the old block")
class LeaksCopiedBlock(caches.PagedCache):
    def _reserve(self, n_new):
        old = self.block_table[-1] if self.block_table else None
        super()._reserve(n_new)
        if old is not None and old not in self.block_table:
            self.pool.retain(old)


@fault("numpy paged", "copies a shared block without its rows")
class CopiesNothing(caches.PagedCache):
    def _reserve(self, n_new):
        old = list(self.block_table)
        super()._reserve(n_new)
        if old and old[-1] != self.block_table[len(old) - 1]:
            self.pool.k[self.block_table[len(old) - 1]] = 0


@fault("numpy paged", "shares blocks without counting itself")
class ForksUncounted(caches.PagedCache):
    def fork(self, name=None):
        other = type(self)(self.pool)
        other.block_table, other._length = list(self.block_table), self._length
        return other


@fault("numpy paged", "shares the table itself")
class ForksTable(caches.PagedCache):
    def fork(self, name=None):
        other = super().fork(name)
        other.block_table = self.block_table
        return other


@fault("numpy paged", "takes blocks, then finds that there are too few")
class TakesThenRefuses(caches.PagedCache):
    def _reserve(self, n_new):
        try:
            super()._reserve(n_new)
        except MemoryError:
            while self.pool.n_free:
                self.block_table.append(self.pool.allocate())
            raise


@fault("numpy paged", "takes a block one token early")
class BlockEarly(caches.PagedCache):
    def append(self, k_new, v_new):
        super().append(k_new, v_new)
        full = self._length and self._length % self.pool.block_size == 0
        if full and len(self.block_table) * self.pool.block_size == self._length and self.pool.n_free:
            self.block_table.append(self.pool.allocate())


@fault("numpy paged", "gathers blocks by number, not in table order")
class BlocksByNumber(caches.PagedCache):
    def gather(self):
        table, self.block_table = self.block_table, sorted(self.block_table)
        rows = super().gather()
        self.block_table = table
        return rows


@fault("numpy paged", "frees a block that a fork still holds")
class FreesForAll(caches.PagedCache):
    def free(self):
        for block in self.block_table:
            for _ in range(self.pool.count(block)):
                self.pool.release(block)
        self.block_table, self._length = [], 0


@fault("numpy paged", "keeps its blocks at a reset")
class KeepsBlocks(caches.PagedCache):
    def reset(self):
        self.block_table, self._length = [], 0


# Quantized


@fault("numpy quantized", "forgets the zero point")
class NoZeroPoint(caches.QuantizedCache):
    def _quantize(self, rows, axis):
        packed, scale, zero = super()._quantize(rows, axis)
        return quantized.Group(packed, scale, np.zeros_like(zero))


@fault("numpy quantized", "scales keys by token and values by channel")
class AxesSwapped(caches.QuantizedCache):
    def append(self, k_new, v_new):
        v, k = super().append(v_new, k_new)
        return k, v


@fault("numpy quantized", "has one scale for the whole group")
class OneScale(caches.QuantizedCache):
    def _quantize(self, rows, axis):
        codes, scale, zero = quantized.quantize(rows, self.n_bits, None)
        shape = list(rows.shape)
        shape[axis] = 1
        packed = quantized.pack(codes.reshape(self.n_kv_heads, -1), self.n_bits)
        return quantized.Group(packed, *(np.broadcast_to(x, shape).copy() for x in (scale, zero)))


@fault("numpy quantized", "rounds down")
class RoundsDown(caches.QuantizedCache):
    def _quantize(self, rows, axis):
        packed, scale, zero = super()._quantize(rows, axis)
        return quantized.Group(packed, scale, zero - scale / 2)


@fault("numpy quantized", "uses one bit less than it says")
class OneBitLess(caches.QuantizedCache):
    def _quantize(self, rows, axis):
        codes, scale, zero = quantized.quantize(rows, max(self.n_bits - 1, 2), axis)
        scale = scale if self.n_bits > 2 else scale * 2
        return quantized.Group(quantized.pack(codes.reshape(self.n_kv_heads, -1), self.n_bits), scale, zero)


@fault("numpy quantized", "quantizes the newest rows too")
class NothingExact(caches.QuantizedCache):
    def append(self, k_new, v_new):
        rows = []
        n = (len(self) + k_new.shape[1]) // self.residual * self.residual
        for x, axis in zip(super().append(k_new, v_new), (1, 2), strict=True):
            x = x.copy()
            if x.shape[1] > n:
                x[:, n:] = quantized.dequantize(*quantized.quantize(x[:, n:], self.n_bits, axis))
            rows.append(x)
        return tuple(rows)


@fault("numpy quantized", "leaves the scales out of its bytes")
class BytesWithoutScales(caches.QuantizedCache):
    @property
    def n_bytes(self):
        groups = [g for groups in (self._k_groups, self._v_groups) for g in groups]
        return super().n_bytes - sum(g.scale.nbytes + g.zero.nbytes for g in groups)


@fault("numpy quantized", "makes a group of all that a chunk brings")
class GroupsByChunk(caches.QuantizedCache):
    def append(self, k_new, v_new):
        whole = k_new.shape[1] >= self.residual
        rows = super().append(k_new, v_new)
        if not whole:
            return rows
        out = []
        for x, new, axis in zip(rows, (k_new, v_new), (1, 2), strict=True):
            coarse = quantized.dequantize(*quantized.quantize(new, self.n_bits, axis))
            out.append(np.concatenate([x[:, : x.shape[1] - new.shape[1]], coarse], axis=1))
        return tuple(out)


# PyTorch: the batch axis, and what in-place storage gets wrong


@fault("torch concat", "gives every sequence the first one's rows")
class FirstRowForAll(torch_caches.ConcatCache):
    def update(self, k, v):
        return super().update(k[:1].expand_as(k), v[:1].expand_as(v))


@fault("torch concat", "takes the values from the keys")
class ValuesFromKeys(torch_caches.ConcatCache):
    def update(self, k, v):
        return super().update(k, k)


@fault("torch static", "wraps past its capacity")
class TorchWraps(torch_caches.StaticCache):
    def update(self, k, v):
        if self._length + k.shape[2] > self.max_len:
            self._length = 0
        return super().update(k[:, :, : self.max_len], v[:, :, : self.max_len])


@fault("torch static", "resets the rows without the length")
class TorchResetLeavesLength(torch_caches.StaticCache):
    def reset(self):
        self._k.zero_()
        self._v.zero_()


@fault("torch ring", "evicts before the chunk has attended")
class TorchEvictsFirst(torch_caches.RingCache):
    def update(self, k, v):
        super().update(k, v)
        positions = self._kept(len(self), self.window)
        slots = self._slots(positions)
        return self._k[:, :, slots], self._v[:, :, slots], positions


@fault("torch ring", "hands out slots in slot order, with positions in time order")
class TorchSlotOrder(torch_caches.RingCache):
    def update(self, k, v):
        k, v, positions = super().update(k, v)
        order = torch.argsort(positions % self.window, stable=True)
        return k[:, :, order], v[:, :, order], positions


@fault("torch ring", "hands out a view of its slots")
class TorchRingView(torch_caches.RingCache):
    def update(self, k, v):
        k, v, positions = super().update(k, v)
        if len(self) == self.window and k.shape[2] == self.window:
            return self._k, self._v, positions
        return k, v, positions


@fault("torch sink", "evicts its sinks")
class TorchEvictsSinks(torch_caches.SinkCache):
    def _kept(self, n_seen, n_last, since=0):
        return torch.arange(max(n_seen - n_last, since), n_seen)


@fault("torch paged", "forgets to copy on write")
class TorchWritesSharedBlock(torch_caches.PagedCache):
    def _reserve(self, n_new):
        n_more = -(-(self._length + n_new) // self.pool.block_size) - len(self.block_table)
        if n_more > self.pool.n_free:
            raise MemoryError("pool empty")
        self.block_table += [self.pool.allocate() for _ in range(n_more)]

    def fork(self):
        other = super().fork()
        other.__class__ = type(self)
        return other


@fault("torch paged", "frees a block that a fork still holds")
class TorchFreesForAll(torch_caches.PagedCache):
    def free(self):
        for block in self.block_table:
            for _ in range(self.pool.count(block)):
                self.pool.release(block)
        self.block_table, self._length = [], 0


@fault("torch quantized", "shares a scale over the batch")
class TorchScaleOverBatch(torch_caches.QuantizedCache):
    def _extended(self, old, new, axis):
        store = super()._extended(old, new, axis)
        return store._replace(scale=store.scale.amax(0, keepdim=True).expand_as(store.scale).clone())


@fault("torch quantized", "drops the zero point")
class TorchNoZeroPoint(torch_caches.QuantizedCache):
    def _read(self, store):
        return super()._read(store._replace(zero=torch.zeros_like(store.zero)))
