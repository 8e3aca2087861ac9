"""A GGUF file of a Llama as a checkpoint that any library reads: float32 safetensors, tokenizer.json, config.json."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

NAMES = {  # a GGUF layer's tensors -> Hugging Face's
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> dict[str, str]:
    """Write the four files of a checkpoint from a GGUF file; return the SHA-256 of each."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    texts = {
        "config.json": config_of(metadata),
        "tokenizer.json": tokenizer_of(metadata),
        "tokenizer_config.json": tokenizer_config_of(metadata),
    }
    sums = {}
    for name, fields in texts.items():
        data = (json.dumps(fields, ensure_ascii=False, indent=1) + "\n").encode()
        (folder / name).write_bytes(data)
        sums[name] = hashlib.sha256(data).hexdigest()
    with (folder / "model.safetensors").open("wb") as file:
        sums["model.safetensors"] = write_safetensors(file, tensors_of(reader, metadata))
    return sums


Lazy = tuple[tuple[int, ...], Callable[[], np.ndarray]]  # the shape of an array, and what makes it


def tensors_of(reader: Any, metadata: dict[str, Any]) -> dict[str, Lazy]:
    """Every tensor under its Hugging Face name, dequantised when it is asked for."""
    from gguf.quants import dequantize

    heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}

    def array(tensor: Any, n_heads: int | None) -> np.ndarray:
        x = dequantize(tensor.data, tensor.tensor_type)
        return x if n_heads is None else unpermute(x, n_heads)

    def lazy(tensor: Any) -> Lazy:
        n_heads = heads.get(tensor.name.split(".")[-2])
        return tuple(int(n) for n in reversed(tensor.shape)), lambda: array(tensor, n_heads)

    return {hugging_face_name(tensor.name): lazy(tensor) for tensor in reader.tensors}


def hugging_face_name(name: str) -> str:
    """The name Hugging Face gives to a GGUF tensor.

    >>> hugging_face_name("blk.7.attn_q.weight")
    'model.layers.7.self_attn.q_proj.weight'
    """
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def unpermute(x: np.ndarray, n_heads: int) -> np.ndarray:
    """Undo the row order in which GGUF stores query and key weights: pairs side by side -> half-split pairs.

    llama.cpp rotates channel 2 i with 2 i + 1, Hugging Face channel i with i + head_dim / 2, so its converter reorders
    the rows of each head. Left so, every number is there, in the wrong place: text still comes out, and worse.

    >>> unpermute(np.array([[0], [2], [1], [3]]), n_heads=1).ravel().tolist()
    [0, 1, 2, 3]
    """
    n_rows, width = x.shape
    return x.reshape(n_heads, n_rows // n_heads // 2, 2, width).swapaxes(1, 2).reshape(n_rows, width)


def write_safetensors(file: IO[bytes], tensors: dict[str, Lazy]) -> str:
    """Write float32 arrays in the safetensors format, one at a time in memory; return the SHA-256 of all bytes."""
    from rich.progress import Progress

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, _) in tensors.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("converting to float32", total=end)
        for data in (len(text).to_bytes(8, "little"), text):
            file.write(data)
            digest.update(data)
        for _, make_array in tensors.values():
            data = np.ascontiguousarray(make_array(), "<f4").tobytes()
            file.write(data)
            digest.update(data)
            bar.advance(task, len(data))
    return digest.hexdigest()


def config_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """config.json as Hugging Face writes it for a Llama."""
    llama = {name.removeprefix("llama."): value for name, value in metadata.items() if name.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),  # a float32 of 1e-05
        "rope_theta": llama["rope.freq_base"],
        "vocab_size": llama["vocab_size"],
        "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def tokenizer_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE with every digit a token of its own, which is what "smollm" stands for in GGUF."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    control = 3  # GGUF's type of a token that no text produces
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token} | flags
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == control
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json, with the template of a conversation."""
    tokens = metadata["tokenizer.ggml.tokens"]
    named = {
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
    }
    return named | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }
