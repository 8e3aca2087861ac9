"""Right answers to lesson 09's exercises that look unlike the references."""

import itertools

import numpy as np


def positions_by_counting_pads(attention_mask):
    n_pads = (attention_mask == 0).sum(axis=1)
    return np.clip(np.arange(attention_mask.shape[1]) - n_pads[:, None], 0, None)


def positions_by_where(attention_mask):
    counts = np.cumsum(attention_mask, axis=-1)
    return np.where(attention_mask > 0, counts - 1, 0).astype(np.int32)


def positions_by_loops(attention_mask):
    out = np.zeros_like(attention_mask)
    for row, flags in enumerate(attention_mask):
        at = 0
        for column, flag in enumerate(flags):
            if flag:
                out[row, column] = at
                at += 1
    return out


def positions_by_tokens_before(attention_mask):
    return attention_mask.cumsum(axis=1) - attention_mask


def positions_by_first_token(attention_mask):
    first = attention_mask.argmax(axis=1)
    return np.array([[max(0, j - f) for j in range(attention_mask.shape[1])] for f in first], dtype=np.uint16)


def ragged_by_loops(attention_mask, n_new):
    batch, n_total = attention_mask.shape
    mask = np.zeros((batch, n_new, n_total), dtype=bool)
    for b in range(batch):
        for i in range(n_new):
            query = n_total - n_new + i
            if attention_mask[b, query] == 0:
                mask[b, i, query] = True
                continue
            for j in range(query + 1):
                mask[b, i, j] = bool(attention_mask[b, j])
    return mask


def ragged_by_first_token(attention_mask, n_new):
    """The keys from the row's first token to the query; for a pad the query alone."""
    n_total = attention_mask.shape[1]
    queries = np.arange(n_total - n_new, n_total)
    first = np.minimum((attention_mask == 0).sum(axis=1)[:, None], queries[None, :])
    keys = np.arange(n_total)
    return (keys >= first[..., None]) & (keys <= queries[:, None])


def ragged_by_end_of_square(attention_mask, n_new):
    n_total = attention_mask.shape[1]
    real = attention_mask.astype(bool)
    square = np.tril(real[:, :, None] & real[:, None, :])
    square |= np.eye(n_total, dtype=bool)
    return square[:, n_total - n_new :]


def ragged_by_where(attention_mask, n_new):
    n_total = attention_mask.shape[1]
    causal = np.tril(np.ones((n_new, n_total)), k=n_total - n_new)
    keys = np.einsum("ij,bj->bij", causal, attention_mask)
    itself = np.eye(n_new, n_total, k=n_total - n_new)
    new = attention_mask[:, n_total - n_new :, None]
    return np.where(new == 1, keys, itself) > 0


def packed_by_blocks(lengths):
    n = sum(lengths)
    mask = np.zeros((n, n), dtype=bool)
    start = 0
    for length in lengths:
        mask[start : start + length, start : start + length] = np.tri(length)
        start += length
    return mask


def packed_by_start(lengths):
    """The keys from the start of the query's sequence to the query."""
    starts = np.repeat([0, *itertools.accumulate(lengths)][:-1], lengths)
    keys = np.arange(len(starts))
    return np.logical_and(keys >= starts[:, None], keys <= keys[:, None])


def packed_by_positions(lengths):
    """Two tokens are of one sequence when they are as far apart as their positions."""
    owners = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
    return np.array([[a[0] == b[0] and b[1] <= a[1] for b in owners] for a in owners], dtype=bool)


def packed_by_searchsorted(lengths):
    at = np.arange(sum(lengths))
    owner = np.searchsorted(np.cumsum(lengths), at, side="right")
    return np.tril(np.equal.outer(owner, owner))


ALTERNATIVES = {
    "pad_positions": [
        positions_by_counting_pads,
        positions_by_where,
        positions_by_loops,
        positions_by_tokens_before,
        positions_by_first_token,
    ],
    "ragged_mask": [ragged_by_loops, ragged_by_first_token, ragged_by_end_of_square, ragged_by_where],
    "packed_mask": [packed_by_blocks, packed_by_start, packed_by_positions, packed_by_searchsorted],
}
