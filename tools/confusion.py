"""Write docs/confusion.md: every mistake that was made, and the mistake that its check named.

python tools/confusion.py
"""

from pathlib import Path

from kvlab.checks.engine import examine
from kvlab.checks.registry import cards, exercise

TARGET = Path(__file__).resolve().parent.parent / "docs" / "confusion.md"
HEAD = """# Mistakes made, mistakes named

Built by `python tools/confusion.py`; a test holds it to the code. Each mistake of `kvlab/checks` was handed in as a
submission. *Named* is what the check called it; a row is on the diagonal when both are the same. *Stage* is the first
one that refused it.

"""


def table() -> str:
    """The page's text."""
    parts, made, on_diagonal = [], 0, 0
    for name in cards():
        rows = []
        for mistake in exercise(name).mistakes:
            outcome = examine(exercise(name), mistake.submission())
            named = outcome.mistake.id if outcome.mistake else "none"
            stage = outcome.failure.stage.says if outcome.failure else "not refused"
            rows.append(f"| {mistake.id} | {named} | {stage} |")
            made, on_diagonal = made + 1, on_diagonal + (named == mistake.id)
        parts.append(f"## {name}\n\n| made | named | stage |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return HEAD + f"{on_diagonal} of {made} on the diagonal.\n\n" + "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(table(), encoding="utf-8")
    print(f"{TARGET.name}: written")
