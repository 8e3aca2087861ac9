"""Right answers to lesson 03's exercises that look unlike the references."""

import numpy as np


def mask_by_tril_offset(n_new, n_total):
    return np.tril(np.ones((n_new, n_total), dtype=bool), k=n_total - n_new)


def mask_by_loops(n_new, n_total):
    mask = np.zeros((n_new, n_total), dtype=bool)
    for i in range(n_new):
        for j in range(n_total):
            mask[i, j] = j <= n_total - n_new + i
    return mask


def mask_by_last_rows(n_new, n_total):
    whole = np.tri(n_total, dtype=bool)
    return whole[n_total - n_new :]


def mask_by_not_triu(n_new, n_total):
    return ~np.triu(np.ones((n_new, n_total), bool), n_total - n_new + 1)


def rotate_by_complex_numbers(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    z = x[..., :half].astype(complex) + 1j * x[..., half:]
    z = z * np.exp(1j * np.outer(positions, base ** (-np.arange(half) / half)))
    return np.concatenate([z.real, z.imag], axis=-1)


def rotate_by_rotate_half(x, positions, base=10000.0):
    d = x.shape[-1]
    inv_freq = 1.0 / (base ** (np.arange(0, d, 2) / d))
    angles = np.einsum("t,f->tf", positions, inv_freq)
    angles = np.concatenate([angles, angles], axis=-1)
    rotated = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
    return x * np.cos(angles) + rotated * np.sin(angles)


def rotate_by_loops(x, positions, base=10000.0):
    out = np.zeros(x.shape, dtype=np.float64)
    n_heads, n_tokens, d = x.shape
    for h in range(n_heads):
        for t in range(n_tokens):
            for i in range(d // 2):
                angle = positions[t] * base ** (-2 * i / d)
                matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                out[h, t, [i, i + d // 2]] = matrix @ x[h, t, [i, i + d // 2]]
    return out


def append_with_len_after(cache, k_new, v_new, base=10000.0):
    n_past = len(cache)
    positions = np.array([n_past + i for i in range(k_new.shape[1])], dtype=int)
    return cache.append(rotate_by_rotate_half(k_new, positions, base), v_new)


def append_token_by_token(cache, k_new, v_new, base=10000.0):
    k, v = cache.append(k_new[:, :0], v_new[:, :0])
    for i in range(k_new.shape[1]):
        one = rotate_by_complex_numbers(k_new[:, i : i + 1], np.array([len(cache)]), base)
        k, v = cache.append(one, v_new[:, i : i + 1])
    return k, v


def append_returning_a_list(cache, k_new, v_new, base=10000.0):
    start = len(cache)
    rotated = rotate_by_loops(k_new, np.arange(start, start + k_new.shape[1]), base)
    return list(cache.append(rotated, v_new))


ALTERNATIVES = {
    "offset_mask": [mask_by_tril_offset, mask_by_loops, mask_by_last_rows, mask_by_not_triu],
    "rotate": [rotate_by_complex_numbers, rotate_by_rotate_half, rotate_by_loops],
    "append_rotated": [append_with_len_after, append_token_by_token, append_returning_a_list],
}
