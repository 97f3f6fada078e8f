"""A small page with the progress of a long run, served on loopback: ``--cloudbench-live PORT``.

Its figures are those of the report. Anybody who knows the address, which contains a random token, can read the page.
Nobody can change anything. The page loads nothing from elsewhere. Without JavaScript, it reloads itself.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pytest_cloudbench.data import read_page_part
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report import html
from pytest_cloudbench.report.digest import Digest
from pytest_cloudbench.report.figures import Figure, times
from pytest_cloudbench.report.html import safe
from pytest_cloudbench.report.live import ExperimentRow, Overview, Progress, format_duration, format_figures
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.support import opening
from pytest_cloudbench.support.clock import now_ns

_SLOW_S = 5.0
"""The maximum time until a request has arrived."""
_MOST_CORE_SHARE, _SHORTEST_REDRAW_S = 0.002, 2.0
"""The maximum share of one core for drawing figures, which limits how often they are redrawn, and the minimum time
between two drawings."""
_MOST_CACHED = 8
"""The number of experiments whose figures are cached."""
_PATH_PARTS = re.compile(r"(?:([1-9][0-9]{0,5})/)?(now|figures)?")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Figures of one experiment: the number of the drawing, the version of the experiment, and the HTML."""

    number: int
    version: int
    text: str


def list_host_headers(port: int) -> frozenset[str]:
    """Return the Host headers of the page's address. Browsers leave the usual port out."""
    names = ("127.0.0.1", "localhost")
    return frozenset({*(f"{name}:{port}" for name in names), *(names if port == 80 else ())})


class LivePage:
    """Serves the page until ``close``. Raises UsageError if the port cannot be used.

    Args:
        port: on the loopback interface; 0 for any that is free.
        read: the session's progress.
        digests: the digests of its experiments, for figures.

    Attributes:
        address: of the page, with its token.
    """

    def __init__(self, port: int, read: Callable[[], Overview], digests: LiveDigests) -> None:
        self._read, self._digests = read, digests
        self._lock = threading.Lock()
        self._cached_drawings: dict[str, _Drawing] = {}
        self._drawing_count = self._next_redraw_ns = 0
        token = secrets.token_urlsafe(24)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = opening.explain_error(error)
            raise UsageError(f"--cloudbench-live {port}: {why}; choose another port, or 0 for any") from error
        bound_port = self._server.server_address[1]
        self._server.hosts = list_host_headers(bound_port)
        self._server.answer = self._answer
        self._path_prefix = f"/{token}/".encode()
        self.address = f"http://127.0.0.1:{bound_port}/{token}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="live-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, nonce: str) -> str | None:
        """Return the page or the part at a path, or None if there is none. The page's policy allows ``nonce``."""
        if not hmac.compare_digest(path.encode("utf-8", "replace")[: len(self._path_prefix)], self._path_prefix):
            return None
        match, overview = _PATH_PARTS.fullmatch(path[len(self._path_prefix) :]), self._read()
        if match is None:
            return None
        number, part = int(match[1] or 0), match[2]
        if number > len(overview.experiments):
            return None
        shown = overview.experiments[number - 1].nodeid if number else self._shown_experiment(overview)
        drawing = self._current_drawing(shown) if shown is not None else _Drawing(0, 0, "")
        if part == "figures":
            return drawing.text
        now = _render_now(overview, shown, drawing.number)
        experiments = self._experiment_list(overview, shown, "../" if number else "")
        return now + experiments if part == "now" else _render_page(now, drawing.text, experiments, nonce)

    def _shown_experiment(self, overview: Overview) -> str | None:
        """Return the experiment that is running, or that ran last."""
        return overview.progress.nodeid if overview.progress is not None else self._digests.latest

    def _current_drawing(self, nodeid: str) -> _Drawing:
        """Return the figures of an experiment. They are redrawn if there are new reports and enough time has passed."""
        version = self._digests.version(nodeid)
        if version is None:
            return _Drawing(0, 0, "<p>Not measured yet.</p>")
        with self._lock:
            cached = self._cached_drawings.get(nodeid)
            if cached is not None and (cached.version == version or now_ns() < self._next_redraw_ns):
                return cached
            begin_ns = time.thread_time_ns()
            text = "".join(
                html.figure(figure, figure.name, "h3")
                for figure in draw_experiment(nodeid, self._digests.digests_of(nodeid))
            )
            self._drawing_count += 1
            self._cached_drawings.pop(nodeid, None)
            markup = f'<div class="figs">{text}</div>' if text else "<p>No operation has ended.</p>"
            drawing = self._cached_drawings[nodeid] = _Drawing(self._drawing_count, version, markup)
            if len(self._cached_drawings) > _MOST_CACHED:
                del self._cached_drawings[next(iter(self._cached_drawings))]
            took_ns = time.thread_time_ns() - begin_ns
            self._next_redraw_ns = now_ns() + max(round(_SHORTEST_REDRAW_S * 1e9), round(took_ns / _MOST_CORE_SHARE))
            return drawing

    def _experiment_list(self, overview: Overview, shown: str | None, up: str) -> str:
        rows = "".join(
            self._experiment_item(number, experiment, shown, up)
            for number, experiment in enumerate(overview.experiments, 1)
        )
        return f'<section id="all"><h2>Experiments</h2><ol class="all">{rows}</ol></section>'

    def _experiment_item(self, number: int, experiment: ExperimentRow, shown: str | None, up: str) -> str:
        name = safe(experiment.nodeid)
        if self._digests.version(experiment.nodeid) is not None:
            current = ' aria-current="true"' if experiment.nodeid == shown else ""
            name = f'<a href="{up}{number}/"{current}>{name}</a>'
        took = "" if experiment.took_s is None else f" <span class=soft>{format_duration(experiment.took_s)}</span>"
        return f"<li><b>{safe(experiment.state)}</b> {name}{took}</li>"


