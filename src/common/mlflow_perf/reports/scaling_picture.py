"""The picture of a component's run time over its number of nodes, as an SVG element."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import escape

from mlflow_perf.analysis.scaling_runs import ScalingStudy
from mlflow_perf.core.format import duration, format_count
from mlflow_perf.reports.html import load_templates
from mlflow_perf.reports.pictures import build_pictures

_WIDTH, _HEIGHT = 560.0, 220.0
_STEPS = 60
_NAMED = 12


def draw_scaling(study: ScalingStudy) -> str:
    """Return the measured times as dots, the fit as a line, and its 90% interval as a band."""
    low = float(min(study.counts[0], study.points[0].nodes))
    high = float(max(study.counts[-1], study.points[-1].nodes))
    places = [low + (high - low) * i / _STEPS for i in range(_STEPS + 1)]
    bands = [study.scaling.interval(place) for place in places]
    top = 1.1 * max(*(high for _, high in bands), *(p.seconds for p in study.points))

    def at(nodes: float, seconds: float) -> str:
        x = (nodes - low) / (high - low) * _WIDTH
        return f"{x:.1f},{(1 - seconds / top) * _HEIGHT:.1f}"

    band = [at(n, b[1]) for n, b in zip(places, bands, strict=True)]
    band += [at(n, b[0]) for n, b in zip(reversed(places), reversed(bands), strict=True)]
    line = " ".join(at(n, study.scaling.predict(n)) for n in places)
    dots = "".join(
        '<circle cx="{}" cy="{}" r="4" fill="#d0670a"/>'.format(*at(p.nodes, p.seconds).split(","))
        for p in study.points
    )
    said = (
        f"shortest on {study.fastest}, fewest node-hours on {study.cheapest} of "
        f"{', '.join(map(str, study.counts))} nodes"
    )
    measured = ", ".join(f"{duration(p.seconds)} on {p.nodes}" for p in study.points[:_NAMED])
    label = f"Run time of {study.component} over its nodes: {measured}; {said}."
    return (
        f'<svg role="img" aria-label="{escape(label)}" '
        'xmlns="http://www.w3.org/2000/svg" viewBox="-70 -12 650 282" '
        'width="650" height="282" font-family="sans-serif" font-size="12" fill="#333">'
        '<rect x="-70" y="-12" width="650" height="282" fill="#fff"/>'
        f'<polygon points="{" ".join(band)}" fill="#2a6fdb" fill-opacity=".15"/>'
        f'<polyline points="{line}" fill="none" stroke="#2a6fdb" stroke-width="2"/>{dots}'
        f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#999"/>'
        f'<text x="-6" y="10" text-anchor="end">{escape(duration(top))}</text>'
        f'<text x="-6" y="{_HEIGHT}" text-anchor="end">0</text>'
        f'<text x="0" y="{_HEIGHT + 18}">{format_count(low, "node")}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">'
        f"{format_count(high, 'node')}</text>"
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 40}" text-anchor="middle">'
        f"{escape(said)}</text></svg>"
    )


def render_scaling(studies: Sequence[ScalingStudy]) -> str:
    """Return the pictures of some components' scaling as one HTML page."""
    named = {f"Scaling of {study.component}": draw_scaling(study) for study in studies}
    pictures, _ = build_pictures(named)
    page = load_templates().get_template("pictures.html")
    return page.render(title="Scaling", pictures=pictures).encode("utf-8", "replace").decode()
