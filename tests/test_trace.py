"""Counting: the counter sees every product with a weight once, and a trace holds what the model did."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.caches import ConcatCache
from kvlab.decoder import TinyDecoder, generate
from kvlab.trace import Trace, counted

D, WIDTH, N = 4, 6, 5
PRODUCTS = {
    "x @ w": lambda x, w: x @ w,
    "w.T @ x.T": lambda x, w: (w.T @ x.T).T,
    "row by row": lambda x, w: np.stack([row @ w for row in x]) if len(x) else x @ w,
    "column by column": lambda x, w: np.stack([w.T @ row for row in x]) if len(x) else x @ w,
    "matmul": lambda x, w: np.matmul(x, w),
    "matmul into out": lambda x, w: np.matmul(x, w, out=np.empty((len(x), WIDTH))),
    "linalg.matmul": lambda x, w: np.linalg.matmul(x, w),
    "matmul of lists": lambda x, w: np.matmul(x.tolist(), w) if len(x) else x @ w,
    "dot": lambda x, w: np.dot(x, w),
    "dot by name": lambda x, w: np.dot(a=x, b=w),
    "w.T.dot": lambda x, w: w.T.dot(x.T).T,
    "inner": lambda x, w: np.inner(x, w.T),
    "tensordot": lambda x, w: np.tensordot(x, w, axes=1),
    "tensordot, turned": lambda x, w: np.tensordot(w, x, axes=([0], [1])).T,
    "multi_dot": lambda x, w: np.linalg.multi_dot([x, w]),
    "einsum": lambda x, w: np.einsum("nd,dw->nw", x, w),
    "einsum, turned": lambda x, w: np.einsum("dw, nd -> nw", w, x),
    "einsum, implicit": lambda x, w: np.einsum("nd,dw", x, w),
    "einsum, optimized": lambda x, w: np.einsum("nd,dw->nw", x, w, optimize=True),
    "einsum, ellipsis": lambda x, w: np.einsum("...d,dw->...w", x, w),
    "einsum, lists": lambda x, w: np.einsum(x, [0, 1], w, [1, 2], [0, 2]),
    "einsum, list ellipsis": lambda x, w: np.einsum(x, [..., 1], w, [1, 2], [..., 2]),
    "one head at a time": lambda x, w: np.concatenate([x @ w[:, i : i + 2] for i in (0, 2, 4)], axis=1),
    "split into heads": lambda x, w: np.concatenate([x @ part for part in np.split(w, 3, axis=1)], axis=1),
    "a head an axis": lambda x, w: np.concatenate([*(x @ w.reshape(D, 3, 2).transpose(1, 0, 2))], axis=1),
    "einsum, heads": lambda x, w: np.einsum("nd,dhk->nhk", x, w.reshape(D, 3, 2)).reshape(len(x), WIDTH),
    "a batch": lambda x, w: (x[:, None] @ w)[:, 0],
    "scaled": lambda x, w: (x @ (w / 2)) * 2,
    "a copy": lambda x, w: x @ w.copy(),
    "contiguous transpose": lambda x, w: x @ w.T.copy().T,
    "columns picked": lambda x, w: x @ w[:, list(range(WIDTH))],
    "cast": lambda x, w: x @ w.astype(float),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("n", [N, 1, 0])
def test_a_product_counts_its_rows_once(name, n):
    rng = np.random.default_rng(0)
    x, plain = rng.standard_normal((n, D)), rng.standard_normal((D, WIDTH))
    w = counted(plain)
    result = PRODUCTS[name](x, w)
    assert w.rows_seen == n
    assert type(result) is np.ndarray
    np.testing.assert_allclose(result, x @ plain, rtol=0, atol=1e-12)


@given(rows=st.lists(st.integers(0, 7), max_size=5), d=st.integers(1, 6), width=st.integers(1, 6))
def test_rows_add_up_over_calls_and_only_there(rows, d, width):
    w = counted(np.ones((d, width)))
    for n in rows:
        out = np.ones((n, d)) @ w
        out @ out.T, out + 1, np.einsum("nw,mw->nm", out, out)  # products of results are not products of w
    assert w.rows_seen == sum(rows)


def test_more_axes_of_tokens_are_all_tokens():
    w = counted(np.ones((D, WIDTH)))
    np.ones((2, 3, D)) @ w
    np.einsum("bnd,dw->bnw", np.ones((2, 3, D)), w)
    np.einsum("...d,dw->...w", np.ones((2, 3, D)), w)
    np.tensordot(np.ones((2, 3, D)), w, axes=1)
    np.dot(np.ones((2, 3, D)), w)
    assert w.rows_seen == 5 * 2 * 3


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: w * np.ones(WIDTH),
        lambda w: w.sum(axis=0) @ np.ones(WIDTH),
        lambda w: np.dot(2.0, w),
        lambda w: w.T.reshape(-1)[:3],
        lambda w: np.allclose(w, w),
        lambda w: counted(np.ones((D, D))) @ w,
        lambda w: np.einsum("dw->wd", w),
        lambda w: np.concatenate([w, w]),
        lambda w: np.matmul(np.ones((D, D)), np.ones((D, WIDTH)), out=w),
        lambda w: repr(w),
    ],
    ids=["+", "scale", "sum", "scalar dot", "view", "allclose", "two weights", "einsum alone", "concat", "out", "repr"],
)
def test_what_multiplies_no_token_counts_nothing(use):
    w = counted(np.ones((D, WIDTH)))
    use(w)
    assert w.rows_seen == 0


def test_scaled_in_place_is_still_counted():
    w = counted(np.ones((D, WIDTH)))
    w *= 2
    assert (np.ones((N, D)) @ w)[0, 0] == 2 * D
    assert w.rows_seen == N


def test_half_the_columns_are_half_the_work():
    w = counted(np.ones((D, WIDTH)))
    for n in (2, 4):
        np.ones((n, D)) @ w[:, : WIDTH // 2]
    assert w.rows_seen == w.T.rows_seen == w[:, :1].rows_seen == 3


def test_each_weight_has_its_own_tally_and_the_original_none():
    plain = np.ones((D, WIDTH))
    first, second = counted(plain), counted(plain)
    again = counted(first)
    np.ones((N, D)) @ first
    np.ones((2, D)) @ again
    assert (first.rows_seen, second.rows_seen, again.rows_seen) == (N, 0, 2)
    assert type(plain) is np.ndarray


def test_what_is_said_not_to_be_seen():
    """The limits in the docstring hold: a plain array asks no one. They give 0, never a wrong number of rows."""
    x = np.ones((N, D))
    for use in (lambda w: x.dot(w), lambda w: x @ np.asarray(w), lambda w: x @ np.array(w), lambda w: x[..., None] * w):
        w = counted(np.ones((D, WIDTH)))
        assert type(use(w)) is np.ndarray
        assert w.rows_seen == 0


def test_einsum_of_three_operands_is_refused():
    with pytest.raises(ValueError, match="an einsum of 3 operands"):
        np.einsum("nd,dw,wk->nk", np.ones((N, D)), counted(np.ones((D, WIDTH))), np.ones((WIDTH, 2)))


@pytest.mark.parametrize(
    "shape, message", [((3,), "1 axes"), ((2, 3, 4), "3 axes"), ((0, 3), "empty"), ((3, 0), "empty")]
)
def test_counted_needs_a_matrix(shape, message, no_shape_hook):
    with pytest.raises(ValueError, match=message):
        counted(np.ones(shape))


def run_of(prompt: int, n_new: int, cached: bool) -> Trace:
    model = TinyDecoder(n_layers=3)
    trace = model.make_trace()
    generate(model, np.arange(prompt), n_new, model.make_caches() if cached else None, trace)
    return trace


@settings(max_examples=15)
@given(prompt=st.integers(1, 6), n_new=st.integers(0, 6))
def test_a_cached_run_projects_each_stored_token_once(prompt, n_new):
    trace, stored = run_of(prompt, n_new, cached=True), prompt + n_new - 1 if n_new else 0
    for layer in range(3):
        assert trace.total("projected", layer) == trace.total("stored", layer) == stored
    assert [(s.n_new, s.n_past) for s in trace.steps] == [(prompt, 0), *((1, prompt + i) for i in range(n_new - 1))][
        :n_new
    ]


@settings(max_examples=15)
@given(prompt=st.integers(1, 6), n_new=st.integers(0, 6))
def test_an_uncached_run_projects_everything_each_time(prompt, n_new):
    trace, lengths = run_of(prompt, n_new, cached=False), [prompt + i for i in range(n_new)]
    assert trace.total("projected", 1) == trace.total("read", 1) == sum(lengths)
    assert trace.total("scores", 1) == sum(t * t for t in lengths)
    assert trace.total("stored") == 0


def test_eight_tokens_from_one_frozen():
    """36 against 8 projections, 204 against 36 scores a head: the numbers of lesson 02."""
    cached, uncached = run_of(1, 8, cached=True), run_of(1, 8, cached=False)
    assert (uncached.total("projected", 0), cached.total("projected", 0)) == (36, 8)
    assert (uncached.total("scores", 0), cached.total("scores", 0)) == (204, 36)
    assert uncached.total("read", 0) == cached.total("read", 0) == 36


@pytest.mark.parametrize("cached, rows", [(True, 9), (False, 3 + 4 + 5 + 6 + 7 + 8 + 9)])
def test_trace_and_counted_weights_agree(cached, rows):
    """Two counters that know nothing of each other: what the decoder reports, and what its weights saw."""
    model = TinyDecoder()
    names = ("wq", "wk", "wv")
    for layer in model.weights["layers"]:
        layer.update({name: counted(layer[name]) for name in names})
    trace = model.make_trace()
    generate(model, np.array([5, 3, 1]), 7, model.make_caches() if cached else None, trace)
    for i, layer in enumerate(model.weights["layers"]):
        assert [layer[name].rows_seen for name in names] == [rows] * 3
        assert trace.total("projected", i) == rows


def test_bytes_and_totals_frozen():
    trace = Trace(n_layers=2, n_kv_heads=2, head_dim=8, bytes_per_element=0.5)
    trace.begin(5, 0)
    trace.count(0, projected=2, stored=2, read=2, scores=20)
    trace.count(0, projected=3, stored=3, read=3, scores=5)
    trace.count(1, projected=5, stored=3)
    trace.begin(1, 5)
    trace.count(0, projected=1, stored=1, read=6, scores=6)
    assert [trace.total(q) for q in ("projected", "stored", "read", "scores")] == [11, 9, 11, 31]
    assert [s.total("projected") for s in trace.steps] == [10, 1]
    assert (trace.bytes("stored"), trace.bytes("stored", 0), trace.bytes("read")) == (144, 96, 176)
    assert repr(trace) == "Trace of 2 steps over 2 layers: projected 11, stored 9, read 11, scores 31"


def test_a_models_trace_is_priced_at_its_dtype():
    for dtype, size, given_size in ((np.float64, 8, None), (np.float32, 4, None), (np.float32, 2, 2)):
        model = TinyDecoder(dtype=dtype)
        trace, caches = model.make_trace(given_size), model.make_caches()
        model(np.arange(5), caches, trace=trace)
        assert trace.bytes("stored") == 2 * 2 * 2 * 5 * 8 * size
        assert given_size or trace.bytes("stored") == sum(c.n_bytes for c in caches)
        assert isinstance(caches[0], ConcatCache)


def test_bad_input_is_refused(no_shape_hook):
    with pytest.raises(ValueError, match="n_layers: expected a whole number of at least 1, got 0"):
        Trace(0, 2, 8, 2)
    trace = Trace(2, 2, 8, 2)
    with pytest.raises(ValueError, match="no step is open"):
        trace.count(0, projected=1)
    with pytest.raises(ValueError, match=r"n_new: .* got -1"):
        trace.begin(-1, 0)
    trace.begin(1, 0)
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=f"layer must be 0 to 1, got {layer}"):
            trace.count(layer, projected=1)
        with pytest.raises(ValueError, match=f"layer must be 0 to 1, got {layer}"):
            trace.total("projected", layer)
    with pytest.raises(ValueError, match="quantity must be one of projected, stored, read, scores, got 'rows'"):
        trace.total("rows")
    with pytest.raises(ValueError, match="only 'stored' and 'read' are rows that have bytes, got 'scores'"):
        trace.bytes("scores")
