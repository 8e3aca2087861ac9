"""kvlab.llama against transformers on random checkpoints, and against itself on every cache of the course."""

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from kvlab import caches, torch_caches
from kvlab.decoder import generate
from kvlab.llama import Llama, load
from kvlab.llama.config import from_hugging_face, rope_frequencies
from kvlab.llama.torch_llama import TorchLlama
from kvlab.masks import visible

torch.set_num_threads(1)  # on tensors this small threads only wait for each other

VOCAB = 61


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n)


def oracle(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0].numpy()


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[Path]:
    """One small checkpoint for the tests that need only one."""
    with tempfile.TemporaryDirectory() as name:
        tiny_llama.write(Path(name), dtype=torch.float64)
        models.cache_clear()
        models.folder = Path(name)  # type: ignore[attr-defined]
        yield Path(name)


@cache
def models(rotate_on_read: bool = False) -> tuple[Llama, TorchLlama]:
    """That checkpoint in both forms, float64."""
    path = models.folder  # type: ignore[attr-defined]
    numpy_form = load(path, dtype=np.float64, rotate_on_read=rotate_on_read)
    return numpy_form, load(path, form="torch", dtype=torch.float64, rotate_on_read=rotate_on_read)


# Against transformers


@pytest.mark.parametrize("shape", tiny_llama.SHAPES)
@pytest.mark.parametrize(("precision", "bound"), [("float64", 2e-5), ("float32", 2e-5)])
def test_both_forms_equal_transformers(tmp_path: Path, shape: str, precision: str, bound: float) -> None:
    # transformers rounds RoPE's angles to float32 whatever the dtype, hence the bound in float64.
    theirs = tiny_llama.write(tmp_path, dtype=getattr(torch, precision), **tiny_llama.SHAPES[shape])
    ids = random_ids(40)
    expected = oracle(theirs, ids)
    ours = load(tmp_path, dtype=precision)(ids)
    in_torch = load(tmp_path, form="torch", dtype=getattr(torch, precision))(torch.from_numpy(ids)[None])[0].numpy()
    assert ours.dtype == in_torch.dtype == np.dtype(precision)
    size = np.abs(expected).max()
    assert size > 1
    assert np.abs(ours - expected).max() < bound * size
    assert np.abs(in_torch - expected).max() < bound * size
    if precision == "float64":
        assert np.abs(in_torch - ours).max() < 1e-12 * size


@pytest.mark.parametrize("rope", ["tied", "llama3", "base"])
def test_frequencies_equal_transformers(rope: str) -> None:
    theirs = tiny_llama.make_model(**tiny_llama.SHAPES[rope])
    ours = rope_frequencies(from_hugging_face(theirs.config.to_dict()))
    assert np.abs(ours / theirs.model.rotary_emb.inv_freq.numpy() - 1).max() < 1e-6


def test_llama3_scaling_in_either_spelling() -> None:
    # What Llama 3.1's release says, read from the older field; 1/8 of the slowest pair, the fastest as it was.
    fields = tiny_llama.make_model().config.to_dict() | {
        "head_dim": 128,
        "rope_parameters": None,
        "rope_theta": 500000.0,
        "rope_scaling": tiny_llama.LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 500000.0},
    }
    scaled = rope_frequencies(from_hugging_face(fields))
    plain = rope_frequencies(from_hugging_face(fields | {"rope_scaling": None}))
    assert scaled[0] == plain[0] == 1.0
    assert np.isclose(scaled[-1] * 8, plain[-1], rtol=1e-12)
    # Those in between have wavelengths 2 pi 500000 ** (i / 64) from 2,048 to 8,192 tokens: i from 28.2 to 35.0.
    between = (plain / scaled > 1) & (plain / scaled < 8)
    assert np.flatnonzero(between).tolist() == [29, 30, 31, 32, 33, 34]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shard", [None, "8KB"])
