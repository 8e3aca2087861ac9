"""Every cache of the course keeps one contract, and the contract refuses every cache that is broken on purpose."""

from typing import Any

import numpy as np
import pytest
import torch
from broken_caches import FAULTS
from cache_contract import BY_NAME, FORMS, Case, Form, cases, keep_contract
from hypothesis import HealthCheck, Phase, given, settings

from kvlab import caches, torch_caches

torch.set_num_threads(1)  # on tensors this small threads only wait for each other

N_CASES = 200  # a form; settings.default is larger only under the profile "explore"
N_WITH_SHAPES = 5  # with every signature's shapes checked, which takes four times as long


def run_cases(form: Form, n_cases: int) -> int:
    """Random cases on a form; AssertionError where one breaks the contract. Returns how many ran."""
    n_run = 0

    @settings(max_examples=n_cases, suppress_health_check=[HealthCheck.too_slow])
    @given(case=cases())
    def law(case):
        nonlocal n_run
        n_run += 1
        keep_contract(form, case)

    law()
    return n_run


FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@FORM
@pytest.mark.usefixtures("no_shape_hook")
def test_contract(form: Form) -> None:
    assert run_cases(form, max(N_CASES, settings.default.max_examples)) >= N_CASES


@FORM
def test_contract_with_shapes_checked(form: Form) -> None:
    assert run_cases(form, N_WITH_SHAPES) >= N_WITH_SHAPES


def test_enough_cases() -> None:
    assert len(FORMS) * N_CASES >= 2000


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.usefixtures("no_shape_hook")
def test_broken_caches_are_refused(name: str) -> None:
    form, cls = FAULTS[name]

    @settings(max_examples=N_CASES, phases=[Phase.generate], report_multiple_bugs=False)
    @given(case=cases())
    def law(case):
        keep_contract(BY_NAME[form], case, cls)

    with pytest.raises(AssertionError):
        law()


# Bad input

SIZES = Case(
    n_kv_heads=2,
    group=1,
    head_dim=4,
    dtype="float32",
    capacity=9,
    window=3,
    n_sinks=1,
    block_size=4,
    n_blocks=3,
    n_bits=4,
    residual=3,
    flat=False,
    seed=0,
    operations=(),
)


def rows_for(form: Form, n: int) -> Any:
    """(n_kv_heads, n, head_dim) for a NumPy form, (batch, n_kv_heads, n, head_dim) for a PyTorch one."""
    batch = form.build(SIZES, form.default).batch
    x = np.linspace(-1, 1, batch * 8 * n, dtype=np.float32).reshape(batch, 2, n, 4)
    return torch.from_numpy(x) if form.name.startswith("torch") else x[0]


def store(cache: Any, k: Any, v: Any) -> Any:
    return cache.append(k, v) if hasattr(cache, "append") else cache.update(k, v)


