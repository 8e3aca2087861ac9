"""Other people's decoders on the same weights: Hugging Face transformers, and llama.cpp through llama-cpp-python.

Each is built from the arrays of this run, so that nothing is downloaded and both sides read equal bytes.
"""

import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.bench.decode.contenders import Contender, Unavailable
from kvlab.bench.decode.model import Model


class HuggingFace(Contender):
    """`LlamaForCausalLM.generate`, greedy, timed between the tokens that it hands to a streamer."""

    cache_kind = ""

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        super().__init__(model, dtype, max_len)
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Unavailable(f"transformers is not installed: {error}") from None
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self.torch, self.transformers = torch, transformers
        self.llama = hugging_face_model(model, dtype)
        self.cache: Any = None
        random = np.random.default_rng(3)
        self.ids = torch.from_numpy(random.integers(3, model.shape.vocab_size, (1, max_len)))

    def _new_cache(self, n_slots: int) -> Any:
        if self.cache_kind == "dynamic":
            return self.transformers.DynamicCache(config=self.llama.config)
        self.n_slots = n_slots
        return self.transformers.StaticCache(config=self.llama.config, max_cache_len=n_slots)

    def _generate(self, ids: Any, n_new: int, streamer: Any = None) -> Any:
        with self.torch.inference_mode():
            return self.llama.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                cache=self.cache,
                max_new_tokens=n_new,
                min_new_tokens=n_new,
                do_sample=False,
                streamer=streamer,
                disable_compile=True,  # eager, as everything else here; compiling took longer than the whole run
            )

    def rewind(self, n_held: int) -> None:
        """Noise for the tokens it lacks; the ones too many are cropped away."""
        if self.cache is None:
            self.cache = self._new_cache(self.max_len)
        lacks = n_held - int(self.cache.get_seq_length())
        if lacks > 0:
            s, kind = self.model.shape, self.llama.dtype
            for layer in range(s.n_layers):
                rows = self.torch.randn(1, s.n_kv_heads, lacks, s.head_dim).to(kind)
                self.cache.update(rows, rows.clone(), layer)
        elif lacks < 0:
            self.cache.crop(lacks)

    def turn(self, context: int, n_steps: int) -> list[float]:
        """As Contender.turn. The first token of a call to generate carries its set-up and is the one not counted."""
        start = context - n_steps - 1
        if self.cache_kind == "static" and (self.cache is None or self.n_slots != context):
            self.cache = self._new_cache(context)  # every slot is read, filled or not: no more of them than are needed
        self.rewind(start)
        clock = _Clock()
        self._generate(self.ids[:, : start + 1], n_steps + 1, clock)
        return list(np.diff(clock.times_s[-n_steps - 1 :]))

    def step(self) -> int:
        raise NotImplementedError("generate is timed as a whole, see turn")

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        self.cache = self._new_cache(len(ids) + n_new)
        told = self._generate(self.torch.from_numpy(ids.astype(np.int64))[None], n_new)
        self.cache = None
        return [int(token) for token in told[0, len(ids) :]]


class HuggingFaceDynamic(HuggingFace):
    name, cache_kind = "hf-dynamic", "dynamic"


class HuggingFaceStatic(HuggingFace):
    name, cache_kind = "hf-static", "static"


class _Clock:
    """A streamer that notes when each token came."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, _: Any) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


def hugging_face_model(model: Model, dtype: str) -> Any:
    """A LlamaForCausalLM that holds the model's own arrays (float32), or a copy in another format."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    s = model.shape
    config = LlamaConfig(
        num_hidden_layers=s.n_layers,
        hidden_size=s.d_model,
        num_attention_heads=s.n_heads,
        num_key_value_heads=s.n_kv_heads,
        head_dim=s.head_dim,
        intermediate_size=s.d_ff,
        vocab_size=s.vocab_size,
        max_position_embeddings=model.max_positions,
        rms_norm_eps=model.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_base},
        tie_word_embeddings=s.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    llama = LlamaForCausalLM(config).eval().requires_grad_(False)
    state = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in named_tensors(model)}
    llama.load_state_dict(state, strict=True, assign=True)
    llama.tie_weights()
    return llama.requires_grad_(False).to(getattr(torch, dtype))


