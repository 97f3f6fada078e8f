"""The live view as a small page on loopback, for long runs: ``--cloudbench-live PORT``.

What may live here: the page and its server. Its figures are those of the report. Whoever knows the address, which has a
random token, can read; nobody can write. Nothing is loaded from elsewhere, and without JavaScript the page reloads.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
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
from pytest_cloudbench.report.live import ExperimentRow, Overview, Progress, duration, figures
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.support.clock import now_ns

_SLOW_S = 5.0
"""How long a request may take to arrive."""
_SHARE, _LEAST_S = 0.002, 2.0
"""The most of one core that drawing figures may take, which sets how often they are drawn anew; and the least time."""
_KEPT = 8
"""Experiments whose figures are kept as they were drawn."""
_REST = re.compile(r"(?:([1-9][0-9]{0,5})/)?(now|figures)?")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Figures of one experiment: which drawing it is, of which state, and its HTML."""

    number: int
    version: int
    text: str


class LivePage:
    """Serves the page until ``close``. Raises UsageError if the port cannot be used.

    Args:
        port: on the loopback interface; 0 for any that is free.
        read: the session's progress.
        digests: what the figures of its experiments need.

    Attributes:
        address: of the page, with its token.
    """

    def __init__(self, port: int, read: Callable[[], Overview], digests: LiveDigests) -> None:
        self._read, self._digests = read, digests
        self._lock, self._drawn, self._count, self._next_ns = threading.Lock(), dict[str, _Drawing](), 0, 0
        token = secrets.token_urlsafe(24)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--cloudbench-live {port}: {why}; choose another port, or 0 for any") from error
        number = self._server.server_address[1]
        self._server.hosts = frozenset({f"127.0.0.1:{number}", f"localhost:{number}"})
        self._server.answer = self._answer
        self._own = f"/{token}/".encode()
        self.address = f"http://127.0.0.1:{number}/{token}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="live-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, nonce: str) -> str | None:
        """Return what is at an address, None if nothing is; ``nonce`` is what the Content-Security-Policy allows."""
        if not hmac.compare_digest(path.encode("utf-8", "replace")[: len(self._own)], self._own):
            return None
        rest, overview = _REST.fullmatch(path[len(self._own) :]), self._read()
        if rest is None:
            return None
        number, what = int(rest[1] or 0), rest[2]
        if number > len(overview.experiments):
            return None
        shown = overview.experiments[number - 1].nodeid if number else self._current(overview)
        drawing = self._drawing(shown) if shown is not None else _Drawing(0, 0, "")
        if what == "figures":
            return drawing.text
        now, experiments = _now(overview, shown, drawing.number), self._all(overview, shown, "../" if number else "")
        return now + experiments if what == "now" else _page(now, drawing.text, experiments, nonce)

    def _current(self, overview: Overview) -> str | None:
        """Return the experiment that is running, or that ran last."""
        return overview.progress.nodeid if overview.progress is not None else self._digests.latest

    def _drawing(self, nodeid: str) -> _Drawing:
        """Return the figures of an experiment, drawn anew if there is news and drawing has not taken too much."""
        version = self._digests.version(nodeid)
        if version is None:
            return _Drawing(0, 0, "<p>Not measured yet.</p>")
        with self._lock:
            kept = self._drawn.get(nodeid)
            if kept is not None and (kept.version == version or now_ns() < self._next_ns):
                return kept
            begun_ns = time.thread_time_ns()
            text = "".join(html.figure(each, each.name, "h3") for each in drawings(nodeid, self._digests.of(nodeid)))
            self._count += 1
            self._drawn.pop(nodeid, None)
            made = self._drawn[nodeid] = _Drawing(
                self._count, version, f'<div class="figs">{text}</div>' if text else "<p>No operation has ended.</p>"
            )
            if len(self._drawn) > _KEPT:
                del self._drawn[next(iter(self._drawn))]
            took_ns = time.thread_time_ns() - begun_ns
            self._next_ns = now_ns() + max(round(_LEAST_S * 1e9), round(took_ns / _SHARE))
            return made

    def _all(self, overview: Overview, shown: str | None, up: str) -> str:
        rows = "".join(self._row(number, each, shown, up) for number, each in enumerate(overview.experiments, 1))
        return f'<section id="all"><h2>Experiments</h2><ol class="all">{rows}</ol></section>'

    def _row(self, number: int, experiment: ExperimentRow, shown: str | None, up: str) -> str:
        name = safe(experiment.nodeid)
        if self._digests.version(experiment.nodeid) is not None:
            current = ' aria-current="true"' if experiment.nodeid == shown else ""
            name = f'<a href="{up}{number}/"{current}>{name}</a>'
        took = "" if experiment.took_s is None else f" <span class=soft>{duration(experiment.took_s)}</span>"
        return f"<li><b>{safe(experiment.state)}</b> {name}{took}</li>"


