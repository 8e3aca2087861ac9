"""Only whole blocks: the last, shorter one is lost."""

import numpy as np


def streamed_attention(q, k, v, block):
    q = q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
    block = min(block, k.shape[0])
    biggest = np.float32(-np.inf)
    total = np.float32(0)
    acc = np.zeros(v.shape[-1], dtype=np.float32)
    for i in range(k.shape[0] // block):
        kb = k[i * block : (i + 1) * block].astype(np.float32)
        vb = v[i * block : (i + 1) * block].astype(np.float32)
        scores = kb @ q
        new_biggest = max(biggest, scores.max())
        shrink = np.exp(biggest - new_biggest)
        weights = np.exp(scores - new_biggest)
        total = total * shrink + weights.sum()
        acc = acc * shrink + weights @ vb
        biggest = new_biggest
    return acc / total
