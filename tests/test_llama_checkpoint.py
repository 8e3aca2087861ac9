"""What kvlab.llama refuses of a checkpoint folder, each in one line that names it, and its tokenizer."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
import tokenizers
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from kvlab.llama import CHECKED, ModelMissing, changed_files, load, load_tokenizer, model_folder, stamp_of
from kvlab.llama.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_llama.write(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(whole, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    kept = {k: v for k, v in (json.loads(path.read_text()) | fields).items() if v != "absent"}
    path.write_text(json.dumps(kept))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        load(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "qwen2"}, "model_type: expected \"llama\", got 'qwen2'"),
        ({"model_type": "absent"}, 'model_type: expected "llama", got None'),
        ({"attention_bias": True}, "attention_bias True is not supported, expected False"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, expected 'silu'"),
        ({"sliding_window": 4096}, "sliding_window 4096 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4} is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear' is not supported"),
        (
            {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
            "factor is missing",
        ),
        ({"rope_scaling": tiny_llama.LLAMA3 | {"high_freq_factor": 1.0}}, "expected low_freq_factor below"),
        ({"rope_scaling": 4.0}, "rope_scaling: expected an object, got 4.0"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta: expected a positive number, got -1.0"),
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number of at least 1, got 0"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers: expected a whole number of at least 1, got '3'"),
        ({"num_key_value_heads": 4}, "n_heads must be a multiple of n_kv_heads, got 6 query heads and 4 KV heads"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: expected true or false, got 'false'"),
        ({"num_hidden_layers": 10**9}, "model.layers.3.input_layernorm.weight is missing, expected shape (48,)"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a positive number, got 'small'"),
        ({"vocab_size": 62}, "model.embed_tokens.weight: expected shape (62, 48) by config.json, got (61, 48)"),
        ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight is missing, expected shape (48,)"),
        ({"num_hidden_layers": 2}, "model.layers.2.input_layernorm.weight is a tensor that kvlab.llama does not know"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing, expected shape (61, 48)"),
    ],
)
def test_what_a_config_may_not_say(folder: Path, fields: dict[str, Any], message: str) -> None:
    old = {} if "rope_parameters" in fields else {"rope_parameters": "absent"}
    change_config(folder, **(old | fields))
    assert message in refusal(folder)
    assert message in refusal(folder, form="torch")


def test_an_older_config_is_read_too(folder: Path) -> None:
    ids = np.arange(9)
    expected = load(folder)(ids)
    change_config(folder, rope_parameters="absent", rope_theta=10000.0, rope_scaling=None, pretraining_tp=1)
    assert np.array_equal(load(folder)(ids), expected)
    change_config(folder, rope_theta=500.0)
    assert not np.allclose(load(folder)(ids), expected)


def cut(n_bytes: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - n_bytes if n_bytes > 0 else -n_bytes)

    return damage


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Rewrite the header of a safetensors file, keeping its arrays."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        text = json.dumps(change(header) or header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return damage


NORM = "model.norm.weight"
GATE, UP = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut(1), "bytes by its header, got"),
        (cut(-1000), "truncated or is something else"),
        (cut(-4), "truncated or is something else"),
        (lambda path: path.write_bytes(b""), "truncated or is something else"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(5000)), "truncated or is something else"),
        (lambda path: path.write_bytes(b"\xff" * 5000), "truncated or is something else"),
        (lambda path: path.unlink(), "expected model.safetensors or model.safetensors.index.json, there is neither"),
        (with_header(lambda h: h[NORM].pop("shape") and None), f"the header's entry of {NORM!r} is damaged"),
        (with_header(lambda h: h[NORM].update(data_offsets=[0])), f"the header's entry of {NORM!r} is damaged"),
        (with_header(lambda h: h[NORM].update(shape=[-48])), f"the header's entry of {NORM!r} is damaged"),
        (with_header(lambda h: h[NORM].update(shape=[47])), f"{NORM} of shape (47,) does not fill its 192 bytes"),
        (with_header(lambda h: h[NORM].update(dtype="I32")), f"{NORM} is stored as I32, which is not supported"),
        (with_header(lambda h: h[NORM].update(dtype=["F32"])), f"the header's entry of {NORM!r} is damaged"),
        (with_header(lambda h: h[NORM].update(shape=[2**70])), "does not fill its 192 bytes"),
        (with_header(lambda h: h[GATE].update(data_offsets=h[UP]["data_offsets"])), "arrays overlap or leave a gap"),
        (with_header(lambda h: [1]), "truncated or is something else"),
    ],
)
def test_damaged_weights(folder: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(folder / "model.safetensors")
    assert message in refusal(folder)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_numbers_that_are_not_finite(tmp_path: Path, stored: torch.dtype, number: float) -> None:
    model = tiny_llama.write(tmp_path, dtype=stored)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    weights[UP][-1, -1] = number
    save_torch_file(weights, tmp_path / "model.safetensors")
    message = f"model.safetensors: {UP} holds NaN or infinity"
    assert message in refusal(tmp_path)
    assert message in refusal(tmp_path, form="torch")


def test_a_single_file_goes_before_an_index(folder: Path) -> None:
    # As transformers decides: an index that lies beside it belongs to something else.
    expected = load(folder)(np.arange(5))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    assert np.array_equal(load(folder)(np.arange(5)), expected)


def test_a_missing_shard_and_a_damaged_index(tmp_path: Path) -> None:
    tiny_llama.write(tmp_path, shard="8KB")
    shard = sorted(tmp_path.glob("*-of-*"))[1]
    shard.rename(tmp_path / "away")
    assert refusal(tmp_path).endswith(f"{shard.name}: there is no such file")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    assert "expected an index with a weight_map" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": 3}}')
    assert "expected a weight_map of tensors to file names, got 3" in refusal(tmp_path)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert "expected a checkpoint folder with config.json, there is none" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "expected a JSON object, got" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "expected a JSON object, got list" in refusal(tmp_path)
    path = tmp_path / "config.json"
    assert refusal(path) == f"{path}: expected a checkpoint folder with config.json, there is none"


def test_unknown_tensors_are_not_passed_over(folder: Path) -> None:
    tensors = dict(Checkpoint(folder))
    # What older files keep besides is no reason to refuse: it changes nothing.
    harmless = {"lm_head.weight": tensors["model.embed_tokens.weight"], "x.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file(tensors | harmless, folder / "model.safetensors")
    load(folder)
    save_file(
        tensors | {"model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32)}, folder / "model.safetensors"
    )
    assert "model.layers.0.self_attn.q_norm.weight is a tensor that kvlab.llama does not know" in refusal(folder)


def test_options_that_do_not_exist(folder: Path) -> None:
    assert "dtype: expected float32 or float64, got float16" in refusal(folder, dtype=np.float16)
    assert "dtype: expected float32 or float64, got torch.float16" in refusal(folder, dtype=torch.float16)
    assert "dtype: expected a float type of torch" in refusal(folder, form="torch", dtype=np.float32)
    assert "dtype: expected a float type of torch" in refusal(folder, form="torch", dtype=torch.int8)
    assert 'form: expected "numpy" or "torch", got \'jax\'' in refusal(folder, form="jax")


# The model of `make model`


def test_the_missing_model_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.llama.DEFAULT_FOLDER", tmp_path / "SmolLM2")
    for call in (load, load_tokenizer):
        with pytest.raises(ModelMissing) as error:
            call()
        assert str(error.value) == "SmolLM2 is not here: run `make model` in the course's folder"


def test_a_half_written_folder_counts_as_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.llama.DEFAULT_FOLDER", folder)  # whole, but never checked
    with pytest.raises(ModelMissing):
        load()


def test_a_file_changed_after_its_check_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = folder / "model.safetensors"
    (folder / CHECKED).write_text(json.dumps({weights.name: [*(stamp_of(weights) or ()), "its sum"]}))
    monkeypatch.setattr("kvlab.llama.DEFAULT_FOLDER", folder)
    assert model_folder() == folder
    load()
    stamp = weights.stat().st_mtime_ns
    with weights.open("r+b") as file:  # one byte of a weight, the size as it was
        file.seek(-7, os.SEEK_END)
        file.write(b"\x00")
    os.utime(weights, ns=(stamp, stamp + 1))
    assert changed_files(folder) == [weights.name]
    assert "model.safetensors was changed after `make model` checked it: run `make model` again" in refusal(folder)
    with pytest.raises(ValueError, match="was changed after"):
        load()
    for damaged in ("{", "[]", '{"config.json": 3}', '{"config.json": []}'):
        (folder / CHECKED).write_text(damaged)
        assert changed_files(folder) == [CHECKED]


# The tokenizer

TEMPLATE = (
    "{% for message in messages %}\n  {% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ bos_token + message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.fixture
def with_tokenizer(folder: Path) -> Path:
    """Byte-level, with no merges: each byte a token, and a mark at the end of an answer."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
    change_config(folder, eos_token_id=[257, 3])
    return folder


