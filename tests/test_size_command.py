"""`kvlab size` as it is typed, and what it explains."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvlab.cli import app
from kvlab.sizes import explain, load_config, price
from kvlab.sizes.explain import naive_bytes
from kvlab.sizes.report import parse_bytes

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "kvlab" / "configs"
CASES = json.loads((Path(__file__).parent / "cases" / "cache_sizes.json").read_text(encoding="utf-8"))["cases"]
LLAMA = CONFIGS / "llama-3.1-8b.json"


def run(*arguments: str | Path | int) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["size", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout, done.stderr


def write(folder: Path, content: Any, name: str = "config.json") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def case(name: str) -> dict[str, Any]:
    return next(c for c in CASES if c["id"] == name)


def test_json_of_the_shipped_configs() -> None:
    status, out, err = run(CONFIGS, "--tokens", 8192, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (status, err, len(rows)) == (0, "", 10)
    by_name = {Path(row["file"]).stem: row for row in rows}
    llama = by_name["llama-3.1-8b"]
    assert (llama["kv_bytes"], llama["state_bytes"], llama["bytes_per_token"]) == (2**30, 0, 131_072)
    assert llama["layers"] == [
        {"kind": "full", "count": 32, "kv_heads": 8, "k_width": 128, "v_width": 128, "tokens": 8192, "bytes": 2**30}
    ]
    assert llama["warnings"] == []
    assert by_name["gemma-7b"]["bytes_per_token"] == 458_752


@pytest.mark.parametrize("name", ["LC-15", "SW-01", "ML-05", "HY-01", "CF-05", "VL-09b"])
def test_json_of_the_cases(tmp_path: Path, name: str) -> None:
    c = case(name)
    options = ["--tokens", c["tokens"], "--sequences", c["sequences"], "--k-dtype", c["k_dtype"], "--v-dtype"]
    options += [c["v_dtype"], "--mla", c.get("mla", "latent"), "--json"]
    status, out, _ = run(write(tmp_path, c["config"]), *options)
    found = json.loads(out)
    assert status == 0 and found["kv_bytes"] == c["kv_bytes"]
    assert found["state_bytes"] == c.get("state_bytes", found["state_bytes"])


def test_a_table_of_several(tmp_path: Path) -> None:
    gemma = write(tmp_path / "gemma-3-27b", case("SW-01")["config"])
    status, out, err = run(LLAMA, gemma.parent, "--tokens", 32768)
    assert status == 0 and err == ""
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == "llama-3.1-8b 4,294,967,296 4 GiB - 128 KiB 32 full".split()  # noqa: SIM905
    assert rows[2] == "gemma-3-27b 3,120,562,176 2.906 GiB - 80 KiB 52 sliding + 10 full".split()  # noqa: SIM905


def test_what_fits(tmp_path: Path) -> None:
    options = ("--tokens", 8192, "--gpu", "80GB", "--weights", 16_060_522_496)
    fits = json.loads(run(LLAMA, *options, "--json")[1])["fit"]
    assert fits == {
        "memory_bytes": 80 * 10**9,
        "weight_bytes": 16_060_522_496,
        "sequences": 59,
        "tokens": 487_819,
        "crossover_tokens": 122_533,
    }
    assert run(LLAMA, *options)[1].split()[-3:] == ["59", "487,819", "122,533"]
    index = write(tmp_path, {"metadata": {"total_size": 16_060_522_496}}, "model.safetensors.index.json")
    config = write(tmp_path, LLAMA.read_text(encoding="utf-8"))
    auto = ("--tokens", 8192, "--gpu", "80GB", "--weights", "auto", "--json")
    assert json.loads(run(config, *auto)[1])["fit"] == fits
    index.write_text('{"metadata": {}}', encoding="utf-8")
    status, out, _ = run(config, *auto)
    assert status == 1 and "metadata.total_size: expected a number of bytes" in json.loads(out)["error"]
    status, _, err = run(LLAMA, *auto[:-1])
    assert status == 1 and err.count("\n") == 1 and "give --weights BYTES instead" in err


def test_tensor_parallel() -> None:
    found = json.loads(run(LLAMA, "--tokens", 8192, "--tp", 16, "--json")[1])
    assert found["per_gpu"] == {"gpus": 16, "kv_bytes": 2**27, "state_bytes": 0}
    status, _, err = run(LLAMA, "--tokens", 8192, "--tp", 3)
    assert status == 1 and "8 KV heads are neither split nor copied evenly over 3 GPUs" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON: Expecting value in line 1"),
        ("{'a': 1}", "not JSON"),
        (b"\xff\xfe\x00", "not JSON: not UTF-8 text"),
        ("[1]", "expected a config.json, an object of fields; got a list"),
        ("null", "got null"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ({}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers: expected a whole number of at least 1, got nan"),
        ({"num_hidden_layers": 3, "hidden_size": 8}, "head"),
        ({"num_hidden_layers": "3\n4"}, r"got '3\n4'"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    file = write(tmp_path, content)
    status, out, err = run(file, "--tokens", 10)
    assert (status, out) == (1, "")
    assert err.startswith(f"{file}: ") and message in err and err.count("\n") == 1
    status, out, err = run(file, "--tokens", 10, "--json")
    assert status == 1 and err == "" and message in json.loads(out)["error"]


def test_a_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    status, out, err = run(tmp_path / "missing.json", LLAMA, "--tokens", 8192)
    assert status == 1 and "llama-3.1-8b" in out and "No such file" in err and err.count("\n") == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    status, _, err = run(empty, "--tokens", 1)
    assert status == 1 and "a directory without a config.json" in err


def test_warnings_go_beside_the_table(tmp_path: Path) -> None:
    file = write(tmp_path / "model", json.loads(LLAMA.read_text(encoding="utf-8")) | {"model_type": "mystery"})
    status, out, err = run(file, "--tokens", 8192)
    assert status == 0 and "warning" not in out
    assert "warning: model_type 'mystery' is not known: assumed 32 full layers" in err
    assert "warning: model_type 'mystery'" in run(file, "--tokens", 8192, "--explain")[1]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--tokens", "-1"],
        ["--tokens", "many"],
        ["--tokens", "1", "--sequences", "0"],
        ["--tokens", "1", "--k-dtype", "int3"],
        ["--tokens", "1", "--mla", "both"],
        ["--tokens", "1", "--tp", "0"],
        ["--tokens", "1", "--gpu", "80G", "--weights", "1"],
        ["--tokens", "1", "--gpu", "80GB"],
        ["--tokens", "1", "--weights", "heavy"],
    ],
)
def test_wrong_usage_is_status_2(options: list[str]) -> None:
    assert run(LLAMA, *options)[0] == 2


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("80GiB", 80 * 2**30), ("80 GB", 80 * 10**9), ("16.06GB", 16_060_000_000), ("12", 12), ("1.5KiB", 1536)],
)
def test_bytes_are_read_with_their_unit(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "80G", "GiB", "-1", "1e9", "1.5", "80 gib", "0x10", "٣"])
def test_bytes_that_are_not_clear_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)


def test_the_command_itself_loads_no_torch() -> None:
    code = (
        "import sys; from kvlab.cli import app; "
        f"app(['size', {str(LLAMA)!r}, '--tokens', '8', '--json'], standalone_mode=False); "
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kv_bytes"] == 8 * 131_072


def test_a_terminal_gets_the_explanation() -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-m", "kvlab", "size", str(LLAMA), "--tokens", "8192"]
    done = subprocess.run(command, stdout=slave, stderr=subprocess.PIPE, check=True)
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.stderr == b"" and "hidden_size 4096 / num_attention_heads 32" in shown
    assert "num_attention_heads" not in run(LLAMA, "--tokens", 8192)[1]


# Explained


def test_llama_is_explained_factor_by_factor() -> None:
    text = explain(price(load_config("llama-3.1-8b"), 8192))
    lines = [line.split(None, 5) for line in text.splitlines()]
    assert ["layers", "32", "32", "num_hidden_layers"] in lines
    assert ["KV", "heads", "8", "8", "num_key_value_heads"] in lines
    assert "hidden_size 4096 / num_attention_heads 32 (no head_dim)" in text
    assert "32 x 8 x (256 + 256) x 8,192 x 1 = 1,073,741,824 bytes = 1 GiB" in text
    assert "1,073,741,824 bytes = 1 GiB: right for this model" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SW-01", ["52 of 62, by text_config.sliding_window_pattern 6", "62 in all", "7.00 times too large"]),
        ("SW-01", ["the smaller of --tokens 32,768 and text_config.sliding_window 1,024", "text_config.head_dim"]),
        ("ML-03", ["kv_lora_rank 512 + qk_rope_head_dim 64", "no factor 2", "576 numbers in q8_0: ggml block"]),
        ("ML-05", ["qk_nope_head_dim 128 + qk_rope_head_dim 64", "v_head_dim"]),
        ("HY-01", ["48 x 817,152 x 4 bytes x 4 = 627,572,736 bytes = 598.5 MiB", "linear_conv_kernel_dim 4 - 1"]),
        ("HY-01", ["cannot be computed: the config has no hidden_size"]),
        ("LC-15", ["64 of 162, by num_key_value_heads_per_layer"]),
        ("LC-19", ["n_embd 768 / n_head 12 (no head_dim)", "no num_key_value_heads: as many as query heads"]),
        ("CF-12", ["hidden_size 2880 // num_attention_heads 64", "18 of 36, by layer_types"]),
        ("CF-17", ["n_embd 4096 / n_head 16"]),
        ("LC-12", ["warning: model_type is missing"]),
    ],
)
def test_a_case_is_explained(name: str, expected: list[str]) -> None:
    c = case(name)
    need = price(c["config"], c["tokens"], c["sequences"], c["k_dtype"], c["v_dtype"], c.get("mla", "latent"))
    text = explain(need)
    for part in expected:
        assert part in text, text
    assert f"{c['kv_bytes']:,}" in text


@pytest.mark.parametrize("case_", CASES, ids=lambda c: c["id"])
def test_the_products_shown_are_the_price(case_: dict[str, Any]) -> None:
    """Every explanation multiplies out to what it says, and the groups add up to the total."""
    c = case_
    need = price(c["config"], c["tokens"], c["sequences"], c["k_dtype"], c["v_dtype"], c.get("mla", "latent"))
    total = 0
    for line in explain(need).splitlines():
        product, _, result = line.strip().partition(" = ")
        if (
            result.endswith(("B", "bytes"))
            and line.startswith("  ")
            and product[0].isdigit()
            and product.count("x") == 4
        ):
            value = eval(product.replace(",", "").replace("x", "*"))
            assert f"{value:,} bytes" in result
            total += value
    assert total == need.kv_bytes


def test_the_naive_formula_on_the_cases() -> None:
    """It is within 2 % on 14 of the cases that hold one, and far off on the others."""
    ratios = []
    for c in CASES:
        need = price(c["config"], c["tokens"], c["sequences"], c["k_dtype"], c["v_dtype"], c.get("mla", "latent"))
        wrong = naive_bytes(need)
        if wrong is not None:
            ratios.append(wrong / need.kv_bytes)
    assert len(ratios) == 31 and sum(abs(r - 1) <= 0.02 for r in ratios) == 14
    assert max(ratios) > 20 and min(ratios) < 0.6
