"""A price in words: every factor with this model's number, the field it came from, and what the plain formula says."""

from collections.abc import Sequence

from kvlab.sizes.allocate import Blocks, Cells, Policy, ReserveMax, allocated_bytes
from kvlab.sizes.dtypes import INDEX_KEY, Format, storage_format
from kvlab.sizes.groups import Group
from kvlab.sizes.price import Fit, Price, Row
from kvlab.sizes.states import STATE_BYTES

_WHAT = {
    "full": "keep the key and value of every token",
    "sliding": "keep the last tokens, a window of them",
    "chunked": "keep the tokens of one chunk",
    "latent": "keep one latent a token (MLA) instead of keys and values",
    "index": "keep one more key a token, for the sparse indexer",
    "cross": "keep the keys and values of the encoder's tokens",
}
_HEAD = ("factor", "number", "from", "naive formula")


def explain(need: Price, fits: Fit | None = None) -> str:
    """The formula with this model's numbers, factor by factor, beside what the naive formula puts in its place.

    The naive formula is the one for a plain decoder with 2 x layers x KV heads x (hidden_size / num_attention_heads).

    Args:
        need: a priced cache.
        fits: what `fit` found, to be told too.

    >>> from kvlab.sizes import load_config, price
    >>> print(explain(price(load_config("llama-3.1-8b"), tokens=8192)).splitlines()[0])
    llama: 32 full layers; 1 sequence of 8,192 tokens, keys in f16, values in f16
    """
    parts = [_title(need), *(_row_text(need, row) for row in need.rows)]
    parts += [_state_text(need, group) for group in need.layers.groups if group.kind == "recurrent"]
    parts += [_total_text(need), _naive_text(need)]
    if need.rows:
        parts.append(_allocated_text(need))
    if need.tp > 1:
        parts.append(_tp_text(need))
    if fits is not None:
        parts.append(_fit_text(need, fits))
    if need.warnings:
        parts.append("\n".join(f"warning: {warning}" for warning in need.warnings))
    return "\n\n".join(parts)


def kinds_in_words(need: Price) -> str:
    """Such as "10 full + 52 sliding"."""
    counts: dict[str, int] = {}
    for g in need.layers.groups:
        counts[g.kind] = counts.get(g.kind, 0) + g.n_layers
    return " + ".join(f"{n} {kind}" for kind, n in counts.items()) or "no"


