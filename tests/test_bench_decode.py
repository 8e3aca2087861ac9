"""`kvlab bench decode`: the decoders compute one function, the file has its form, and a disturbed run says so."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvlab.bench import ResultsError, load
from kvlab.bench import main as bench_main
from kvlab.bench.decode import command, cpu, gpu, measure, model, peers, products, setting, show
from kvlab.bench.decode import lean as lean_module
from kvlab.bench.decode.contenders import (
    Contender,
    Lean,
    Readable,
    TorchReadable,
    Unavailable,
    llama_config,
    llama_weights,
)
from kvlab.bench.decode.lean import LeanDecoder, attend_one
from kvlab.bench.decode.table import table
from kvlab.llama import Llama
from kvlab.roofline import ModelShape

UNEVEN = ModelShape(n_layers=3, d_model=24, n_heads=6, n_kv_heads=2, head_dim=8, d_ff=40, vocab_size=31, tied=True)
IDS = np.array([7, 3, 30, 0, 12, 12, 5, 19, 1, 28, 4])


@pytest.fixture(scope="module")
def small():
    return model.random_model(UNEVEN, seed=4)


def right(m, ids=IDS):
    """The readable decoder's logits of the last token."""
    return Llama(llama_config(m), llama_weights(m))(ids)[-1]


# The decoder laid out for speed


@pytest.mark.parametrize("n_prompt", [1, 5, 11])
def test_equal_to_the_decoder_to_read(small, n_prompt):
    lean = LeanDecoder(small, "float32", max_len=12)
    logits = lean.prefill(IDS[:n_prompt])
    for token in IDS[n_prompt:]:
        logits = lean.step(int(token))
    assert np.abs(logits - right(small)).max() < 2e-5 and lean.length == 11


def test_a_long_prompt_goes_in_by_chunks(small, monkeypatch):
    monkeypatch.setattr("kvlab.bench.decode.lean.CHUNK", 4)
    assert np.abs(LeanDecoder(small, "float32", 11).prefill(IDS) - right(small)).max() < 2e-5


def test_over_many_keys_the_product_is_turned_round(monkeypatch):
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, n, 8), dtype=np.float32) for n in (3, 9, 9))
    few = attend_one(q, k, v)
    monkeypatch.setattr("kvlab.bench.decode.lean.MANY_KEYS", 9)
    assert np.abs(attend_one(q, k, v) - few).max() < 1e-6
    scores = np.exp(q @ k.transpose(0, 2, 1))
    assert np.abs(scores / scores.sum(-1, keepdims=True) @ v - few).max() < 1e-6


def test_float16_rounds_the_weights_and_nothing_else(small):
    half = LeanDecoder(small, "float16", 12)
    for token in IDS:
        logits = half.step(int(token))
    assert 1e-5 < np.abs(logits - right(small)).max() < 2e-2
    # The folded matrices are what is rounded, so the right answer is that of a float32 decoder with them rounded.
    rounded = LeanDecoder(small, "float32", 12)
    made = products.float32_products([w.astype(np.float16).astype(np.float32) for w in lean_module._matrices(small)])
    rounded._layers, rounded._head = [made[4 * i : 4 * i + 4] for i in range(3)], made[-1]
    assert np.abs(rounded.prefill(IDS) - logits).max() < 2e-5


def test_large_products_beside_torchs_are_torchs(monkeypatch):
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 3, 8)), random.standard_normal((2, 8, 5))
    plain = products.torch_matmul(a, b)
    monkeypatch.setattr(products, "SMALL", 119)
    monkeypatch.setattr(torch, "matmul", lambda a, b, real=torch.matmul: 2 * real(a, b))
    assert np.allclose(products.torch_matmul(a, b), 2 * plain, rtol=1e-12)
    assert np.array_equal(plain, a @ b)


def test_weights_too_large_for_float16_are_refused():
    with pytest.raises(RuntimeError, match=r"float16 holds up to 65504.*, a weight is 70000"):
        products.float16_products([np.full((2, 3), 7e4, np.float32)])


