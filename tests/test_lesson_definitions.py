"""What a lesson writes out and what the package ships are the same thing: they give the same results."""


def test_lesson_03_mask_and_rotation():
    import numpy as np
    from lesson_source import definitions

    from kvlab import attention, caches, positions

    lesson = definitions("03_offset_mask")
    for n_total in range(8):
        for n_new in range(n_total + 1):
            np.testing.assert_array_equal(lesson["offset_mask"](n_new, n_total), attention.offset_mask(n_new, n_total))
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 3, 9, 8))
    at = np.array([4, 0, 7, 7, 100, 2, 3, 1, 9])
    for dtype, base in ((np.float64, 10000.0), (np.float32, 500.0)):
        ours, theirs = (f(k.astype(dtype), at, base) for f in (lesson["rotate"], positions.rotate))
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-6)
    cache = caches.ConcatCache(3, 8)
    for a, b in ((0, 4), (4, 4), (4, 7), (7, 9)):
        stored, values = lesson["append_rotated"](cache, k[:, a:b], v[:, a:b], 500.0)
    np.testing.assert_allclose(stored, positions.rotate(k, np.arange(9), 500.0), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(values, v)


def test_lesson_04_repeat_and_grouped_attention():
    import numpy as np
    from lesson_source import definitions

    from kvlab import attention

    lesson = definitions("04_grouped_queries")
    rng = np.random.default_rng(0)
    for n_heads, n_kv_heads, n_new, n_total in ((6, 2, 4, 4), (6, 3, 1, 7), (5, 1, 3, 7), (4, 4, 0, 2)):
        q = rng.standard_normal((n_heads, n_new, 8))
        k, v = rng.standard_normal((2, n_kv_heads, n_total, 8))
        np.testing.assert_array_equal(lesson["repeat_kv"](k, n_heads), attention.repeat_kv(k, n_heads))
        np.testing.assert_allclose(lesson["grouped_attention"](q, k, v), attention.attention(q, k, v), atol=1e-12)


def test_lesson_05_sizes():
    from itertools import product

    from lesson_source import definitions

    from kvlab import sizes

    lesson = definitions("05_cache_size")
    for arguments in product((1, 3), (0, 1000), (2, 32), (1, 8), (8, 128), (0.5, 1, 2)):
        assert lesson["cache_bytes"](*arguments) == sizes.cache_bytes(*arguments)
    plain = {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 8}
    configs = [sizes.load_config(name) for name in sizes.config_names()]
    for config in (*configs, plain, plain | {"head_dim": None, "num_key_value_heads": 2}):
        assert lesson["bytes_per_token"](config) == sizes.bytes_per_token(config)
    for weights, per_token, n in product((0, 1023, 1024, 10**12), (128, 131_072), (1, 4)):
        assert lesson["crossover_tokens"](weights, per_token, n) == sizes.crossover_tokens(weights, per_token, n)
        for memory in (0, 10**6, 10**12 + 2**17):
            ours, theirs = (f(memory, weights, per_token, n) for f in (lesson["max_sequences"], sizes.max_sequences))
            assert ours == theirs


def test_lesson_06_cache_in_pytorch():
    import numpy as np
    import pytest
    import torch
    from lesson_source import definitions

    from kvlab import torch_caches, torch_decoder
    from kvlab.decoder import TinyDecoder

    lesson = definitions("06_pytorch_decoder")
    draw = torch.Generator().manual_seed(0)
    past, new = torch.randn(2, 2, 3, 2, 5, 8, generator=draw), torch.randn(2, 2, 3, 1, 8, generator=draw)
    for before in (None, (past[0, :, :, 0], past[1, :, :, 0])):
        ours, theirs = (f(before, *new) for f in (lesson["update_cache"], torch_caches.update_cache))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    buffers = lesson["StaticCache"](2, 3, 7, 8), torch_caches.StaticCache(2, 3, 7, 8)
    for n in (4, 0, 2):
        rows = torch.randn(2, 2, 3, n, 8, generator=draw)
        ours, theirs = (buffer.update(*rows) for buffer in buffers)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for buffer in buffers:
        with pytest.raises(ValueError, match="6 of 7 slots are filled, 2 more do not fit"):
            buffer.update(*torch.ones(2, 2, 3, 2, 8))
        assert len(buffer) == 6
        buffer.reset()
        assert len(buffer) == 0
    model = torch_decoder.TorchDecoder.from_numpy(TinyDecoder(positions="learned", dtype=np.float64, n_layers=3))
    cached, packaged = lesson["add_cache"](model), torch_decoder.add_cache(model)
    ids, pairs, theirs = torch.randint(0, 64, (2, 9), generator=draw), None, None
    with torch.no_grad():
        for part in ids.split([4, 3, 1, 1], dim=1):
            (logits, pairs), (expected, theirs) = cached(part, pairs), packaged(part, theirs)
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
        for (k, v), (k_too, v_too) in zip(pairs, theirs, strict=True):
            torch.testing.assert_close(k, k_too, rtol=0, atol=1e-9)
            torch.testing.assert_close(v, v_too, rtol=0, atol=1e-9)
        assert torch.equal(lesson["generate"](cached, ids, 5), torch_decoder.generate(packaged, ids, 5))
    logits = torch.randn(40, 64, generator=draw)
    drawn, drawn_too = (
        f(logits, 0.7, 0.8, torch.Generator().manual_seed(1)) for f in (lesson["sample"], torch_decoder.sample)
    )
    assert torch.equal(drawn, drawn_too)


def test_lesson_01_softmax_heads_and_attention():
    import numpy as np
    from lesson_source import definitions

    from kvlab import attention

    lesson = definitions("01_attention")
    rng = np.random.default_rng(0)
    for n_tokens in (1, 2, 7):
        q, k, v = rng.standard_normal((3, 4, n_tokens, 6))
        everything = np.ones((n_tokens, n_tokens), dtype=bool)
        np.testing.assert_allclose(lesson["causal_attention"](q, k, v), attention.attention(q, k, v), atol=1e-12)
        full = attention.attention(q, k, v, mask=everything)
        np.testing.assert_allclose(lesson["full_attention"](q, k, v), full, atol=1e-12)
        x = attention.merge_heads(q)
        np.testing.assert_array_equal(lesson["merge_heads"](q), x)
        np.testing.assert_array_equal(lesson["split_heads"](x, 4), attention.split_heads(x, 4))
    scores = np.array([[1000.0, 999.0, -np.inf], [-1000.0, -1002.0, -1001.0]])
    np.testing.assert_array_equal(lesson["softmax"](scores), attention.softmax(scores))


def test_lesson_02_cache_step_and_counts():
    import numpy as np
    from lesson_source import definitions

    from kvlab import caches, trace
    from kvlab.attention import attention, merge_heads, split_heads
    from kvlab.decoder import TinyDecoder, generate

    lesson, rng = definitions("02_kv_cache"), np.random.default_rng(0)
    for first, then in ((np.float32, np.float64), (np.float64, np.float32)):
        ours, theirs = lesson["KVCache"](2, 3), caches.ConcatCache(2, 3)
        kept = None
        for n_new, dtype in ((2, first), (0, then), (3, then), (1, first)):
            rows = rng.standard_normal((2, 2, n_new, 3)).astype(dtype)
            returned, packaged = ours.append(*rows), theirs.append(*rows)
            kept = kept or (returned, packaged)
            rows[:] = 7
            for a, b in (*zip(returned, packaged, strict=True), *zip(*kept, strict=True)):
                assert a.dtype == b.dtype == first
                np.testing.assert_array_equal(a, b)
            assert len(ours) == len(theirs)
    x, wq = rng.standard_normal((9, 5)), rng.standard_normal((5, 6 * 3))
    wk, wv = rng.standard_normal((2, 5, 2 * 3))
    q, k, v = split_heads(x @ wq, 6), split_heads(x @ wk, 2), split_heads(x @ wv, 2)
    cache, seen = lesson["KVCache"](2, 3), trace.counted(wk)
    cached = [lesson["step"](part, wq, seen, wv, cache, 6, 2) for part in np.split(x, [4, 4, 7, 8])]
    np.testing.assert_allclose(np.concatenate(cached), merge_heads(attention(q, k, v)), rtol=0, atol=1e-12)
    assert (seen.rows_seen, len(cache), cached[1].shape) == (9, 9, (0, 18))
    model = TinyDecoder()
    for n in (0, 1, 8, 13):
        runs = model.make_trace(), model.make_trace()
        for run, kept_caches in zip(runs, (None, model.make_caches()), strict=True):
            generate(model, np.array([1]), n, kept_caches, run)
        assert lesson["projection_counts"](n) == tuple(run.total("projected", 0) for run in runs)
        assert lesson["score_counts"](n) == tuple(run.total("scores", 0) for run in runs)


def test_lesson_07_timing_and_streamed_attention():
    import numpy as np
    from lesson_source import definitions

    from kvlab.attention import attention
    from kvlab.timing import time_decode

    lesson = definitions("07_decode_timing")
    runs = []
    for function in (lesson["time_decode"], time_decode):
        log, ticks = [], iter([0.0, 0.5, 1.0, 1.004, 2.0, 2.001, 3.0, 3.002])
        calls = [lambda name=name, log=log: log.append(name) for name in ("step", "synchronize")]
        median_ms = function(calls[0], 3, 4, calls[1], lambda log=log, ticks=ticks: log.append("clock") or next(ticks))
        runs.append((median_ms, log))
    assert runs[0] == runs[1] and round(runs[0][0], 9) == 3.0
    rng = np.random.default_rng(0)
    q, k, v = 30 * rng.standard_normal(16), rng.standard_normal((50, 16)), rng.standard_normal((50, 16))
    for dtype, block in ((np.float64, 7), (np.float32, 50), (np.float16, 64), (np.float16, 1)):
        held = [a.astype(dtype) for a in (q, k, v)]
        ours = lesson["streamed_attention"](*held, block)
        q64, k64, v64 = (a.astype(np.float64) for a in held)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, attention(q64[None, None], k64[None], v64[None])[0, 0], rtol=0, atol=1e-4)