def draw_experiment(nodeid: str, digests: Mapping[str, Digest]) -> list[Figure]:
    """Return the report's figures of an experiment: response times of its runs, and its latest run over time."""
    name = split_name(nodeid).title
    distribution = times.distribution(name, digests)
    latest = list(digests.items())[-1:]
    course_figures = [times.over_time(name, digest, line if len(digests) > 1 else "") for line, digest in latest]
    return [*([distribution] if distribution is not None else []), *course_figures]


# --- the server ---


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    hosts: frozenset[str] = frozenset()
    answer: Callable[[str, str], str | None]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the browser has gone."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the known addresses, and nothing else."""

    server: _Server
    timeout = _SLOW_S
    server_version, sys_version = "pytest-cloudbench", ""

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:  # another page may resolve its own name to loopback
            self._send(403, "Wrong Host header: open the address that the run has printed.\n", "text/plain", has_body)
            return
        nonce = secrets.token_urlsafe(16)
        text = self.server.answer(self.path, nonce)
        if text is None:
            self._send(404, "Not here: open the address that the run has printed.\n", "text/plain", has_body)
            return
        self._send(200, text, "text/html", has_body, nonce)

    def _send(self, status: int, text: str, kind: str, has_body: bool, nonce: str = "") -> None:
        """Send a whole answer, which a browser may neither store nor embed elsewhere."""
        data = text.encode()
        self.send_response(status)
        sources = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        policy = (
            f"default-src 'none'; {sources if nonce else ''}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(data)),
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, since the terminal belongs to pytest."""


# --- the page ---


def _render_page(now: str, figures: str, experiments: str, nonce: str) -> str:
    """Return the whole page. Its Content-Security-Policy allows ``nonce``."""
    style = read_page_part("report.css") + read_page_part("live.css")
    script = read_page_part("report.js") + read_page_part("live.js")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>cloudbench: live</title><link rel="icon" href="data:,">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f'<style nonce="{nonce}">{style}</style></head><body>{html.pattern_definitions()}'
        '<header><h1>cloudbench</h1><p id="state" role="status">live</p>'
        '<button id="pause" type="button" aria-pressed="false" hidden>Pause updates</button></header>'
        f'<main>{now}<section id="figures">{figures}</section>{experiments}</main>'
        f'<script nonce="{nonce}">{script}</script></body></html>\n'
    )


def _render_now(overview: Overview, shown: str | None, drawn: int) -> str:
    """Return the part that changes often: the summary, and the progress of the running experiment if it is shown."""
    progress = overview.progress
    parts = [f"<p>{safe(overview.describe_counts())}; {format_duration(overview.elapsed_s)}</p>"]
    if progress is not None and progress.nodeid == shown:
        parts.append(_render_progress(progress))
    else:
        parts.append("<p>No run is in progress.</p>" if progress is None else "")
        parts.append(f"<h2>{safe(shown)}</h2>" if shown is not None else "")
    return f'<div id="now" data-drawn="{drawn}">{"".join(parts)}</div>'


def _render_progress(progress: Progress) -> str:
    groups = "".join(f"<li>{safe(group)}</li>" for group in format_figures(progress))
    run = f", run {progress.run}" if progress.run > 1 else ""
    return (
        f"<h2>{safe(progress.nodeid)}{run}</h2>"
        f'<progress max="{max(1, progress.planned)}" value="{min(progress.done, max(1, progress.planned))}" '
        f'aria-label="operations done">{progress.done}</progress><ul class="now">{groups}</ul>'
    )
