"""Ready-made pictures in a report, such as those of a workflow's spans.

The page embeds a picture as an image with a `data:` address: so no script in it runs, its names and
styles do not mix with the page's, and it cannot contact any host.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape

_MOST_BYTES = 300_000  # of one picture; two of them leave a workflow's page below a megabyte
_LABEL = re.compile(r'aria-label="([^"]*)"')
_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        title: Heading.
        address: The picture itself, as a `data:` address.
        alt: What it shows, for those who do not see it.
    """

    title: str
    address: str
    alt: str


def build_pictures(pictures: Mapping[str, str]) -> tuple[list[Picture], list[str]]:
    """Return the pictures for the page, and a sentence for each picture that is too large.

    Args:
        pictures: SVG elements by their headings; an `aria-label` of one says what it shows.
    """
    shown, left_out = [], []
    for title, svg in pictures.items():
        # As a file of its own, an SVG element must name its namespace.
        named = _NAMESPACE in svg.partition(">")[0]
        data = (svg if named else svg.replace("<svg", f"<svg {_NAMESPACE}", 1)).encode()
        if len(data) > _MOST_BYTES:
            left_out.append(f"The picture “{title}” is left out: it has {len(data):,} bytes.")
            continue
        said = _LABEL.search(svg.partition(">")[0])
        alt = f"{title}: a chart; the command mlflow-perf spans gives its figures"
        alt = alt if said is None else unescape(said[1])
        encoded = base64.b64encode(data).decode("ascii")
        shown.append(Picture(title, f"data:image/svg+xml;base64,{encoded}", alt))
    return shown, left_out
