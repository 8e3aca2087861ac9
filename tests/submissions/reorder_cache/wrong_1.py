# The old list is changed: its entries are replaced in place and the same list is returned.


def reorder_cache(cache, beam_index):
    for layer, (k, v) in enumerate(cache):
        cache[layer] = (k[beam_index], v[beam_index])
    return cache
