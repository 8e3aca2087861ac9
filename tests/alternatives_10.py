"""Right answers to lesson 10's exercises that look unlike the references."""

import numpy as np


class PoolWithASet:
    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.empty((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.empty_like(self.k)
        self.holders = {}
        self.idle = set(range(n_blocks))

    @property
    def n_free(self):
        return len(self.idle)

    def allocate(self):
        if not self.idle:
            raise MemoryError("no free block")
        block = self.idle.pop()
        self.holders[block] = 1
        return block

    def retain(self, block):
        if block not in self.holders:
            raise ValueError(block)
        self.holders[block] += 1

    def release(self, block):
        if block not in self.holders:
            raise ValueError(block)
        self.holders[block] -= 1
        if not self.holders[block]:
            del self.holders[block]
            self.idle.add(block)

    def count(self, block):
        return self.holders.get(block, 0)


class PoolWithCountsOnly:
    """No free list: looks for a zero. NumPy counts, so that ids and counts are NumPy integers; a plain n_free."""

    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k, self.v = np.ones((2, n_blocks, n_kv_heads, block_size, head_dim), dtype=np.longdouble)
        self.counts = np.zeros(n_blocks, dtype=np.int32)
        self.n_free = n_blocks

    def allocate(self):
        free = np.flatnonzero(self.counts == 0)
        if free.size == 0:
            raise MemoryError
        self.counts[free[-1]] = 1
        self.n_free -= 1
        return free[-1]

    def _check(self, block):
        if block not in range(len(self.counts)) or not self.counts[block]:
            raise ValueError(f"block {block} is not in use")

    def retain(self, block):
        self._check(block)
        self.counts[block] += 1

    def release(self, block):
        self._check(block)
        self.counts[block] -= 1
        self.n_free += int(self.counts[block] == 0)

    def count(self, block):
        return self.counts[block]


class OutOfBlocks(MemoryError):
    pass


class NotHeld(ValueError):
    pass


class PoolWithALinkedList:
    """Each free block names the next free one; a released block is cleared; errors of its own classes."""

    def __init__(self, n_blocks, block_size, n_kv_heads, head_dim):
        self.k = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.v = np.zeros((n_blocks, n_kv_heads, block_size, head_dim))
        self.next = [*range(1, n_blocks), None]
        self.head = 0
        self.used = [0] * n_blocks

    @property
    def n_free(self):
        n, at = 0, self.head
        while at is not None:
            n, at = n + 1, self.next[at]
        return n

    def allocate(self):
        if self.head is None:
            raise OutOfBlocks("every block is in use")
        block, self.head = self.head, self.next[self.head]
        self.used[block] += 1
        return block

    def count(self, block):
        if not (0 <= block < len(self.used)) or self.used[block] == 0:
            raise NotHeld(block)
        return self.used[block]

    def retain(self, block):
        self.used[block] = self.count(block) + 1

    def release(self, block):
        self.used[block] = self.count(block) - 1
        if self.used[block] == 0:
            self.k[block] = self.v[block] = 0
            self.next[block], self.head = self.head, block


class TokenByToken:
    """Takes blocks as it goes, after counting; a tuple as result."""

    def __init__(self, pool):
        self.pool, self.block_table, self.tokens = pool, [], 0

    def append(self, k_new, v_new):
        size, n_new = self.pool.block_size, k_new.shape[1]
        needed = sum((self.tokens + i) % size == 0 for i in range(n_new))
        inside = self.tokens % size != 0
        shared = n_new > 0 and inside and self.pool.count(self.block_table[-1]) != 1
        if self.pool.n_free < needed + shared:
            raise MemoryError(f"{needed + shared} blocks needed")
        for i in range(n_new):
            at, slot = divmod(self.tokens, size)
            if slot == 0:
                self.block_table.append(self.pool.allocate())
            elif self.pool.count(self.block_table[at]) > 1:
                new = self.pool.allocate()
                self.pool.k[new, :, :slot] = self.pool.k[self.block_table[at], :, :slot]
                self.pool.v[new, :, :slot] = self.pool.v[self.block_table[at], :, :slot]
                self.pool.release(self.block_table[at])
                self.block_table[at] = new
            self.pool.k[self.block_table[at], :, slot] = k_new[:, i]
            self.pool.v[self.block_table[at], :, slot] = v_new[:, i]
            self.tokens += 1

    def gather(self):
        out = []
        for store in (self.pool.k, self.pool.v):
            n_kv_heads, head_dim = store.shape[1], store.shape[3]
            rows = np.empty((n_kv_heads, self.tokens, head_dim))
            for t in range(self.tokens):
                rows[:, t] = store[self.block_table[t // store.shape[2]], :, t % store.shape[2]]
            out.append(rows)
        return out

    def fork(self):
        twin = TokenByToken(self.pool)
        for block in self.block_table:
            twin.pool.retain(block)
            twin.block_table.append(block)
        twin.tokens = self.tokens
        return twin

    def free(self):
        while self.block_table:
            self.pool.release(self.block_table.pop())
        self.tokens = 0

    def __len__(self):
        return self.tokens


class RollsBack:
    """Asks for blocks until the pool refuses, and then puts everything back; the table is a tuple of NumPy ints."""

    def __init__(self, pool):
        self.pool = pool
        self.block_table = ()
        self.n = 0

    def append(self, k_new, v_new):
        size = self.pool.k.shape[2]
        end = self.n + k_new.shape[1]
        if end == self.n:
            return
        table, taken, let_go = list(self.block_table), [], []
        try:
            if self.n % size and self.pool.count(table[-1]) > 1:
                taken.append(self.pool.allocate())
                let_go.append(table[-1])
                self.pool.k[taken[-1]] = self.pool.k[table[-1]]
                self.pool.v[taken[-1]] = self.pool.v[table[-1]]
                table[-1] = taken[-1]
            while len(table) * size < end:
                taken.append(self.pool.allocate())
                table.append(taken[-1])
        except MemoryError:
            for block in taken:
                self.pool.release(block)
            raise
        for block in let_go:
            self.pool.release(block)
        slots = np.arange(self.n, end)
        blocks = np.array(table[self.n // size :])[slots // size - self.n // size]
        self.pool.k[blocks, :, slots % size] = k_new.transpose(1, 0, 2)
        self.pool.v[blocks, :, slots % size] = v_new.transpose(1, 0, 2)
        self.block_table, self.n = tuple(np.int64(b) for b in table), end

    def gather(self):
        which = list(self.block_table)
        k = self.pool.k[which].swapaxes(0, 1).reshape(self.pool.k.shape[1], -1, self.pool.k.shape[3])
        v = self.pool.v[which].swapaxes(0, 1).reshape(self.pool.v.shape[1], -1, self.pool.v.shape[3])
        return k[:, : self.n], v[:, : self.n]

    def fork(self):
        other = RollsBack(self.pool)
        other.block_table, other.n = self.block_table, self.n
        [self.pool.retain(b) for b in self.block_table]
        return other

    def free(self):
        if not self.block_table:
            raise ValueError("this sequence holds nothing")
        for block in self.block_table:
            self.pool.release(block)
        self.block_table, self.n = (), 0

    def __len__(self):
        return self.n


class RoomInTheLast:
    """Counts the free slots of the last block, where others count tokens."""

    def __init__(self, pool):
        self.pool = pool
        self.block_table = np.array([], dtype=int)
        self.room = 0

    def append(self, k_new, v_new):
        size, n = self.pool.k.shape[2], k_new.shape[1]
        more = max(0, int(np.ceil((n - self.room) / size)))
        copy = n > 0 and self.room > 0 and self.pool.count(self.block_table[-1]) > 1
        if more + int(copy) > self.pool.n_free:
            raise MemoryError("wait for a sequence to end")
        if copy:
            old = self.block_table[-1]
            new = self.pool.allocate()
            for store in (self.pool.k, self.pool.v):
                store[new] = store[old]
            self.block_table[-1] = new
            self.pool.release(old)
        k_new, v_new = k_new.copy(), v_new.copy()
        while k_new.shape[1]:
            if self.room == 0:
                self.block_table = np.append(self.block_table, self.pool.allocate())
                self.room = size
            start = size - self.room
            end = min(size, start + k_new.shape[1])
            self.pool.k[self.block_table[-1], :, start:end] = k_new[:, : end - start]
            self.pool.v[self.block_table[-1], :, start:end] = v_new[:, : end - start]
            k_new, v_new = k_new[:, end - start :], v_new[:, end - start :]
            self.room = size - end

    def gather(self):
        def rows(store):
            nothing = np.zeros((store.shape[1], 0, store.shape[3]))
            return np.concatenate([nothing, *(store[b] for b in self.block_table)], axis=1)[:, : len(self)]

        return rows(self.pool.k), rows(self.pool.v)

    def fork(self):
        import copy

        other = copy.copy(self)
        other.block_table = self.block_table.copy()
        for block in self.block_table:
            self.pool.retain(block)
        return other

    def free(self):
        for block in self.block_table[::-1]:
            self.pool.release(block)
        self.__init__(self.pool)

    def __len__(self):
        return len(self.block_table) * self.pool.k.shape[2] - self.room


ALTERNATIVES = {
    "BlockPool": [PoolWithASet, PoolWithCountsOnly, PoolWithALinkedList],
    "PagedCache": [TokenByToken, RollsBack, RoomInTheLast],
}