def test_matrices_stand_on_cache_lines_with_the_longer_side_contiguous():
    places = products.aligned([(3, 5), (7, 2), (4, 16)])
    assert [p.shape for p in places] == [(3, 5), (7, 2), (4, 16)]
    assert all(p.ctypes.data % 64 == 0 and p.flags.c_contiguous for p in places)
    for i, place in enumerate(places):
        place[:] = i
    assert [set(p.ravel()) for p in places] == [{0}, {1}, {2}]
    x, seen = np.ones(5, np.float32), []
    wide, tall = (np.arange(10, dtype=np.float32).reshape(shape) for shape in ((2, 5), (5, 2)))
    for product, w in zip(products.float32_products([wide, tall]), (wide, tall), strict=True):
        vector, rows = product(x[: w.shape[1]]), product(np.ones((3, w.shape[1]), np.float32))
        assert np.array_equal(vector, w.sum(1)) and np.array_equal(rows, np.tile(w.sum(1), (3, 1)))
        seen.append(product(x[: w.shape[1]]).ctypes.data)
        assert seen[-1] == vector.ctypes.data, "no new array a call"


def test_a_full_cache_refuses_and_an_empty_prompt_too(small):
    lean = LeanDecoder(small, "float32", max_len=3)
    lean.prefill(IDS[:3])
    for call in (lambda: lean.step(1), lambda: lean.prefill(IDS[:2])):
        with pytest.raises(ValueError, match="3 of 3 slots are filled"):
            call()
    with pytest.raises(ValueError, match="prompt is empty"):
        LeanDecoder(small, "float32", 3).prefill(IDS[:0])


# The contenders


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Lean, "float32"),
        (Lean, "float16"),
        (TorchReadable, "float32"),
        (peers.HuggingFaceDynamic, "float32"),
        (peers.HuggingFaceStatic, "float32"),
    ],
)
def test_all_say_the_same_tokens_and_end_a_turn_at_the_context(small, kind, dtype):
    contender = kind(small, dtype, 40)
    assert contender.greedy(IDS, 6) == Readable(small, "float32", 40).greedy(IDS, 6)
    for context in (20, 12, 30):
        times_s = contender.turn(context, 4)
        assert len(times_s) == 4 and min(times_s) > 0
        assert held(contender) == context
        assert kind is not peers.HuggingFaceStatic or contender.cache.layers[0].keys.shape[2] == context


