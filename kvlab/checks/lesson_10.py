"""Checks for lesson 10: a pool of blocks with counts of holders, and a sequence's cache in such blocks."""

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.caches import BlockPool, PagedCache
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Raised, Stage, observe, pair

N_KV_HEADS, HEAD_DIM = 2, 3


class _Pool(BlockPool):
    """The package's pool with the exercise's signature."""

    def __init__(self, n_blocks: int, block_size: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__(n_blocks, block_size, n_kv_heads, head_dim)


class _Cache(PagedCache):
    """The package's cache with the exercise's signature."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)


def _attempt(action: Callable[..., Any], *args: Any) -> Any:
    """What an action that may have to raise gives: the exception as an observation, or its value."""
    try:
        return observe(action(*args))
    except NotImplementedError:
        raise
    except Exception as error:
        return Raised(tuple(c.__name__ for c in type(error).__mro__), str(error).split("\n")[0][:200])


def _block(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        got = "None (is a return missing?)" if value is None else type(value).__name__
        raise Malformed(f"allocate: expected the id of a block, an int, got {got}")
    return int(value)


def _allocate(pool: Any, n: int) -> list[int]:
    return [_block(pool.allocate()) for _ in range(n)]


def _n_free(pool: Any) -> Any:
    return observe(pool.n_free)


# BlockPool


def _arrays(make: Any) -> Observation:
    pool = make(5, 4, 2, 3)
    shapes = {f"the shape of pool.{name}": getattr(observe(getattr(pool, name)), "shape", None) for name in "kv"}
    return shapes | {"pool.n_free": _n_free(pool)}


def _rows_in_blocks(make: Any) -> Observation:
    pool = make(2, 4, 2, 3)
    first, second = _allocate(pool, 2)
    pool.k[first], pool.v[first], pool.k[second], pool.v[second] = 0.1, 0.2, 0.3, 0.4
    names = {"pool.k of the first block": (pool.k, first), "pool.v of the first block": (pool.v, first)}
    return {name: float(np.asarray(array)[block, 0, 0, 0]) for name, (array, block) in names.items()}


def _one_block(make: Any) -> Observation:
    pool = make(1, 4, 2, 3)
    block = _block(pool.allocate())
    if block != 0:
        return {"the id": block}
    return {"the id": block, "pool.count(0)": observe(pool.count(block)), "pool.n_free": _n_free(pool)}


def _all_blocks(make: Any) -> Observation:
    pool = make(4, 2, 1, 3)
    blocks = _allocate(pool, 4)
    return {
        "the ids, sorted": tuple(sorted(blocks)),
        "their counts": tuple(observe(pool.count(b)) for b in blocks),
        "pool.n_free": _n_free(pool),
    }


def _holders(make: Any) -> Observation:
    """Two more holders of one block, then all let go."""
    pool = make(3, 4, 2, 3)
    block, other = _allocate(pool, 2)
    seen: Observation = {}
    for i, what in enumerate(("retain", "retain", "release", "release")):
        getattr(pool, what)(block)
        seen[f"pool.count(id) after call {i + 1}"] = observe(pool.count(block))
        seen[f"pool.n_free after call {i + 1}"] = _n_free(pool)
    pool.release(block)
    return seen | {
        "pool.n_free after the last release": _n_free(pool),
        "the other block's count": observe(pool.count(other)),
    }


def _many_holders(make: Any) -> Observation:
    """More holders than one byte can count."""
    pool = make(2, 4, 2, 3)
    block = _block(pool.allocate())
    for _ in range(299):
        pool.retain(block)
    return {"pool.count(id)": observe(pool.count(block)), "pool.n_free": _n_free(pool)}


def _still_held(make: Any) -> Observation:
    """A block that one of two holders has let go must not be handed out."""
    pool = make(3, 4, 2, 3)
    block = _block(pool.allocate())
    pool.retain(block)
    pool.release(block)
    return {"pool.n_free": _n_free(pool), "it is handed out again": block in _allocate(pool, 2)}


def _again(make: Any) -> Observation:
    """More blocks over time than there are at once."""
    pool = make(2, 4, 2, 3)
    counts = []
    for _ in range(7):
        block = _block(pool.allocate())
        counts.append(observe(pool.count(block)))
        pool.release(block)
    both = _allocate(pool, 2)
    return {"counts after each allocate": tuple(counts), "the two ids at the end, sorted": tuple(sorted(both))}


def _only_the_released(make: Any) -> Observation:
    pool = make(3, 4, 2, 3)
    blocks = _allocate(pool, 3)
    pool.release(blocks[1])
    return {"the id handed out": "the released one" if _allocate(pool, 1) == blocks[1:2] else "one that is held"}


def _empty(make: Any) -> Observation:
    pool = make(2, 4, 2, 3)
    blocks = _allocate(pool, 2)
    seen: Observation = {"a third allocate": _attempt(pool.allocate), "pool.n_free": _n_free(pool)}
    pool.release(blocks[0])
    return seen | {"after one release, allocate gives that id": _block(pool.allocate()) == blocks[0]}


def _not_in_use(prepare: str) -> Callable[[Any], Observation]:
    """Release and retain what nobody holds: refused, and the pool is as it was."""

    def run(make: Any) -> Observation:
        pool = make(3, 4, 2, 3)
        blocks = _allocate(pool, 3)
        wrong: list[int] = []
        if prepare == "released":
            pool.release(blocks[1])
            wrong = [blocks[1]]
        elif prepare == "outside":
            wrong = [3, -1]
        seen: Observation = {}
        for number in wrong:
            said = "the released id" if prepare == "released" else str(number)
            seen[f"release({said})"] = _attempt(pool.release, number)
            seen[f"retain({said})"] = _attempt(pool.retain, number)
        seen["pool.n_free afterwards"] = _n_free(pool)
        kept = [b for b in blocks if b not in wrong]
        seen["counts of the others"] = tuple(observe(pool.count(b)) for b in kept)
        if prepare == "released":
            again = _attempt(_allocate, pool, 1)
            seen["the one id that can be handed out then is the released one"] = again == (blocks[1],)
            seen["and its count is then"] = observe(pool.count(blocks[1]))
        return seen

    return run


def _two_pools(make: Any) -> Observation:
    first, second = make(2, 4, 2, 3), make(3, 4, 2, 3)
    _allocate(first, 2)
    return {"second.n_free after two allocations from the first": _n_free(second), "first.n_free": _n_free(first)}


class _Blocks:
    """A right pool that the mistakes below spoil in one place each."""

    def __init__(self, n_blocks: int, block_size: int, n_kv_heads: int, head_dim: int) -> None:
        self.k, self.v = (np.zeros((n_blocks, n_kv_heads, block_size, head_dim)) for _ in range(2))
        self.counts = [0] * n_blocks
        self.free = list(range(n_blocks))

    @property
    def n_free(self) -> Any:
        return len(self.free)

    def allocate(self) -> Any:
        if not self.free:
            raise MemoryError("no block is free")
        block = self.free.pop(0)
        self.counts[block] = 1
        return block

    def expect(self, block: int) -> None:
        if not 0 <= block < len(self.counts) or self.counts[block] < 1:
            raise ValueError(f"block {block} is not in use")

    def retain(self, block: int) -> None:
        self.expect(block)
        self.counts[block] += 1

    def release(self, block: int) -> None:
        self.expect(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free.append(block)

    def count(self, block: int) -> int:
        return self.counts[block]


class _SlotsBeforeHeads(_Blocks):
    def __init__(self, n_blocks: int, block_size: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__(n_blocks, n_kv_heads, block_size, head_dim)


class _OneArray(_Blocks):
    def __init__(self, n_blocks: int, block_size: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__(n_blocks, block_size, n_kv_heads, head_dim)
        self.v = self.k


class _FreeAsMethod(_Blocks):
    def n_free(self) -> Any:
        return len(self.free)


class _CountZero(_Blocks):
    def allocate(self) -> Any:
        block = super().allocate()
        self.counts[block] = 0
        return block

    def expect(self, block: int) -> None:
        if not 0 <= block < len(self.counts):
            raise ValueError(f"there is no block {block}")


class _RoundRobin(_Blocks):
    """Hands out the next number, in use or not."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.next = 0

    def allocate(self) -> Any:
        if 0 not in self.counts:
            raise MemoryError("no block is free")
        block, self.next = self.next % len(self.counts), self.next + 1
        self.counts[block] = 1
        return block

    @property
    def n_free(self) -> Any:
        return self.counts.count(0)


class _Bump(_Blocks):
    """Blocks are numbered as they are handed out, and numbers never come back."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.next = 0

    def allocate(self) -> Any:
        if self.next == len(self.counts):
            raise MemoryError("no block is left")
        self.next += 1
        self.counts[self.next - 1] = 1
        return self.next - 1

    @property
    def n_free(self) -> Any:
        return self.counts.count(0)


class _Leak(_Blocks):
    def release(self, block: int) -> None:
        self.expect(block)
        self.counts[block] -= 1


class _FreedAtOnce(_Blocks):
    def release(self, block: int) -> None:
        self.expect(block)
        self.counts[block] = 0
        self.free.append(block)


class _FreedAtEachRelease(_Blocks):
    def release(self, block: int) -> None:
        self.expect(block)
        self.counts[block] -= 1
        self.free.append(block)


class _NoneWhenEmpty(_Blocks):
    def allocate(self) -> Any:
        return super().allocate() if self.free else None


class _IndexErrorWhenEmpty(_Blocks):
    def allocate(self) -> Any:
        block = self.free.pop()
        self.counts[block] = 1
        return block


class _ReleasedTwice(_Blocks):
    """Takes a release of a free block for one more release."""

    def release(self, block: int) -> None:
        if not 0 <= block < len(self.counts):
            raise ValueError(f"there is no block {block}")
        self.counts[block] -= 1
        if self.counts[block] <= 0:
            self.free.append(block)


class _IgnoresReleaseOfFree(_Blocks):
    def release(self, block: int) -> None:
        if 0 <= block < len(self.counts) and self.counts[block]:
            super().release(block)


class _RetainRevives(_Blocks):
    def retain(self, block: int) -> None:
        if not 0 <= block < len(self.counts):
            raise ValueError(f"there is no block {block}")
        self.counts[block] += 1


class _NegativeIds(_Blocks):
    def expect(self, block: int) -> None:
        if block >= len(self.counts) or self.counts[block] < 1:
            raise ValueError(f"block {block} is not in use")


class _UnknownIds(_Blocks):
    def expect(self, block: int) -> None:
        if block < 0 or self.counts[block] < 1:
            raise ValueError(f"block {block} is not in use")


def _pools_share_state() -> type[_Blocks]:
    class Shared(_Blocks):
        kept: dict[str, list[int]] = {}  # noqa: RUF012

        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            if not Shared.kept or len(Shared.kept["counts"]) < sizes[0]:
                Shared.kept = {"counts": self.counts, "free": Shared.kept.get("free", self.free)}
            self.counts, self.free = Shared.kept["counts"], Shared.kept["free"]

    return Shared


BLOCK_POOL = Exercise(
    id="BlockPool",
    is_class=True,
    reference=_Pool,
    stages=[
        Stage("k and v hold every block, and all of them are free", [Probe("BlockPool(5, 4, 2, 3)", _arrays)]),
        Stage("a block that is handed out has one holder", [Probe("BlockPool(1, 4, 2, 3), one allocate", _one_block)]),
        Stage("each block is handed out once", [Probe("BlockPool(4, 2, 1, 3), four times allocate", _all_blocks)]),
        Stage(
            "keys and values have storage of their own",
            [Probe("pool.k[id] = 0.1 and pool.v[id] = 0.2, other numbers in the second block", _rows_in_blocks)],
        ),
        Stage(
            "a block is free when its last holder lets go",
            [
                Probe("allocate, retain, release, then two more times allocate in a pool of 3", _still_held),
                Probe("allocate, then retain, retain, release, release, release", _holders),
                Probe("allocate, then 299 times retain", _many_holders),
            ],
        ),
        Stage(
            "a free block is handed out again",
            [
                Probe("a pool of 3, all in use: release the second, then allocate", _only_the_released),
                Probe("a pool of 2: seven times allocate and release", _again),
            ],
        ),
        Stage("an empty pool says so", [Probe("a pool of 2: three times allocate", _empty)]),
        Stage(
            "what nobody holds is neither released nor retained",
            [
                Probe(
                    "a pool of 3, all in use: release one, then release and retain it again", _not_in_use("released")
                ),
                Probe("a pool of 3, all in use: release and retain ids 3 and -1", _not_in_use("outside")),
            ],
        ),
        Stage("two pools know nothing of each other", [Probe("two pools, two blocks of the first", _two_pools)]),
    ],
    mistakes=[
        Mistake(
            "slots_before_heads",
            "The axes are (n_blocks, block_size, n_kv_heads, head_dim). In this course heads come before tokens, in a"
            " block too.",
            "Which axis of a (n_kv_heads, n_new, head_dim) chunk do the slots of a block follow?",
            _SlotsBeforeHeads,
        ),
        Mistake(
            "one_array_for_both",
            "k and v are one array under two names: writing a value overwrites the key.",
            "How many arrays does a = b = np.zeros(3) make?",
            _OneArray,
        ),
        Mistake(
            "n_free_is_a_method",
            "n_free is a method. The exercise asks for an attribute or a property: pool.n_free, without brackets.",
            "Which decorator turns a method into something that is read without brackets?",
            _FreeAsMethod,
        ),
        Mistake(
            "count_starts_at_zero",
            "A block that was just handed out has count 0, so its first release already goes below zero and it is "
            "never free again.",
            "How many holders has a block when allocate returns?",
            _CountZero,
        ),
        Mistake(
            "round_robin",
            "Blocks are handed out by turns, whether somebody holds them or not: two sequences write into one block.",
            "Before a number is handed out, what has to be known about it?",
            _RoundRobin,
        ),
        Mistake(
            "numbers_never_come_back",
            "A released block is counted as free and never handed out again: the pool runs dry while n_free is above "
            "0.",
            "Where does allocate look for the next block, and how does a released one get there?",
            _Bump,
        ),
        Mistake(
            "leak",
            "A block whose count reaches 0 is not put back: every finished sequence makes the pool smaller.",
            "What should n_free be when everything that was allocated has been released?",
            _Leak,
        ),
        Mistake(
            "freed_at_the_first_release",
            "The first release frees the block although another holder still reads it, so its contents are "
            "overwritten under that holder.",
            "When two sequences hold a block and one of them ends, who still needs it?",
            _FreedAtOnce,
        ),
        Mistake(
            "free_at_each_release",
            "Every release puts the block on the free list, at whatever count: a block with a holder is handed out, "
            "and one block stands on the list several times.",
            "At which count does a release make a block free?",
            _FreedAtEachRelease,
        ),
        Mistake(
            "none_when_empty",
            "An empty pool hands out None. The caller goes on with it: k[None] is a view of all blocks, and a write "
            "through it reaches every one.",
            "What does array[None] = 0 write to?",
            _NoneWhenEmpty,
        ),
        Mistake(
            "index_error_when_empty",
            "An empty pool raises IndexError, which says that a list is empty and not that memory is. A scheduler "
            "that waits for MemoryError does not catch it.",
            "Which exception should the caller of allocate be able to tell from a bug in your list?",
            _IndexErrorWhenEmpty,
        ),
        Mistake(
            "released_twice",
            "A block that is free already is released once more and stands on the free list twice: it will be handed "
            "out to two sequences.",
            "What does n_free become when the same block is released two times?",
            _ReleasedTwice,
        ),
        Mistake(
            "wrong_release_ignored",
            "Releasing what nobody holds is passed over in silence. It is a bug in the caller that is worth hearing "
            "of: the next time the block may belong to somebody else.",
            "Whose block does a second release let go when the block has been handed out again in between?",
            _IgnoresReleaseOfFree,
        ),
        Mistake(
            "retain_of_a_free_block",
            "A free block can be retained: it has a holder then and is still on the free list, to be handed out to "
            "another.",
            "May somebody begin to share a block that nobody holds?",
            _RetainRevives,
        ),
        Mistake(
            "negative_ids",
            "The id -1 is taken for the last block, as Python counts from the end of a list.",
            "What does counts[-1] give, and is -1 a block?",
            _NegativeIds,
        ),
        Mistake(
            "unknown_ids",
            "An id beyond the pool raises IndexError from the list of counts, where ValueError is asked for.",
            "Before the count of a block is looked up, what do you know about its number?",
            _UnknownIds,
        ),
        Mistake(
            "pools_share_state",
            "The counts and the free list lie on the class, so that all pools are one. A decoder has a pool for each "
            "layer.",
            "Does each pool get a list of its own, or do all of them see the one on the class?",
            _pools_share_state,
            fresh=True,
        ),
    ],
)


# PagedCache


def _rows(n: int, seed: int, n_kv_heads: int = N_KV_HEADS, head_dim: int = HEAD_DIM) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.random.default_rng(seed).standard_normal((2, n_kv_heads, n, head_dim))
    return k, v


def _table(cache: Any, name: str, pool: BlockPool) -> list[int]:
    """A block table as plain ints, or a line that says what it is instead."""
    table = cache.block_table
    if isinstance(table, np.ndarray):
        table = list(table)
    if not isinstance(table, list | tuple):
        raise Malformed(f"{name}.block_table: expected a list of block ids, got {type(table).__name__}")
    for block in table:
        if isinstance(block, bool) or not hasattr(block, "__index__") or not 0 <= int(block) < pool.n_blocks:
            raise Malformed(f"{name}.block_table: expected ids from 0 to {pool.n_blocks - 1}, got {str(block)[:40]}")
    return [int(block) for block in table]


def _count(pool: BlockPool, block: int) -> int:
    try:
        return pool.count(block)
    except ValueError:
        return 0


def _length(cache: Any) -> Any:
    try:
        return len(cache)
    except TypeError as error:
        raise Malformed(f"len(cache): {error}") from None


def _look(pool: BlockPool, caches: dict[str, Any]) -> Observation:
    """What each sequence reads, and how the blocks are held. Which id a block has is not looked at."""
    seen: Observation = {}
    tables = {name: _table(cache, name, pool) for name, cache in caches.items()}
    for name, cache in caches.items():
        seen[f"len({name})"] = _length(cache)
        k, v = pair(cache.gather(), "gather")
        seen |= {f"k of {name}.gather()": observe(k), f"v of {name}.gather()": observe(v)}
        seen[f"blocks in {name}.block_table"] = len(tables[name])
        seen[f"holders of each of {name}'s blocks"] = tuple(_count(pool, block) for block in tables[name])
    names = list(caches)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            seen[f"blocks that {first} and {second} share"] = len(set(tables[first]) & set(tables[second]))
    return seen | {"pool.n_free": pool.n_free}


def _play(*steps: tuple[Any, ...], n_blocks: int = 8, size: int = 4, shape: tuple[int, int] = (2, 3)) -> Probe:
    """Play steps on a pool, and look at every sequence at the end.

    ("new", "a"), ("append", "a", 5), ("refuse", "a", 9), ("fork", "a", "b"), ("free", "a").
    """

    def run(make: Any) -> Observation:
        pool = _Pool(n_blocks, size, *shape)
        caches: dict[str, Any] = {}
        seen: Observation = {}
        kinds: set[str] = set()
        for i, (do, name, *more) in enumerate(steps):
            if do == "new":
                caches[name] = make(pool)
            elif do == "append":
                returned = caches[name].append(*_rows(more[0], i, *shape))
                if returned is not None:
                    kinds.add(f"a {type(returned).__name__}")
            elif do == "refuse":
                seen[f"{name}.append of {more[0]}"] = _attempt(caches[name].append, *_rows(more[0], i, *shape))
            elif do == "fork":
                caches[more[0]] = caches[name].fork()
                if caches[more[0]] is None:
                    raise Malformed("fork: expected a cache, got None (is a return missing?)")
            elif do == "free":
                caches[name].free()
        # None as an observation would read as "no answer came".
        return seen | _look(pool, caches) | {"what append returns": ", ".join(sorted(kinds)) or "None"}

    said = "; ".join(_said(*step) for step in steps)
    heads = "" if shape == (N_KV_HEADS, HEAD_DIM) else f", {shape[0]} KV head, width {shape[1]}"
    return Probe(f"pool of {n_blocks} blocks of {size}{heads}: {said}", run)


def _said(do: str, name: str, *more: Any) -> str:
    if do == "new":
        return f"{name} = PagedCache(pool)"
    if do == "fork":
        return f"{more[0]} = {name}.fork()"
    if do == "free":
        return f"{name}.free()"
    tokens = f"{more[0]} token" + ("" if more[0] == 1 else "s")
    return f"{name}.append {tokens}" + (", which do not fit" if do == "refuse" else "")


def _rows_lie_in_the_pool(make: Any) -> Observation:
    """The slots of the table's blocks, read past the cache; and what is changed there is what the cache reads."""
    pool = _Pool(6, 4, N_KV_HEADS, HEAD_DIM)
    cache = make(pool)
    cache.append(*_rows(5, 0))
    table = _table(cache, "cache", pool)
    if len(table) != 2:
        return {"blocks in cache.block_table": len(table)}
    seen: Observation = {
        "pool.k of the first block in the table": observe(pool.k[table[0]]),
        "pool.v of the first block in the table": observe(pool.v[table[0]]),
        "slot 0 of the second, in pool.k": observe(pool.k[table[1], :, 0]),
    }
    pool.k[table[0]] = 7.0
    cache.append(*_rows(1, 1))
    k, _ = pair(cache.gather(), "gather")
    return seen | {"k of gather() after pool.k of the first block is set to 7 and a token appended": observe(k)}


def _memory_of_an_append(make: Any) -> Observation:
    """One token more over 4,000: what the append allocates, in the allocator's own count."""
    pool = _Pool(260, 16, N_KV_HEADS, HEAD_DIM)
    cache = make(pool)
    cache.append(*_rows(4_000, 0))
    one = _rows(1, 1)
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    cache.append(*one)
    taken = tracemalloc.get_traced_memory()[1] - before
    if not running:
        tracemalloc.stop()
    stored = 2 * N_KV_HEADS * 4_000 * HEAD_DIM * 8
    return {
        "memory that the append takes": "little" if taken < stored / 4 else "as much as the rows stored, or near it"
    }


def _inputs_and_results(make: Any) -> Observation:
    pool = _Pool(6, 4, N_KV_HEADS, HEAD_DIM)
    cache = make(pool)
    k_new, v_new = _rows(5, 0)
    given = k_new.copy(), v_new.copy()
    cache.append(k_new, v_new)
    same = np.array_equal(k_new, given[0]) and np.array_equal(v_new, given[1])
    k_new[:], v_new[:] = 8.0, 8.0
    first = pair(cache.gather(), "gather")
    seen: Observation = {
        "k_new and v_new after the append": "unchanged" if same else "changed",
        "k of gather() after the caller overwrote k_new": observe(first[0]),
        "v of gather() after the caller overwrote v_new": observe(first[1]),
    }
    cache.append(*_rows(4, 1))
    return seen | {"k that gather() returned, after one more append": observe(first[0])}


def _result_kept(make: Any) -> Observation:
    """One block, and a result that outlives it."""
    pool = _Pool(1, 4, N_KV_HEADS, HEAD_DIM)
    first = make(pool)
    first.append(*_rows(2, 0))
    kept, _ = pair(first.gather(), "gather")
    first.free()
    make(pool).append(*_rows(3, 1))
    return {"k that a.gather() returned": observe(kept)}


def _freed_twice(make: Any) -> Observation:
    """The second free of an empty sequence must not reach blocks that belong to another by now."""
    pool = _Pool(4, 4, N_KV_HEADS, HEAD_DIM)
    first, second = make(pool), make(pool)
    first.append(*_rows(6, 0))
    first.free()
    second.append(*_rows(6, 1))
    _attempt(first.free)  # whether it says something is its own affair
    return _look(pool, {"b": second})


class _Paged:
    """A right cache that the mistakes below spoil in one place each."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.block_table: list[int] = []
        self.n = 0

    @property
    def size(self) -> int:
        return self.pool.k.shape[2]

    def n_blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.size)

    def must_copy(self) -> bool:
        at = self.n // self.size
        return at < len(self.block_table) and self.pool.count(self.block_table[at]) > 1

    def copy(self) -> None:
        at = self.n // self.size
        old, new = self.block_table[at], self.pool.allocate()
        self.copy_rows(old, new)
        self.block_table[at] = new
        self.pool.release(old)

    def copy_rows(self, old: int, new: int) -> None:
        self.pool.k[new], self.pool.v[new] = self.pool.k[old], self.pool.v[old]

    def needed(self, more: int) -> int:
        return more + self.must_copy()

    def reserve(self, n_new: int) -> None:
        more = max(0, self.n_blocks_for(self.n + n_new) - len(self.block_table))
        if self.needed(more) > self.pool.n_free:
            raise MemoryError("too few free blocks")
        if self.must_copy():
            self.copy()
        self.block_table += [self.pool.allocate() for _ in range(more)]

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        if k_new.shape[1]:
            self.reserve(k_new.shape[1])
            self.write(k_new, v_new)

    def write(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        for t in range(k_new.shape[1]):
            block, slot = self.block_table[min(self.n // self.size, len(self.block_table) - 1)], self.n % self.size
            self.pool.k[block, :, slot], self.pool.v[block, :, slot] = k_new[:, t], v_new[:, t]
            self.n += 1

    def order(self) -> Sequence[int]:
        return self.block_table

    def read(self, blocks: np.ndarray) -> np.ndarray:
        if not self.block_table:
            return np.zeros((blocks.shape[1], 0, blocks.shape[3]))
        return np.concatenate([blocks[b] for b in self.order()], axis=1)[:, : self.n]

    def gather(self) -> Any:
        return self.read(self.pool.k), self.read(self.pool.v)

    def fork(self) -> Any:
        other = type(self)(self.pool)
        for block in self.block_table:
            self.pool.retain(block)
        other.block_table, other.n = list(self.block_table), self.n
        return other

    def free(self) -> None:
        for block in self.block_table:
            self.pool.release(block)
        self.block_table, self.n = [], 0

    def __len__(self) -> int:
        return self.n


class _Late(_Paged):
    def n_blocks_for(self, n_tokens: int) -> int:
        return max(1, -(-(n_tokens - 1) // self.size))


class _Early(_Paged):
    def n_blocks_for(self, n_tokens: int) -> int:
        return n_tokens // self.size + 1


class _BlockAnAppend(_Paged):
    """Each append begins a block of its own."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.filled: list[int] = []

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        n_new = k_new.shape[1]
        if self.n_blocks_for(n_new) > self.pool.n_free:
            raise MemoryError("too few free blocks")
        for start in range(0, n_new, self.size):
            part = slice(start, min(start + self.size, n_new))
            block, n = self.pool.allocate(), part.stop - start
            self.pool.k[block, :, :n], self.pool.v[block, :, :n] = k_new[:, part], v_new[:, part]
            self.block_table.append(block)
            self.filled.append(n)
            self.n += n

    def read(self, blocks: np.ndarray) -> np.ndarray:
        rows = [blocks[b, :, :n] for b, n in zip(self.block_table, self.filled, strict=False)]
        return np.concatenate([np.zeros((blocks.shape[1], 0, blocks.shape[3])), *rows], axis=1)

    def fork(self) -> Any:
        other = super().fork()
        other.filled = list(self.filled)
        return other

    def free(self) -> None:
        super().free()
        self.filled = []


class _Private(_Paged):
    """Keeps the rows to itself; the blocks are only counted."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.rows = [np.zeros((a.shape[1], 0, a.shape[3])) for a in (pool.k, pool.v)]

    def write(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        self.rows = [np.concatenate(pair, axis=1) for pair in zip(self.rows, (k_new, v_new), strict=True)]
        self.n += k_new.shape[1]

    def gather(self) -> Any:
        return self.rows[0], self.rows[1]

    def fork(self) -> Any:
        other = super().fork()
        other.rows = list(self.rows)
        return other

    def free(self) -> None:
        super().free()
        self.rows = [rows[:, :0] for rows in self.rows]


class _RewritesAll(_Paged):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        n_old = self.n
        old_k, old_v = (rows.copy() for rows in self.gather())
        super().append(k_new, v_new)
        for rows, blocks in ((old_k, self.pool.k), (old_v, self.pool.v)):
            for t in range(n_old - n_old % self.size, n_old):
                blocks[self.block_table[t // self.size], :, t % self.size] = rows[:, t]


class _ReturnsAll(_Paged):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        super().append(k_new, v_new)
        return self.gather()


class _PoolOrder(_Paged):
    def order(self) -> Sequence[int]:
        return sorted(self.block_table)


class _WholeBlocks(_Paged):
    def read(self, blocks: np.ndarray) -> np.ndarray:
        rows = [blocks[b] for b in self.block_table]
        return np.concatenate([np.zeros((blocks.shape[1], 0, blocks.shape[3])), *rows], axis=1)


class _OneBlockView(_Paged):
    """Saves the copy where a single block holds everything."""

    def read(self, blocks: np.ndarray) -> np.ndarray:
        return blocks[self.block_table[0], :, : self.n] if len(self.block_table) == 1 else super().read(blocks)


class _HeadsMixed(_Paged):
    """Reads the blocks under a new shape without moving the head axis to the front."""

    def read(self, blocks: np.ndarray) -> np.ndarray:
        own = blocks[np.array(self.block_table, dtype=int)]
        return own.reshape(blocks.shape[1], -1, blocks.shape[3])[:, : self.n]


class _KeysAsValues(_Paged):
    def write(self, k_new: np.ndarray, v_new: np.ndarray) -> None:
        super().write(k_new, k_new)


class _LengthInSlots(_Paged):
    def __len__(self) -> int:
        return len(self.block_table) * self.size


class _SharedWritten(_Paged):
    def must_copy(self) -> bool:
        return False


class _OnlyTheForkCopies(_Paged):
    forked = False

    def must_copy(self) -> bool:
        return self.forked and super().must_copy()

    def fork(self) -> Any:
        other = super().fork()
        other.forked = True
        return other


class _CopiesAlways(_Paged):
    """Copies a last block that was shared once, although the other holder has gone on to a copy of its own."""

    was_shared = False

    def must_copy(self) -> bool:
        return self.was_shared and self.n % self.size > 0

    def copy(self) -> None:
        super().copy()
        self.was_shared = False

    def fork(self) -> Any:
        other = super().fork()
        self.was_shared = other.was_shared = True
        return other


class _CopiesFullToo(_Paged):
    """Copies the last block whenever it is shared, written or not."""

    def must_copy(self) -> bool:
        return bool(self.block_table) and self.pool.count(self.block_table[-1]) > 1

    def copy(self) -> None:
        old, new = self.block_table[-1], self.pool.allocate()
        self.copy_rows(old, new)
        self.block_table[-1] = new
        self.pool.release(old)


class _CopiesForNothing(_Paged):
    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        self.reserve(k_new.shape[1])
        self.write(k_new, v_new)


class _CopiesKeysOnly(_Paged):
    def copy_rows(self, old: int, new: int) -> None:
        self.pool.k[new] = self.pool.k[old]


class _CopiesNothing(_Paged):
    def copy_rows(self, old: int, new: int) -> None:
        pass


class _CopyKeepsOld(_Paged):
    def copy(self) -> None:
        at = self.n // self.size
        old = self.block_table[at]
        self.block_table[at] = self.pool.allocate()
        self.copy_rows(old, self.block_table[at])


class _CopiesEverything(_Paged):
    """Copies all blocks of the sequence at the first write."""

    def must_copy(self) -> bool:
        return any(self.pool.count(b) > 1 for b in self.block_table)

    def needed(self, more: int) -> int:
        return more + sum(self.pool.count(b) > 1 for b in self.block_table)

    def copy(self) -> None:
        for i, old in enumerate(self.block_table):
            if self.pool.count(old) > 1:
                self.block_table[i] = self.pool.allocate()
                self.copy_rows(old, self.block_table[i])
                self.pool.release(old)


class _ForkCopies(_Paged):
    def fork(self) -> Any:
        other = type(self)(self.pool)
        other.append(*self.gather())
        return other


class _ForkCopiesLast(_Paged):
    """Shares the full blocks and copies the last one at once, whether anyone writes or not."""

    def fork(self) -> Any:
        other = super().fork()
        if self.n % self.size:
            other.copy()
        return other


class _ForkDoesNotRetain(_Paged):
    def fork(self) -> Any:
        other = type(self)(self.pool)
        other.block_table, other.n = list(self.block_table), self.n
        return other

    def free(self) -> None:
        for block in self.block_table:
            if _count(self.pool, block):
                self.pool.release(block)
        self.block_table, self.n = [], 0


class _OneTable(_Paged):
    def fork(self) -> Any:
        other = super().fork()
        other.block_table = self.block_table
        return other


class _FreesForAll(_Paged):
    def free(self) -> None:
        for block in self.block_table:
            while _count(self.pool, block):
                self.pool.release(block)
        self.block_table, self.n = [], 0


class _FreeKeepsTable(_Paged):
    def free(self) -> None:
        for block in self.block_table:
            self.pool.release(block)


class _FreeForgets(_Paged):
    def free(self) -> None:
        self.block_table, self.n = [], 0


class _TakesAsItGoes(_Paged):
    """Token by token: what fitted stays when the pool runs dry."""

    def append(self, k_new: np.ndarray, v_new: np.ndarray) -> Any:
        for t in range(k_new.shape[1]):
            super().append(k_new[:, t : t + 1], v_new[:, t : t + 1])


class _KeepsWhatItTook(_Paged):
    """Writes nothing when the pool runs dry, and keeps the blocks that it had taken until then."""

    def reserve(self, n_new: int) -> None:
        more = max(0, self.n_blocks_for(self.n + n_new) - len(self.block_table))
        if self.must_copy():
            self.copy()
        for _ in range(more):
            self.block_table.append(self.pool.allocate())


class _ForgetsTheCopy(_Paged):
    """Makes sure of the blocks for new tokens and not of the one for the copy."""

    def needed(self, more: int) -> int:
        return more


_NEW = ("new", "a")
_FORKED = (_NEW, ("append", "a", 6), ("fork", "a", "b"))

PAGED_CACHE = Exercise(
    id="PagedCache",
    is_class=True,
    reference=_Cache,
    stages=[
        Stage(
            "a first chunk comes back from gather", [_play(_NEW, ("append", "a", 1)), _play(_NEW, ("append", "a", 3))]
        ),
        Stage(
            "later tokens fill the block, then the next",
            [
                _play(_NEW, ("append", "a", 3), ("append", "a", 1)),
                _play(_NEW, ("append", "a", 4), ("append", "a", 1)),
                _play(_NEW, ("append", "a", 3), ("append", "a", 7), ("append", "a", 2)),
            ],
        ),
        Stage("the rows lie in the pool's blocks", [Probe("append 5 tokens in blocks of 4", _rows_lie_in_the_pool)]),
        Stage("an append reads no old rows", [Probe("append 4,000 tokens, then one more", _memory_of_an_append)]),
        Stage(
            "sequences in one pool are kept apart",
            [_play(_NEW, ("new", "b"), ("append", "a", 3), ("append", "b", 5), ("append", "a", 4), ("append", "b", 4))],
        ),
        Stage("other sizes", [_play(_NEW, ("append", "a", 5), ("append", "a", 1), size=1, shape=(1, 5))]),
        Stage(
            "nothing stored, and an empty chunk",
            [_play(_NEW), _play(_NEW, ("append", "a", 0)), _play(_NEW, ("append", "a", 4), ("append", "a", 0))],
        ),
        Stage(
            "what goes in and what comes out is copied",
            [Probe("append 5 tokens, then overwrite k_new", _inputs_and_results)],
        ),
        Stage("fork shares every block", [_play(*_FORKED), _play(_NEW, ("fork", "a", "b"), ("append", "b", 2))]),
        Stage(
            "who writes a shared block copies it first",
            [
                _play(_NEW, ("append", "a", 1), ("fork", "a", "b"), ("append", "b", 1)),
                _play(_NEW, ("append", "a", 3), ("fork", "a", "b"), ("append", "b", 1)),
                _play(*_FORKED, ("append", "a", 1)),
                _play(*_FORKED, ("append", "b", 5), ("append", "a", 3)),
                _play(*_FORKED, ("fork", "b", "c"), ("append", "c", 1), ("append", "a", 1)),
            ],
        ),
        Stage(
            "nothing is copied that is not written",
            [
                _play(_NEW, ("append", "a", 8), ("fork", "a", "b"), ("append", "b", 1), ("append", "a", 2)),
                _play(*_FORKED, ("append", "b", 0)),
                _play(*_FORKED, ("append", "b", 1), ("append", "a", 1), n_blocks=3),
            ],
        ),
        Stage(
            "free gives the blocks back",
            [
                _play(_NEW, ("append", "a", 6), ("free", "a")),
                _play(_NEW, ("append", "a", 6), ("free", "a"), ("append", "a", 3)),
            ],
        ),
        Stage(
            "blocks may lie in any order",
            [_play(_NEW, ("append", "a", 2), ("new", "b"), ("append", "b", 7), ("free", "b"), ("append", "a", 9))],
        ),
        Stage(
            "what another holds outlives a free",
            [
                _play(*_FORKED, ("free", "a")),
                _play(*_FORKED, ("free", "a"), ("new", "c"), ("append", "c", 8), ("append", "b", 1)),
                Probe("pool of 1: a.append 2 tokens; a.gather(); a.free(); b.append 3 tokens", _result_kept),
                Probe("pool of 4: a.append 6 tokens; a.free(); b.append 6 tokens; a.free() again", _freed_twice),
            ],
        ),
        Stage(
            "an append that does not fit changes nothing",
            [
                _play(_NEW, ("append", "a", 6), ("refuse", "a", 7), n_blocks=3),
                _play(_NEW, ("refuse", "a", 13), ("append", "a", 12), n_blocks=3),
                _play(*_FORKED, ("refuse", "b", 1), ("refuse", "a", 1), n_blocks=2),
                _play(*_FORKED, ("refuse", "b", 3), n_blocks=3),
            ],
        ),
    ],
    mistakes=[
        Mistake(
            "one_token_late",
            "The next block is taken one token late: the token that finds its block full is written over an old one.",
            "With blocks of 4, which token is the first that needs a second block?",
            _Late,
        ),
        Mistake(
            "one_token_early",
            "The next block is taken as soon as the last one is full, before any token needs it: every sequence of "
            "whole blocks holds one too many.",
            "How many blocks of 4 do 4 tokens need?",
            _Early,
        ),
        Mistake(
            "a_block_an_append",
            "Every append begins a block of its own, so that decoding takes a whole block for each token.",
            "After 3 tokens in a block of 4, where does the next one go?",
            _BlockAnAppend,
        ),
        Mistake(
            "private_rows",
            "The rows are kept in arrays of the cache's own and the pool's blocks are only counted: the pool holds "
            "nothing, and nothing can be shared through it.",
            "What stands in pool.k after your append?",
            _Private,
        ),
        Mistake(
            "every_append_reads_everything",
            "Each append gathers all the rows stored so far, to write back a few: its cost grows with the sequence.",
            "Which of the old rows does an append of one token have to touch?",
            _RewritesAll,
        ),
        Mistake(
            "append_returns_all",
            "append returns the gathered rows, which copies everything at each token. Here append returns None, and "
            "who needs the rows asks for them.",
            "How many rows are copied to append the 1,000th token?",
            _ReturnsAll,
        ),
        Mistake(
            "order_of_the_pool",
            "The blocks are read in the order of their numbers. A block's place in the sequence is its place in the "
            "table, and its number says nothing about it.",
            "When blocks 5 and 2 are handed out in this order, which of them holds the first tokens?",
            _PoolOrder,
        ),
        Mistake(
            "whole_blocks",
            "gather returns whole blocks, with slots at the end that no token was written to.",
            "Of 2 blocks of 4 that hold 5 tokens, how many rows belong to the sequence?",
            _WholeBlocks,
        ),
        Mistake(
            "view_of_a_block",
            "Where one block holds everything, gather returns a view of the pool: it changes under the caller when "
            "the block is written again.",
            "Whose tokens does a view of a block show after the block was freed and handed out again?",
            _OneBlockView,
        ),
        Mistake(
            "heads_mixed",
            "The blocks are reshaped without moving the head axis to the front first: one head gets rows of another.",
            "In which order do the axes of pool.k[block_table] stand, and which two of them should become one?",
            _HeadsMixed,
        ),
        Mistake(
            "keys_as_values",
            "The keys are written to pool.v too: v_new is never looked at.",
            "Which of its two arguments does your append write where?",
            _KeysAsValues,
        ),
        Mistake(
            "length_in_slots",
            "len counts the slots of the blocks. It is the number of tokens, which is the position of the next one.",
            "At which position does the token after the fifth stand?",
            _LengthInSlots,
        ),
        Mistake(
            "shared_block_written",
            "A shared block is written without being copied first, so that one sequence overwrites the other's tokens.",
            "Who else reads the slot that the next token goes to?",
            _SharedWritten,
        ),
        Mistake(
            "only_the_fork_copies",
            "Only the fork copies. The sequence that it was forked from shares the block as well, and writes into it.",
            "After b = a.fork(), which of the two may write to the shared block?",
            _OnlyTheForkCopies,
        ),
        Mistake(
            "last_holder_copies",
            "Both copy the shared block, also the one that holds it alone by then: a copy for nothing.",
            "What is the count of a block after all others who shared it have copied it?",
            _CopiesAlways,
        ),
        Mistake(
            "full_block_copied",
            "The last block is copied because it is shared, although it is full and nothing will be written to it.",
            "Into which block does the next token go when the last one is full?",
            _CopiesFullToo,
        ),
        Mistake(
            "empty_chunk_copies",
            "An empty chunk copies the shared block although it writes nothing.",
            "How many slots does an append of no tokens write?",
            _CopiesForNothing,
        ),
        Mistake(
            "copies_keys_only",
            "The copy of a shared block takes the keys over and not the values.",
            "Which arrays hold a block's contents?",
            _CopiesKeysOnly,
        ),
        Mistake(
            "copies_no_rows",
            "The shared block is replaced by a new one, and the rows it held are not taken over.",
            "What has to stand in the first slots of the new block?",
            _CopiesNothing,
        ),
        Mistake(
            "copy_keeps_the_old",
            "After copying, the old block is not released: its count stays too high and it is never free again.",
            "How many sequences hold the old block after one of two has made a copy?",
            _CopyKeepsOld,
        ),
        Mistake(
            "copies_every_block",
            "The first write copies all shared blocks. Full ones are never written again, so they can stay shared.",
            "Which of the shared blocks is about to change?",
            _CopiesEverything,
        ),
        Mistake(
            "fork_copies",
            "fork copies the sequence into blocks of its own: nothing is shared, and each fork costs all the memory "
            "again.",
            "What should n_free be after a fork, before anyone writes?",
            _ForkCopies,
        ),
        Mistake(
            "fork_copies_the_last",
            "fork copies the last block at once. It may never be written: the copy can wait for the first write.",
            "How many blocks does a fork take if it is freed before it writes anything?",
            _ForkCopiesLast,
        ),
        Mistake(
            "fork_does_not_retain",
            "fork takes the table over without retaining the blocks: their counts say one holder where there are two.",
            "How will the pool know, when one of the two ends, that the other still reads the blocks?",
            _ForkDoesNotRetain,
        ),
        Mistake(
            "one_table_for_both",
            "Both sequences have one and the same list as their table: a block that one of them adds appears in the "
            "other.",
            "Does b = a copy a list?",
            _OneTable,
        ),
        Mistake(
            "free_for_everyone",
            "free lets go for every holder, so that blocks of a sequence that goes on are handed out to another.",
            "How many of a block's holders end when one sequence ends?",
            _FreesForAll,
        ),
        Mistake(
            "free_keeps_the_table",
            "free releases the blocks and keeps the table: the sequence goes on reading blocks that are no longer its"
            " own, and a second free lets go of another's.",
            "What should the table of a sequence hold after it has let go of every block?",
            _FreeKeepsTable,
        ),
        Mistake(
            "free_releases_nothing",
            "free empties the table without releasing the blocks: the pool never gets them back.",
            "Who tells the pool that a block has one holder less?",
            _FreeForgets,
        ),
        Mistake(
            "half_an_append",
            "An append that runs out of blocks leaves the tokens that fitted. The caller cannot try again: the layers"
            " of a model would hold different lengths.",
            "Before the first row is written, what can you find out about the pool?",
            _TakesAsItGoes,
        ),
        Mistake(
            "keeps_what_it_took",
            "An append that runs out of blocks keeps those that it had taken: the table is longer than the tokens "
            "need.",
            "How many blocks will this append need in all, and how many are free?",
            _KeepsWhatItTook,
        ),
        Mistake(
            "no_block_for_the_copy",
            "The blocks for new tokens are made sure of, and the one for the copy of a shared block is not.",
            "How many blocks does an append take when the last block is shared and part filled?",
            _ForgetsTheCopy,
        ),
    ],
)

EXERCISES = [BLOCK_POOL, PAGED_CACHE]
