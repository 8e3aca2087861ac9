"""kvlab.style: one style, and no picture without alt text."""

import subprocess
import sys
from base64 import b64decode
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from kvlab.style import COLORS, figure_html, show, subplots

matplotlib.use("Agg")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What `show` hands to IPython: (data, metadata) of each display."""
    outputs: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def keep(data: dict[str, Any], metadata: dict[str, Any], raw: bool) -> None:
        assert raw
        outputs.append((data, metadata))

    monkeypatch.setattr("IPython.display.display", keep)
    return outputs


def line() -> Any:
    fig, ax = subplots()
    ax.plot([0, 1], [2, 3])
    return fig


def test_show_gives_one_png_with_its_alt_text_and_closes_the_figure(displayed: list) -> None:
    figure = line()
    show(figure, alt="A line from 2 to 3.")
    ((data, metadata),) = displayed
    assert data["image/png"].startswith(PNG)
    assert data["text/plain"] == "A line from 2 to 3."
    assert metadata == {"image/png": {"alt": "A line from 2 to 3."}}
    assert figure.number not in plt.get_fignums()


def test_the_same_figure_gives_the_same_bytes(displayed: list) -> None:
    """A rebuilt notebook does not change for a picture that did not."""
    show(line(), alt="A line.")
    show(line(), alt="A line.")
    assert displayed[0] == displayed[1]


@pytest.mark.parametrize("alt", ["", " \n"])
def test_show_refuses_a_picture_without_alt_text(no_shape_hook: None, displayed: list, alt: str) -> None:
    figure = line()
    with pytest.raises(ValueError, match="alt must be a sentence"):
        show(figure, alt)
    assert displayed == []
    plt.close(figure)


def test_figure_html_is_an_image_with_escaped_alt_text() -> None:
    figure = line()
    html = figure_html(figure, alt='2 < 3, "up"')
    assert html.startswith('<img alt="2 &lt; 3, &quot;up&quot;" src="data:image/png;base64,')
    assert b64decode(html.partition("base64,")[2].rstrip('">')).startswith(PNG)
    assert figure.number not in plt.get_fignums()


def test_subplots_are_in_the_course_style_and_take_arguments() -> None:
    fig, axes = subplots(1, 2, figsize=(5, 2))
    assert not axes[0].spines["top"].get_visible()
    assert not axes[1].spines["right"].get_visible()
    assert fig.get_size_inches().tolist() == [5, 2]
    default, _ = subplots()
    assert default.get_size_inches().tolist() == [6.4, 3.2]
    plt.close(fig)
    plt.close(default)


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.1."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("pair", [("cached", "uncached"), ("right", "wrong"), ("keys", "values")])
def test_opposites_have_different_colours(pair: tuple[str, str]) -> None:
    first, second = (np.array(to_rgb(COLORS[name])) for name in pair)
    assert np.abs(first - second).max() > 0.5


def test_quiet_text_is_legible_on_white() -> None:
    assert 1.05 / (luminance(COLORS["quiet"]) + 0.05) >= 4.5


def test_importing_it_loads_no_matplotlib() -> None:
    code = "import sys, kvlab.style; print('matplotlib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
