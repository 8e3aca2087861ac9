"""Checks for lesson 07: the floor of a decode step, a timer that can be trusted, attention over blocks of keys."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.attention import softmax
from kvlab.checks.model import Exercise, Malformed, Mistake, Observation, Probe, Stage, observe
from kvlab.timing import time_decode


def _floor(weight_bytes: float, kv_bytes: float, bandwidth: float) -> Probe:
    def run(submission: Callable[..., Any]) -> Observation:
        value = observe(submission(weight_bytes, kv_bytes, bandwidth))
        return {"the milliseconds": float(value) if type(value) is int else value}

    return Probe(f"decode_floor_ms({weight_bytes:g}, {kv_bytes:g}, {bandwidth:g})", run)


def _decode_floor_ms(weight_bytes: float, kv_bytes: float, bandwidth_bytes_per_s: float) -> float:
    return 1000 * (weight_bytes + kv_bytes) / bandwidth_bytes_per_s


DECODE_FLOOR_MS = Exercise(
    id="decode_floor_ms",
    reference=_decode_floor_ms,
    stages=[
        Stage("weights alone", [_floor(600, 0, 2000)]),
        Stage("weights and cache", [_floor(600, 200, 1600), _floor(100, 700, 4000)]),
        Stage("a real device", [_floor(16.06e9, 0.54e9, 3.35e12)]),
    ],
    mistakes=[
        Mistake(
            "seconds",
            "The result is in seconds, where milliseconds are asked for.",
            "How many milliseconds has a second?",
            lambda w, kv, b: (w + kv) / b,
        ),
        Mistake(
            "microseconds",
            "The result is in microseconds, where milliseconds are asked for.",
            "How many milliseconds has a second?",
            lambda w, kv, b: 1e6 * (w + kv) / b,
        ),
        Mistake(
            "cache_forgotten",
            "Only the weights are read. Each decode step reads the whole cache as well.",
            "What does attention read in a step over 4,096 cached tokens?",
            lambda w, kv, b: 1000 * w / b,
        ),
        Mistake(
            "weights_forgotten",
            "Only the cache is read. Each decode step reads all weights as well.",
            "Which matrices does one new token have to be multiplied with?",
            lambda w, kv, b: 1000 * kv / b,
        ),
        Mistake(
            "larger_of_the_two",
            "Only the larger of the two is counted, as if both were read at once. They come over the same bus.",
            "How many bytes does the memory have to deliver in one step?",
            lambda w, kv, b: 1000 * max(w, kv) / b,
        ),
        Mistake(
            "upside_down",
            "The quotient is upside down: these are steps per time, not time per step.",
            "Does the floor rise or fall when the memory is twice as fast?",
            lambda w, kv, b: 1000 * b / (w + kv),
        ),
        Mistake(
            "bytes_twice",
            "The bytes are counted twice. That is right for a copy, which reads and writes; decode reads.",
            "Which of the bytes does a decode step write back?",
            lambda w, kv, b: 2000 * (w + kv) / b,
        ),
        Mistake(
            "rounded",
            "The result is rounded to whole milliseconds: 4.95 and 5 are not the same floor.",
            "How large is the error when a step takes half a millisecond?",
            lambda w, kv, b: 1000 * (w + kv) // b,
        ),
    ],
)


class _Device:
    """A stand-in for a GPU: steps are queued and done later, in simulated time; it notes how it is used.

    Queueing takes the host 0.25 ms a step; step i then keeps the device busy for times_ms[i].
    """

    def __init__(self, times_ms: Sequence[float]) -> None:
        self.times_ms = times_ms
        self.now_ms = 5000.0  # a clock need not begin at 0
        self.busy_until_ms = self.now_ms + 7.0  # with work that somebody else has queued
        self.n_steps = 0
        self.unsynchronized_readings = 0
        self.readings = 0

    def step(self) -> None:
        if self.n_steps >= len(self.times_ms):
            raise Malformed(f"time_decode: step was called more than n_warmup + n_steps = {len(self.times_ms)} times")
        self.now_ms += 0.25
        self.busy_until_ms = max(self.busy_until_ms, self.now_ms) + self.times_ms[self.n_steps]
        self.n_steps += 1

    def synchronize(self) -> None:
        self.now_ms = max(self.now_ms, self.busy_until_ms)

    def clock(self) -> float:
        self.readings += 1
        self.unsynchronized_readings += self.busy_until_ms > self.now_ms
        return self.now_ms / 1000


def _timing(n_warmup: int, times_ms: Sequence[float]) -> Probe:
    n_steps = len(times_ms) - n_warmup

    def run(submission: Callable[..., Any]) -> Observation:
        device = _Device(times_ms)
        value = observe(submission(device.step, n_warmup, n_steps, device.synchronize, device.clock))
        return {
            "the milliseconds": float(value) if type(value) is int else value,
            "steps run": device.n_steps,
            "readings of the clock while the device was still busy": device.unsynchronized_readings,
        }

    warm = f"{n_warmup} warm-up step{'s' if n_warmup != 1 else ''}"
    listed = ", ".join(f"{t:g}" for t in times_ms)
    return Probe(f"{warm} and {n_steps} timed, the device busy for {listed} ms", run, 1e-6)


def _timer(
    synchronize_before: bool = True,
    synchronize_after: bool = True,
    average: Callable[[Sequence[float]], float] = statistics.median,
    factor: float = 1000,
    count_warmup: bool = False,
    skip_warmup: bool = False,
    after_warmup: bool = False,
) -> Callable[..., Any]:
    """A right timer, spoiled by one of its arguments."""

    def wrong(step: Any, n_warmup: int, n_steps: int, synchronize: Any, clock: Any) -> Any:
        times = []
        untimed = 0 if count_warmup or skip_warmup else n_warmup
        for _ in range(untimed):
            step()
        if after_warmup:
            synchronize()
        for _ in range(n_steps + (n_warmup if count_warmup else 0)):
            if synchronize_before:
                synchronize()
            start = clock()
            step()
            if synchronize_after:
                synchronize()
            times.append(clock() - start)
        return factor * average(times)

    return wrong


def _total_over_steps(step: Any, n_warmup: int, n_steps: int, synchronize: Any, clock: Any) -> float:
    for _ in range(n_warmup):
        step()
    synchronize()
    start = clock()
    for _ in range(n_steps):
        step()
    synchronize()
    return 1000 * (clock() - start) / n_steps


TIME_DECODE = Exercise(
    id="time_decode",
    reference=time_decode,
    stages=[
        Stage("one step", [_timing(0, [3])]),
        Stage("warm-up steps run and do not count", [_timing(1, [80, 3]), _timing(2, [50, 20, 4, 4, 4])]),
        Stage(
            "the median, which one slow step does not move", [_timing(0, [2, 90, 4]), _timing(1, [30, 5, 1, 60, 2, 3])]
        ),
        Stage("an even number of steps", [_timing(0, [2, 6]), _timing(1, [9, 1, 8, 2, 70])]),
    ],
    mistakes=[
        Mistake(
            "never_synchronized",
            "The device is never waited for: what is timed is how fast work can be queued.",
            "What has happened on the device when step() returns?",
            _timer(synchronize_before=False, synchronize_after=False),
        ),
        Mistake(
            "only_after_the_warm_up",
            "The device is waited for once, after the warm-up: from then on the clock reads how fast work is queued.",
            "What has happened on the device when the clock is read after a step?",
            _timer(synchronize_before=False, synchronize_after=False, after_warmup=True),
        ),
        Mistake(
            "not_after_the_step",
            "The device is waited for before a step and not after it: the step's own work is not in its time.",
            "What has happened on the device when the clock is read after a step?",
            _timer(synchronize_after=False),
        ),
        Mistake(
            "not_before_the_step",
            "The device is not waited for before the first step: the rest of the warm-up is counted into it.",
            "What is the device still doing when the clock is read for the first time?",
            _timer(synchronize_before=False),
        ),
        Mistake(
            "seconds",
            "The result is in seconds, where milliseconds are asked for.",
            "In which unit does clock() answer?",
            _timer(factor=1),
        ),
        Mistake(
            "microseconds",
            "The result is in microseconds, where milliseconds are asked for.",
            "How many milliseconds has a second?",
            _timer(factor=1e6),
        ),
        Mistake(
            "mean",
            "The mean is taken: one slow step spoils it. The median is asked for.",
            "What does one step of 90 ms do to the mean of 2, 90 and 4?",
            _timer(average=statistics.fmean),
        ),
        Mistake(
            "total_over_steps",
            "All steps are timed together and divided by their number: that is the mean, which one slow step spoils.",
            "Can the time of a single step still be told from your total?",
            _total_over_steps,
        ),
        Mistake(
            "minimum",
            "The minimum is taken, where the median is asked for.",
            "How many of the steps were faster than your result, and how many slower?",
            _timer(average=min),
        ),
        Mistake(
            "lower_of_the_middle_two",
            "For an even number of steps the lower of the middle two is taken, where their mean belongs.",
            "What is the median of 2 and 6?",
            _timer(average=statistics.median_low),
        ),
        Mistake(
            "upper_of_the_middle_two",
            "For an even number of steps the upper of the middle two is taken, where their mean belongs.",
            "What is the median of 2 and 6?",
            _timer(average=statistics.median_high),
        ),
        Mistake(
            "middle_of_unsorted_times",
            "The middle of the list is taken without sorting it: that is whatever step came at that time.",
            "In which order do the times stand in your list?",
            _timer(average=lambda times: times[len(times) // 2]),
        ),
        Mistake(
            "warm_up_counted",
            "The warm-up steps are timed with the others.",
            "What else happens in the first steps, which later ones do not have to do again?",
            _timer(count_warmup=True),
        ),
        Mistake(
            "no_warm_up",
            "No warm-up steps run: the first timed ones pay for what is done only once.",
            "How often should step be called for 2 warm-up steps and 3 timed ones?",
            _timer(skip_warmup=True),
        ),
    ],
)


class _Rows(np.ndarray):
    """Keys or values that note the most rows that any one operation on them took."""

    def __array_finalize__(self, obj: Any) -> None:
        self.most: list[int] = getattr(obj, "most", [0])

    def _note(self, operands: Any) -> list[Any]:
        plain = []
        for a in operands:
            if isinstance(a, _Rows):
                a.most[0] = max(a.most[0], max(a.shape, default=1) if a.ndim > 1 else 1)
                plain.append(a.view(np.ndarray))
            else:
                plain.append(a)
        return plain

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*self._note(inputs), **kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if func in (np.dot, np.einsum, np.tensordot, np.inner):
            return func(*self._note(args), **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def dot(self, *args: Any, **kwargs: Any) -> Any:
        return np.dot(self, *args, **kwargs)


def _qkv(n_total: int, head_dim: int, scale: float, dtype: Any, rising: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(n_total + head_dim)
    q, k, v = (
        rng.standard_normal(head_dim),
        rng.standard_normal((n_total, head_dim)),
        rng.standard_normal((n_total, head_dim)),
    )
    if rising:  # the largest score comes last: every block moves the maximum
        k = k[np.argsort(k @ q)]
    return [(scale * q).astype(dtype), k.astype(dtype), v.astype(dtype)]


def _stream(
    n_total: int, head_dim: int, block: int, scale: float = 1.0, dtype: Any = np.float64, rising: bool = False
) -> Probe:
    q, k, v = _qkv(n_total, head_dim, scale, dtype, rising)

    def run(submission: Callable[..., Any]) -> Observation:
        given = q.copy(), k.copy(), v.copy()
        out = observe(submission(*given, block))
        unchanged = all(np.array_equal(a, b) for a, b in zip(given, (q, k, v), strict=True))
        return {"the output": out, "the input afterwards": "unchanged" if unchanged else "changed"}

    extra = (f", {np.dtype(dtype)}" if dtype is not np.float64 else "") + (", large scores" if scale > 1 else "")
    order = ", largest score last" if rising else ""
    return Probe(f"{n_total} keys of width {head_dim} in blocks of {block}{extra}{order}", run, 1e-4)


def _all_low() -> Probe:
    """All scores near -1,000: a maximum that begins at 0 leaves nothing but 0 / 0."""
    q, k, v = np.full(4, 50.0), np.full((6, 4), -10.0), _qkv(6, 4, 1.0, np.float64, False)[2]
    k[::2] -= 0.01

    def run(submission: Callable[..., Any]) -> Observation:
        return {"the output": observe(submission(q.copy(), k.copy(), v.copy(), 4))}

    return Probe("6 keys of width 4 in blocks of 4, all scores near -1,000", run, 1e-3)


def _long_float16() -> Probe:
    """4,000 equal float16 keys: sums in float16 stop at 2,048, since 2,049 is no float16."""

    def run(submission: Callable[..., Any]) -> Observation:
        q, k = np.zeros(4, np.float16), np.zeros((4000, 4), np.float16)
        v = np.tile(np.array([0.25, 0.5, 1.0, 2.0], np.float16), (4000, 1))
        return {"the output": observe(submission(q, k, v, 10))}

    return Probe("4,000 equal keys in blocks of 10, float16", run, 1e-4)


def _rows_at_once(submission: Callable[..., Any]) -> Observation:
    q, k, v = _qkv(96, 4, 1.0, np.float64, False)
    k_seen, v_seen = k.view(_Rows), v.view(_Rows)
    k_seen.most, v_seen.most = [0], [0]
    submission(q, k_seen, v_seen, 8)
    # A block may be hidden from the counter (np.asarray); more rows than a block can only be seen when they were taken.
    return {"most keys in one product": max(k_seen.most[0], 8), "most values in one product": max(v_seen.most[0], 8)}


def _streamed(
    rescale_sum: bool = True,
    rescale_out: bool = True,
    running: bool = True,
    maximum: bool = True,
    dtype: Any = np.float32,
    scale: Callable[[int], float] = np.sqrt,
    divide: bool = True,
    drop_rest: bool = False,
    begin: float = -np.inf,
) -> Callable[..., Any]:
    """A right online softmax, spoiled by one of its arguments."""

    def wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray, block: int) -> np.ndarray:
        kind = dtype or k.dtype.type
        top, total, out = kind(begin if maximum else 0), kind(0), np.zeros(v.shape[1], kind)
        end = len(k) - len(k) % block if drop_rest else len(k)
        for start in range(0, end, block):
            stop = min(start + block, end)
            scores = (np.asarray(k[start:stop], kind) @ q.astype(kind) / kind(scale(len(q)))).astype(kind)
            new = max(top, scores.max()) if running else scores.max()
            new = new if maximum else kind(0)
            factor, weights = np.exp(top - new), np.exp(scores - new)
            total = kind(total * (factor if rescale_sum else 1) + weights.sum(dtype=kind))
            out = out * (factor if rescale_out else 1) + weights @ np.asarray(v[start:stop], kind)
            out, top = out.astype(kind), new
        return out / total if divide else out

    return wrong


def _whole_row(q: np.ndarray, k: np.ndarray, v: np.ndarray, block: int) -> np.ndarray:
    scores = k.astype(np.float32) @ q.astype(np.float32) / np.sqrt(np.float32(len(q)))
    return np.dot(softmax(np.asarray(scores, np.float32)), v.astype(np.float32))


def _mean_of_blocks(q: np.ndarray, k: np.ndarray, v: np.ndarray, block: int) -> np.ndarray:
    starts = range(0, len(k), block)
    parts = [_streamed()(q, k[s : s + block], v[s : s + block], block) for s in starts]
    return np.mean(parts, axis=0)


STREAMED_ATTENTION = Exercise(
    id="streamed_attention",
    reference=_streamed(),
    stages=[
        Stage("everything in one block", [_stream(1, 4, 1), _stream(5, 4, 5)]),
        Stage("several blocks", [_stream(2, 4, 1), _stream(12, 6, 4)]),
        Stage("the largest score comes last", [_stream(12, 6, 3, scale=4.0, rising=True)]),
        Stage("a last block that is not full, and a block larger than all", [_stream(10, 6, 4), _stream(5, 4, 64)]),
        Stage("scores near 1,000 and -1,000 stay finite", [_stream(24, 16, 5, scale=300.0), _all_low()]),
        Stage("float16 keys, summed in float32", [_stream(40, 8, 7, dtype=np.float16), _long_float16()]),
        Stage(
            "never more keys than a block at once",
            [Probe("96 keys of width 4 in blocks of 8, rows counted", _rows_at_once)],
        ),
    ],
    mistakes=[
        Mistake(
            "whole_row",
            "The answer is right, and the whole row of scores is held at once: nothing is streamed.",
            "How much memory do the scores of 1,000,000 keys take in your code?",
            _whole_row,
        ),
        Mistake(
            "never_rescaled",
            "What was summed under an earlier maximum is never scaled to the new one.",
            "After the maximum has risen from 2 to 5, how much too large are the old terms?",
            _streamed(rescale_sum=False, rescale_out=False),
        ),
        Mistake(
            "only_values_rescaled",
            "The weighted values are rescaled when the maximum rises, and the sum of weights is not.",
            "Which two sums were built under the old maximum?",
            _streamed(rescale_sum=False),
        ),
        Mistake(
            "only_sum_rescaled",
            "The sum of weights is rescaled when the maximum rises, and the weighted values are not.",
            "Which two sums were built under the old maximum?",
            _streamed(rescale_out=False),
        ),
        Mistake(
            "no_maximum",
            "No maximum is subtracted: exp overflows for scores near 1,000.",
            "What is np.exp(np.float32(1000))?",
            _streamed(maximum=False),
        ),
        Mistake(
            "maximum_begins_at_zero",
            "The running maximum begins at 0: where all scores lie far below, every exponential is 0, their sum too.",
            "What is the largest score before the first key has been read?",
            _streamed(begin=0.0),
        ),
        Mistake(
            "mean_of_blocks",
            "Each block is normalised by itself and the results are averaged: a block of weak scores counts as much as "
            "one of strong scores.",
            "Which block should count more, the one with larger scores or both alike?",
            _mean_of_blocks,
        ),
        Mistake(
            "rest_dropped",
            "The last block is dropped when it is not full: the newest keys are never read.",
            "Which keys does your loop read of 10 in blocks of 4?",
            _streamed(drop_rest=True),
        ),
        Mistake(
            "sums_in_the_dtype_of_the_keys",
            "The sums are kept in the dtype of the keys: a float16 sum of ones stops at 2,048.",
            "What is np.float16(2048) + np.float16(1)?",
            _streamed(dtype=None),
        ),
        Mistake(
            "no_scale",
            "The scores are not divided by sqrt(head_dim).",
            "How does the variance of a dot product grow with the number of its terms?",
            _streamed(scale=lambda d: 1.0),
        ),
        Mistake(
            "scaled_by_head_dim",
            "The scores are divided by head_dim, where its square root belongs.",
            "If the variance of a dot product is head_dim, what is its standard deviation?",
            _streamed(scale=lambda d: float(d)),
        ),
        Mistake(
            "not_divided",
            "The weighted sum is never divided by the sum of weights.",
            "What do your weights add up to?",
            _streamed(divide=False),
        ),
    ],
)

EXERCISES = [DECODE_FLOOR_MS, TIME_DECODE, STREAMED_ATTENTION]
