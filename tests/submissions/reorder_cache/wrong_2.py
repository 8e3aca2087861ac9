# Only the keys are reordered; the values keep the old beams.


def reorder_cache(cache, beam_index):
    out = []
    for k, v in cache:
        out.append((k[beam_index], v[: len(beam_index)].copy()))
    return out
