"""Python lists and max with a key; a tensor again at the end."""

import torch


def generate(model, ids, n_new):
    rows = ids.tolist()
    caches = None
    feed = ids.clone()
    for _ in range(n_new):
        logits, caches = model(feed, caches)
        chosen = []
        for row, scores in zip(rows, logits[:, -1].tolist(), strict=True):
            row.append(max(range(len(scores)), key=scores.__getitem__))
            chosen.append([row[-1]])
        feed = torch.tensor(chosen, dtype=ids.dtype, device=ids.device)
    return torch.tensor(rows, dtype=ids.dtype, device=ids.device).reshape(ids.shape[0], ids.shape[1] + n_new)
