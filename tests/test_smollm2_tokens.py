"""Greedy tokens of the real model on the course's caches are those of transformers: 20 prompts x 128 tokens."""

from typing import Any

import numpy as np
import pytest
import smollm2_tokens
import torch
from smollm2_tokens import needs_model

from kvlab import caches
from kvlab.decoder import generate
from kvlab.llama import Llama, load
from kvlab.torch_decoder import generate as torch_generate

torch.set_num_threads(1)

ROWS = smollm2_tokens.read()
PROMPTS = pytest.mark.parametrize("row", ROWS, ids=[row["prompt"][:20] for row in ROWS])


@pytest.fixture(scope="module")
def smollm2() -> Llama:
    return load()


def test_the_file_is_what_it_says() -> None:
    assert len(ROWS) == 20
    assert all(len(row["tokens"]) == smollm2_tokens.N_NEW == 128 for row in ROWS)
    assert len({tuple(row["tokens"]) for row in ROWS}) == 20
    assert all(row["smallest_lead"] > 0 for row in ROWS)


@needs_model
@pytest.mark.usefixtures("no_shape_hook")
def test_a_few_tokens_of_each_prompt(smollm2: Llama) -> None:
    # What `make test` sees of it: all prompts, in one pass each over the prompt and its first tokens.
    for row in ROWS:
        ids = np.array(row["ids"] + row["tokens"][:12])
        said = smollm2(ids)[len(row["ids"]) - 1 : -1].argmax(axis=-1)
        assert said.tolist() == row["tokens"][:12], row["prompt"]


@needs_model
@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_hook")
@PROMPTS
@pytest.mark.parametrize("kind", ["concat", "static"])
def test_decode_is_token_identical(smollm2: Llama, kind: str, row: dict[str, Any]) -> None:
    c, ids = smollm2.config, np.array(row["ids"])
    n_slots = len(ids) + smollm2_tokens.N_NEW
    make = {
        "concat": lambda: caches.ConcatCache(c.n_kv_heads, c.head_dim),
        "static": lambda: caches.StaticCache(c.n_kv_heads, n_slots, c.head_dim, smollm2.dtype),
    }[kind]
    out = generate(smollm2, ids, smollm2_tokens.N_NEW, smollm2.make_caches(make))
    assert out[len(ids) :].tolist() == row["tokens"]


@needs_model
@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("max_len", [None, 512])
def test_the_torch_form_too(max_len: int | None) -> None:
    model = load(form="torch")
    for row in (ROWS[0], ROWS[13]):
        held = model.make_caches(max_len=max_len)
        out = torch_generate(lambda ids, kept: (model(ids, kept), kept), torch.tensor([row["ids"]]), 128, caches=held)
        assert out[0, len(row["ids"]) :].tolist() == row["tokens"]