def test_lesson_09_positions_and_masks():
    import numpy as np
    from lesson_source import definitions

    from kvlab import masks

    lesson = definitions("09_ragged_batches")
    for lengths in ((1,), (3, 7, 5), (4, 4, 1, 2)):
        n = max(lengths) + 1
        batch = (np.arange(n) >= n - np.array(lengths)[:, None]).astype(int)
        np.testing.assert_array_equal(lesson["pad_positions"](batch), masks.pad_positions(batch))
        for n_new in range(n + 1):
            np.testing.assert_array_equal(lesson["ragged_mask"](batch, n_new), masks.ragged_mask(batch, n_new))
        np.testing.assert_array_equal(lesson["packed_mask"](lengths), masks.packed_mask(lengths))


def test_lesson_12_beams():
    import numpy as np
    from lesson_source import definitions

    from kvlab import beams
    from kvlab.caches import BlockPool
    from kvlab.decoder import TinyDecoder

    lesson = definitions("12_beams_and_samples")
    logits = np.random.default_rng(0).standard_normal((3, 7)) * 50
    np.testing.assert_allclose(lesson["log_softmax"](logits), beams.log_softmax(logits), rtol=0, atol=1e-12)
    model, prompt = TinyDecoder(seed=1), np.array([9, 2, 6])
    copied, steps = beams.copied_step(model), []
    for which in (lesson, vars(beams)):
        pools = [BlockPool(30, 3, 2, 8) for _ in range(2)]
        paged = beams.paged_step(model, pools)
        for n_beams, n_new in ((1, 4), (3, 7), (5, 1), (3, 0)):
            steps.append(which["beam_search"](copied, prompt, n_beams, n_new, which["reorder_cache"]))
            steps.append(which["beam_search"](paged, prompt, n_beams, n_new, which["reorder_tables"]))
        assert [pool.n_free for pool in pools] == [30, 30]
    for (tokens, scores), (theirs, their_scores) in zip(steps[:8], steps[8:], strict=True):
        np.testing.assert_array_equal(tokens, theirs)
        np.testing.assert_allclose(scores, their_scores, rtol=0, atol=1e-12)
    _, cache = copied(np.array([[1, 2], [3, 4]]), None)
    for index in ([1, 0, 1], [0]):
        ours, theirs = (f(cache, np.array(index)) for f in (lesson["reorder_cache"], beams.reorder_cache))
        for pair, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(pair, other)


