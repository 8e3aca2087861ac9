"""Matrix products with fixed weights, laid out once for the one that matters: a matrix times a single vector.

`product(x)` is x @ w.T for x (n_in,) or (n, n_in) and w (n_out, n_in). The answer to a vector is a buffer that the
next call overwrites.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]
SMALL = 2**17  # multiplications of one product up to which OpenBLAS stays on one thread, with room to spare
LINE_BYTES = 64  # of a cache line; an AVX-512 load that crosses one takes two


def float32_products(matrices: Sequence[np.ndarray]) -> list[Product]:
    """NumPy's BLAS over one aligned block of memory, each matrix with its longer side contiguous (n_out if square).

    Which side is contiguous decides how long the streams are that the processor prefetches; the block is large enough
    for NumPy to ask for huge pages, and aligned, which single small arrays are not.
    """
    wide = [w.shape[1] > w.shape[0] for w in matrices]
    shapes = [w.shape if rows else w.shape[::-1] for w, rows in zip(matrices, wide, strict=True)]
    products = []
    for place, w, rows in zip(aligned(shapes), matrices, wide, strict=True):
        place[:] = w if rows else w.T
        products.append((_rows if rows else _columns)(place))
    return products


def aligned(shapes: Iterable[tuple[int, ...]]) -> list[np.ndarray]:
    """Uninitialised float32 matrices, one behind the other in a single allocation, each on a cache line's start."""
    shapes = list(shapes)
    sizes = [-(-4 * rows * columns // LINE_BYTES) * LINE_BYTES for rows, columns in shapes]
    block = np.empty(sum(sizes) + LINE_BYTES, np.uint8)
    start = -block.ctypes.data % LINE_BYTES
    places = []
    for (rows, columns), size in zip(shapes, sizes, strict=True):
        places.append(block[start : start + 4 * rows * columns].view(np.float32).reshape(rows, columns))
        start += size
    return places


def _rows(w: np.ndarray) -> Product:
    """w as (n_out, n_in): a vector takes one dot product a row."""
    out = np.empty(len(w), np.float32)
    return lambda x: np.dot(w, x, out=out) if x.ndim == 1 else x @ w.T


def _columns(w: np.ndarray) -> Product:
    """w as (n_in, n_out): a vector takes a weighted sum of rows."""
    out = np.empty(w.shape[1], np.float32)
    return lambda x: np.dot(x, w, out=out) if x.ndim == 1 else x @ w


def float16_products(matrices: Sequence[np.ndarray]) -> list[Product]:
    """Weights in float16, read by FBGEMM's packed product; activations and sums stay in float32.

    Raises:
        RuntimeError: this build of torch has no such product (it needs FBGEMM, which is there on x86 alone).
    """
    import torch

    ops = torch.ops.quantized
    multiply_packed = ops.linear_dynamic_fp16.default  # the overload itself: looking it up takes microseconds a call

    def product(w: np.ndarray) -> Product:
        if np.abs(w).max() > np.finfo(np.float16).max:
            raise RuntimeError(f"float16 holds up to {np.finfo(np.float16).max}, a weight is {np.abs(w).max()}")
        packed = ops.linear_prepack_fp16(torch.from_numpy(np.ascontiguousarray(w)), None)

        def multiply(x: np.ndarray) -> np.ndarray:
            rows = torch.from_numpy(x if x.ndim == 2 else x[None])
            answer: np.ndarray = multiply_packed(rows, packed).numpy()
            return answer if x.ndim == 2 else answer[0]

        return multiply

    return [product(w) for w in matrices]


def torch_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b; a large one on torch's threads.

    Beside torch's products, NumPy's BLAS must keep to one thread, as it does for small ones: where two libraries take
    turns, the threads of one wait in a loop on the core that the other's need.
    """
    if a.shape[-2] * a.shape[-1] * b.shape[-1] <= SMALL:
        return a @ b
    import torch

    answer: np.ndarray = torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return answer


KINDS: dict[str, Callable[[Sequence[np.ndarray]], list[Product]]] = {
    "float32": float32_products,
    "float16": float16_products,
}