@pytest.mark.usefixtures("no_shape_hook")
def test_text_comes_back(with_tokenizer: Path) -> None:
    tokenizer = load_tokenizer(with_tokenizer)
    ids = tokenizer.encode("Grüße, 3\n")
    assert ids.dtype == np.int64 and ids.shape == (11,)
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == "Grüße, 3\n"
    assert tokenizer.decode([256, *ids, 257]) == "Grüße, 3\n"
    assert tokenizer.encode("").shape == (0,)
    with pytest.raises(ValueError, match="ids: expected 0 or more, got -1"):
        tokenizer.decode([3, -1])
    with pytest.raises(ValueError, match=r"ids: expected shape \(n,\), got \(1, 2\)"):
        tokenizer.decode(ids[None, :2])
    with pytest.raises(ValueError, match="ids: expected integers, got float64"):
        tokenizer.decode([3.5])
    assert tokenizer.decode([]) == ""
    assert tokenizer.eos_ids == (257, 3)


def test_a_conversation_is_what_transformers_makes_of_it(with_tokenizer: Path) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "Hi {{ 1 }}"}, {"role": "assistant", "content": "Ho"}]
    theirs = AutoTokenizer.from_pretrained(with_tokenizer).apply_chat_template(messages, add_generation_prompt=True)
    ours = load_tokenizer(with_tokenizer).chat(messages)
    assert ours.tolist() == theirs["input_ids"]
    assert ours[0] == 256