def test_stored_dtypes_and_shards(tmp_path: Path, stored: torch.dtype, shard: str | None) -> None:
    tiny_llama.write(tmp_path, dtype=stored, shard=shard)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1 if shard is None else len(list(tmp_path.glob("*-of-*"))) > 3
    ids = random_ids(11)
    assert np.abs(load(tmp_path)(ids) - oracle(theirs, ids)).max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torch_in_16_bits_is_near(dtype: torch.dtype) -> None:
    ids = torch.from_numpy(random_ids(20))[None]
    model = load(models.folder, form="torch", dtype=dtype)  # type: ignore[attr-defined]
    logits, exact = model(ids).double(), models()[1](ids)
    assert model(ids).dtype == dtype
    assert (logits - exact).abs().mean() < 0.03 * exact.abs().max()


def test_greedy_tokens_equal_transformers_generate(folder: Path) -> None:
    theirs = tiny_llama.write(folder / "single")
    ids = random_ids(7)
    with torch.no_grad():
        expected = theirs.generate(torch.from_numpy(ids)[None], max_new_tokens=30, do_sample=False, pad_token_id=0)
    model = load(folder / "single")
    assert generate(model, ids, 30, model.make_caches()).tolist() == expected[0].tolist()


# Cached equals uncached, whatever the chunks and the cache

CHUNKS = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(lambda sizes: [*sizes, 1])
EXACT = ["concat", "static", "paged", "quantized while exact"]


def numpy_caches(kind: str, model: Llama) -> list[Any]:
    c = model.config
    kv, d = c.n_kv_heads, c.head_dim
    pool = caches.BlockPool(c.n_layers * 20, 3, kv, d, model.dtype)
    make: dict[str, Callable[[], Any]] = {
        "concat": lambda: caches.ConcatCache(kv, d),
        "static": lambda: caches.StaticCache(kv, 60, d, model.dtype),
        "paged": lambda: caches.PagedCache(pool),
        "quantized while exact": lambda: caches.QuantizedCache(kv, d, 4, 64),
        "ring": lambda: caches.RingCache(kv, d, 5),
        "sink": lambda: caches.SinkCache(kv, d, 2, 5),
    }
    return model.make_caches(make[kind])


def torch_made(kind: str, model: TorchLlama) -> list[Any]:
    c, f64 = model.config, torch.float64
    kv, d = c.n_kv_heads, c.head_dim
    pool = torch_caches.BlockPool(c.n_layers * 20, 3, kv, d, f64)
    make: dict[str, Callable[[], Any]] = {
        "concat": lambda: torch_caches.ConcatCache(1, kv, d),
        "static": lambda: torch_caches.StaticCache(1, kv, 60, d, f64),
        "paged": lambda: torch_caches.PagedCache(pool),
        "quantized while exact": lambda: torch_caches.QuantizedCache(1, kv, d, 4, 64),
        "ring": lambda: torch_caches.RingCache(1, kv, d, 5, f64),
        "sink": lambda: torch_caches.SinkCache(1, kv, d, 2, 5, f64),
    }
    return model.make_caches(make=make[kind])


def in_chunks(call: Callable[[np.ndarray], np.ndarray], ids: np.ndarray, sizes: list[int]) -> np.ndarray:
    return np.concatenate([call(part) for part in np.split(ids, np.cumsum(sizes)[:-1])])


