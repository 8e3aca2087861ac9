"""Right answers to lesson 12's exercises that look unlike the references."""

import heapq

import numpy as np


def reorder_by_take(cache, beam_index):
    return [tuple(np.take(x, beam_index, axis=0) for x in layer) for layer in cache]


def reorder_by_loops(cache, beam_index):
    out = []
    for k, v in cache:
        k_new = np.empty((len(beam_index), *k.shape[1:]), k.dtype)
        v_new = np.empty((len(beam_index), *v.shape[1:]), v.dtype)
        for i in range(len(beam_index)):
            k_new[i] = k[beam_index[i]]
            v_new[i] = v[beam_index[i]]
        out.append([k_new, v_new])
    return out


def reorder_by_a_matrix(cache, beam_index):
    """A row of the matrix has its one at the beam that goes on."""
    picks = [(np.asarray(beam_index)[:, None] == np.arange(len(k))).astype(k.dtype) for k, _ in cache]
    return [tuple(np.einsum("nb,bhtd->nhtd", p, x) for x in layer) for p, layer in zip(picks, cache, strict=True)]


def reorder_by_stacking(cache, beam_index):
    return tuple((np.stack([k[b] for b in beam_index]), np.stack([v[b] for b in beam_index])) for k, v in cache)


def search_with_lists(step, prompt, n_beams, n_new):
    """Beams are (score, tokens) in a list; Python's own stable sort breaks ties."""
    if n_new == 0:
        return np.zeros((n_beams, 0), int), np.zeros(n_beams)
    beams, cache, fed = [(0.0, [])], None, np.array([list(prompt)])
    for _ in range(n_new):
        log_probs, cache = step(fed, cache)
        every = [
            (score + log_probs[b, i], b, i, [*text, i])
            for b, (score, text) in enumerate(beams)
            for i in range(log_probs.shape[1])
        ]
        every = sorted(every, key=lambda candidate: candidate[0], reverse=True)[:n_beams]
        cache = reorder_by_loops(cache, [b for _, b, _, _ in every])
        beams = [(score, text) for score, _, _, text in every]
        fed = np.array([[text[-1]] for _, text in beams])
    return np.array([text for _, text in beams]), np.array([float(score) for score, _ in beams])


def search_with_a_heap(step, prompt, n_beams, n_new):
    tokens, scores, cache = np.zeros((n_beams, 0), np.int32), np.zeros(n_beams), None
    n = 1
    for t in range(n_new):
        log_probs, cache = step(prompt.reshape(1, -1) if t == 0 else tokens[:n, -1:], cache)
        vocab = log_probs.shape[-1]
        totals = (scores[:n, None] + log_probs).ravel()
        best = heapq.nsmallest(n_beams, range(len(totals)), key=lambda e: (-totals[e], e))
        rows = np.array([e // vocab for e in best])
        last = np.array([[e % vocab] for e in best], dtype=np.int32)
        tokens, scores, n = np.hstack([tokens[rows], last]), totals[best], len(best)
        cache = reorder_by_take(cache, rows)
    return tokens, scores


def search_with_lexsort_and_back_pointers(step, prompt, n_beams, n_new):
    """Texts are read off at the end, from the last token back; the last cache is never reordered."""
    if not n_new:
        return np.empty((n_beams, 0), dtype=int), np.zeros(n_beams, dtype=float)
    log_probs, cache = step(prompt[np.newaxis], None)
    score, history = log_probs, []
    while True:
        beam, token = (a.ravel() for a in np.indices(score.shape))
        order = np.lexsort((token, beam, -score.ravel()))[:n_beams]
        beam, token, score = beam[order], token[order], score.ravel()[order]
        history.append((beam, token))
        if len(history) == n_new:
            break
        cache = reorder_by_stacking(cache, beam)
        log_probs, cache = step(token[:, None], cache)
        score = score[:, None] + log_probs
    at, columns = np.arange(len(score)), []
    for beam, token in reversed(history):
        columns.append(token[at])
        at = beam[at]
    return np.stack(columns[::-1], axis=1), score


ALTERNATIVES = {
    "reorder_cache": [reorder_by_take, reorder_by_loops, reorder_by_a_matrix, reorder_by_stacking],
    "beam_search": [search_with_lists, search_with_a_heap, search_with_lexsort_and_back_pointers],
}
