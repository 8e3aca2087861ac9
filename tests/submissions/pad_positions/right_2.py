import numpy as np


def pad_positions(attention_mask):
    rows = []
    for row in attention_mask:
        out, seen = [], 0
        for m in row:
            out.append(seen if m else 0)
            seen += bool(m)
        rows.append(out)
    return np.array(rows, dtype=np.int32).reshape(np.shape(attention_mask))
