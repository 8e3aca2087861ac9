"""Checks for lesson 05: the size of a cache, from numbers and from a config.json, and what fits into a memory."""

import math
from collections.abc import Callable
from typing import Any

from kvlab.checks.model import Exercise, Mistake, Observation, Probe, Stage, call, observe

GPU_BYTES = 80_000_000_000
LLAMA_8B_BYTES, LLAMA_8B_PER_TOKEN = 16_060_522_496, 131_072


def _whole(value: Any) -> Any:
    """5.0 as 5: where bytes may be halves of elements, int and float say the same."""
    value = observe(value)
    return int(value) if type(value) is float and value.is_integer() else value


def _bytes(*sizes: Any) -> Probe:
    names = ("batch", "seq_len", "n_layers", "n_kv_heads", "head_dim", "bytes_per_element")
    describe = "cache_bytes(" + ", ".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True)) + ")"

    def run(submission: Callable[..., Any]) -> Observation:
        return {"the bytes": _whole(submission(*sizes))}

    return Probe(describe, run)


def _cache_bytes(
    batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: float
) -> float:
    return 2 * batch * seq_len * n_layers * n_kv_heads * head_dim * bytes_per_element


def _without(left_out: str) -> Callable[..., Any]:
    """The formula with one factor forgotten."""

    def wrong(
        batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: float
    ) -> float:
        sizes = {
            "two": 2,
            "batch": batch,
            "seq_len": seq_len,
            "n_layers": n_layers,
            "n_kv_heads": n_kv_heads,
            "head_dim": head_dim,
            "bytes_per_element": bytes_per_element,
        }
        return math.prod(size for name, size in sizes.items() if name != left_out)

    return wrong


def _scaled(change: Callable[[float], Any]) -> Callable[..., Any]:
    return lambda *sizes: change(_cache_bytes(*sizes))


def _in_32_bits(*sizes: Any) -> int:
    return (int(_cache_bytes(*sizes)) + 2**31) % 2**32 - 2**31


def _whole_bytes_per_element(round_: Callable[[float], int]) -> Callable[..., Any]:
    return lambda *sizes: _cache_bytes(*(*sizes[:5], round_(sizes[5])))


def _rows_rounded_up(
    batch: int, seq_len: int, n_layers: int, n_kv_heads: int, head_dim: int, bytes_per_element: float
) -> int:
    return 2 * batch * seq_len * n_layers * n_kv_heads * math.ceil(head_dim * bytes_per_element)


CACHE_BYTES = Exercise(
    id="cache_bytes",
    reference=_cache_bytes,
    stages=[
        Stage("one token of one layer", [_bytes(1, 1, 1, 1, 8, 2), _bytes(1, 1, 1, 3, 8, 2)]),
        Stage("layers, tokens and sequences", [_bytes(1, 8, 2, 2, 8, 2), _bytes(3, 5, 7, 2, 11, 4)]),
        Stage(
            "half a byte an element",
            [_bytes(1, 4, 2, 2, 8, 0.5), _bytes(2, 3, 5, 7, 10, 0.5), _bytes(1, 1, 1, 3, 5, 0.5)],
        ),
        Stage("real models", [_bytes(1, 8192, 32, 8, 128, 2), _bytes(64, 131_072, 80, 8, 128, 2)]),
    ],
    mistakes=[
        Mistake(
            "values_forgotten",
            "The factor 2 is missing: a token leaves a key and a value.",
            "What two rows does one token leave in each KV head?",
            _without("two"),
        ),
        Mistake(
            "layers_forgotten",
            "The layers are missing: each attention layer has a cache of its own.",
            "How many caches does a model of 32 layers keep?",
            _without("n_layers"),
        ),
        Mistake(
            "heads_forgotten",
            "The KV heads are missing: each keeps rows of its own.",
            "How many rows does one token leave in a layer of 8 KV heads?",
            _without("n_kv_heads"),
        ),
        Mistake(
            "batch_forgotten",
            "The batch is missing: sequences share no rows.",
            "What happens to the cache when a second sequence is served?",
            _without("batch"),
        ),
        Mistake(
            "head_width_forgotten",
            "The head's width is missing: this counts rows, not numbers.",
            "How many numbers are in one key?",
            _without("head_dim"),
        ),
        Mistake(
            "elements_counted",
            "This counts numbers, not bytes: the bytes per element are missing.",
            "How many bytes does a 16-bit number take?",
            _without("bytes_per_element"),
        ),
        Mistake(
            "bits",
            "The result is in bits: it is 8 times too large.",
            "Is bytes_per_element given in bits or in bytes?",
            _scaled(lambda size: 8 * size),
        ),
        Mistake(
            "gibibytes",
            "The result is in GiB. The exercise asks for bytes, which can be compared exactly.",
            "What is the unit of your result?",
            _scaled(lambda size: size / 2**30),
        ),
        Mistake(
            "rows_rounded_up",
            "Each key and value is rounded up to whole bytes: nothing says that a row begins on a byte of its own.",
            "How many bits are there in 3 keys and 3 values of 5 numbers of 4 bits?",
            _rows_rounded_up,
        ),
        Mistake(
            "wraps_at_32_bits",
            "The product is taken in 32-bit integers: from 2 GiB on it wraps around, in silence.",
            "How many bytes can a 32-bit integer count?",
            _in_32_bits,
        ),
        Mistake(
            "half_a_byte_rounded_down",
            "bytes_per_element is rounded down: half a byte becomes none.",
            "What does int(0.5) give?",
            _whole_bytes_per_element(math.floor),
        ),
        Mistake(
            "half_a_byte_rounded_up",
            "bytes_per_element is rounded up: two 4-bit numbers share a byte.",
            "How many bytes do 8 numbers of 4 bits take?",
            _whole_bytes_per_element(math.ceil),
        ),
    ],
)

