"""What lessons and the README show of `results/decode_*.json`: a table in Markdown, a chart with its alt text.

from kvlab.bench.decode.show import bars, load_decode, markdown
"""

from pathlib import Path
from typing import Any

from kvlab.bench.results import RESULTS, ResultsError, load

MAIN_CONTEXT = 256
PICTURE = "decode_{device}.svg"


def load_decode(device: str = "cpu", folder: Path = RESULTS) -> dict[str, Any]:
    """The result of a device. ResultsError in one line where there is none."""
    return load("decode", device, folder)


def at(result: dict[str, Any], context: int | None = None, batch: int = 1) -> list[dict[str, Any]]:
    """The rows of one context, fastest first; by default at 256 tokens, or at the first context there is.

    Raises:
        ResultsError: nothing was measured there.
    """
    known = sorted({row["context"] for row in result["rows"] if row["batch"] == batch})
    if context is None and known:
        context = MAIN_CONTEXT if MAIN_CONTEXT in known else known[0]
    found = [row for row in result["rows"] if (row["context"], row["batch"]) == (context, batch)]
    if not found:
        raise ResultsError(f"results: decode has no rows at context {context}, batch {batch}, there are: {known}")
    return sorted(found, key=lambda row: row["ms_min"])


def row_of(result: dict[str, Any], decoder: str, dtype: str, context: int | None = None) -> dict[str, Any]:
    """One row. ResultsError where that decoder was not measured."""
    rows = at(result, context)
    for row in rows:
        if (row["decoder"], row["dtype"]) == (decoder, dtype):
            return row
    known = ", ".join(f"{row['decoder']} {row['dtype']}" for row in rows)
    raise ResultsError(f"results: decode has no row {decoder} {dtype}, there are: {known}")


def markdown(result: dict[str, Any], context: int | None = None) -> str:
    """The rows of one context as a table in Markdown, fastest first, and a line that says where it is from."""
    rows = at(result, context)
    lines = [
        "| decoder | weights | ms a token | floor ms | times the floor | tokens a second |",
        "|---|---|--:|--:|--:|--:|",
        *(
            f"| {row['decoder']} | {row['dtype']} | {row['ms_min']:.1f} | {row['floor_ms']:.1f} "
            f"| {row['ratio_to_floor']:.2f} | {1000 / row['ms_min']:.0f} |"
            for row in rows
        ),
        "",
        source_line(result, rows[0]["context"]),
    ]
    return "\n".join(lines)


def source_line(result: dict[str, Any], context: int) -> str:
    """Model, machine, date, and whether the run was disturbed, in one sentence."""
    seen = result["machine"]
    ceiling = result["read_bandwidth_bytes_per_s"] / 1e9
    where = seen["name"] if result["device"] == "cuda" else f"{seen['name']}, {seen['n_cpus']} cores"
    disturbed = "; other programs were at work during the run" if result["contended"] else ""
    return (
        f"{result['model']['weights']}, one sequence, {context:,} tokens in the cache, {where}, read ceiling of the "
        f"same run {ceiling:.1f} GB/s, minimum over a step's repetitions, {result['date'][:10]}{disturbed}."
    )


def bars(result: dict[str, Any], ax: Any, context: int | None = None) -> str:
    """Draw milliseconds a token as bars with each floor inside; return the alt text."""
    from kvlab.style import COLORS

    rows = at(result, context)[::-1]
    names = [f"{row['decoder']} {row['dtype']}" for row in rows]
    ours = [row["decoder"].startswith("kvlab") for row in rows]
    colors = [COLORS["cached"] if mine else COLORS["quiet"] for mine in ours]
    ax.barh(names, [row["ms_min"] for row in rows], color=colors, height=0.6)
    for i, row in enumerate(rows):
        label = "floor: bytes / read ceiling" if i == 0 else None
        ax.plot([row["floor_ms"]] * 2, [i - 0.4, i + 0.4], color=COLORS["new"], lw=2, label=label)
        ax.text(
            row["ms_min"], i, f" {row['ms_min']:.1f} ms, {row['ratio_to_floor']:.2f} x floor", va="center", fontsize=8
        )
    ax.set_xlim(0, 1.35 * max(row["ms_min"] for row in rows))
    ax.set_xlabel("milliseconds a token (minimum)")
    ax.legend(loc="upper right")
    said = "; ".join(
        f"{row['decoder']} {row['dtype']} {row['ms_min']:.1f} ms, {row['ratio_to_floor']:.2f} times its floor"
        for row in rows[::-1]
    )
    return f"Milliseconds a decoded token at {rows[0]['context']:,} tokens of context, fastest first: {said}."


def draw(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write the chart beside the results file, the same bytes for the same result; return where. Needs matplotlib."""
    import matplotlib

    from kvlab.style import subplots

    with matplotlib.rc_context({"svg.hashsalt": "kvlab", "svg.fonttype": "path"}):
        fig, ax = subplots(figsize=(7.5, 0.8 + 0.32 * len(at(result))))
        alt = bars(result, ax)
        fig.tight_layout()
        path = folder / PICTURE.format(device=result["device"])
        fig.savefig(path, metadata={"Date": None, "Title": alt})
    return path
