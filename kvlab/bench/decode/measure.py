"""One run of the decode benchmark as the dict that is written: times set beside the floor of the memory measured."""

import time
from typing import Any

import numpy as np

from kvlab.bench.decode.setting import DecodeSetting, shape_of
from kvlab.roofline import decode_floor_ms
from kvlab.timing import LoadWatch, device_facts, is_contended, read_bandwidth, summary, versions

PEERS = ("transformers", "llama_cpp_python", "gguf")


def measure(s: DecodeSetting, command: str) -> dict[str, Any]:
    """Measure and return the whole result; nothing is written.

    Raises:
        ValueError: no such device here, decoders that disagree.
    """
    facts = device_facts(s.device)
    reads: dict[str, list[float]] = {}

    def read() -> None:
        for kernel, per_s in read_bandwidth(s.device, s.read_bytes, n_repeats=3).items():
            reads.setdefault(kernel, []).extend(per_s)

    with LoadWatch() as load:
        if s.device == "cuda":
            from kvlab.bench.decode.gpu import run
        else:
            from kvlab.bench.decode.cpu import run
        found = run(s, read)
    best = max(reads, key=lambda kernel: max(reads[kernel]))
    ceiling = max(reads[best])
    rows = [finish(row, ceiling) for row in found["rows"]]
    shape, model = shape_of(s), found["model"]
    return {
        "benchmark": "decode",
        "device": s.device,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": command,
        "quick": s.quick,
        "machine": facts,
        "versions": versions() | peer_versions(),
        "model": {
            "name": s.shape_name,
            "weights": model.name,
            "why_random": model.why_random,
            "n_params": shape.n_params,
            "n_read_params": shape.n_read_params,
        },
        "read_bandwidth_bytes_per_s": ceiling,
        "read_kernel": best,
        "contended": is_contended(load.others_share, reads[best]),
        "others_share": load.others_share,
        "rows": rows,
        "slopes": slopes(rows, ceiling),
        "tokens": found["tokens"],
        "skipped": found["skipped"],
    }


def finish(row: dict[str, Any], bytes_per_s: float) -> dict[str, Any]:
    """A row's times as minimum and median, with the floor of its bytes and the minimum over that."""
    row = dict(row)
    kv_bytes = row["kv_bytes"]
    figures = summary(row.pop("times_s"))
    floor_ms = decode_floor_ms(row["bytes_per_token"] - kv_bytes, kv_bytes, bytes_per_s)
    return row | figures | {"floor_ms": floor_ms, "ratio_to_floor": figures["ms_min"] / floor_ms}


def slopes(rows: list[dict[str, Any]], bytes_per_s: float) -> list[dict[str, Any]]:
    """By decoder and format, over the contexts at batch 1: microseconds that one more token in the cache adds.

    A line is fitted to the minima by least squares. The floor is the bytes of one token's keys and values over the
    bandwidth.
    """
    found = []
    keys = dict.fromkeys((row["decoder"], row["dtype"]) for row in rows if row["kv_bytes"])
    for decoder, dtype in keys:
        mine = [r for r in rows if (r["decoder"], r["dtype"], r["batch"]) == (decoder, dtype, 1)]
        if len({row["context"] for row in mine}) < 2:
            continue
        us = 1000 * np.polyfit([r["context"] for r in mine], [r["ms_min"] for r in mine], 1)[0]
        floor_us = 1e6 * mine[0]["kv_bytes"] / mine[0]["context"] / bytes_per_s
        found.append(
            {
                "decoder": decoder,
                "dtype": dtype,
                "us_per_cached_token": float(us),
                "floor_us_per_cached_token": floor_us,
                "ratio_to_floor": float(us / floor_us),
            }
        )
    return found


def peer_versions() -> dict[str, str]:
    """Versions of the peers that are installed."""
    from importlib import metadata

    found = {}
    for name in PEERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
