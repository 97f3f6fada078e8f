"""The live view as a small page on loopback, for long runs: ``--cloudbench-live PORT``.

What may live here: the page, the figures of its last minutes, and its server. Whoever knows the address, which has a
random token, can read; nobody can write. Nothing is loaded from elsewhere, and without JavaScript the page reloads.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pytest_cloudbench.clock import now_ns
from pytest_cloudbench.live import WINDOW_S, ExperimentRow, Overview, Progress, duration, figures
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report.scales import Linear
from pytest_cloudbench.report.svg import Canvas, Plane

__all__ = ["LivePage", "LivePoint", "body", "chart", "page"]

_EVERY_S = 1.0
_KEPT, _DRAWN = 600, 150
"""Points that are kept, ten minutes, and the most that a figure draws: one for every two units of its width."""
_SLOW_S = 5.0
"""How long a request may take to arrive."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 340, 112, 44, 10, 20


@dataclass(frozen=True, slots=True)
class LivePoint:
    """The figures of one moment, None if not known; ``refused_per_s`` are throttled and failed operations."""

    at_s: float
    rate_per_s: float | None
    p50_s: float | None
    p99_s: float | None
    throttled_per_s: float | None
    failed_per_s: float | None


class LivePage:
    """Serves the page until ``close``. Raises UsageError if the port cannot be used.

    Args:
        port: on the loopback interface; 0 for any that is free.
        read: the session's progress.
        points: figures of the time before, if there are any.

    Attributes:
        address: of the page, with its token.
    """

    def __init__(self, port: int, read: Callable[[], Overview], points: Iterable[LivePoint] = ()) -> None:
        self._read, self._points, self._lock = read, deque[LivePoint](points, maxlen=_KEPT), threading.Lock()
        self._latest = read()
        self._former: tuple[int, str, int, int, int] | None = None
        token = secrets.token_urlsafe(24)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--cloudbench-live {port}: {why}; choose another port, or 0 for any") from error
        number = self._server.server_address[1]
        self._server.hosts = frozenset({f"127.0.0.1:{number}", f"localhost:{number}"})
        self._server.answers = {f"/{token}/": self._page, f"/{token}/now": self._body}
        self.address = f"http://127.0.0.1:{number}/{token}/"
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="live-page", daemon=True),
            threading.Thread(target=self._look, name="live-points", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the server."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            overview = self._read()
            with self._lock:
                self._latest = overview
                self._points.append(self._point(overview))

    def _point(self, overview: Overview) -> LivePoint:
        progress, now = overview.progress, now_ns()
        if progress is None:
            self._former = None
            return LivePoint(overview.elapsed_s, None, None, None, None, None)
        former, self._former = self._former, (now, progress.nodeid, progress.run, progress.throttled, progress.failed)
        throttled = failed = None
        if former is not None and former[1:3] == self._former[1:3] and now > former[0]:
            took_s = (now - former[0]) / 1e9
            throttled, failed = (progress.throttled - former[3]) / took_s, (progress.failed - former[4]) / took_s
        return LivePoint(
            overview.elapsed_s, progress.rate_per_s, progress.p50_s, progress.p99_s, throttled, failed
        )  # fmt: skip

    def _body(self, nonce: str) -> str:
        with self._lock:
            overview, points = self._latest, list(self._points)
        return body(overview, points)

    def _page(self, nonce: str) -> str:
        return page(self._body(nonce), nonce)


# --- the server ---


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    hosts: frozenset[str] = frozenset()
    answers: dict[str, Callable[[str], str]]


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the two known addresses, and nothing else."""

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
        given = self.path.encode("utf-8", "replace")
        found = None
        for path, answer in self.server.answers.items():  # all are compared, in a time that tells nothing
            found = answer if hmac.compare_digest(given, path.encode()) else found
        if found is None:
            self._send(404, "Not here: open the address that the run has printed.\n", "text/plain", has_body)
            return
        nonce = secrets.token_urlsafe(16)
        self._send(200, found(nonce), "text/html", has_body, nonce)

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


def page(content: str, nonce: str) -> str:
    """The whole page; ``nonce`` is what the Content-Security-Policy allows."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>cloudbench: live</title><link rel="icon" href="data:,">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f'<style nonce="{nonce}">{_STYLE}</style></head><body>'
        '<header><h1>cloudbench</h1><p id="state" role="status">live</p>'
        '<button id="pause" type="button" aria-pressed="false">Pause updates</button></header>'
        f'<main>{content}</main><script nonce="{nonce}">{_SCRIPT}</script></body></html>\n'
    )