def test_other_places_of_a_template_and_a_mark(with_tokenizer: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tokenizer = load_tokenizer(with_tokenizer)
    expected = tokenizer.chat(messages).tolist()
    mark = {"__type": "AddedToken", "content": "<s>", "lstrip": False}
    config = with_tokenizer / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": mark, "chat_template": TEMPLATE}))
    assert load_tokenizer(with_tokenizer).chat(messages).tolist() == expected
    config.write_text(json.dumps({"bos_token": mark, "chat_template": "{{ 'older' }}"}))
    (with_tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    assert load_tokenizer(with_tokenizer).chat(messages).tolist() == expected
    (with_tokenizer / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="chat: the chat_template of this checkpoint fails: Expected"):
        load_tokenizer(with_tokenizer).chat(messages)


@pytest.mark.usefixtures("no_shape_hook")
def test_conversations_that_cannot_be_had(with_tokenizer: Path) -> None:
    tokenizer = load_tokenizer(with_tokenizer)
    with pytest.raises(ValueError, match="messages: expected at least one, got none"):
        tokenizer.chat([])
    with pytest.raises(ValueError, match=r'messages: expected \{"role": text, "content": text\}, got'):
        tokenizer.chat([{"role": "user"}])
    for message in ({"role": "user", "content": None}, {"role": 3, "content": "x"}, "Hi"):
        with pytest.raises(ValueError, match="messages: expected"):
            tokenizer.chat([message])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the template refuses these messages: no tools"):
        tokenizer.chat([{"role": "tool", "content": "x"}])
    (with_tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="this checkpoint has no chat_template"):
        load_tokenizer(with_tokenizer).chat([{"role": "user", "content": "Hi"}])


def test_no_tokenizer_and_a_damaged_one(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer.json: there is no such file"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json: expected a tokenizer, got"):
        load_tokenizer(folder)
