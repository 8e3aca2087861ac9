"""What a page of HTML asks of its reader: a network, or eyes."""

import re
from html.parser import HTMLParser

LOADS = re.compile(
    r"""<(?:img|script|link|iframe|source|image|video|audio|object|embed)\b[^>]*?\b(?:src|href|data|xlink:href)\s*=\s*
        ["']?((?:https?:)?//[^"'\s>]+)
      | url\(\s*["']?((?:https?:)?//[^"')\s]+)
      | \bimport\s[^;]*?["']((?:https?:)?//[^"']+)["']
      | @import\s+["']((?:https?:)?//[^"']+)["']""",
    re.VERBOSE | re.IGNORECASE,
)


def loaded_from_network(page: str) -> list[str]:
    """Addresses that a browser fetches by itself when it shows this HTML."""
    return [next(group for group in match.groups() if group) for match in LOADS.finditer(page)]


class Pictures(HTMLParser):
    """Collects the pictures of a piece of HTML or SVG that say nothing to a reader who cannot see them."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "img":
            words = said.get("alt")
        elif tag == "svg":
            words = said.get("aria-label") if said.get("role") == "img" else None
        else:
            return
        if not (words or "").strip() and said.get("aria-hidden") != "true":
            self.silent.append((self.get_starttag_text() or tag)[:80])


def silent_pictures(markup: str) -> list[str]:
    parser = Pictures()
    parser.feed(markup)
    return parser.silent