def named_tensors(model: Model) -> Iterator[tuple[str, np.ndarray]]:
    """The weights under Hugging Face's names, unfused; views where the layout allows."""
    s, w = model.shape, model.weights
    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    yield "model.embed_tokens.weight", w.embed
    yield "model.norm.weight", w.final_norm
    yield "lm_head.weight", w.head
    for i, layer in enumerate(w.layers):
        parts = {
            "input_layernorm": layer.attn_norm,
            "self_attn.q_proj": layer.qkv[:q],
            "self_attn.k_proj": layer.qkv[q : q + kv],
            "self_attn.v_proj": layer.qkv[q + kv :],
            "self_attn.o_proj": layer.wo,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": layer.gate_up[: s.d_ff],
            "mlp.up_proj": layer.gate_up[s.d_ff :],
            "mlp.down_proj": layer.w_down,
        }
        for part, array in parts.items():
            yield f"model.layers.{i}.{part}.weight", array


class LlamaCpp(Contender):
    """llama.cpp on a GGUF file written from the same weights, with a cache in the weights' format."""

    name = "llamacpp-python"

    def __init__(self, model: Model, dtype: str, max_len: int) -> None:
        super().__init__(model, dtype, max_len)
        try:
            import gguf
            import llama_cpp
        except ImportError as error:
            raise Unavailable(f"{error}; pip install kvlab[peers] builds it from source") from None
        import torch

        kind = {"float32": llama_cpp.GGML_TYPE_F32, "float16": llama_cpp.GGML_TYPE_F16}.get(
            dtype, getattr(llama_cpp, "GGML_TYPE_BF16", 30)
        )
        n_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(model, path, dtype, gguf)
            self.llama = llama_cpp.Llama(
                str(path),
                n_ctx=max_len,
                n_threads=n_threads,
                n_threads_batch=n_threads,
                type_k=kind,
                type_v=kind,
                flash_attn=dtype != "float32",  # whichever was the faster of the two here
                use_mmap=False,  # the file is gone when this block ends
                verbose=False,
            )
        self.ids = np.random.default_rng(3).integers(3, model.shape.vocab_size, max_len).tolist()

    def rewind(self, n_held: int) -> None:
        """llama.cpp lets nothing be written into its cache: what is lacking is computed, what is too much dropped."""
        if n_held > self.llama.n_tokens:
            self.llama.eval(self.ids[self.llama.n_tokens : n_held])
        self.llama.n_tokens = n_held  # eval drops what lies behind it

    def step(self) -> int:
        self.llama.eval([1])
        return self._best()

    def _best(self) -> int:
        return int(np.ctypeslib.as_array(self.llama._ctx.get_logits(), (self.model.shape.vocab_size,)).argmax())

    def greedy(self, ids: np.ndarray, n_new: int) -> list[int]:
        self.llama.n_tokens = 0
        self.llama.eval([int(i) for i in ids])
        tokens = [self._best()]
        while len(tokens) < n_new:
            self.llama.eval(tokens[-1:])
            tokens.append(self._best())
        return tokens


def write_gguf(model: Model, path: Path, dtype: str, gguf: Any) -> None:
    """A GGUF file of the model. llama.cpp pairs neighbouring channels in RoPE, so rows of q and k are reordered."""
    s, w = model.shape, model.weights
    kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(model.max_positions)
    writer.add_embedding_length(s.d_model)
    writer.add_block_count(s.n_layers)
    writer.add_feed_forward_length(s.d_ff)
    writer.add_head_count(s.n_heads)
    writer.add_head_count_kv(s.n_kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(model.norm_eps)
    writer.add_vocab_size(s.vocab_size)
    writer.add_file_type(getattr(gguf.LlamaFileType, f"ALL_{kind}" if kind == "F32" else f"MOSTLY_{kind}"))
    writer.add_tokenizer_model("no_vocab")

    def add(name: str, array: np.ndarray) -> None:
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
        elif kind == "F16":
            writer.add_tensor(name, array.astype(np.float16))
        else:
            stored = getattr(gguf.GGMLQuantizationType, kind)
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), stored), raw_dtype=stored)

    def paired(rows: np.ndarray, n_heads: int) -> np.ndarray:
        return rows.reshape(n_heads, 2, s.head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)

    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    add("token_embd.weight", w.embed)
    add("output_norm.weight", w.final_norm)
    if not s.tied:
        add("output.weight", w.head)
    for i, layer in enumerate(w.layers):
        for part, array in {
            "attn_norm": layer.attn_norm,
            "attn_q": paired(layer.qkv[:q], s.n_heads),
            "attn_k": paired(layer.qkv[q : q + kv], s.n_kv_heads),
            "attn_v": layer.qkv[q + kv :],
            "attn_output": layer.wo,
            "ffn_norm": layer.mlp_norm,
            "ffn_gate": layer.gate_up[: s.d_ff],
            "ffn_up": layer.gate_up[s.d_ff :],
            "ffn_down": layer.w_down,
        }.items():
            add(f"blk.{i}.{part}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
