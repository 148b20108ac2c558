"""A matplotlib figure as an SVG element that stands inside a page: named, described, with ids of its own."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's own font
    "svg.hashsalt": "memaudit",  # the same figure is the same bytes
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


def figure_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return the figure as an ``svg`` element.

    Args:
        figure: what was drawn.
        name: prefix of every id in it, unique on the page.
        title: its name for readers who do not see it.
        description: what it shows, in words.

    Returns:
        An element with ``role="img"``, an ``aria-label``, a title and a description; no script, no link.

    Example:
        >>> from matplotlib.figure import Figure
        >>> drawn = figure_svg(Figure(figsize=(1, 1)), "f", "Empty", "nothing")
        >>> drawn.startswith('<svg role="img"'), "http://purl" in drawn
        (True, False)
    """
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    # The size in points would fix the width; the view box alone lets the page scale it.
    text = re.sub(r'(<svg[^>]*?) (?:height|width)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) (?:height|width)="[^"]*"', r"\1", text, count=1)
    head = f'<svg role="img" aria-label={quoteattr(f"{title}. {description}")}'
    body = text[len("<svg") :]
    close = body.index(">") + 1
    inner = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    return head + body[:close] + inner + body[close:]