def test_lesson_10_pool_cache_and_prefix_index():
    import numpy as np
    import pytest
    from lesson_source import definitions

    from kvlab import caches
    from kvlab.attention import attention

    lesson, rng = definitions("10_paged_cache"), np.random.default_rng(0)
    pools = [kind(9, 4, 2, 3) for kind in (lesson["BlockPool"], caches.BlockPool)]
    firsts = [kind(pool) for kind, pool in zip((lesson["PagedCache"], caches.PagedCache), pools, strict=True)]
    held = {"a": firsts}
    for step in ("a 6", "fork b", "b 1", "a 0", "a 7", "b 9", "b 99", "fork c", "free a", "c 2", "free b", "c 5"):
        do, what = step.split()
        if do == "fork":
            held[what] = [cache.fork() for cache in held["b" if what == "c" else "a"]]
        elif do == "free":
            for cache in held[what]:
                cache.free()
        else:
            k, v = rng.standard_normal((2, 2, int(what), 3))
            for cache in held[do]:
                if what == "99":
                    with pytest.raises(MemoryError, match="more blocks"):
                        cache.append(k, v)
                else:
                    cache.append(k, v)
        assert pools[0].n_free == pools[1].n_free
        for ours, theirs in held.values():
            assert (ours.block_table, len(ours)) == (theirs.block_table, len(theirs))
            for a, b in zip(ours.gather(), theirs.gather(), strict=True):
                np.testing.assert_array_equal(a, b)
    for pool in pools:
        for wrong in (8, 9, -1):
            with pytest.raises(ValueError):
                pool.release(wrong)
    q = rng.standard_normal((4, 1, 3))
    in_place = lesson["paged_attention"](q, held["c"][0])
    np.testing.assert_allclose(in_place, attention(q, *held["c"][1].gather()), rtol=0, atol=1e-12)

    ids = np.array([3, 1, 4, 1, 5, 9, 2, 6])
    assert lesson["block_keys"](ids, 3) == caches.block_keys(ids, 3)
    indexes = [
        lesson["PrefixIndex"](lesson["BlockPool"](20, 2, 1, 4)),
        caches.PrefixIndex(caches.BlockPool(20, 2, 1, 4)),
    ]
    for text in (ids, ids[:5], np.array([4, 1, 5, 9, 2, 6]), ids[:6], ids):
        started = [index.start(text) for index in indexes]
        assert started[0].block_table == started[1].block_table and len(started[0]) == len(started[1])
        for index, cache in zip(indexes, started, strict=True):
            rows = np.zeros((1, len(text) - len(cache), 4))
            cache.append(rows, rows)
            index.keep(text, cache)
    assert len(started[0]) == 8 and indexes[0].pool.n_free == indexes[1].pool.n_free