GQA = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
MHA = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6}
WIDE = GQA | {"head_dim": 20, "torch_dtype": "float32", "intermediate_size": 100, "vocab_size": 1000}


def _config(config: dict[str, Any]) -> Probe:
    return call(f"bytes_per_token({config})", config, key="the bytes per token")


def _bytes_per_token(config: dict[str, Any]) -> int:
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * 2


def _read_wrongly(change: Callable[[dict[str, Any]], dict[str, Any]], times: float = 1) -> Callable[..., Any]:
    """The right formula on a config that is misread first."""
    return lambda config: int(_bytes_per_token(config | change(config)) * times)


def _needs_field(field: str) -> Callable[..., Any]:
    def wrong(config: dict[str, Any]) -> int:
        config[field]
        return _bytes_per_token(config)

    return wrong


def _none_not_seen(field: str) -> Callable[..., Any]:
    """config.get(field, default): a default stands in for an absent field, not for None."""

    def wrong(config: dict[str, Any]) -> int:
        if config.get(field, 0) is None:
            raise TypeError("unsupported operand type(s) for *: 'int' and 'NoneType'")
        return _bytes_per_token(config)

    return wrong


def _filled_in(config: dict[str, Any]) -> int:
    """Right, but writes what it worked out back into the caller's dict."""
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return _bytes_per_token(config)


def _own_head_dim(config: dict[str, Any]) -> int:
    return config["hidden_size"] // config["num_attention_heads"]


