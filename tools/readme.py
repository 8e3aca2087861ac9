"""The generated parts of README.md: the table of lessons, read from their first cells, and the picture."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvlab.decoder import TinyDecoder, generate
from kvlab.widgets import CacheGrowth

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "cache_growth.svg"
BEGIN, END = "<!-- lessons: written by tools/build.py -->", "<!-- end of lessons -->"


@dataclass(frozen=True)
class Lesson:
    """What the first cell of a lesson says about it."""

    stem: str
    title: str
    question: str
    minutes: int
    gpu: str

    @property
    def row(self) -> str:
        link = f"[{self.stem[:2]} {self.title}](notebooks/{self.stem}.ipynb)"
        return f"| {link} | {self.question} | {self.minutes} | {self.gpu} |"


def read_lesson(source: Path) -> Lesson:
    """Read a lesson's title, question, minutes and need of a GPU from its first cell.

    The cell starts with `# NN Title`; the last paragraph before "After this lesson you can" is the question, which may
    begin with "The question:"; the last line has "Minutes: 30" or "30 minutes" and a word about a GPU.

    Raises:
        ValueError: a part is missing; the message names the file and the part.
    """
    cell = source.read_text().split("\n# %%")[0]
    text = re.sub(r"^# ?", "", cell, flags=re.MULTILINE).replace("**", "")
    opening, _, rest = text.partition("After this lesson you can")
    last = rest.rstrip().rpartition("\n")[2]
    title = re.search(rf"^# {source.stem[:2]} (.+)$", opening, re.MULTILINE)
    question = " ".join(opening.rstrip().rpartition("\n\n")[2].removeprefix("The question:").split())
    minutes = re.search(r"Minutes: (\d+)|(\d+) minutes", last)
    parts = {
        "the title": title,
        "a question": question.endswith("?"),
        "the minutes": minutes,
        "a word about a GPU": "GPU" in last,
    }
    if missing := [part for part, found in parts.items() if not found]:
        raise ValueError(f"{source.name}: the first cell lacks {', '.join(missing)}")
    assert title and minutes
    gpu = "no, used if there is one" if re.search(r"\b(if|when|used|uses)\b", last) else "no"
    return Lesson(source.stem, title[1], question[0].upper() + question[1:], int(minutes[1] or minutes[2]), gpu)


def table(sources: list[Path]) -> str:
    """The README's table of lessons, in Markdown."""
    head = ["| lesson | question | minutes | needs a GPU? |", "|---|---|---|---|"]
    return "\n".join(head + [read_lesson(source).row for source in sources])


def growth() -> CacheGrowth:
    """What the README's picture shows: a small model reads a prompt of 5 tokens and writes 6, cached and not."""
    model = TinyDecoder()
    cached, uncached = model.make_trace(bytes_per_element=2), model.make_trace(bytes_per_element=2)
    prompt = np.array([3, 1, 4, 1, 5])
    generate(model, prompt, 6, model.make_caches(), trace=cached)
    generate(model, prompt, 6, trace=uncached)
    return CacheGrowth(cached, uncached)


def contents(sources: list[Path]) -> dict[Path, str]:
    """What every generated file must hold."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    drawing = growth()
    picture = f"![{drawing.alt}]({PICTURE.relative_to(ROOT).as_posix()})"
    return {
        README: f"{before}{BEGIN}\n{picture}\n\n{table(sources)}\n{END}{after}",
        PICTURE: drawing.to_svg() + "\n",
    }


def stale(sources: list[Path]) -> list[Path]:
    """The generated files that are not what they must be."""
    return [p for p, text in contents(sources).items() if not p.exists() or p.read_text() != text]


def write(sources: list[Path]) -> list[Path]:
    """Bring the generated files up to date; return those that changed."""
    changed = stale(sources)
    for path in changed:
        path.write_text(contents(sources)[path])
    return changed