def test_lesson_08_windows_and_sinks():
    import numpy as np
    from lesson_source import definitions

    from kvlab import caches, masks

    lesson, rng = definitions("08_windows_and_sinks"), np.random.default_rng(0)
    for n_total in range(7):
        for n_new in range(n_total + 1):
            for window in (1, 3, 9):
                ours = lesson["window_mask"](n_new, n_total, window)
                np.testing.assert_array_equal(ours, masks.window_mask(n_new, n_total, window))
    for name, sizes in (("RingCache", (1,)), ("RingCache", (4,)), ("SinkCache", (2, 4)), ("SinkCache", (3, 3))):
        ours, theirs = (getter(name)(2, 3, *sizes) for getter in (lesson.get, lambda n: getattr(caches, n)))
        for n_new in (0, 2, 1, 3, 0, 9, 1, 1):
            rows = rng.standard_normal((2, 2, n_new, 3)).astype(np.float32)
            for a, b in zip(ours.append(*rows), theirs.append(*rows), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            assert len(ours) == len(theirs)


def test_lesson_11_quantize_and_the_quantized_cache():
    import numpy as np
    import pytest
    from lesson_source import definitions

    from kvlab import caches

    lesson, rng = definitions("11_quantized_and_offloaded"), np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 3))
    x[0, :, 1] = 0.1
    for dtype in (np.float64, np.float32):
        for n_bits in range(2, 9):
            for axis in (0, 1, 2, -1, (0, 1, 2)):
                ours, theirs = (f(x.astype(dtype), n_bits, axis) for f in (lesson["quantize"], caches.quantize))
                for a, b in zip(ours, theirs, strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(lesson["dequantize"](*ours), caches.dequantize(*theirs))
    for quantize in (lesson["quantize"], caches.quantize):
        with pytest.raises(ValueError, match="n_bits"):
            quantize(x, 9, 1)
    for n_bits, residual, dtype in ((4, 4, np.float32), (8, 3, np.float64), (2, 1, np.float64)):
        ours, theirs = lesson["QuantizedCache"](2, 8, n_bits, residual), caches.QuantizedCache(2, 8, n_bits, residual)
        for n_new in (1, 0, 3, 7, 2):
            rows = rng.standard_normal((2, 2, n_new, 8)).astype(dtype)
            for a, b in zip(ours.append(*rows), theirs.append(*rows), strict=True):
                assert a.dtype == b.dtype == dtype
                np.testing.assert_array_equal(a, b)
            assert (len(ours), ours.n_bytes) == (len(theirs), theirs.n_bytes)
