"""time_decode on a device whose time is simulated: the right answer is known to the microsecond."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlab.timing
from kvlab.timing import (
    LoadWatch,
    device_facts,
    interleave,
    is_contended,
    last_level_cache_bytes,
    matmul_flops_per_s,
    pick_device,
    read_bandwidth,
    summary,
    synchronizer,
    time_decode,
    versions,
)


class SimulatedDevice:
    """A device beside a host, in simulated seconds: launching takes the host 10 us, the device works later.

    `kernel_s` are the device's times of the steps in order; the last one repeats. `log` is what happened.
    """

    def __init__(self, kernel_s):
        self.kernel_s, self.now, self.free_at, self.log = list(kernel_s), 0.0, 0.0, []

    def step(self):
        self.log.append("step")
        self.now += 10e-6
        kernel_s = self.kernel_s.pop(0) if len(self.kernel_s) > 1 else self.kernel_s[0]
        self.free_at = max(self.free_at, self.now) + kernel_s

    def synchronize(self):
        self.log.append("synchronize")
        self.now = max(self.now, self.free_at)

    def clock(self):
        self.log.append("clock")
        return self.now


def timed(device, n_warmup, n_steps):
    return time_decode(device.step, n_warmup, n_steps, device.synchronize, device.clock)


def test_the_device_is_timed_and_not_the_launch():
    assert timed(SimulatedDevice([0.002]), 2, 5) == pytest.approx(2.01)


def test_synchronized_before_every_reading_of_the_clock():
    device = SimulatedDevice([0.002])
    timed(device, 3, 4)
    assert device.log == ["step"] * 3 + ["synchronize", "clock", "step", "synchronize", "clock"] * 4


def test_warm_up_is_run_and_not_counted():
    assert timed(SimulatedDevice([0.5, 0.5, 0.002]), 2, 4) == pytest.approx(2.01)
    assert timed(SimulatedDevice([0.5, 0.5, 0.002]), 0, 3) == pytest.approx(500.01)


def test_an_outlier_does_not_move_the_median():
    assert timed(SimulatedDevice([0.002, 0.002, 0.9, 0.002]), 0, 5) == pytest.approx(2.01)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=12))
def test_the_median_is_numpys(kernel_s):
    """Mean of the middle two for an even count."""
    device = SimulatedDevice(kernel_s)
    assert timed(device, 0, len(kernel_s)) == pytest.approx(1000 * (np.median(kernel_s) + 10e-6))


@pytest.mark.parametrize(("n_warmup", "n_steps", "said"), [(-1, 5, "n_warmup.*-1"), (0, 0, "n_steps.*0")])
def test_counts_are_checked(n_warmup, n_steps, said):
    with pytest.raises(ValueError, match=said):
        timed(SimulatedDevice([0.1]), n_warmup, n_steps)


def test_interleave_takes_turns():
    device, order = SimulatedDevice([0.001]), []
    steps = {name: (lambda name=name: order.append(name) or device.step()) for name in "AB"}
    times_s = interleave(steps, 3, device.synchronize, device.clock, n_warmup=1, n_each={"B": 2})
    assert "".join(order) == "AB" + "ABB" * 3
    assert {name: len(times) for name, times in times_s.items()} == {"A": 3, "B": 6}
    assert times_s["A"] == pytest.approx([0.00101] * 3)


def test_interleave_ends_early_and_never_empty():
    device = SimulatedDevice([1.0])
    assert len(interleave({"A": device.step}, 9, device.synchronize, device.clock, limit_s=2.5)["A"]) == 3
    assert len(interleave({"A": device.step}, 9, device.synchronize, device.clock, limit_s=0)["A"]) == 1


def test_summary():
    assert summary([0.004, 0.001, 0.002, 0.100]) == {"ms_min": 1.0, "ms_median": 3.0, "n_steps": 4}


def test_cpu_has_nothing_to_wait_for():
    assert synchronizer("cpu")() is None


def test_devices_that_are_not_here_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == "cpu"
    with pytest.raises(ValueError, match="no CUDA device here"):
        synchronizer("cuda")
    with pytest.raises(ValueError, match="'tpu'"):
        synchronizer("tpu")


def test_cuda_is_waited_for(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device() == "cuda"
    assert synchronizer("cuda") is torch.cuda.synchronize


def test_device_facts_say_what_a_timing_depends_on():
    import torch

    facts = device_facts("cpu")
    assert facts["name"] == facts["cpu"] and facts["n_cpus"] >= 1 and facts["torch_threads"] == torch.get_num_threads()
    assert facts["gpu_memory_bytes"] is None
    assert versions()["torch"] == torch.__version__


def test_last_level_cache_is_the_biggest(monkeypatch, tmp_path):
    for i, size in enumerate(["32K", "1024K", "32M"]):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    monkeypatch.setattr(kvlab.timing, "Path", lambda _: tmp_path)
    assert last_level_cache_bytes() == 32 * 2**20
    monkeypatch.setattr(kvlab.timing, "Path", lambda _: tmp_path / "absent")
    assert last_level_cache_bytes() is None


def test_read_bandwidth_counts_bytes_over_time(monkeypatch):
    """Every kernel reads the array once: with each pass at half a second, 4 MiB are 8 MiB a second."""
    monkeypatch.setattr(kvlab.timing, "interleave", lambda kernels, n, _: {name: [0.5] * n for name in kernels})
    reads = read_bandwidth("cpu", n_bytes=2**22, n_repeats=3)
    assert set(reads) == {"numpy matrix @ vector", "numpy max", "torch sum", "torch max"}
    assert all(per_s == [2**23] * 3 for per_s in reads.values())


def test_read_kernels_read_the_whole_array():
    """A row of the product sums 4,096 ones, the sum counts all 2**18 of them."""
    results = {name: kernel() for name, kernel in kvlab.timing._read_kernels(2**20).items()}
    assert results["numpy matrix @ vector"].tolist() == [4096.0] * 64
    assert (float(results["torch sum"]), float(results["torch max"]), float(results["numpy max"])) == (2**18, 1, 1)


def test_read_kernels_stream_more_than_the_cache(monkeypatch):
    seen = []
    monkeypatch.setattr(kvlab.timing, "last_level_cache_bytes", lambda: 2**26)
    monkeypatch.setattr(kvlab.timing, "_read_kernels", lambda n: seen.append(n) or {"none": lambda: None})
    read_bandwidth("cpu", n_repeats=1)
    monkeypatch.setattr(kvlab.timing, "last_level_cache_bytes", lambda: None)
    read_bandwidth("cpu", n_repeats=1)
    assert seen == [2**29, 2**28]


def test_matmul_counts_two_flops_a_product(monkeypatch):
    monkeypatch.setattr(kvlab.timing, "interleave", lambda *_: {"matmul": [0.5, 0.25, 0.5]})
    assert matmul_flops_per_s("cpu", "float32", size=16) == 2 * 16**3 / 0.25


@pytest.mark.parametrize(
    ("after", "share"),
    [
        ((110.0, 55.0, 5.0), 0.0),  # 10 s of processor time passed, all 5 busy ones were ours
        ((110.0, 56.0, 2.0), 0.4),  # 6 busy, 2 ours
        ((110.0, 50.0, 3.0), 0.0),  # counters tick coarsely: never below 0
    ],
)
def test_load_of_others(monkeypatch, after, share):
    readings = iter([(100.0, 50.0, 0.0), after])
    monkeypatch.setattr(kvlab.timing, "_processor_seconds", lambda: next(readings))
    with LoadWatch() as load:
        pass
    assert load.others_share == pytest.approx(share)


def test_load_is_unknown_without_counters(monkeypatch):
    monkeypatch.setattr(kvlab.timing, "_processor_seconds", lambda: None)
    with LoadWatch() as load:
        pass
    assert load.others_share is None


def test_load_reads_this_systems_counters():
    before, after = kvlab.timing._processor_seconds(), kvlab.timing._processor_seconds()
    if before is None:
        pytest.skip("this system has no /proc/stat")
    total, busy, own = after
    assert total >= before[0] and 0 < busy <= total and 0 < own <= busy


@pytest.mark.parametrize(
    ("share", "reads", "contended"),
    [(0.0, [9.0, 10.0, 10.0], False), (0.11, [10.0], True), (None, [10.0, 9.0], False), (0.0, [10.0, 5.0, 5.0], True)],
)
def test_contention(share, reads, contended):
    assert is_contended(share, reads) is contended


def test_torch_is_loaded_only_when_asked_for():
    code = "import sys, kvlab.timing, kvlab.roofline, kvlab.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