def as_float64(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double()


def all_of(cache: Any, form: Form) -> list[np.ndarray]:
    answer = store(cache, rows_for(form, 0), rows_for(form, 0))
    return [np.asarray(x).copy() for x in (cache.gather() if answer is None else answer)]


BAD_ROWS = {
    "keys of too few axes": (lambda k, v: (k[0], v), "k"),
    "values of too few axes": (lambda k, v: (k, v[0]), "v"),
    "keys of too many axes": (lambda k, v: (k[None], v), "k"),
    "values of another length": (lambda k, v: (k, v[..., :1, :]), "v"),
    "keys of another length": (lambda k, v: (k[..., :1, :], v), "v"),
    "keys of other heads": (lambda k, v: (k[..., :1, :, :], v), "k"),
    "values of other heads": (lambda k, v: (k, v[..., :1, :, :]), "v"),
    "both of other heads": (lambda k, v: (k[..., :1, :, :], v[..., :1, :, :]), "k"),
    "keys of another head_dim": (lambda k, v: (k[..., :3], v), "k"),
    "values of another head_dim": (lambda k, v: (k, v[..., :3]), "v"),
    "both of another head_dim": (lambda k, v: (k[..., :3], v[..., :3]), "k"),
    "keys that are a list": (lambda k, v: (k.tolist(), v), "k"),
    "no values": (lambda k, v: (k, None), "v"),
}
# A NumPy cache that allocates at its first append converts what follows, as NumPy does; the others refuse.
BAD_DTYPES = {
    "keys of another dtype": (lambda k, v: (as_float64(k), v), "k|cache holds|pool holds"),
    "values of another dtype": (lambda k, v: (k, as_float64(v)), "v|cache holds|pool holds"),
    "both of another dtype": (lambda k, v: (as_float64(k), as_float64(v)), "k|cache holds|pool holds"),
}
BAD_TENSORS = {
    "keys of another batch": (lambda k, v: (torch.cat([k, k]), v), "k"),
    "both of another batch": (lambda k, v: (torch.cat([k, k]), torch.cat([v, v])), "k"),
    "whole numbers": (lambda k, v: (k.long(), v.long()), "k"),
    "keys on another device": (lambda k, v: (k.to("meta"), v), "k"),
    "values on another device": (lambda k, v: (k, v.to("meta")), "v"),
}
BAD_NUMBERS = {
    "keys with nan": (lambda k, v: (k * float("nan"), v), "k"),
    "values with inf": (lambda k, v: (k, v * float("inf")), "v"),
}
REFUSE_DTYPES = ("numpy static", "numpy paged")


def bad_of(form: Form) -> dict[str, Any]:
    bad = dict(BAD_ROWS)
    if form.name.startswith("torch"):
        bad |= BAD_DTYPES | BAD_TENSORS
    elif form.name in REFUSE_DTYPES:
        bad |= BAD_DTYPES
    return bad | (BAD_NUMBERS if form.keeps == "quantized" else {})


@pytest.mark.parametrize(
    ("form", "bad"), [(form, bad) for form in FORMS for bad in bad_of(form)], ids=lambda x: getattr(x, "name", x)
)
@pytest.mark.usefixtures("no_shape_hook")
def test_bad_rows_are_refused_in_one_line_and_nothing_changes(form: Form, bad: str) -> None:
    change, names = bad_of(form)[bad]
    cache = form.build(SIZES, form.default).cache
    store(cache, rows_for(form, 5), rows_for(form, 5))
    before, n_bytes = all_of(cache, form), cache.n_bytes
    with pytest.raises(ValueError, match=f"^({names})") as error:
        store(cache, *change(rows_for(form, 2), rows_for(form, 2)))
    assert "\n" not in str(error.value)
    assert len(cache) == 5 and cache.n_bytes == n_bytes
    for got, wanted in zip(all_of(cache, form), before, strict=True):
        np.testing.assert_array_equal(got, wanted)


@FORM
@pytest.mark.usefixtures("no_shape_hook")
def test_a_refusal_of_the_first_rows_leaves_the_cache_as_new(form: Form) -> None:
    cache = form.build(SIZES, form.default).cache
    n_bytes = cache.n_bytes
    with pytest.raises(ValueError):
        store(cache, rows_for(form, 2), rows_for(form, 1))
    assert (len(cache), cache.n_bytes) == (0, n_bytes)
    store(cache, rows_for(form, 2), rows_for(form, 2))
    assert len(cache) == 2


@pytest.mark.parametrize("form", [f for f in FORMS if f.name.startswith("torch")], ids=lambda form: form.name)
@pytest.mark.usefixtures("no_shape_hook")
def test_whole_numbers_are_refused_from_the_first_row_on(form: Form) -> None:
    cache = form.build(SIZES, form.default).cache
    with pytest.raises(ValueError, match=r"^k: expected .*float.*, got torch.int64"):
        store(cache, rows_for(form, 2).long(), rows_for(form, 2).long())
    assert len(cache) == 0


BOTH = [pytest.param(caches, (), id="numpy"), pytest.param(torch_caches, (2,), id="torch")]


@pytest.mark.parametrize(("module", "batch"), BOTH)
@pytest.mark.parametrize(
    ("kind", "sizes", "says"),
    [
        ("ConcatCache", (0, 4), "n_kv_heads: expected .* at least 1, got 0"),
        ("StaticCache", (2, 0, 4), "max_len: expected .* at least 1, got 0"),
        ("StaticCache", (2, -3, 4), "max_len: .* got -3"),
        ("RingCache", (2, 4, 0), "window: expected .* at least 1, got 0"),
        ("RingCache", (2, 4, -1), "window: .* got -1"),
        ("RingCache", (2, 4, 2.5), "window: .* got 2.5"),
        ("RingCache", (0, 4, 3), "n_kv_heads: .* got 0"),
        ("SinkCache", (2, 4, 1, 0), "window: .* got 0"),
        ("SinkCache", (2, 4, -1, 3), "n_sinks: .* got -1"),
        ("SinkCache", (2, 4, 4, 3), "n_sinks: 4 sinks are more than the window of 3"),
        ("QuantizedCache", (2, 4, 1, 3), "n_bits: .* got 1"),
        ("QuantizedCache", (2, 4, 9, 3), "n_bits: .* got 9"),
        ("QuantizedCache", (2, 4, 4.0, 3), "n_bits: .* got 4.0"),
        ("QuantizedCache", (2, 4, True, 3), "n_bits: .* got True"),
        ("QuantizedCache", (2, 4, 4, 0), "residual: .* got 0"),
        ("QuantizedCache", (2, 0, 4, 3), "head_dim: .* got 0"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_bad_sizes_are_refused(
    module: Any, batch: tuple[int, ...], kind: str, sizes: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as error:
        getattr(module, kind)(*batch, *sizes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["ConcatCache", "StaticCache", "RingCache", "SinkCache", "QuantizedCache"])
@pytest.mark.usefixtures("no_shape_hook")
def test_a_batch_of_nothing_is_refused(kind: str) -> None:
    more = {"ConcatCache": (), "StaticCache": (4,), "RingCache": (3,)}.get(kind, (2, 3))
    with pytest.raises(ValueError, match=r"batch: .* got 0"):
        getattr(torch_caches, kind)(0, 2, 4, *more)


@pytest.mark.parametrize("module", [caches, torch_caches], ids=["numpy", "torch"])
@pytest.mark.usefixtures("no_shape_hook")
class TestPool:
    @pytest.mark.parametrize("at", range(4))
    def test_sizes_of_zero(self, module: Any, at: int) -> None:
        sizes = [3, 4, 2, 5]
        sizes[at] = 0
        with pytest.raises(ValueError, match="at least 1, got 0"):
            module.BlockPool(*sizes)

    @pytest.mark.parametrize("method", ["retain", "release", "count"])
    @pytest.mark.parametrize("block", [2, 3, -1, 1.0, True, None], ids=repr)
    def test_a_block_that_is_not_in_use(self, module: Any, method: str, block: Any) -> None:
        pool = module.BlockPool(3, 4, 2, 5)
        held = [pool.allocate(), pool.allocate()]
        with pytest.raises(ValueError) as error:
            getattr(pool, method)(block)
        assert "\n" not in str(error.value) and repr(block) in str(error.value)
        assert (pool.n_free, [pool.count(b) for b in held]) == (1, [1, 1])

    @pytest.mark.parametrize("method", ["retain", "release", "count"])
    def test_released_twice(self, module: Any, method: str) -> None:
        pool = module.BlockPool(3, 4, 2, 5)
        block = pool.allocate()
        pool.retain(block)
        pool.release(block)
        assert pool.count(block) == 1
        pool.release(block)
        with pytest.raises(ValueError, match=f"{method}: block {block} is not in use"):
            getattr(pool, method)(block)
        assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2], "a block was lost or is there twice"

    def test_exhausted(self, module: Any) -> None:
        pool = module.BlockPool(2, 4, 2, 5)
        blocks = [pool.allocate(), pool.allocate()]
        with pytest.raises(MemoryError, match=r"^pool empty: all 2 blocks are in use, [^\n]*$"):
            pool.allocate()
        pool.release(blocks[0])
        assert pool.allocate() == blocks[0]

    def test_a_cache_freed_twice_releases_once(self, module: Any) -> None:
        pool = module.BlockPool(3, 4, 2, 5)
        cache = module.PagedCache(pool)
        rows = np.ones((2, 5, 5)) if module is caches else torch.ones(1, 2, 5, 5)
        store(cache, rows, rows)
        other = cache.fork()
        cache.free()
        cache.free()
        assert [pool.count(b) for b in other.block_table] == [1, 1] and pool.n_free == 1
        assert (len(cache), cache.block_table, cache.n_bytes) == (0, [], 0)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "got NoneType"),
        (3, "got int"),
        ((1,), "got tuple of 1"),
        ([1, 2, 3, 4], "got list of 4"),
        ((1, 2, 3), "an attribute `window`"),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("no_shape_hook")
def test_attendable_names_an_answer_it_does_not_know(answer: Any, says: str) -> None:
    class Learners(list):
        def append(self, k_new, v_new):
            return answer

        update = append

    for module, method, rows in (
        (caches, "append", np.ones((2, 1, 3))),
        (torch_caches, "update", torch.ones(1, 2, 1, 3)),
    ):
        with pytest.raises(ValueError, match=rf"^Learners.{method}: .*{says}[^\n]*$"):
            module.attendable(Learners(), rows, rows)
