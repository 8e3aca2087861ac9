"""The decoder that is timed computes what the course's decoder does; results are whole, or refused in one line."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from kvlab.bench import ResultsError, columns, describe, load, machine, main, measured_devices, rows_of
from kvlab.bench import benchmarks as bench_benchmarks
from kvlab.bench import cuda as bench_cuda
from kvlab.bench import results as bench_results
from kvlab.bench import run as bench_run
from kvlab.bench.benchmarks import BENCHMARKS, CPU, CUDA, SHAPES, setting
from kvlab.bench.decode.setting import choose
from kvlab.bench.model import BenchDecoder, Buffers
from kvlab.bench.results import RESULTS, path_of, save
from kvlab.decoder import TinyDecoder
from kvlab.roofline import ModelShape

QUICK = setting("cpu", quick=True)
UNEVEN = {"n_layers": 3, "d_model": 24, "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "d_ff": 40, "vocab_size": 31}


# The decoder


def course_decoder_and_twin():
    """The NumPy decoder, and a BenchDecoder with its weights in float64."""
    tiny = TinyDecoder(**UNEVEN)
    twin = BenchDecoder(ModelShape(**UNEVEN, tied=True), "float64", "cpu", max_len=40)
    for ours, layer in zip(twin.layers, tiny.weights["layers"], strict=True):
        ours["qkv"] = torch.from_numpy(np.concatenate([layer["wq"], layer["wk"], layer["wv"]], axis=1))
        ours["gate_up"] = torch.from_numpy(np.concatenate([layer["w_gate"], layer["w_up"]], axis=1))
        ours |= {"wo": torch.from_numpy(layer["wo"]), "down": torch.from_numpy(layer["w_down"])}
        ours |= {name: torch.from_numpy(layer[name]) for name in ("attn_norm", "mlp_norm")}
    twin.embed = torch.from_numpy(tiny.weights["embed"])
    twin.head, twin.final_norm = twin.embed.T, torch.from_numpy(tiny.weights["final_norm"])
    return tiny, twin


@pytest.mark.parametrize("chunks", [[11], [5, 1, 1, 4], [1] * 11, [2, 9]])
def test_equal_to_the_course_decoder(chunks):
    """NumPy against torch, prefill, uneven chunks and single steps, through buffers with room to spare."""
    tiny, twin = course_decoder_and_twin()
    ids = np.random.default_rng(5).integers(0, 31, size=11)
    right, buffers, done = tiny(ids), twin.make_buffers(batch=1, max_len=13), 0
    for n in chunks:
        logits = twin(torch.from_numpy(ids[None, done : done + n]), buffers)
        done += n
        assert np.abs(logits[0].numpy() - right[done - 1]).max() < 1e-12
    assert buffers.length == 11


def test_uncached_and_batched_are_the_same_function():
    tiny, twin = course_decoder_and_twin()
    ids = np.random.default_rng(6).integers(0, 31, size=(3, 9))
    logits = twin(torch.from_numpy(ids)).numpy()
    assert logits.shape == (3, 31)
    assert max(np.abs(row - tiny(one)[-1]).max() for row, one in zip(logits, ids, strict=True)) < 1e-12


def test_a_step_can_be_repeated_at_the_same_context():
    _, twin = course_decoder_and_twin()
    buffers, ids = twin.make_buffers(1, 8), torch.tensor([[7]])
    step = bench_benchmarks._cached_step(twin, buffers, ids, 6)
    step()
    k = buffers.k.clone()
    step()
    assert buffers.length == 6 and torch.equal(buffers.k, k)


def test_full_buffers_refuse_and_keep_what_they_hold():
    buffers = Buffers(SHAPES["tiny"], 1, 4, torch.float32, "cpu")
    buffers.length, before = 4, buffers.k.clone()
    row = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="4 of 4 slots are filled, 1 more"):
        buffers.write(0, row, row)
    assert torch.equal(buffers.k, before)


@pytest.mark.parametrize("name", [n for n in SHAPES if n != "llama-8b"])
def test_weights_are_as_many_as_are_priced(name):
    shape = SHAPES[name]
    model = BenchDecoder(shape, "bfloat16", "cpu", max_len=1)
    held = [w for layer in model.layers for w in layer.values()] + [model.head, model.final_norm]
    assert sum(w.numel() for w in held) == shape.n_read_params
    assert setting("cpu", name).model_facts()["weight_bytes"] == 4 * shape.n_read_params
    assert all(max(w.shape) == w.shape[int(w.stride(1) == 1)] for w in held if w.dim() == 2), "longer side contiguous"


def test_work_of_a_call():
    model = BenchDecoder(SHAPES["tiny"], "float32", "cpu", max_len=1)
    cached, uncached = model.work(1, 7, 3, cached=True), model.work(8, 0, 3, cached=False)
    assert cached["kv_bytes"] == 3 * 8 * 2 * 1 * 2 * 8 * 4 and uncached["kv_bytes"] == 0
    assert cached["bytes"] - cached["kv_bytes"] == uncached["bytes"] == 4 * SHAPES["tiny"].n_read_params
    assert uncached["flops"] > 7 * cached["flops"] * 0.9


# A run


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assert main(["--quick", "--device", "cpu", "--out", str(folder)]) == 0
    return folder


def test_a_quick_run_writes_every_benchmark(quick_run):
    assert measured_devices(quick_run) == ["cpu"]
    assert sorted(path.name for path in quick_run.iterdir()) == sorted(f"{name}_cpu.json" for name in BENCHMARKS)


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_a_result_says_where_it_is_from(quick_run, name):
    result = load(name, "cpu", quick_run)
    assert result["quick"] and result["command"] == f"python -m kvlab.bench {name} --device cpu --shape tiny"
    assert result["machine"]["n_cpus"] >= 1 and result["versions"]["torch"] == torch.__version__
    assert result["read_bandwidth_bytes_per_s"] > 0 and result["peak_flops_per_s"] > 0
    words = machine(result | {"contended": False})
    assert words.endswith("cores, float32") and machine(result | {"contended": True}) == f"{words}, contended"
    assert result["date"] in describe(result)


def test_rows_cover_what_the_setting_asks_for(quick_run):
    seen = {
        name: {(row["variant"], row["batch"], row["context"]) for row in load(name, "cpu", quick_run)["rows"]}
        for name in ("context", "batch", "append")
    }
    assert seen["context"] == {("cached", 1, 16), ("uncached", 1, 16), ("prefill", 1, 16), ("cached", 1, 32)}
    assert seen["batch"] == {("cached", 1, 16), ("cached", 2, 16)}
    assert seen["append"] == {(variant, 1, n) for variant in ("concat", "static") for n in (16, 32)}
    assert {row["dtype"] for row in load("dtype", "cpu", quick_run)["rows"]} == {"float32", "bfloat16"}
    assert {row["variant"] for row in load("ceilings", "cpu", quick_run)["rows"]} == {"read", "matmul", "matvec"}
    assert all(row["ms_min"] <= row["ms_median"] for row in load("context", "cpu", quick_run)["rows"])


def test_concatenation_moves_the_whole_cache(quick_run):
    moved = {(r["variant"], r["context"]): r["bytes"] for r in load("append", "cpu", quick_run)["rows"]}
    row_bytes = 2 * 1 * 2 * 8 * 4
    assert moved == {("concat", n): 2 * n * row_bytes for n in (16, 32)} | {
        ("static", n): 2 * row_bytes for n in (16, 32)
    }


def test_quick_alone_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(bench_run, "save", lambda *_: pytest.fail("written"))
    assert main(["batch", "--quick", "--device", "cpu"]) == 0
    assert "batch 2" in capsys.readouterr().out


def test_runs_where_only_torch_and_numpy_are(tmp_path):
    """A bare GPU machine: every other package is hidden. The course's own caches then do not load, and that is said."""
    code = (
        "import sys\n"
        "hidden = {'jaxtyping', 'matplotlib', 'typer', 'rich', 'threadpoolctl', 'transformers', 'IPython'}\n"
        "class Bare:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in hidden: raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Bare())\n"
        "from kvlab.bench import main\n"
        f"sys.exit(main(['--quick', '--device', 'cpu', '--out', {str(tmp_path)!r}]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        f"{n}_cpu" for n in ("batch", "ceilings", "context", "dtype")
    ]
    assert "the course's caches do not load: No module named 'jaxtyping'" in run.stdout


