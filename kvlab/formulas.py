"""Formulas of an exported page as MathML, which a browser draws by itself: no script, no network.

`tools/nbconvert/kvlab/conf.json` names the preprocessor; JupyterLab and Git hosts draw the TeX of the notebooks
themselves. Without it a page asks a network for MathJax, and shows the TeX where there is none.
"""

import re
from html import escape
from typing import Any

from nbconvert.preprocessors import Preprocessor

# Code is matched first and left alone. A formula in a line neither begins nor ends with a space: "$5 and $6" is money.
CODE_OR_FORMULA = re.compile(
    r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|(?<!\\)\$(?! )(?P<line>[^$\n]+?)(?<! )\$(?!\d)", re.DOTALL
)
MARKDOWN = {ord(sign): f"&#{ord(sign)};" for sign in "*_`[]\\~"}  # plain characters to Markdown, inside a formula


def to_mathml(markdown: str) -> str:
    """Replace each $...$ and $$...$$ outside code by MathML that carries its TeX as alternative text.

    >>> to_mathml("`$x$` and $5 and $6 stay, $y$ does not")[26:44]
    '<math alttext="y" '
    """
    return CODE_OR_FORMULA.sub(_replace, markdown)


def _replace(match: re.Match[str]) -> str:
    if match["code"]:
        return match[0]
    from latex2mathml.converter import convert

    tex = (match["block"] or match["line"]).strip()
    mathml = convert(tex, display="block" if match["block"] else "inline").replace(r"\_", "_")  # in \text{}
    said = escape(" ".join(tex.split()), quote=True)
    return mathml.replace("<math ", f'<math alttext="{said}" ', 1).translate(MARKDOWN)


class Formulas(Preprocessor):
    """Turns the formulas of every Markdown cell into MathML."""

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        if cell.cell_type == "markdown":
            cell.source = to_mathml(cell.source)
        return cell, resources