def drawings(nodeid: str, digests: Mapping[str, Digest]) -> list[Figure]:
    """Return the report's figures of an experiment: response times of its runs, and its latest run over time."""
    name = nodeid.rpartition("::")[2] or nodeid
    distribution = times.distribution(name, digests)
    latest = list(digests.items())[-1:]
    lasting = [times.over_time(name, digest, line if len(digests) > 1 else "") for line, digest in latest]
    return [*([distribution] if distribution is not None else []), *lasting]


# --- the server ---


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    hosts: frozenset[str] = frozenset()
    answer: Callable[[str, str], str | None]


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
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:  # a name that another page has had resolved to here
            self._send(403, "Wrong Host header: open the address that the run has printed.\n", "text/plain", has_body)
            return
        nonce = secrets.token_urlsafe(16)
        found = self.server.answer(self.path, nonce)
        if found is None:
            self._send(404, "Not here: open the address that the run has printed.\n", "text/plain", has_body)
            return
        self._send(200, found, "text/html", has_body, nonce)

    def _send(self, status: int, text: str, kind: str, has_body: bool, nonce: str = "") -> None:
        data = text.encode()
        self.send_response(status)
        own = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        policy = (
            f"default-src 'none'; {own if nonce else ''}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
            with contextlib.suppress(OSError):  # the reader has gone
                self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to pytest."""


# --- the page ---


def _page(now: str, figures: str, experiments: str, nonce: str) -> str:
    """The whole page; ``nonce`` is what the Content-Security-Policy allows."""
    style = read_page_part("report.css") + read_page_part("live.css")
    script = read_page_part("report.js") + read_page_part("live.js")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>cloudbench: live</title><link rel="icon" href="data:,">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f'<style nonce="{nonce}">{style}</style></head><body>{html.patterns()}'
        '<header><h1>cloudbench</h1><p id="state" role="status">live</p>'
        '<button id="pause" type="button" aria-pressed="false" hidden>Pause updates</button></header>'
        f'<main>{now}<section id="figures">{figures}</section>{experiments}</main>'
        f'<script nonce="{nonce}">{script}</script></body></html>\n'
    )


def _now(overview: Overview, shown: str | None, drawn: int) -> str:
    """What changes often: the summary, and the running experiment if it is shown."""
    progress = overview.progress
    parts = [f"<p>{safe(overview.count())}; {duration(overview.elapsed_s)}</p>"]
    if progress is not None and progress.nodeid == shown:
        parts.append(_running(progress))
    else:
        parts.append("<p>No run is in progress.</p>" if progress is None else "")
        parts.append(f"<h2>{safe(shown)}</h2>" if shown is not None else "")
    return f'<div id="now" data-drawn="{drawn}">{"".join(parts)}</div>'


def _running(progress: Progress) -> str:
    groups = "".join(f"<li>{safe(group)}</li>" for group in figures(progress))
    run = f", run {progress.run}" if progress.run > 1 else ""
    return (
        f"<h2>{safe(progress.nodeid)}{run}</h2>"
        f'<progress max="{max(1, progress.planned)}" value="{min(progress.done, max(1, progress.planned))}" '
        f'aria-label="operations done">{progress.done}</progress><ul class="now">{groups}</ul>'
    )