def test_wrong_usage_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["contexts"]) == 2
    assert main(["--device", "cuda"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 2 and "contexts" in said[0] and "no CUDA device here" in said[1]


def test_one_benchmark_that_fails_leaves_the_others(monkeypatch, capsys, tmp_path):
    def fails(_):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(BENCHMARKS, "context", fails)
    assert main(["context", "batch", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["batch_cpu.json"]
    assert capsys.readouterr().err == "context: RuntimeError: out of memory\n"


def test_a_disturbed_run_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench_run, "is_contended", lambda share, reads: True)
    assert main(["batch", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert load("batch", "cpu", tmp_path)["contended"] is True
    assert "CONTENDED" in capsys.readouterr().out


def test_what_does_not_fit_is_named(monkeypatch):
    kv_bytes = 2 * 2 * 8 * 4 * 16  # of the shorter of the two contexts
    seen = types.SimpleNamespace(memory_bytes=2 * (kv_bytes + 400))
    monkeypatch.setattr("kvlab.environment.look", lambda: seen)
    rows, skipped = bench_benchmarks.context(QUICK)
    assert {row["context"] for row in rows} == {16}
    assert skipped == [{"context": 32, "batch": 1, "why": "needs 0.0 GB more, 0.0 GB are free"}]


def test_settings_of_both_devices():
    """What lesson 07 looks up by name must be measured on either."""
    assert (setting("cpu"), setting("cuda")) == (CPU, CUDA)
    for chosen in (CPU, CUDA):
        assert {1024, 2048} <= {n for n in chosen.contexts if n <= chosen.longest_uncached}
        assert 16 in chosen.batches and chosen.batches[0] == 1 and chosen.dtype in chosen.dtypes
    assert CUDA.shape.n_params == 8_030_261_248 and setting("cpu", "llama-8b").shape_name == "llama-8b"


# Results


@pytest.fixture
def valid(quick_run):
    return load("batch", "cpu", quick_run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is missing"),
        ("", "cannot be read"),
        ('{"benchmark": "batch", "rows": [', "cannot be read"),
        ("[1, 2]", "holds a list"),
        ("{}", "benchmark is missing"),
    ],
)
def test_a_missing_or_broken_file_is_one_line(tmp_path, text, said):
    if text is not None:
        path_of("batch", "cpu", tmp_path).write_text(text)
    with pytest.raises(ResultsError) as error:
        load("batch", "cpu", tmp_path)
    message = str(error.value)
    assert said in message and "\n" not in message
    assert message.startswith("results/batch_cpu.json") and "make bench" in message


def test_a_notebook_shows_the_line_alone():
    assert ResultsError("results/batch_cpu.json is missing")._render_traceback_() == [
        "results/batch_cpu.json is missing"
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("contended"), "contended is missing"),
        (lambda r: r.update(contended="no"), "contended is 'no'"),
        (lambda r: r.update(read_bandwidth_bytes_per_s=True), "read_bandwidth_bytes_per_s is True"),
        (lambda r: r.update(rows=[]), "no rows"),
        (lambda r: r["rows"][1].pop("ms_min"), "row 1: ms_min is missing"),
        (lambda r: r["rows"][0].update(context="16"), "row 0: context is '16'"),
        (lambda r: r["rows"].append(3), "row 2: not an object"),
        (lambda r: r.update(device="cuda"), "it is of batch on cuda"),
    ],
)
def test_a_file_of_another_form_is_named(valid, tmp_path, change, said):
    change(valid)
    path_of("batch", "cpu", tmp_path).write_text(json.dumps(valid))
    with pytest.raises(ResultsError, match=said):
        load("batch", "cpu", tmp_path)


def test_saving_is_whole_or_nothing(valid, tmp_path, monkeypatch):
    save(valid, tmp_path)
    path, before = path_of("batch", "cpu", tmp_path), path_of("batch", "cpu", tmp_path).read_text()
    with pytest.raises(ResultsError, match=r"refused to write batch_cpu\.json: it has no rows"):
        save(valid | {"rows": []}, tmp_path)
    monkeypatch.setattr(bench_results.json, "dumps", lambda *_, **__: '{"cut')
    monkeypatch.setattr(bench_results.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(valid, tmp_path)
    assert path.read_text() == before


def test_unknown_names_are_refused(valid):
    with pytest.raises(ResultsError, match=r"'bach', there are: .*batch"):
        load("bach")
    with pytest.raises(ResultsError, match="batch has no rows called 'uncached', there are: cached"):
        rows_of(valid, "uncached")


def test_columns_and_what_follows_from_them(valid):
    valid["rows"] = [row | {"ms_min": 2.0, "bytes": 4e6, "flops": 8e6} for row in valid["rows"]]
    wanted = {"batch": [1, 2], "gb_per_s": [2, 2], "gflop_per_s": [4, 4], "flops_per_byte": [2, 2]}
    wanted["tokens_per_s"] = [500, 1000]
    found = columns(valid, "cached", *wanted)
    assert [c.tolist() for c in found] == list(wanted.values())


def test_devices_need_all_their_files(valid, tmp_path):
    save(valid, tmp_path)
    assert measured_devices(tmp_path) == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*_*.json")), ids=lambda path: path.name)
def test_committed_results_are_whole_and_of_a_real_run(path):
    name, device = path.stem.rsplit("_", 1)
    result = load(name, device)
    standard = choose(device) if name == "decode" else setting(device)
    assert not result["quick"] and result["model"]["name"] == standard.shape_name
    assert not any(word in path.read_text() for word in ("/home", "/tmp", "/work", "/root"))


def test_the_cpu_results_of_the_lesson_are_there():
    assert "cpu" in measured_devices()


# CUDA, without a GPU: the order of the calls


@pytest.fixture
def fake_cuda(monkeypatch):
    """torch.cuda's events, streams and graphs as objects that write down what is called."""
    log = []

    class Event:
        n_made = 0

        def __init__(self, enable_timing):
            assert enable_timing
            self.i, Event.n_made = Event.n_made, Event.n_made + 1

        def record(self):
            log.append(f"record {self.i}")

        def elapsed_time(self, end):
            log.append("read")
            return float(10 * self.i + end.i)

    class Within:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(f"enter {self.name}")

        def __exit__(self, *_):
            log.append(f"leave {self.name}")

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

        def replay(self):
            log.append("replay")

    main_stream = Within("main")
    for name, value in {
        "Event": Event,
        "synchronize": lambda: log.append("synchronize"),
        "Stream": lambda: Within("side"),
        "current_stream": lambda: main_stream,
        "stream": lambda stream: stream,
        "CUDAGraph": lambda: Within("graph"),
        "graph": lambda graph: graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log


def test_events_are_read_after_the_device_has_finished(fake_cuda):
    times_ms = bench_cuda.event_times_ms(lambda: fake_cuda.append("step"), n_warmup=1, n_steps=2)
    expected = ["step", "record 0", "step", "record 1", "record 2", "step", "record 3", "synchronize", "read", "read"]
    assert fake_cuda == expected
    assert times_ms == [1.0, 23.0]


def test_a_step_is_warmed_up_beside_and_recorded_once(fake_cuda):
    replay = bench_cuda.captured(lambda: fake_cuda.append("step"), n_warmup=2)
    warm = ["side waits for main", "enter side", "step", "step", "leave side", "main waits for side"]
    assert fake_cuda == [*warm, "enter graph", "step", "leave graph"]
    replay()
    assert fake_cuda[-1] == "replay"