def body(overview: Overview, points: Sequence[LivePoint]) -> str:
    """What changes: the summary, the running experiment, the figures and all experiments."""
    parts = [f"<p>{escape(overview.count())}; {duration(overview.elapsed_s)}</p>"]
    parts.append(_running(overview.progress) if overview.progress is not None else "<p>No run is in progress.</p>")
    parts.append(_figures(points))
    rows = "".join(map(_row, overview.experiments))
    parts.append(f'<section><h2>Experiments</h2><ol class="all">{rows}</ol></section>')
    return "".join(parts)


def _running(progress: Progress) -> str:
    groups = "".join(f"<li>{escape(group)}</li>" for group in figures(progress))
    run = f", run {progress.run}" if progress.run > 1 else ""
    return (
        f"<section><h2>{escape(_clean(progress.nodeid))}{run}</h2>"
        f'<progress max="{max(1, progress.planned)}" value="{min(progress.done, max(1, progress.planned))}" '
        f'aria-label="operations done">{progress.done}</progress><ul class="now">{groups}</ul></section>'
    )


def _row(experiment: ExperimentRow) -> str:
    took = "" if experiment.took_s is None else f" <span>{duration(experiment.took_s)}</span>"
    state = escape(experiment.state)
    return f'<li><b class="{state}">{state}</b> {escape(_clean(experiment.nodeid))}{took}</li>'


