"""Predict, then look: a typed guess is kept and shown beside the result. Run All leaves it empty and never waits."""

from collections.abc import Sequence
from html import escape
from typing import Any


class Prediction:
    """A question with a place for a guess, and its guess.

    Displays as a text box, or as buttons when `options` are given; at rest (no kernel) as the question alone.
    """

    def __init__(self, question: str, options: Sequence[str] | None = None) -> None:
        self.question = question
        self.options = list(options) if options else None
        self.guess = ""

    def reveal(self, result: Any, note: str = "") -> None:
        """Print what the run says beside the guess, and `note` below it."""
        print(f"the run: {result}")
        print(f"your guess: {self.guess or 'none yet'}")
        if note:
            print(note)

    def __repr__(self) -> str:
        choices = f" [{' | '.join(self.options)}]" if self.options else ""
        return f"Predict: {self.question}{choices}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        choices = "".join(f"<li>{escape(option)}</li>" for option in self.options or [])
        html = f"<p><strong>Predict.</strong> {escape(self.question)}</p>" + (f"<ul>{choices}</ul>" if choices else "")
        return {"text/plain": repr(self), "text/html": html, **self._widget()._repr_mimebundle_()} | {
            "text/plain": repr(self)
        }

    def _widget(self) -> Any:
        import ipywidgets

        if self.options:
            field = ipywidgets.ToggleButtons(options=self.options, value=None, style={"button_width": "auto"})
        else:
            field = ipywidgets.Text(placeholder="your guess, then Enter", continuous_update=False)
        kept = ipywidgets.HTML()

        def keep(change: dict[str, Any]) -> None:
            self.guess = str(change["new"] or "").strip()
            kept.value = f"kept: {escape(self.guess)}" if self.guess else ""

        field.observe(keep, "value")
        field.value = self.guess or field.value
        question = ipywidgets.HTML(f"<strong>Predict.</strong> {escape(self.question)}")
        return ipywidgets.VBox([question, field, kept])


def predict(question: str, options: Sequence[str] | None = None) -> Prediction:
    """Ask before a result is shown; later `prediction.reveal(result)` prints both.

    Args:
        question: one sentence.
        options: choices to pick from; None gives a text box.

    Raises:
        ValueError: an empty question, or options that are not at least two different strings.

    >>> guess = predict("How many keys does the first query see?")
    >>> guess
    Predict: How many keys does the first query see?
    >>> guess.reveal(5)
    the run: 5
    your guess: none yet
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"predict: the question must be a sentence, got {question!r}")
    if options is not None:
        good = not isinstance(options, str) and all(isinstance(option, str) for option in options)
        if not good or len(set(options)) < max(2, len(options)):
            raise ValueError(f"predict: options must be at least two different strings, got {options!r}")
    return Prediction(question, options)
