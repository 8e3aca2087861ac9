"""Timing on an NVIDIA GPU: events of the stream, and a decode step replayed as one CUDA graph."""

from collections.abc import Callable

import torch

from kvlab.shapes import expect_count

Step = Callable[[], object]


def event_times_ms(step: Step, n_warmup: int, n_steps: int) -> list[float]:
    """Milliseconds of each step by the GPU's own clock: an event before it and one after, read at the end.

    Nothing waits between the steps, so the host queues the next one while this one runs. Where the host is the slower
    of the two, the gaps in which the GPU waits for it are part of the time.
    """
    expect_count("n_steps", n_steps, 1)
    for _ in range(n_warmup):
        step()
    marks = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(n_steps)]
    for start, end in marks:
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


def captured(step: Step, n_warmup: int = 3) -> Step:
    """Record the kernels of one step and return a function that launches all of them at once.

    A step of an 8B model queues hundreds of small kernels, and where the host needs longer to queue one than the GPU to
    run it the GPU waits. The graph keeps every shape and address: the step must not grow, synchronize or allocate on
    the host, and reads the buffers it was recorded with.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warmed up on a stream of its own, as CUDA asks before a capture
        for _ in range(n_warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