BYTES_PER_TOKEN = Exercise(
    id="bytes_per_token",
    reference=_bytes_per_token,
    stages=[
        Stage("grouped queries", [_config(GQA)]),
        Stage("a head width of its own, among fields that do not matter", [_config(WIDE)]),
        Stage("no num_key_value_heads: as many as query heads", [_config(MHA), _config(MHA | {"head_dim": 16})]),
        Stage(
            "fields that are there and None",
            [_config(GQA | {"head_dim": None}), _config(MHA | {"num_key_value_heads": None})],
        ),
        Stage("one KV head", [_config(GQA | {"num_key_value_heads": 1})]),
    ],
    mistakes=[
        Mistake(
            "query_heads",
            "The query heads are counted. The cache holds KV heads only, and grouped queries have fewer of them.",
            "Which field says how many heads are cached?",
            _read_wrongly(lambda c: {"num_key_value_heads": c["num_attention_heads"]}),
        ),
        Mistake(
            "hidden_size",
            "hidden_size stands for the KV heads and their width. It is the width of the model: right only where every "
            "query head has a KV head and head_dim is not set.",
            "How wide is one cached key of a model with 2 KV heads of width 20?",
            lambda config: 2 * config["num_hidden_layers"] * config["hidden_size"] * 2,
        ),
        Mistake(
            "head_dim_not_read",
            "head_dim is worked out although the config sets it: the two differ in many models.",
            "What does the config say about the width of a head, where it says anything?",
            _read_wrongly(lambda c: {"head_dim": _own_head_dim(c)}),
        ),
        Mistake(
            "head_dim_from_kv_heads",
            "hidden_size is divided by the KV heads. A key is as wide as a query: it is divided by the query heads.",
            "With what must a key of one head be multiplied, and how wide is that?",
            _read_wrongly(
                lambda c: {
                    "head_dim": c.get("head_dim")
                    or c["hidden_size"] // (c.get("num_key_value_heads") or c["num_attention_heads"])
                }
            ),
        ),
        Mistake(
            "missing_means_one",
            "A missing num_key_value_heads is read as 1. Such a config is older than grouped queries: every query head "
            "has a KV head.",
            "How many KV heads did models have before grouped queries?",
            _read_wrongly(lambda c: {"num_key_value_heads": c.get("num_key_value_heads") or 1}),
        ),
        Mistake(
            "kv_heads_required",
            "num_key_value_heads is taken for granted: a config without it raises.",
            "How many KV heads has a model whose config does not mention them?",
            _needs_field("num_key_value_heads"),
        ),
        Mistake(
            "head_dim_required",
            "head_dim is taken for granted: a config without it raises.",
            "How wide is a head when the config gives only hidden_size and num_attention_heads?",
            _needs_field("head_dim"),
        ),
        Mistake(
            "none_kv_heads",
            "num_key_value_heads may be there and None: a default for a missing key does not catch that.",
            "What does {'a': None}.get('a', 8) give?",
            _none_not_seen("num_key_value_heads"),
        ),
        Mistake(
            "none_head_dim",
            "head_dim may be there and None: a default for a missing key does not catch that.",
            "What does {'a': None}.get('a', 8) give?",
            _none_not_seen("head_dim"),
        ),
        Mistake(
            "values_forgotten",
            "Only keys are counted, or bytes are forgotten: the result is half of what it should be.",
            "Which two factors of 2 does a 16-bit cache of keys and values have?",
            _read_wrongly(lambda c: {}, 0.5),
        ),
        Mistake(
            "one_layer",
            "One layer is counted. Each attention layer has a cache of its own.",
            "Which field says how many caches there are?",
            _read_wrongly(lambda c: {"num_hidden_layers": 1}),
        ),
        Mistake(
            "dtype_of_the_weights",
            "The width of an element follows the config's torch_dtype, that of the weights. The exercise asks for a "
            "16-bit cache.",
            "How many bytes has an element of a 16-bit cache, whatever the weights are?",
            lambda config: _bytes_per_token(config) * (2 if config.get("torch_dtype") == "float32" else 1),
        ),
        Mistake(
            "float_division",
            "The result is a float, since / always gives one: bytes are whole numbers.",
            "What is the type of 48 / 6?",
            lambda config: float(_bytes_per_token(config)),
        ),
        Mistake(
            "changes_the_config",
            "The config that was handed in is changed.",
            "What does the caller's dict hold after your function has returned?",
            _filled_in,
        ),
    ],
)


def _crossover(weight_bytes: int, per_token: int, batch: int) -> Probe:
    describe = f"crossover_tokens({weight_bytes}, {per_token}, {batch})"
    return call(describe, weight_bytes, per_token, batch, key="the context")


