"""The figure of each host's results: median and 99th percentile of response times, and the share of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.hosts import read_figures, way_notes
from pytest_cloudbench.report.quantities import format_seconds, format_short_share
from pytest_cloudbench.report.scales import Categories, Log
from pytest_cloudbench.report.svg import Canvas, Plane, shorten_text

_ROW_HEIGHT = 24.0
_PERCENTILES = {"response_p50": "median", "response_p99": "99 %"}
_UNSUCCESSFUL = ("throttled", "failed", "corrupt", "lost")
_HEAD = ("host", "ops", *_UNSUCCESSFUL, "p50, s", "p99, s")


def from_hosts(measurement: Measurement, line: str = "") -> Figure | None:
    """Return the figure of an experiment, or None unless several hosts measured it.

    ``line`` is the name that distinguishes the figures of one experiment.
    """
    hosts = read_figures(measurement.info)
    if not hosts:
        return None
    known_s = [value for figures in hosts.values() for key in _PERCENTILES if (value := figures.get(key))]
    failures = {name: _failed_share(figures) for name, figures in hosts.items()}

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"From each host: {measurement.subject}")
        entries = [(f"d{number}", title) for number, title in enumerate(_PERCENTILES.values())]
        top = canvas.draw_legend(6, 14, entries, width - 4) + 26
        left, right = min(130.0, width * 0.36), width - 66.0
        canvas.draw_text(width - 4, top - 6, "not ok", "axis", "end")
        x = Log(min(known_s, default=0.001) * 0.8, max(known_s, default=1.0) * 1.25, format_seconds)
        plane = Plane(canvas, x, Categories([*reversed(hosts)]), left, top, right, top + _ROW_HEIGHT * len(hosts))
        plane.draw_axes("response time")
        for row, (name, figures) in zip(reversed(range(len(hosts))), hosts.items(), strict=True):
            _draw_host(plane, row, name, figures)
            canvas.draw_text(width - 4, plane.canvas_y(row) + 4, _format_share(failures[name]), "value", "end")
        canvas.height = plane.bottom + 42
        return canvas

    description = (
        "Each host's operations that succeeded, by response time, and the share of all that did not. Hosts have "
        "different sensors, which do the same kind of work."
    )
    rows = [
        [name, *(figures.get(key) for key in ("ops", *_UNSUCCESSFUL, *_PERCENTILES))] for name, figures in hosts.items()
    ]
    title = f"From each host, {line}" if line else "From each host"
    return Figure("from-each-host", title, description, draw, _HEAD, rows, way_notes(measurement.info))


def _draw_host(plane: Plane, row: int, name: str, figures: Mapping[str, Any]) -> None:
    for series, (key, title) in enumerate(_PERCENTILES.items()):
        if value := figures.get(key):
            plane.draw_dot(value, row, series, f"{name}: {title} {format_seconds(value)}")


def _failed_share(figures: Mapping[str, Any]) -> float | None:
    """Return the share of a host's operations that did not succeed, or None if their number is unknown."""
    ops, counts = figures.get("ops"), [figures.get(key) for key in _UNSUCCESSFUL]
    known: Sequence[float] = [count for count in counts if count is not None]
    return sum(known) / ops if ops and len(known) == len(counts) else None


def _format_share(share: float | None) -> str:
    return "-" if share is None else shorten_text(format_short_share(share), 60)