def held(contender):
    if isinstance(contender, Lean):
        return contender.decoder.length
    if isinstance(contender, peers.HuggingFace):
        return int(contender.cache.get_seq_length())
    return len(contender.caches[0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_llama_cpp_says_the_same_tokens(small, dtype):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: the extra `peers` compiles it")
    contender = peers.LlamaCpp(model.random_model(model.TINY), dtype, 64)
    tokens = Readable(contender.model, "float32", 64).greedy(IDS, 4)
    assert contender.greedy(IDS, 4) == tokens
    contender.turn(30, 3)
    assert contender.llama.n_tokens == 30


def test_the_gguf_file_holds_the_weights_with_rope_pairs_side_by_side(small, tmp_path):
    import gguf

    path = tmp_path / "m.gguf"
    peers.write_gguf(small, path, "float32", gguf)
    tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    assert len(tensors) == 2 + 9 * 3
    layer = small.weights.layers[1]
    q = layer.qkv[:48].reshape(6, 2, 4, 24)
    assert np.array_equal(tensors["blk.1.attn_q.weight"].reshape(6, 4, 2, 24)[:, :, 1], q[:, 1])
    assert np.array_equal(tensors["blk.1.attn_v.weight"], layer.qkv[64:])
    assert np.array_equal(tensors["token_embd.weight"], small.weights.embed)
    peers.write_gguf(small, path, "float16", gguf)
    half = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    assert half["blk.0.ffn_up.weight"].dtype == np.float16 and half["blk.0.ffn_norm.weight"].dtype == np.float32


def test_bytes_of_a_token(small):
    """By hand: weights once, keys and values of every token in the cache; a float16 Lean keeps a float32 cache."""
    n_weights = 3 * (24 * (48 + 32) + 48 * 24 + 3 * 24 * 40) + 31 * 24 + 7 * 24
    per_token = 2 * 3 * 2 * 8
    assert Readable(small, "float32", 40).bytes_per_token(20) == 4 * n_weights + 20 * 4 * per_token
    assert Lean(small, "float16", 40).bytes_per_token(20) == 2 * n_weights + 20 * 4 * per_token
    assert TorchReadable(small, "bfloat16", 40).bytes_per_token(20) == 2 * n_weights + 20 * 2 * per_token


class Scripted(Contender):
    """Says given tokens and writes down its turns."""

    name = "kvlab-scripted"

    def __init__(self, tokens=(1, 2), dtype="float32", log=None):
        super().__init__(model.random_model(UNEVEN), dtype, 40)
        self.tokens, self.log = list(tokens), log

    def rewind(self, n_held):
        self.log.append((self.dtype, "rewind", n_held))

    def step(self):
        self.log.append((self.dtype, "step"))
        return 0

    def greedy(self, ids, n_new):
        return self.tokens


def test_decoders_take_turns(monkeypatch):
    log = []
    monkeypatch.setattr(cpu.time, "sleep", lambda s: log.append(("rest", s)))
    s = replace(setting.CPU, n_rounds=2, n_steps=2, settle_s=0.5)
    times = cpu.in_turns([Scripted(log=log), Scripted(dtype="float16", log=log)], 10, s)
    turn = [[("rest", 0.5), (d, "rewind", 7), *[(d, "step")] * 3] for d in ("float32", "float16")]
    assert log == (turn[0] + turn[1]) * 2
    assert {key: len(found) for key, found in times.items()} == {(0, 10): 4, (1, 10): 4}


def test_a_decoder_that_says_other_tokens_is_not_timed():
    m = model.random_model(UNEVEN)
    found = cpu.agree([Scripted(), Scripted((1, 3), "bfloat16")], m, 2)
    assert [row["same"] for row in found] == [2, 1]
    with pytest.raises(ValueError, match=r"says \[1, 3\], kvlab-scripted float32 says \[1, 2\]"):
        cpu.agree([Scripted(), Scripted((1, 3))], m, 2)


def test_a_peer_that_is_not_there_is_named():
    class Missing(Scripted):
        def __init__(self, *_):
            raise Unavailable("it is not installed")

    contenders, skipped = cpu.build(model.random_model(UNEVEN), ("float32",), 40, ((Missing, ("float32", "float16")),))
    assert not contenders
    assert skipped == [{"decoder": "kvlab-scripted", "dtype": "float32", "why": "it is not installed"}]


# A run


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decode")
    assert bench_main(["decode", "--quick", "--device", "cpu", "--out", str(folder)]) == 0
    return load("decode", "cpu", folder)


def test_one_row_each_decoder_format_and_context(quick):
    rows = [(row["decoder"], row["dtype"], row["context"]) for row in quick["rows"]]
    assert len(rows) == len(set(rows)) and {n for _, _, n in rows} == {16, 32}
    ours = {
        ("kvlab-lean", "float32"),
        ("kvlab-lean", "float16"),
        ("kvlab-llama", "float32"),
        ("hf-dynamic", "bfloat16"),
    }
    assert ours | {("hf-static", "float32"), ("kvlab-torch", "bfloat16")} <= {row[:2] for row in rows}
    assert all(name.startswith(("kvlab-", "hf-", "llamacpp-")) for name, _, _ in rows)


def test_figures_follow_from_bytes_and_bandwidth(quick):
    for row in quick["rows"]:
        assert row["n_steps"] == 4 and 0 < row["ms_min"] <= row["ms_median"]
        floor_ms = 1000 * row["bytes_per_token"] / quick["read_bandwidth_bytes_per_s"]
        assert row["floor_ms"] == pytest.approx(floor_ms) and row["ratio_to_floor"] == row["ms_min"] / row["floor_ms"]
    assert quick["command"] == "python -m kvlab bench decode --device cpu --shape tiny --quick"
    assert quick["quick"] and quick["model"]["weights"] == "random tiny" and "transformers" in quick["versions"]
    assert all(row["same"] == row["of"] == 16 for row in quick["tokens"] if row["dtype"] == "float32")


def test_the_slope_is_that_of_the_line():
    rows = [
        {"decoder": d, "dtype": "float32", "batch": 1, "context": n, "ms_min": a + b * n, "kv_bytes": 2000 * n}
        for d, a, b in (("kvlab-x", 5.0, 0.002), ("hf-y", 9.0, 0.004))
        for n in (64, 256, 4096)
    ]
    found = measure.slopes(rows, bytes_per_s=1e9)
    assert [(r["decoder"], round(r["us_per_cached_token"], 6), r["floor_us_per_cached_token"]) for r in found] == [
        ("kvlab-x", 2.0, 2.0),
        ("hf-y", 4.0, 2.0),
    ]
    assert [round(r["ratio_to_floor"], 6) for r in found] == [1.0, 2.0]
    assert measure.slopes(rows[:1], 1e9) == []


def test_json_is_all_of_stdout(capsys):
    assert (
        bench_main(["decode", "--quick", "--device", "cpu", "--json", "--dtype", "float16", "--context", "9,12"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert {"read_bandwidth_bytes_per_s", "contended", "machine", "versions", "rows"} <= set(result)
    keys = ("decoder", "dtype", "context", "ms_min", "ms_median", "bytes_per_token", "floor_ms", "ratio_to_floor")
    assert all(key in row for row in result["rows"] for key in keys)
    assert {(row["dtype"], row["context"]) for row in result["rows"]} == {("float16", 9), ("float16", 12)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--context", "64,x"], "argument --context: expected values with commas between them, got '64,x'"),
        (["--context", "2"], "--context: expected at least 8 tokens, got 2"),
        (["--dtype", "int8"], "--dtype: expected some of float32, bfloat16, float16, got int8"),
        (["--shape", "llama-8b"], "--shape: expected smollm2-135m or tiny on cpu, got llama-8b"),
        (["--batch", "4"], "--batch: the decoders timed on a CPU decode one sequence; it is for --device cuda"),
        (["--threads", "0"], "--threads: expected at least 1, got 0"),
        (["--threads", "two"], "argument --threads: invalid int value: 'two'"),
        (["--contexts", "64"], "unrecognized arguments: --contexts 64"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_bad_usage_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as stop:
        bench_main(["decode", "--device", "cpu", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"kvlab bench decode: {said}\n"


def test_no_gpu_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        bench_main(["decode", "--device", "cuda"])
    assert stop.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "written"),
    [([], True), (["--context", "64"], False), (["--threads", "1"], False), (["--quick"], False)],
)
def test_only_a_whole_run_replaces_the_results(arguments, written, quick, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "measure", lambda s, said: quick)
    monkeypatch.setattr(command, "set_threads", lambda n: None)
    assert bench_main(["decode", "--device", "cpu", *arguments]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == (
        ["decode_cpu.json", "decode_cpu.svg"] if written else []
    )


def test_what_fails_is_one_line(monkeypatch, capsys):
    def fails(*_):
        raise ValueError("hf-dynamic float32 says\nother tokens")

    monkeypatch.setattr(command, "measure", fails)
    assert bench_main(["decode", "--device", "cpu", "--quick"]) == 1
    assert capsys.readouterr().err == "decode: ValueError: hf-dynamic float32 says other tokens\n"


def test_decode_among_others(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("kvlab.bench.run.decode", lambda arguments: calls.append(arguments) or 0)
    assert bench_main(["batch", "decode", "--quick", "--device", "cpu"]) == 0
    assert calls == [["--device", "cpu", "--quick"]]


def test_the_ceiling_is_the_best_read(monkeypatch):
    speeds = iter([1e9, 4e9, 2e9])  # before, between the two contexts, after
    monkeypatch.setattr(measure, "read_bandwidth", lambda *_, **__: {"a": [next(speeds)], "b": [1.5e9]})
    result = measure.measure(setting.choose("cpu", dtypes=("float16",), contexts=(9, 12), quick=True), "x")
    assert (result["read_bandwidth_bytes_per_s"], result["read_kernel"]) == (4e9, "a")


def test_a_disturbed_run_says_so(quick, monkeypatch):
    monkeypatch.setattr(measure, "is_contended", lambda share, reads: True)
    s = setting.choose("cpu", dtypes=("float16",), contexts=(9,), quick=True)
    result = measure.measure(s, "x")
    assert result["contended"] is True and "CONTENDED" in table(result)
    assert "other programs were at work" in show.source_line(result, 9)
    assert "CONTENDED" not in table(quick | {"contended": False})


BARE = """
import runpy, sys
allowed = set(sys.stdlib_module_names) | {"torch", "numpy", "kvlab", "functorch", "torchgen", "mkl"}
allowed |= {"typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"}  # torch's
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed: raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Bare())
sys.argv = ["kvlab", "bench", "decode", "--device", "cpu", "--json", "--quick", "--context", "12"]
runpy.run_module("kvlab", run_name="__main__", alter_sys=True)
"""


def test_runs_where_only_torch_and_numpy_are():
    run = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert {row["decoder"] for row in result["rows"]} == {"kvlab-lean"}
    why = {left["decoder"]: left["why"] for left in result["skipped"]}
    assert set(why) == {"kvlab-llama", "kvlab-torch", "hf-dynamic", "hf-static", "llamacpp-python"}
    assert all("No module named" in text for text in why.values())


def test_the_real_shape_is_the_default():
    assert setting.CPU.shape_name == "smollm2-135m" and model.SMOLLM2.n_read_params == 134_515_008
    assert {64, 256, 4096} <= set(setting.CPU.contexts)
    assert setting.shape_of(setting.CUDA).n_params == 8_030_261_248


def test_without_weights_the_shape_is_timed_and_that_is_said(monkeypatch):
    monkeypatch.setitem(model.SHAPES, "smollm2-135m", UNEVEN)
    monkeypatch.setattr(model, "SMOLLM2", UNEVEN)
    monkeypatch.setattr("kvlab.llama.load", lambda: (_ for _ in ()).throw(FileNotFoundError("run `make model`")))
    found = model.find("smollm2-135m")
    assert (found.name, found.why_random) == ("random smollm2-135m", "run `make model`")
    assert found.weights.layers[0].qkv.shape == (80, 24) and found.weights.head is found.weights.embed


# What is shown


def test_table_markdown_and_chart(quick, tmp_path):
    text = show.markdown(quick)
    assert text.count("\n| ") == len(show.at(quick)) + 0 and "| kvlab-lean | float32 |" in text
    times = [row["ms_min"] for row in show.at(quick, 32)]
    assert times == sorted(times) and show.row_of(quick, "kvlab-lean", "float32", 32)["context"] == 32
    first = show.draw(quick, tmp_path).read_bytes()
    assert first == show.draw(quick, tmp_path).read_bytes() and b"kvlab-lean float32" in first
    for fails in (lambda: show.at(quick, 7), lambda: show.row_of(quick, "kvlab-lean", "int8")):
        with pytest.raises(ResultsError, match="decode has no row"):
            fails()


# The GPU's part, on the CPU


@pytest.fixture
def as_if_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_too_big", lambda device, n_bytes: None)
    chosen = setting.choose("cuda", quick=True)
    return replace(chosen, device="cpu", dtypes=("float32",))


def test_the_gpu_run_covers_contexts_batches_and_ways(as_if_gpu):
    calls = []
    found = gpu.run(as_if_gpu, lambda: calls.append(1))
    cases = {(row["batch"], row["context"]) for row in found["rows"]}
    assert cases == {(1, 16), (1, 32), (2, 16)} and len(calls) == 2
    ways = {row["decoder"] for row in found["rows"]}
    assert ways == {"kvlab-eager", "kvlab-graph", "kvlab-graph-sdpa", "kvlab-uncached"}
    uncached = {(row["batch"], row["context"]) for row in found["rows"] if row["decoder"] == "kvlab-uncached"}
    assert uncached == {(1, 16)} and all(len(row["times_s"]) >= 2 for row in found["rows"])
    assert [row["logits_apart"] < 1e-4 for row in found["tokens"]] == [True]


def test_what_does_not_fit_is_named(as_if_gpu, monkeypatch):
    kv_bytes = 2 * 2 * 2 * 8 * 4 * 32  # keys and values, layers, KV heads, head_dim, float32, tokens
    monkeypatch.setattr(gpu, "why_too_big", lambda device, n: "too big" if n == kv_bytes else None)
    found = gpu.run(replace(as_if_gpu, batches=(1,)), lambda: None)
    assert {row["context"] for row in found["rows"]} == {16}
    assert found["skipped"] == [{"decoder": "kvlab", "dtype": "float32", "batch": 1, "context": 32, "why": "too big"}]
    monkeypatch.setattr(gpu, "why_too_big", lambda device, n: "needs 16.1 GB more")
    found = gpu.run(as_if_gpu, lambda: None)
    assert found["rows"] == [] and found["skipped"][0]["why"] == "needs 16.1 GB more"


def test_a_way_that_fails_leaves_the_others(as_if_gpu, monkeypatch):
    def fails(device, step):
        raise RuntimeError("no Triton\nhere")

    monkeypatch.setattr(gpu, "capture", fails)
    found = gpu.run(replace(as_if_gpu, contexts=(16,), batches=(1,)), lambda: None)
    assert {row["decoder"] for row in found["rows"]} == {"kvlab-eager", "kvlab-uncached"}
    assert {left["why"] for left in found["skipped"]} == {"RuntimeError: no Triton here"}


def test_other_logits_than_the_cpus_are_refused(monkeypatch):
    assert gpu.compare("cpu", "bfloat16")["logits_apart"] > 0
    monkeypatch.setitem(gpu.MOST_APART, "bfloat16", 1e-6)
    with pytest.raises(ValueError, match=r"cpu bfloat16: logits are .* from the CPU's in float32"):
        gpu.compare("cpu", "bfloat16")


def test_on_cuda_a_step_is_captured_and_timed_by_events(monkeypatch):
    monkeypatch.setattr("kvlab.bench.cuda.captured", lambda step: int if step is print else step)
    monkeypatch.setattr("kvlab.bench.cuda.event_times_ms", lambda step, n_warmup, n_steps: [2.0] * n_steps)
    assert gpu.capture("cuda", print) is int and gpu.capture("cpu", print) is print
    assert gpu.step_times_s("cuda", print, 3) == [0.002] * 3


def test_both_attentions_of_the_gpus_decoder_agree():
    from kvlab.bench.model import BenchDecoder

    decoder = BenchDecoder(UNEVEN, "float64", "cpu", max_len=12)
    ids = torch.from_numpy(IDS)[None].repeat(3, 1)
    ids[1] = (ids[1] * 5) % 31
    logits = {}
    for attention in ("products", "sdpa"):
        decoder.attention, buffers = attention, decoder.make_buffers(3, 12)
        decoder(ids[:, :8], buffers)
        for token in ids[:, 8:].split(1, dim=1):
            logits[attention] = decoder(token, buffers)
    assert (logits["products"] - logits["sdpa"]).abs().max() < 1e-12
    assert (logits["products"] - decoder(ids)).abs().max() < 1e-12


def test_memory_of_a_stand_in_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 10**9, 80 * 10**9))
    assert gpu.why_too_big("cuda", 8 * 10**9) is None
    assert gpu.why_too_big("cuda", 16 * 10**9) == "needs 16.0 GB more, 10.0 GB are free"


def test_peer_versions_are_those_installed():
    found = measure.peer_versions()
    assert found["transformers"] and set(found) <= set(measure.PEERS)
    assert SimpleNamespace(**found).transformers[0].isdigit()
