import numpy as np


class _Page:
    def __init__(self, block, filled, before):
        self.block, self.filled, self.before = block, filled, before


class PagedCache:
    # a linked list of pages from the newest back; each append is a recursion over what fits
    def __init__(self, pool):
        self.pool, self.last = pool, None

    def _pages(self):
        page, out = self.last, []
        while page is not None:
            out.append(page)
            page = page.before
        return out[::-1]

    @property
    def block_table(self):
        return [page.block for page in self._pages()]

    def __len__(self):
        return sum(page.filled for page in self._pages())

    def _room(self):
        return self.pool.block_size - self.last.filled if self.last else 0

    def append(self, k_new, v_new):
        n = k_new.shape[1]
        if n == 0:
            return
        own = self.last is not None and self._room() and self.pool.count(self.last.block) == 1
        must_copy = self._room() > 0 and not own
        extra = max(0, n - self._room())
        if (extra + self.pool.block_size - 1) // self.pool.block_size + must_copy > self.pool.n_free:
            raise MemoryError("too few blocks")
        self._write(np.asarray(k_new), np.asarray(v_new))

    def _write(self, k, v):
        if k.shape[1] == 0:
            return
        if self._room() == 0:
            self.last = _Page(self.pool.allocate(), 0, self.last)
        elif self.pool.count(self.last.block) > 1:
            old, self.last.block = self.last.block, self.pool.allocate()
            for store in (self.pool.k, self.pool.v):
                np.copyto(store[self.last.block], store[old])
            self.pool.release(old)
        at, n = self.last.filled, min(self._room(), k.shape[1])
        self.pool.k[self.last.block][:, at : at + n] = k[:, :n]
        self.pool.v[self.last.block][:, at : at + n] = v[:, :n]
        self.last.filled += n
        self._write(k[:, n:], v[:, n:])

    def gather(self):
        pages = self._pages()
        empty = np.empty((self.pool.k.shape[1], 0, self.pool.k.shape[3]))
        k = [empty] + [self.pool.k[p.block, :, : p.filled] for p in pages]
        v = [empty] + [self.pool.v[p.block, :, : p.filled] for p in pages]
        return np.concatenate(k, axis=1), np.concatenate(v, axis=1)

    def fork(self):
        child = PagedCache(self.pool)
        for page in self._pages():
            self.pool.retain(page.block)
            child.last = _Page(page.block, page.filled, child.last)
        return child

    def free(self):
        while self.last:
            self.pool.release(self.last.block)
            self.last = self.last.before
