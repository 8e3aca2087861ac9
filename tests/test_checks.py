"""The checks are checked: references pass, stubs are not attempted, every mistake is refused and named."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlab.checks.engine import examine
from kvlab.checks.files import load
from kvlab.checks.model import Exercise, Mistake
from kvlab.checks.registry import cards, exercise
from kvlab.checks.report import Report

# Submissions hand wrong shapes to kvlab on purpose: what answers must be what answers a learner.
pytestmark = pytest.mark.usefixtures("no_shape_hook")

HERE = Path(__file__).resolve().parent
NAMES = list(cards())
# The contract with everyone who hands in or grades exercises: changed here only together with the design.
SIGNATURES = {
    "count_tokens": "count_tokens(k)",
    "softmax": "softmax(x)",
    "causal_attention": "causal_attention(q, k, v)",
    "KVCache": "KVCache(n_kv_heads, head_dim)",
    "step": "step(x, wq, wk, wv, cache, n_heads, n_kv_heads)",
    "projection_counts": "projection_counts(n)",
    "score_counts": "score_counts(n)",
    "offset_mask": "offset_mask(n_new, n_total)",
    "rotate": "rotate(x, positions, base=10000.0)",
    "append_rotated": "append_rotated(cache, k_new, v_new, base=10000.0)",
    "repeat_kv": "repeat_kv(x, n_heads)",
    "grouped_attention": "grouped_attention(q, k, v)",
    "pool_kv_heads": "pool_kv_heads(w, n_heads, n_kv_heads)",
    "cache_bytes": "cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element)",
    "bytes_per_token": "bytes_per_token(config)",
    "crossover_tokens": "crossover_tokens(weight_bytes, per_token, batch)",
    "max_sequences": "max_sequences(memory_bytes, weight_bytes, per_token, seq_len)",
    "update_cache": "update_cache(past, k, v)",
    "CachedAttention": "CachedAttention(d_model, n_heads, n_kv_heads, head_dim)",
    "StaticCache": "StaticCache(batch, n_kv_heads, max_len, head_dim)",
    "add_cache": "add_cache(model)",
    "generate": "generate(model, ids, n_new)",
    "decode_floor_ms": "decode_floor_ms(weight_bytes, kv_bytes, bandwidth_bytes_per_s)",
    "time_decode": "time_decode(step, n_warmup, n_steps, synchronize, clock)",
    "streamed_attention": "streamed_attention(q, k, v, block)",
    "window_mask": "window_mask(n_new, n_total, window)",
    "RingCache": "RingCache(n_kv_heads, head_dim, window)",
    "SinkCache": "SinkCache(n_kv_heads, head_dim, n_sinks, window)",
    "pad_positions": "pad_positions(attention_mask)",
    "ragged_mask": "ragged_mask(attention_mask, n_new)",
    "packed_mask": "packed_mask(lengths)",
    "decode": "decode(model, caches, ids, n_new)",
    "quantize": "quantize(x, n_bits, axis)",
    "dequantize": "dequantize(codes, scale, zero)",
    "QuantizedCache": "QuantizedCache(n_kv_heads, head_dim, n_bits, residual)",
    "reorder_cache": "reorder_cache(cache, beam_index)",
    "beam_search": "beam_search(step, prompt, n_beams, n_new)",
    "BlockPool": "BlockPool(n_blocks, block_size, n_kv_heads, head_dim)",
    "PagedCache": "PagedCache(pool)",
}


def each_mistake() -> list[Any]:
    return [pytest.param(name, m, id=f"{name}-{m.id}") for name in NAMES for m in exercise(name).mistakes]


def stub(found: Exercise) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{found.id}: replace this line by your code")

    return type(found.id, (), {"__init__": refuse}) if found.is_class else refuse


def test_the_exercises_and_their_signatures_are_the_agreed_ones() -> None:
    assert {c.id: c.signature for c in cards().values()} == SIGNATURES


@pytest.mark.parametrize("name", NAMES)
def test_every_exercise_is_well_made(name: str) -> None:
    found, card = exercise(name), cards()[name]
    parameters = ", ".join(card.signature.partition("(")[2].rstrip(")").replace("=10000.0", "").split(", "))
    assert ", ".join(inspect.signature(found.reference).parameters) == parameters
    assert len({m.id for m in found.mistakes}) == len(found.mistakes) >= 4
    for mistake in found.mistakes:
        assert mistake.sentence.endswith(".") and mistake.question.endswith("?") and mistake.question.count("?") == 1
    assert len(card.hints) >= 2 and card.points >= 1 and card.lines >= 1
    assert len({stage.says for stage in found.stages}) == len(found.stages) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_passes_twice(name: str) -> None:
    for _ in range(2):
        outcome = examine(exercise(name), exercise(name).reference)
        assert outcome.verdict == "passed", str(Report(cards()[name], outcome))


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_not_attempted(name: str) -> None:
    assert examine(exercise(name), stub(exercise(name))).verdict == "not_attempted"


@pytest.mark.parametrize(("name", "mistake"), each_mistake())
def test_every_mistake_is_refused_and_named(name: str, mistake: Mistake) -> None:
    outcome = examine(exercise(name), mistake.submission())
    assert outcome.verdict in ("incorrect", "error"), f"{mistake.id} passed the check of {name}"
    assert outcome.mistake is not None, f"{mistake.id} was refused and not named: {Report(cards()[name], outcome)}"
    assert outcome.mistake.id == mistake.id


@pytest.mark.parametrize("name", NAMES)
def test_unusual_right_answers_pass(name: str) -> None:
    module = importlib.import_module(f"alternatives_{cards()[name].lesson[:2]}")
    alternatives = module.ALTERNATIVES[name]
    assert len(alternatives) >= 3
    for alternative in alternatives:
        outcome = examine(exercise(name), alternative)
        assert outcome.verdict == "passed", f"{alternative}: {Report(cards()[name], outcome)}"


def returns(value: Any) -> Any:
    return lambda *args, **kwargs: value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "answer",
    [
        None,
        0,
        -1,
        True,
        float("nan"),
        "text",
        (),
        [],
        {},
        object(),
        np.zeros(0),
        np.full((3, 7), np.nan),
        np.ones((3, 7), bool),
    ],
    ids=lambda a: type(a).__name__ + (str(getattr(a, "shape", a))[:12] if type(a) is not object else ""),
)
def test_an_answer_of_the_wrong_kind_is_incorrect(name: str, answer: Any) -> None:
    found = exercise(name)
    wrong = (
        type(name, (), {"__init__": lambda self, *a, **k: None, "__len__": lambda self: 0})
        if found.is_class
        else returns(answer)
    )
    outcome = examine(found, wrong)
    assert outcome.verdict in ("incorrect", "error") and outcome.failure is not None
    assert "kvlab" not in str(Report(cards()[name], outcome)), "our own code shows in the message"


@pytest.mark.parametrize("name", NAMES)
def test_an_object_that_equals_everything_is_incorrect(name: str) -> None:
    class Yes:
        shape = (3, 7)
        dtype = np.dtype(bool)
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    if not exercise(name).is_class:
        assert examine(exercise(name), returns(Yes())).verdict in ("incorrect", "error")


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_is_shown_with_the_learners_line(name: str) -> None:
    found = exercise(name)

    def broken(*args: Any, **kwargs: Any) -> None:
        undefined_name_of_the_learner  # noqa: B018

    submission = type(name, (), {"__init__": broken}) if found.is_class else broken
    outcome = examine(found, submission)
    assert outcome.verdict == "error"
    text = str(Report(cards()[name], outcome))
    assert "NameError" in text and "undefined_name_of_the_learner  # noqa" in text and "engine" not in text


@pytest.mark.parametrize("name", NAMES)
def test_an_endless_loop_is_out_of_time(name: str) -> None:
    found = exercise(name)

    def endless(*args: Any, **kwargs: Any) -> None:
        while True:
            try:
                sum(range(10))
            except Exception:
                continue

    submission = type(name, (), {"__init__": endless}) if found.is_class else endless
    outcome = examine(found, submission, limit_s=0.2)
    assert outcome.verdict == "timeout"


def submissions(kind: str) -> list[Any]:
    files = sorted((HERE / "submissions").glob(f"*/{kind}_*.py"))
    return [pytest.param(f.parent.name, f, id=f"{f.parent.name}-{f.stem}") for f in files]


@pytest.mark.parametrize(("name", "file"), submissions("right"))
def test_right_submissions_written_without_seeing_the_checks_pass(name: str, file: Path) -> None:
    outcome = examine(exercise(name), load(name, file))
    assert outcome.verdict == "passed", str(Report(cards()[name], outcome))


@pytest.mark.parametrize(("name", "file"), submissions("wrong"))
def test_wrong_submissions_written_without_seeing_the_checks_are_refused(name: str, file: Path) -> None:
    assert examine(exercise(name), load(name, file)).verdict in ("incorrect", "error", "timeout")


def test_a_mistake_is_named_whatever_dtype_the_rows_are_kept_in() -> None:
    ring = exercise("RingCache").reference  # keeps float32 rows as float32

    class OnlyARing(ring):  # type: ignore[misc, valid-type]
        def __init__(self, n_kv_heads: int, head_dim: int, n_sinks: int, window: int) -> None:
            super().__init__(n_kv_heads, head_dim, window)

    outcome = examine(exercise("SinkCache"), OnlyARing)
    assert outcome.mistake is not None and outcome.mistake.id == "no_sinks"


def test_a_late_group_is_named_also_where_bits_are_looked_at_only_when_it_is_quantized() -> None:
    late = next(m for m in exercise("QuantizedCache").mistakes if m.id == "one_row_late").submission()

    class Lazy(late):  # type: ignore[misc, valid-type]
        def __init__(self, n_kv_heads: int, head_dim: int, n_bits: int, residual: int) -> None:
            super().__init__(n_kv_heads, head_dim, 4, residual)
            self.n_bits = n_bits

    outcome = examine(exercise("QuantizedCache"), Lazy)
    assert outcome.mistake is not None and outcome.mistake.id == "one_row_late"


def test_the_confusion_table_is_current() -> None:
    confusion = importlib.import_module("confusion")
    assert confusion.TARGET.read_text(encoding="utf-8") == confusion.table(), "run: python tools/confusion.py"
