"""kvlab.predict: a guess is kept and shown beside the result, and nothing ever waits for it."""

import subprocess
import sys
from typing import Any

import pytest

from kvlab.predict import Prediction, predict

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def field_of(prediction: Prediction) -> Any:
    """The control that a display of the prediction makes."""
    _, field, _ = prediction._widget().children
    return field


def test_a_typed_guess_is_kept_and_revealed_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    guess = predict("How many keys does the first query see?")
    field_of(guess).value = "  one "
    guess.reveal(5, "The mask is offset.")
    assert capsys.readouterr().out == "the run: 5\nyour guess: one\nThe mask is offset.\n"


def test_a_chosen_option_is_kept() -> None:
    guess = predict("Which changes?", options=["neither", "layer 2", "both"])
    field = field_of(guess)
    assert guess.guess == ""
    field.value = "layer 2"
    assert guess.guess == "layer 2"
    field.value = "both"
    assert guess.guess == "both"


def test_run_all_leaves_the_guess_empty_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    guess = predict("How many?")
    guess._repr_mimebundle_()
    guess.reveal(5)
    assert capsys.readouterr().out == "the run: 5\nyour guess: none yet\n"


@pytest.mark.parametrize("options", [None, ["a", "b"]])
def test_shown_again_it_still_holds_the_guess(options: list[str] | None) -> None:
    guess = predict("Which?", options)
    field_of(guess).value = "b"
    assert field_of(guess).value == "b"
    assert guess.guess == "b"


def test_a_guess_can_be_taken_back() -> None:
    guess = predict("How many?")
    field = field_of(guess)
    field.value = "5"
    field.value = ""
    assert guess.guess == ""


def test_at_rest_the_question_and_its_options_are_there_and_escaped() -> None:
    """A page without a kernel shows text/html, one without HTML text/plain; only a live one has the control."""
    bundle = predict("Is 1 < 2 & so on?", options=["<yes>", "no"])._repr_mimebundle_()
    assert bundle["text/plain"] == "Predict: Is 1 < 2 & so on? [<yes> | no]"
    assert "Is 1 &lt; 2 &amp; so on?" in bundle["text/html"]
    assert "<li>&lt;yes&gt;</li><li>no</li>" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert WIDGET_VIEW in bundle


@pytest.mark.parametrize(
    ("question", "options", "words"),
    [
        ("  ", None, "the question must be a sentence"),
        ("Which?", ["only"], r"two different strings, got \['only'\]"),
        ("Which?", [], r"two different strings, got \[\]"),
        ("Which?", ["a", "b", "a"], r"two different strings, got \['a', 'b', 'a'\]"),
    ],
)
def test_predict_refuses_what_cannot_be_asked(
    no_shape_hook: None, question: str, options: list[str] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        predict(question, options)


def test_importing_it_loads_no_widgets() -> None:
    code = "import sys, kvlab.predict; print('ipywidgets' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
