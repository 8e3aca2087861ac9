"""What transformers generates from 20 prompts with the real model, kept in cases/smollm2_tokens.json.

`.venv/bin/python tests/smollm2_tokens.py` writes the file anew, in minutes. Greedy, float32, one prompt at a time.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.llama import DEFAULT_FOLDER, ModelMissing, load_tokenizer, model_folder

try:
    model_folder()
    WHY_NOT = ""
except ModelMissing as error:
    WHY_NOT = str(error)
needs_model = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

FILE = Path(__file__).parent / "cases" / "smollm2_tokens.json"
N_NEW = 128

QUESTIONS = [
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "Give me three tips for sleeping better.",
    "What is 17 + 25?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Write a Python function that reverses a string.",
    "List the planets of the solar system in order.",
]
OPENINGS = [
    "Once upon a time, in a village by the sea, there lived",
    "The three most important things about a good teacher are",
    "def fibonacci(n):\n    ",
    "In 1969, two people walked on",
    "The recipe needs 200 g of flour, 3 eggs and",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\nx = np.",
    "1, 2, 3, 5, 8, 13,",
    "Die Hauptstadt von Deutschland ist",
]


def prompts() -> Iterator[tuple[str, list[int]]]:
    """Each prompt's text and ids: the questions as conversations, the openings as they are."""
    tokenizer = load_tokenizer()
    for text in QUESTIONS:
        yield text, tokenizer.chat([{"role": "user", "content": text}]).tolist()
    for text in OPENINGS:
        yield text, tokenizer.encode(text).tolist()


def load_hugging_face() -> Any:
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM.from_pretrained(DEFAULT_FOLDER, dtype=torch.float32)
    # The tokens after the end of an answer count too: a stop would leave short ones unchecked.
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.no_grad()
def generate(model: Any, ids: list[int]) -> tuple[list[int], float]:
    """The next N_NEW tokens, and the smallest lead that the winner had over the second in any step, in logits."""
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=N_NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    leads = [float(top[0] - top[1]) for top in (logits[0].topk(2).values for logits in out.logits)]
    return out.sequences[0, len(ids) :].tolist(), min(leads)


def rows() -> Iterator[dict[str, Any]]:
    """What the file holds, one prompt at a time."""
    model = load_hugging_face()
    for text, ids in prompts():
        tokens, lead = generate(model, ids)
        yield {"prompt": text, "ids": ids, "tokens": tokens, "smallest_lead": float(f"{lead:.2g}")}


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    return found


def main() -> None:
    import transformers

    how = (
        f"tests/smollm2_tokens.py, transformers {transformers.__version__}, torch {torch.__version__}, greedy, float32"
    )
    lines = []
    for row in rows():
        lines.append(json.dumps(row, ensure_ascii=False))
        print(f"{row['smallest_lead']:8} {row['prompt']!r}", flush=True)
    FILE.write_text(f'{{"made_by": {json.dumps(how)},\n "rows": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