def human(n_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves a number of at least 1, rounded to 3 decimals at most.

    >>> human(1073741824), human(3120562176), human(128)
    ('1 GiB', '2.906 GiB', '128 bytes')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes >= 1 << power:
            return f"{n_bytes / (1 << power):,.3f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{n_bytes} bytes"


def both(n_bytes: int) -> str:
    """The exact number, and the readable one where they differ."""
    return f"{n_bytes:,} bytes" + (f" = {human(n_bytes)}" if n_bytes >= 1024 else "")


def _title(need: Price) -> str:
    sequences = "1 sequence" if need.sequences == 1 else f"{need.sequences:,} sequences"
    return (
        f"{need.layers.model_type or 'a model'}: {kinds_in_words(need)} layers; "
        f"{sequences} of {need.tokens:,} tokens, keys in {need.k_dtype}, values in {need.v_dtype}"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        factor, number, source, plain = row
        cells = [factor.ljust(widths[0]), number.rjust(widths[1]), plain.rjust(widths[3]), source]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


# One group of layers


def _row_text(need: Price, row: Row) -> str:
    g = row.group
    n_bytes = need.sequences * g.n_layers * row.row_bytes * row.tokens
    parts = _bytes_of_a_row(need, g)
    rows = [_HEAD, *_factor_lines(need, row, parts)]
    inner = " + ".join(f"{n:,}" for n in parts)
    inner = f"({inner})" if len(parts) > 1 else inner
    product = f"{g.n_layers} x {g.kv_heads} x {inner} x {row.tokens:,} x {need.sequences:,} = {both(n_bytes)}"
    return f"{g.n_layers} {g.kind} layers {_WHAT[g.kind]}\n{_table(rows)}\n  {product}"


def _bytes_of_a_row(need: Price, g: Group) -> list[int]:
    """Bytes of one head's key and value, or of the one thing stored instead."""
    if g.kind == "index" and need.k_dtype == "fp8_ds_mla":
        return [INDEX_KEY.n_bytes]
    stored = [(need.k_dtype, g.k_width), (need.v_dtype, g.v_width)]
    return [_size(storage_format(name), width) for name, width in stored if width]


def _size(stored: Format, width: int) -> int:
    return width // stored.values * stored.n_bytes


def _factor_lines(need: Price, row: Row, parts: list[int]) -> list[tuple[str, str, str, str]]:
    g, naive = row.group, need.layers.naive
    heads = f"{naive.kv_heads.value}" if naive.kv_heads else "?"
    width = naive.head_dim.value if naive.head_dim else None
    total = naive.layers.value
    by = g.sources.n_layers if g.n_layers == total else f"{g.n_layers} of {total}, by {g.sources.n_layers}"
    lines = [
        ("layers", f"{g.n_layers}", by, f"{total}" if g.n_layers == total else f"{total} in all"),
        ("KV heads", f"{g.kv_heads}", g.sources.kv_heads, heads),
    ]
    names = {"latent": ("latent", "value"), "index": ("index key", "value")}.get(g.kind, ("key", "value"))
    stored = (
        (names[0], g.k_width, g.sources.k_width, need.k_dtype),
        (names[1], g.v_width, g.sources.v_width, need.v_dtype),
    )
    for name, own, source, _ in stored:
        lines.append((f"{name} width", f"{own}", source, "?" if width is None else f"{width}"))
    for (name, own, _, dtype), n_bytes in zip(stored, parts, strict=False):
        found = storage_format(dtype)
        said = f"{own} numbers in {dtype}" + (f": {found.layout}" if found.values > 1 else "")
        plain = "?" if width is None else f"{width * found.bits / 8:g}"
        lines.append((f"bytes of a {name}", f"{n_bytes}", said, plain))
    lines.append(("tokens held", f"{row.tokens:,}", _held(need, g), f"{need.tokens:,}"))
    lines.append(("sequences", f"{need.sequences:,}", "asked for (--sequences)", f"{need.sequences:,}"))
    return lines


def _held(need: Price, g: Group) -> str:
    if g.kind == "cross":
        return f"the encoder's, by {g.sources.holds}"
    asked = f"--tokens {need.tokens:,}"
    if g.holds is None:
        return f"every token asked for ({asked})"
    return f"the smaller of {asked} and {g.sources.holds} {g.holds:,}"


def _state_text(need: Price, g: Group) -> str:
    total = need.layers.naive.layers.value
    where = f"by {g.sources.n_layers}" if g.n_layers == total else f"of {total}, by {g.sources.n_layers}"
    head = f"{g.n_layers} recurrent layers ({where}) keep a float32 state, the same for any number of tokens"
    if g.state is None:
        return f"{head}\n  its size is not known: see the warning"
    n_bytes = need.sequences * g.n_layers * g.state.values * STATE_BYTES
    lines = [head]
    for name, part in zip(("convolution rows", "recurrent state"), g.state, strict=True):
        if part is not None:
            lines.append(f"  {name:<16}  {part.values:>11,}  {part.formula}")
    lines.append(f"  {g.n_layers} x {g.state.values:,} x {STATE_BYTES} bytes x {need.sequences:,} = {both(n_bytes)}")
    lines.append("  naive formula: no state at all; it counts keys and values in every layer")
    return "\n".join(lines)


# All of it


def _total_text(need: Price) -> str:
    lines = [f"keys and values   {both(need.kv_bytes)}"]
    if need.state_bytes is None:
        lines.append("recurrent state   not known")
    elif need.state_bytes:
        lines.append(f"recurrent state   {both(need.state_bytes)}")
    lines.append(f"one more token    {both(need.bytes_per_token)} for each sequence")
    return "\n".join(lines)


def naive_bytes(need: Price) -> int | None:
    """What 2 x layers x KV heads x (hidden_size / num_attention_heads) x bytes says; None where a field is missing."""
    naive = need.layers.naive
    if naive.kv_heads is None or naive.head_dim is None:
        return None
    bits = storage_format(need.k_dtype).bits + storage_format(need.v_dtype).bits
    values = naive.layers.value * naive.kv_heads.value * naive.head_dim.value * need.tokens * need.sequences
    return values * bits // 8


def _naive_text(need: Price) -> str:
    wrong = naive_bytes(need)
    said = "naive formula: 2 x layers x KV heads x (hidden_size / num_attention_heads) x tokens x sequences x bytes"
    naive = need.layers.naive
    if wrong is None or naive.kv_heads is None or naive.head_dim is None:
        return f"{said}\n  cannot be computed: the config has no hidden_size or no num_attention_heads"
    bits = [storage_format(dtype).bits for dtype in (need.k_dtype, need.v_dtype)]
    width = f"{bits[0] / 8:g}" if bits[0] == bits[1] else f"{sum(bits) / 16:g}"
    factors = (
        f"2 x {naive.layers.value} x {naive.kv_heads.value} x {naive.head_dim.value} x {need.tokens:,} "
        f"x {need.sequences:,} x {width}"
    )
    return (
        f"{said}\n  with {naive.layers.source}, {naive.kv_heads.source} and {naive.head_dim.source}\n"
        f"  {factors} = {both(wrong)}: {_verdict(wrong, need.kv_bytes)}"
    )


def _verdict(wrong: int, right: int) -> str:
    if wrong == right:
        return "right for this model"
    if not right or not wrong:
        return "wrong"
    if max(wrong, right) >= 1.995 * min(wrong, right):
        return f"{max(wrong, right) / min(wrong, right):.2f} times too {'large' if wrong > right else 'small'}"
    return f"{abs(wrong / right - 1):.1%} too {'large' if wrong > right else 'small'}"


def policies(need: Price) -> dict[str, Policy]:
    """The engines' ways to set memory aside that apply to this request."""
    found: dict[str, Policy] = {"vllm_blocks_of_16": Blocks(16), "llama_cpp_256_cells": Cells()}
    context = need.layers.context
    if context is not None and context.value >= max(1, need.tokens):
        found["reserve_max_length"] = ReserveMax(context.value)
    return found


def _allocated_text(need: Price) -> str:
    names = {
        "vllm_blocks_of_16": "blocks of 16 tokens (vLLM)",
        "llama_cpp_256_cells": "256 cells (llama.cpp)",
        "reserve_max_length": "",
    }
    context = need.layers.context
    lines = ["needed is not allocated; engines set aside for these keys and values, at least"]
    for key, policy in policies(need).items():
        name = names[key] or f"{context.source} {context.value:,} reserved" if context else names[key]
        lines.append(f"  {name:<45} {both(allocated_bytes(need, policy))}")
    return "\n".join(lines)


def _tp_text(need: Price) -> str:
    lines = [f"on each of {need.tp} GPUs (--tp)   {both(need.gpu_kv_bytes)} of keys and values"]
    if need.gpu_state_bytes:
        lines.append(f"                           {both(need.gpu_state_bytes)} of state")
    copies = need.tp * need.gpu_kv_bytes
    if copies > need.kv_bytes:
        lines.append(f"  {copies / need.kv_bytes:g} times the cache in all: heads are copied where GPUs outnumber them")
    return "\n".join(lines)


def _fit_text(need: Price, fits: Fit) -> str:
    lines = [f"weights   {both(fits.weight_bytes)}" + (f" on each of {need.tp} GPUs" if need.tp > 1 else "")]
    if fits.memory_bytes is not None:
        unlimited = "no limit"
        sequences = unlimited if fits.sequences is None else f"{fits.sequences:,}"
        tokens = unlimited if fits.tokens is None else f"{fits.tokens:,}"
        lines.insert(0, f"GPU       {both(fits.memory_bytes)}")
        if fits.weight_bytes > fits.memory_bytes:
            lines.append("  the weights alone do not fit: nothing is left for a cache")
        lines.append(f"  sequences of {need.tokens:,} tokens that fit beside them: {sequences}")
        lines.append(f"  tokens for each of {need.sequences:,} sequences that fit beside them: {tokens}")
        lines.append("  activations and the engine's own memory are not in it")
    after = "never" if fits.crossover_tokens is None else f"from {fits.crossover_tokens:,} tokens on"
    lines.append(f"  the cache of {need.sequences:,} sequences is larger than the weights: {after}")
    return "\n".join(lines)
