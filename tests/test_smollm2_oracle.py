"""The frozen tokens are what transformers generates today. A module of its own: another worker can run it."""

import pytest
import smollm2_tokens
import torch

torch.set_num_threads(1)


@pytest.mark.slow
@smollm2_tokens.needs_model
def test_transformers_generates_the_frozen_tokens() -> None:
    frozen = smollm2_tokens.read()
    for now, row in zip(smollm2_tokens.rows(), frozen, strict=True):
        assert (now["prompt"], now["ids"], now["tokens"]) == (row["prompt"], row["ids"], row["tokens"])
        assert now["smallest_lead"] == pytest.approx(row["smallest_lead"], rel=0.06, abs=1e-3)