def both_forms(kind: str, rotate_on_read: bool = False) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Calls that go on with caches of their own, one in each form."""
    ours, in_torch = models(rotate_on_read)
    held, torch_held = numpy_caches(kind, ours), torch_made(kind, in_torch)
    return [
        lambda ids: ours(ids, held),
        lambda ids: in_torch(torch.from_numpy(ids)[None], torch_held)[0].numpy(),
    ]


# Without the shape hook, which takes ten times as long as the decoder; the other tests run it.
@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("rotate_on_read", [False, True])
@settings(max_examples=15)
@given(sizes=CHUNKS, seed=st.integers(0, 99))
def test_cached_equals_uncached(kind: str, rotate_on_read: bool, sizes: list[int], seed: int) -> None:
    ids = random_ids(sum(sizes), seed)
    whole = models()[0](ids)
    for call in both_forms(kind, rotate_on_read):
        assert np.abs(in_chunks(call, ids, sizes) - whole).max() < 1e-11


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(("kind", "n_sinks"), [("ring", 0), ("sink", 2)])
@settings(max_examples=15)
@given(sizes=CHUNKS, seed=st.integers(0, 99))
def test_caches_that_evict_equal_the_masked_pass(kind: str, n_sinks: int, sizes: list[int], seed: int) -> None:
    ids = random_ids(sum(sizes), seed)
    at = np.arange(len(ids))
    whole = models()[0](ids, mask=visible(at, at, window=5, n_sinks=n_sinks))
    for call in both_forms(kind):
        assert np.abs(in_chunks(call, ids, sizes) - whole).max() < 1e-11


def test_rotation_on_read_counts_rows_and_not_tokens(tmp_path: Path) -> None:
    # In a model of one layer the rows held depend on their own tokens only, so a fresh pass over exactly these tokens,
    # the first two and the last five, must give the same logits; with rotated keys stored it must not.
    tiny_llama.write(tmp_path, dtype=torch.float64, num_hidden_layers=1)
    ids = random_ids(30)
    fresh = load(tmp_path, dtype=np.float64)
    held = np.concatenate([ids[:2], ids[-5:]])
    for rotate_on_read, is_equal in ((True, True), (False, False)):
        model = load(tmp_path, dtype=np.float64, rotate_on_read=rotate_on_read)
        kept = model.make_caches(lambda m=model: caches.SinkCache(m.config.n_kv_heads, m.config.head_dim, 2, 5))
        last = in_chunks(lambda part, m=model, k=kept: m(part, k), ids, [12, 1, 9, 7, 1])[-1]
        assert (np.abs(last - fresh(held)[-1]).max() < 1e-11) == is_equal


@pytest.mark.usefixtures("no_shape_hook")
def test_rotation_on_read_goes_on_beyond_the_context() -> None:
    model, in_torch = models(rotate_on_read=True)
    kept, torch_kept = numpy_caches("sink", model), torch_made("sink", in_torch)
    ids = random_ids(150)  # of 128 positions
    for token in np.split(ids, 150):
        ours = model(token, kept)
        theirs = in_torch(torch.from_numpy(token)[None], torch_kept)
    assert len(kept[0]) == 150
    assert np.abs(ours - theirs[0].numpy()).max() < 1e-11
    with pytest.raises(ValueError, match="more than the model's context of 128"):
        model(random_ids(129), model.make_caches())


def test_a_batch_is_its_rows_alone() -> None:
    model = models()[1]
    ids = torch.from_numpy(np.stack([random_ids(9, 1), random_ids(9, 2)]))
    held = model.make_caches(batch=2, max_len=9)
    parts = torch.cat([model(ids[:, :4], held), model(ids[:, 4:], held)], dim=1)
    for row, one in zip(parts, ids, strict=True):
        assert (row - model(one[None])[0]).abs().max() < 1e-12


def test_last_only_is_the_last_row() -> None:
    ids = random_ids(9)
    model, in_torch = models()
    whole = model(ids)
    assert np.abs(model(ids, last_only=True) - whole[-1:]).max() < 1e-12
    last = in_torch(torch.from_numpy(ids)[None], last_only=True).numpy()
    assert last.shape == (1, 1, VOCAB)
    assert np.abs(last[0] - whole[-1:]).max() < 1e-12


def test_nothing_new_gives_no_logits() -> None:
    model, in_torch = models()
    held = model.make_caches()
    model(random_ids(3), held)
    assert model(random_ids(0), held).shape == model(random_ids(0), held, last_only=True).shape == (0, VOCAB)
    assert in_torch(torch.zeros(1, 0, dtype=torch.int64)).shape == (1, 0, VOCAB)
    assert len(held[0]) == 3


def test_positions_and_mask_hide_padding() -> None:
    model, ids = models()[0], random_ids(6)
    padded = np.concatenate([[0, 0], ids])
    mask = np.tril(np.ones((8, 8), bool))
    mask[2:, :2] = False
    shifted = np.array([0, 0, *range(6)])
    assert np.abs(model(padded, positions=shifted, mask=mask)[2:] - model(ids)).max() < 1e-12


def test_keys_and_values_as_stored() -> None:
    model, ids = models()[0], random_ids(8)
    rotated, plain = model.keys_values(ids), model.keys_values(ids, rotated=False)
    assert len(rotated) == len(plain) == 3
    assert rotated[2][0].shape == (2, 8, 8)
    c = model.config
    for (k, v), (k_plain, v_plain) in zip(rotated, plain, strict=True):
        turned = rotate_by_numbers(k_plain, c.rope_base)
        assert np.abs(turned - k).max() < 1e-12
        assert np.array_equal(v, v_plain)
        assert np.abs(k - k_plain)[:, 1:].max() > 0.1


def rotate_by_numbers(k: np.ndarray, base: float) -> np.ndarray:
    """RoPE as multiplication of complex numbers: another way to the same turn."""
    half = k.shape[-1] // 2
    angles = np.arange(k.shape[1])[:, None] * base ** (-np.arange(half) / half)
    turned = (k[..., :half] + 1j * k[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def test_a_trace_counts_what_the_caches_did() -> None:
    model = models()[0]
    trace = model.make_trace()
    generate(model, random_ids(5), 3, model.make_caches(), trace)
    assert [(step.n_new, step.n_past) for step in trace.steps] == [(5, 0), (1, 5), (1, 6)]
    assert trace.total("projected", layer=2) == 7
    assert trace.bytes("stored") == 7 * 3 * 2 * 2 * 8 * 8


# Bad input. Whatever is refused leaves the caches as they were.


def lengths(held: list[Any]) -> set[int]:
    return {len(one) for one in held}


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([3, VOCAB]), "ids must be 0 to 60, got 3 to 61"),
        (np.array([-1, 3]), "ids must be 0 to 60, got -1 to 3"),
        (np.array([1.0]), "ids: expected integers, got float64"),
        ([3, 1], "ids: expected an array of shape (n_new,), got list"),
        (np.array([[1]]), "ids: expected shape (n_new,), got (1, 1): 2 axes"),
        (np.zeros(125, int), "4 cached and 125 new tokens are more than the model's context of 128"),
    ],
)
def test_bad_ids(ids: np.ndarray, message: str) -> None:
    model, in_torch = models()
    held, torch_held = model.make_caches(), in_torch.make_caches()
    model(random_ids(4), held)
    in_torch(torch.from_numpy(random_ids(4))[None], torch_held)
    with pytest.raises(ValueError) as error:
        model(ids, held)
    assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ValueError):
        in_torch(torch.from_numpy(ids)[None] if isinstance(ids, np.ndarray) else [ids], torch_held)
    assert lengths(held) == lengths(torch_held) == {4}


@pytest.mark.usefixtures("no_shape_hook")
def test_the_other_librarys_ids() -> None:
    with pytest.raises(ValueError, match="ids: expected a NumPy array, got Tensor"):
        models()[0](torch.tensor([3, 1]))
    with pytest.raises(ValueError, match="ids: expected a tensor, got ndarray"):
        models()[1](np.array([[3, 1]]))


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": np.array([0, 128])}, "positions must be 0 to 127, the model's context, got 0 to 128"),
        ({"positions": np.array([0])}, "positions: expected shape (n_new=2,), got (1,)"),
        ({"mask": np.ones((2, 2), bool)}, "mask: expected shape (n_new=2, n_total=6), got (2, 2)"),
        ({"mask": np.ones((2, 6))}, "mask: expected bool"),
        ({"mask": np.arange(12).reshape(2, 6) < 6}, "mask: row 1 is all False"),
    ],
)
def test_bad_positions_and_masks(options: dict[str, Any], message: str) -> None:
    model = models()[0]
    held = model.make_caches()
    model(random_ids(4), held)
    with pytest.raises(ValueError) as error:
        model(random_ids(2), held, **options)
    assert message in str(error.value)
    assert lengths(held) == {4}


def with_one(held: list[Any], i: int, other: Any) -> list[Any]:
    return [other if j == i else one for j, one in enumerate(held)]


@pytest.mark.usefixtures("no_shape_hook")
def test_bad_caches() -> None:
    model = models()[0]
    held = model.make_caches()
    used = caches.ConcatCache(2, 8)
    used.append(np.zeros((2, 1, 8)), np.zeros((2, 1, 8)))
    wrong = {
        "caches: expected one a layer, 3, got 2": held[:2],
        "the same one stands there twice": [held[0]] * 3,
        "must hold equally many tokens, got lengths [0, 1]": with_one(held, 2, used),
        "caches: layer 2: expected head_dim 8, got 4": with_one(held, 2, caches.ConcatCache(2, 4)),
        "caches: layer 1: expected n_kv_heads 2, got 3": with_one(
            held, 1, caches.PagedCache(caches.BlockPool(9, 2, 3, 8))
        ),
        "must match exactly, but along dimension 2": with_one(held, 2, Learners(2, 4)),
        "cache holds float32, got float64 keys": with_one(held, 1, caches.StaticCache(2, 9, 8, np.float32)),
        "layer 2 has 4 slots, 0 filled, and 5 new tokens do not fit": with_one(held, 2, caches.StaticCache(2, 4, 8)),
        "expected (k, v)": with_one(held, 2, Forgetful()),
    }
    for message, some in wrong.items():
        with pytest.raises(ValueError) as error:
            model(random_ids(5), some)
        assert message in str(error.value) and "\n" not in str(error.value)
        assert lengths(held) == {0}


class Learners:
    """The class that the exercise of lesson 02 asks for: no more than append and len."""

    def __init__(self, n_kv_heads: int, head_dim: int) -> None:
        self.k = self.v = np.zeros((n_kv_heads, 0, head_dim))

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.k, self.v = np.concatenate([self.k, k], axis=1), np.concatenate([self.v, v], axis=1)
        return self.k, self.v

    def __len__(self) -> int:
        return self.k.shape[1]


class Full(Learners):
    """One that has no room, which nobody can tell from outside."""

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if k.shape[1]:
            raise RuntimeError("no room")
        return super().append(k, v)


def test_the_learners_cache_is_enough() -> None:
    model, ids = models()[0], random_ids(9)
    held = model.make_caches(lambda: Learners(2, 8))
    assert np.abs(in_chunks(lambda part: model(part, held), ids, [4, 0, 5]) - model(ids)).max() < 1e-11


@pytest.mark.usefixtures("no_shape_hook")
def test_what_is_no_list_of_caches() -> None:
    model, in_torch = models()
    held = model.make_caches()
    wrong: dict[str, Any] = {
        "caches: expected a list, one a layer, 3, got <class 'kvlab.caches.contiguous.ConcatCache'>": held[0],
        "caches: layer 1 must have `append` and `len`, got <class 'NoneType'>": with_one(held, 1, None),
        "caches: layer 0 must have `append` and `len`, got <class 'type'>": [Learners, *held[1:]],
        "got <class 'kvlab.torch_caches.contiguous.ConcatCache'>": in_torch.make_caches(),
    }
    for message, some in wrong.items():
        with pytest.raises(ValueError) as error:
            model(random_ids(2), some)
        assert message in str(error.value)
        assert lengths(held) == {0}
    with pytest.raises(ValueError, match="caches: layer 0 must have `update` and `len`"):
        in_torch(torch.zeros(1, 2, dtype=torch.int64), held)


@pytest.mark.usefixtures("no_shape_hook")
def test_another_models_caches_that_hold_tokens() -> None:
    model, in_torch = models()
    held, torch_held = model.make_caches(), in_torch.make_caches()
    other, torch_other = caches.ConcatCache(2, 4), torch_caches.ConcatCache(1, 2, 4)
    for rows in (4, 8):  # as many tokens everywhere
        part = np.zeros((2, 3, rows))
        for one in [other] if rows == 4 else held[:2]:
            one.append(part, part)
        for one in [torch_other] if rows == 4 else torch_held[:2]:
            one.update(torch.from_numpy(part)[None], torch.from_numpy(part)[None])
    for call in (
        lambda: model(random_ids(1), with_one(held, 2, other)),
        lambda: in_torch(torch.zeros(1, 1, dtype=torch.int64), with_one(torch_held, 2, torch_other)),
    ):
        with pytest.raises(ValueError, match="caches: layer 2: expected head_dim 8, got 4"):
            call()
    assert lengths(held[:2]) == lengths(torch_held[:2]) == {3}


def test_a_cache_that_raises_half_way_is_found_by_the_next_call() -> None:
    model = models()[0]
    held = with_one(model.make_caches(), 1, Full(2, 8))
    with pytest.raises(RuntimeError, match="no room"):
        model(random_ids(5), held)
    with pytest.raises(ValueError, match=r"got lengths \[0, 5\]: after a call that stopped half-way start with empty"):
        model(random_ids(1), held)


class Forgetful:
    """A cache whose author forgot to return anything but the keys."""

    def append(self, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return k

    def __len__(self) -> int:
        return 0


@pytest.mark.usefixtures("no_shape_hook")
def test_bad_torch_caches() -> None:
    model = models()[1]
    held = model.make_caches()
    for message, some in {
        "expected shape (batch=2, ": with_one(held, 2, torch_caches.ConcatCache(2, 2, 8)),
        "expected head_dim 8, got 4": with_one(held, 2, torch_caches.ConcatCache(1, 2, 4)),
        "expected torch.float32": with_one(held, 2, torch_caches.StaticCache(1, 2, 9, 8)),
        "layer 1 has 4 slots": with_one(held, 1, torch_caches.StaticCache(1, 2, 4, 8, torch.float64)),
    }.items():
        with pytest.raises(ValueError) as error:
            model(torch.from_numpy(random_ids(5))[None], some)
        assert message in str(error.value)
        assert lengths(held) == {0}


@pytest.mark.parametrize("n_blocks", [8, 11])  # enough for two layers of three; and for all but a forked one's copy
def test_a_pool_too_small_for_all_layers_is_refused_before_the_first(n_blocks: int) -> None:
    model = models()[0]
    pool = caches.BlockPool(n_blocks, 2, 2, 8)
    held = model.make_caches(lambda: caches.PagedCache(pool))
    forks = []
    if n_blocks == 11:
        model(random_ids(5), held)
        forks = [one.fork() for one in held]
    n_free, before = pool.n_free, lengths(held)
    with pytest.raises(MemoryError, match="over the layers"):
        model(random_ids(5 if n_blocks == 8 else 1), held)
    assert (pool.n_free, lengths(held)) == (n_free, before)
    assert lengths(forks) <= before


def test_evicting_caches_bring_their_own_mask() -> None:
    model = models()[0]
    held = numpy_caches("ring", model)
    with pytest.raises(ValueError, match="a RingCache evicts rows and brings its own mask"):
        model(random_ids(2), held, mask=np.ones((2, 2), bool))
    assert lengths(held) == {0}


def test_rotation_on_read_takes_no_positions() -> None:
    with pytest.raises(ValueError, match="positions: keys rotated on read"):
        models(rotate_on_read=True)[0](random_ids(2), positions=np.array([0, 1]))