CROSSOVER_TOKENS = Exercise(
    id="crossover_tokens",
    reference=lambda weight_bytes, per_token, batch: weight_bytes // (per_token * batch) + 1,
    stages=[
        Stage("one sequence", [_crossover(105, 10, 1), _crossover(5, 10, 1)]),
        Stage("equal is not larger", [_crossover(100, 10, 1), _crossover(8, 8, 1)]),
        Stage("several sequences", [_crossover(100, 10, 3), _crossover(120, 10, 4), _crossover(77, 5, 2)]),
        Stage("large numbers stay exact", [_crossover(8 * (2**53 + 1), 8, 1)]),
        Stage("a real model", [_crossover(LLAMA_8B_BYTES, LLAMA_8B_PER_TOKEN, b) for b in (1, 16)]),
    ],
    mistakes=[
        Mistake(
            "equal_counts",
            "At equality the cache is as large as the weights, not larger: one more token is needed.",
            "Is a cache of 100 bytes larger than weights of 100 bytes?",
            lambda w, p, b: -(-w // (p * b)),
        ),
        Mistake(
            "rounded_down",
            "The quotient is rounded down: at that context the cache is still not larger than the weights.",
            "How large is the cache at the context that you give, and how large are the weights?",
            lambda w, p, b: w // (p * b),
        ),
        Mistake(
            "batch_ignored",
            "The batch is not used: every sequence adds its own tokens to the cache.",
            "With 4 sequences, how many bytes does one more token of context cost?",
            lambda w, p, b: w // p + 1,
        ),
        Mistake(
            "all_tokens_together",
            "These are the tokens of all sequences together. Asked for is the context of each.",
            "If 4 sequences hold 12 tokens in all, how long is each?",
            lambda w, p, b: (w // (p * b) + 1) * b,
        ),
        Mistake(
            "float",
            "The result is a fraction of a token, or a float. Asked for is the first whole number of tokens.",
            "Can a context be 10.5 tokens long?",
            lambda w, p, b: w / (p * b),
        ),
        Mistake(
            "float_quotient",
            "The quotient goes through a float, which is no longer exact beyond 2**53.",
            "Is 2**53 + 1 a float?",
            lambda w, p, b: int(w / (p * b)) + 1,
        ),
        Mistake(
            "one_too_many",
            "The quotient is rounded up and one is added: where the division leaves a remainder, that is one too many.",
            "Is the cache already larger one token before the context that you give?",
            lambda w, p, b: -(-w // (p * b)) + 1,
        ),
    ],
)


def _fits(memory_bytes: int, weight_bytes: int, per_token: int, seq_len: int) -> Probe:
    describe = f"max_sequences({memory_bytes}, {weight_bytes}, {per_token}, {seq_len})"
    return call(describe, memory_bytes, weight_bytes, per_token, seq_len, key="the number of sequences")


MAX_SEQUENCES = Exercise(
    id="max_sequences",
    reference=lambda memory_bytes, weight_bytes, per_token, seq_len: max(
        0, (memory_bytes - weight_bytes) // (per_token * seq_len)
    ),
    stages=[
        Stage("whole sequences beside the weights", [_fits(100, 40, 2, 5), _fits(100, 33, 2, 5), _fits(100, 37, 2, 5)]),
        Stage("the last sequence fits exactly or not at all", [_fits(61, 41, 2, 5), _fits(60, 41, 2, 5)]),
        Stage("never below 0", [_fits(40, 100, 2, 5), _fits(40, 40, 2, 5), _fits(99, 100, 2, 5), _fits(45, 40, 2, 5)]),
        Stage("a real model", [_fits(GPU_BYTES, LLAMA_8B_BYTES, LLAMA_8B_PER_TOKEN, n) for n in (8192, 131_072)]),
    ],
    mistakes=[
        Mistake(
            "negative",
            "Where the weights alone do not fit, the result is negative.",
            "How many sequences fit on a device that cannot hold the weights?",
            lambda m, w, p, s: (m - w) // (p * s),
        ),
        Mistake(
            "rounded_towards_zero_only",
            "A little too much weight is rounded away and a lot is not: where the weights do not fit, the result is "
            "negative or right by luck.",
            "How many sequences fit on a device that cannot hold the weights?",
            lambda m, w, p, s: int((m - w) / (p * s)),
        ),
        Mistake(
            "weights_ignored",
            "The weights are not subtracted: the cache gets what they leave.",
            "What else has to be in memory while a sequence is decoded?",
            lambda m, w, p, s: max(0, m // (p * s)),
        ),
        Mistake(
            "weights_for_each",
            "The weights are counted once a sequence. All sequences share them.",
            "How many copies of the weights are in memory when 8 sequences are served?",
            lambda m, w, p, s: max(0, m // (w + p * s)),
        ),
        Mistake(
            "rounded_up",
            "A sequence that fits in part is counted.",
            "Can a sequence be served whose last tokens do not fit?",
            lambda m, w, p, s: max(0, -(-(m - w) // (p * s))),
        ),
        Mistake(
            "rounded",
            "The quotient is rounded to the nearest whole number: half of a sequence is counted as one.",
            "Can a sequence be served whose last tokens do not fit?",
            lambda m, w, p, s: max(0, math.floor((m - w) / (p * s) + 0.5)),
        ),
        Mistake(
            "tokens_counted",
            "These are tokens, not sequences: the length of a sequence is not used.",
            "How many bytes does one sequence take?",
            lambda m, w, p, s: max(0, (m - w) // p),
        ),
        Mistake(
            "at_least_one",
            "The result is at least 1, also where not even one sequence fits.",
            "How many sequences fit when the weights fill the memory?",
            lambda m, w, p, s: max(1, (m - w) // (p * s)),
        ),
        Mistake(
            "one_for_what_is_left",
            "Whatever is left counts as room for at least one sequence.",
            "Does a sequence of 10 bytes fit into 5 bytes?",
            lambda m, w, p, s: max(1, (m - w) // (p * s)) if m > w else 0,
        ),
        Mistake(
            "float",
            "The result is a float: sequences are counted in whole numbers.",
            "What is the type of a quotient with //, and with / ?",
            lambda m, w, p, s: max(0.0, (m - w) / (p * s)),
        ),
        Mistake(
            "exact_fit_refused",
            "A sequence that fits exactly is refused.",
            "Does a sequence of 20 bytes fit into 20 bytes?",
            lambda m, w, p, s: max(0, (m - w - 1) // (p * s)),
        ),
    ],
)

EXERCISES = [CACHE_BYTES, BYTES_PER_TOKEN, CROSSOVER_TOKENS, MAX_SEQUENCES]
