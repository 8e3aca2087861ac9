"""A decode result as a table for the terminal: one line a decoder and context, with ratios."""

from typing import Any


def table(result: dict[str, Any]) -> str:
    """The rows, the slopes, which tokens agreed, what was left out."""
    model, seen, ceiling = result["model"], result["machine"], result["read_bandwidth_bytes_per_s"]
    lines = [
        f"decode: {model['weights']}, {seen['name']}, {seen['n_cpus']} cores, {seen['torch_threads']} threads, "
        f"{result['date']}, read ceiling {ceiling / 1e9:.1f} GB/s ({result['read_kernel']})"
    ]
    if model["why_random"]:
        lines.append(f"  random weights: {model['why_random']}")
    if result["contended"]:
        lines.append("  CONTENDED: other programs were at work, measure again on a quiet machine")
    lines.append(
        f"  {'decoder':<24}{'dtype':<10}{'batch':>6}{'context':>9}{'ms min':>10}{'ms median':>11}"
        f"{'floor ms':>10}{'x floor':>9}{'tokens/s':>10}"
    )
    for row in sorted(result["rows"], key=lambda row: (row["batch"], row["context"], row["dtype"], row["ms_min"])):
        lines.append(
            f"  {row['decoder']:<24}{row['dtype']:<10}{row['batch']:>6}{row['context']:>9}{row['ms_min']:>10.2f}"
            f"{row['ms_median']:>11.2f}{row['floor_ms']:>10.2f}{row['ratio_to_floor']:>9.2f}"
            f"{1000 * row['batch'] / row['ms_min']:>10.1f}"
        )
    lines += [
        f"  one more cached token: {row['decoder']} {row['dtype']} {row['us_per_cached_token']:.2f} us, floor "
        f"{row['floor_us_per_cached_token']:.2f} us, x {row['ratio_to_floor']:.1f}"
        for row in result["slopes"]
    ]
    lines += [
        f"  {row['decoder']} {row['dtype']}: {row['same']} of {row['of']} tokens as the first decoder says"
        for row in result["tokens"]
        if row["same"] < row["of"]
    ]
    for left in result["skipped"]:
        named = [f"{key} {left[key]}" for key in ("batch", "context") if key in left]
        lines.append(f"  left out: {' '.join([left['decoder'], left['dtype'], *named])}: {left['why']}")
    return "\n".join(lines)
