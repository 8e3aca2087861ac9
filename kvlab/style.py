"""One plot style, and the one way a chart reaches a page: as a PNG that carries its alt text."""

from base64 import b64encode
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), by what they stand for throughout the course.
COLORS = {
    "cached": "#0072B2",
    "uncached": "#D55E00",
    "right": "#009E73",
    "wrong": "#D55E00",
    "new": "#E69F00",
    "keys": "#0072B2",
    "values": "#CC79A7",
    "weights": "#56B4E9",
    "quiet": "#767676",
}


def subplots(*args: Any, **kwargs: Any) -> tuple["Figure", Any]:
    """`plt.subplots` in the course's style."""
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).with_name("kvlab.mplstyle"))
    return plt.subplots(*args, **kwargs)


def show(figure: "Figure", alt: str) -> None:
    """Display a figure as a PNG with `alt` as its text, and close it.

    The alt text goes into the output's metadata, where the course's nbconvert template (tools/nbconvert) reads it, and
    is the plain-text form of the output.

    Raises:
        ValueError: no alt text; a reader who cannot see the picture would get nothing.
    """
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"show: alt must be a sentence that says what the picture shows, got {alt!r}")
    import matplotlib.pyplot as plt
    from IPython.display import display

    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    display(
        {"image/png": buffer.getvalue(), "text/plain": alt},
        metadata={"image/png": {"alt": alt}},
        raw=True,
    )


def figure_html(figure: "Figure", alt: str) -> str:
    """A figure as an `<img>` with its alt text, for use inside a larger piece of HTML; closes the figure."""
    import matplotlib.pyplot as plt

    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return f'<img alt="{escape(alt, quote=True)}" src="data:image/png;base64,{b64encode(buffer.getvalue()).decode()}">'
