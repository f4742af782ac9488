"""An HTML page with everything in it: its look, and tables and figures as parts of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["html_table", "raster_image", "vector_image", "write_page"]


def write_page(file: Path, body: str, *, title: str) -> None:
    """Write a page that needs no network and no other file; its folder is made if need be.

    Parameters
    ----------
    file : Path
        The page.
    body : str
        HTML.
    title : str
        Plain text.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    text = _PAGE.format(title=escape(title), style=_STYLE, body=body)
    file.write_text(text, encoding="utf-8")


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls by itself where the screen is narrow; cells are plain text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def vector_image(figure: Figure, description: str) -> str:
    """Return the figure as an SVG within the page."""
    buffer = io.StringIO()
    # Text stays text: the file is a third of the size. A fixed salt: one run, one page.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "muster"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _image("svg+xml", buffer.getvalue().encode(), description)


def raster_image(figure: Figure, description: str) -> str:
    """Return the figure as a PNG within the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return _image("png", buffer.getvalue(), description)


def _image(kind: str, data: bytes, description: str) -> str:
    # As an image of its own an SVG's ids cannot clash with another's.
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{escape(description)}" src="data:image/{kind};base64,{encoded}">'


_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: #fff; color: #1a1a1a;
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
.note { color: #555; font-size: 0.875rem; margin: 0.25rem 0 0.75rem; }
.wide { overflow-x: auto; }
.wide img { min-width: 36rem; max-width: 60rem; width: 100%; }
.charts { display: grid; gap: 1rem;
          grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts img { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.75rem 0.35rem 0; text-align: left; white-space: nowrap;
         border-bottom: 1px solid #ddd; }
.wide :is(th, td):first-child { position: sticky; left: 0; background: #fff; }
.claims { list-style: none; padding: 0; }
.claims li { margin: 0.5rem 0; }
.claims small { color: #555; }
.holds { color: #00664b; }
.fails { color: #a33c00; }
.open { color: #555; }
summary { cursor: pointer; padding: 0.35rem 0; }
ul { font-size: 0.875rem; padding-left: 1.25rem; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