def _clean(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


_CHARTS: Sequence[tuple[str, Mapping[str, str], float, str]] = (
    ("Finished operations per second", {"rate": "rate_per_s"}, 1.0, "/s"),
    (f"Response time, last {WINDOW_S:.0f} s", {"p50": "p50_s", "p99": "p99_s"}, 1e3, " ms"),
    ("Refused operations per second", {"throttled": "throttled_per_s", "failed": "failed_per_s"}, 1.0, "/s"),
)
"""Title, fields of ``LivePoint`` by name, factor and unit."""

_COLUMNS = ("at s", "/s", "p50 ms", "p99 ms", "throttled/s", "failed/s")


def _figures(points: Sequence[LivePoint]) -> str:
    rows = "".join(map(_numbers, points[::-30]))
    points = points[:: -(-(-len(points) // _DRAWN) or 1)][::-1]  # the last one is always among them
    charts = "".join(
        chart(title, {name: [getattr(at, field) for at in points] for name, field in fields.items()}, points, by, unit)
        for title, fields, by, unit in _CHARTS
    )
    heads = "".join(
        f"<th scope=col>{name}</th>" for name in ("at s", "/s", "p50 ms", "p99 ms", "throttled/s", "failed/s")
    )
    table = (
        '<details id="numbers"><summary id="numbers-summary">Numbers, every 30 s</summary>'
        f'<div class="wide" tabindex="0" id="numbers-table"><table><tr>{heads}</tr>{rows}</table></div></details>'
    )
    return f'<section><h2>Last ten minutes</h2><div class="charts">{charts}</div>{table}</section>'


def _numbers(point: LivePoint) -> str:
    values = (
        point.at_s, point.rate_per_s, point.p50_s and point.p50_s * 1e3, point.p99_s and point.p99_s * 1e3,
        point.throttled_per_s, point.failed_per_s,
    )  # fmt: skip
    return f"<tr>{''.join(f'<td>{_number(value)}</td>' for value in values)}</tr>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{0 if value >= 10 else 1}f}"


def chart(
    title: str, series: dict[str, list[float | None]], points: Sequence[LivePoint], scale: float, unit: str
) -> str:  # fmt: skip
    """A figure of lines over time, with its last values in words; gaps are where nothing is known.

    Args:
        title: what it shows.
        series: values by name; the second line is dashed, so that colour is not all that tells them apart.
        points: when each was.
        scale: from values to what is shown.
        unit: of what is shown.
    """
    lines = {name: [None if value is None else value * scale for value in values] for name, values in series.items()}
    top = max((value for values in lines.values() for value in values if value is not None), default=0.0) or 1.0
    last = [values[-1] if values else None for values in lines.values()]
    told = ", ".join(
        f"{name} {'-' if now is None else _number(now) + unit}" + " (dashed)" * bool(number)
        for number, (name, now) in enumerate(zip(lines, last, strict=True))
    )
    canvas = Canvas(_WIDTH, _HEIGHT, title, f"now {told}, at most {_number(top)}{unit}")
    begin, end = (points[0].at_s, points[-1].at_s) if points else (0.0, 1.0)
    x, y = Linear(begin, end, duration, fixed=True), Linear(0, top, _number)
    plane = Plane(canvas, x, y, _LEFT, _TOP, _WIDTH - 4, _HEIGHT - _BOTTOM)
    plane.axes()
    for number, values in enumerate(lines.values()):
        plane.line([None if value is None else (point.at_s, value)
                    for point, value in zip(points, values, strict=True)], f"s{number}")  # fmt: skip
    return f"<figure><figcaption>{escape(title)}: {escape(told)}</figcaption>{canvas.svg()}</figure>"


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d0d7de;--one:#0550ae;--two:#953800}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b3;--paper:#0d1117;--line:#3d444d;--one:#79c0ff;
--two:#ffa657}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:.75rem;background:var(--paper);color:var(--ink);
font:1rem/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
header{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;border-bottom:1px solid var(--line)}
h1{font-size:1.2rem;margin:.3rem 0}h2{font-size:1rem;margin:1.2rem 0 .4rem}
#state{margin:0;color:var(--soft);flex:1}
button{font:inherit;color:inherit;background:none;border:1px solid var(--soft);border-radius:.3rem;padding:.25rem .6rem;
min-height:2rem}
:focus-visible{outline:3px solid var(--one);outline-offset:2px}
progress{width:100%;height:1rem;accent-color:var(--one)}
.now{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.2rem 1rem;padding:0;list-style:none;
font-variant-numeric:tabular-nums}
.charts{display:grid;align-items:end;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));gap:1rem}
figure{margin:0}figcaption{color:var(--soft);font-size:.9rem;min-height:3em;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}text{fill:var(--soft);font-size:11px}
path{fill:none}.grid,.base{stroke:var(--line)}.line{stroke-width:1.6}.s0{stroke:var(--one)}
.s1{stroke:var(--two);stroke-dasharray:5 3}
.all{padding:0;list-style:none}.all li{padding:.25rem 0;border-bottom:1px solid var(--line)}
.all b{display:inline-block;min-width:5.5rem}.all span{color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.15rem .6rem .15rem 0;white-space:nowrap}summary{cursor:pointer;padding:.4rem 0}
"""

_SCRIPT = """
const main=document.querySelector('main'),state=document.getElementById('state');
const button=document.getElementById('pause');
let paused=false,misses=0;
button.onclick=()=>{paused=!paused;button.setAttribute('aria-pressed',paused);
button.textContent=paused?'Resume updates':'Pause updates';state.textContent=paused?'paused':'live'};
async function look(){
 if(!paused&&!document.hidden){
  try{
   const answer=await fetch('now',{cache:'no-store'});
   if(!answer.ok)throw new Error(answer.status);
   const text=await answer.text(),open=[...main.querySelectorAll('details[open]')].map(each=>each.id);
   const focus=main.contains(document.activeElement)?document.activeElement.id:'';
   main.innerHTML=text;
   for(const id of open){const each=document.getElementById(id);if(each)each.open=true}
   if(focus){const each=document.getElementById(focus);if(each)each.focus()}
   misses=0;if(!paused&&state.textContent!=='live')state.textContent='live';
  }catch(error){if(++misses>1)state.textContent='no answer: the run has ended, or was stopped; below is its last state'}
 }
 setTimeout(look,2000);
}
setTimeout(look,2000);
"""
