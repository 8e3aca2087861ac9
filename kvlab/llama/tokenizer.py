"""Text to token ids and back, and a conversation as the model was trained to read it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from kvlab.shapes import expect

Ids = Int[np.ndarray, "n"]
Message = dict[str, str]


class Tokenizer:
    """A checkpoint's tokenizer.json, with its chat template: chat_template.jinja, or a field of tokenizer_config.json.

    Args:
        folder: a checkpoint folder with these files, and config.json for the ids that end an answer.

    Raises:
        ValueError: tokenizer.json is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path}: there is no such file, and no text without it") from None
        except Exception as error:  # the library raises plain Exception for whatever is wrong in the file
            raise ValueError(f"{path}: expected a tokenizer, got {error}") from None
        self._special = _read_json(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"  # where newer files have it
        if template.is_file():
            self._special["chat_template"] = template.read_text(encoding="utf-8")
        self.eos_ids = _eos_ids(_read_json(folder / "config.json"))

    def encode(self, text: str) -> Ids:
        """Ids of a text, (n,); nothing is added in front or behind."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, ids: Sequence[Any] | Ids) -> str:
        """The text of ids, (n,), marks of the chat template left out.

        Raises:
            ValueError: ids of several rows, or one below 0 or no integer.
        """
        row = np.asarray(ids)
        if expect("ids", row, ("n",))["n"] and not np.issubdtype(row.dtype, np.integer):
            raise ValueError(f"ids: expected integers, got {row.dtype}")
        if (row < 0).any():
            raise ValueError(f"ids: expected 0 or more, got {row.min()}")
        return self._tokenizer.decode([int(i) for i in row], skip_special_tokens=True)

    def chat(self, messages: Sequence[Message]) -> Ids:
        """Ids of a conversation, (n,), ending where the model's answer begins.

        Args:
            messages: each {"role": "system", "user" or "assistant", "content": text}, oldest first.

        Raises:
            ValueError: no messages, one whose role or content is no text, or a checkpoint without a chat template or
                with one that fails.
        """
        return self.encode(self.chat_text(messages))

    def chat_text(self, messages: Sequence[Message]) -> str:
        """The text that `chat` encodes, the template's marks included."""
        if not messages:
            raise ValueError("messages: expected at least one, got none")
        for message in messages:
            parts = [message.get(name) for name in ("role", "content")] if isinstance(message, dict) else [None]
            if not all(isinstance(part, str) for part in parts):
                raise ValueError(f'messages: expected {{"role": text, "content": text}}, got {message!r}')
        template = self._special.get("chat_template")
        if not isinstance(template, str):
            raise ValueError("chat: this checkpoint has no chat_template, neither a file nor a field: use encode")
        return _render(template, messages, self._special)


def _render(template: str, messages: Sequence[Message], special: dict[str, Any]) -> str:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # a template is a program that came with the weights

    def refuse(reason: str) -> None:
        raise ValueError(f"chat: the template refuses these messages: {reason}")

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    tokens = {name: _text_of(special.get(name)) for name in ("bos_token", "eos_token")}
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except TemplateError as error:
        raise ValueError(f"chat: the chat_template of this checkpoint fails: {error}") from None


def _text_of(token: Any) -> str:
    """A special token is written as its text, or as an object that holds it."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path}: expected a JSON object, got {error}") from None
    return fields if isinstance(fields, dict) else {}


def _eos_ids(config: dict[str, Any]) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    return () if found is None else tuple(found) if isinstance(found, list) else (found,)
