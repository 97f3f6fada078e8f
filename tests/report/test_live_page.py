"""The page of the live view: what it answers and to whom, over real HTTP, and what it shows."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_cloudbench.clock import wait_for
from pytest_cloudbench.live import ExperimentRow, Meter, Overview, Progress
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report.live_page import LivePage, LivePoint, body, chart, page
from tests.fleet.harness import FOLDER, lab_in
from tests.limits import HANG_S
from tests.runs import SPREAD, Spread

HOSTILE = 'a.py::test_<script>alert(1)</script>["&\x1b]'
PROGRESS = Progress(HOSTILE, 40, 2, 1, 100, 2, 14.2, 87.4, 0.31, 0.12, 0.002, 43.2, 2)
ROWS = (
    ExperimentRow("a.py::test_a", "passed", 5.0),
    ExperimentRow(HOSTILE, "running", 9.0),
    ExperimentRow("b", "waiting"),
)
OVERVIEW = Overview(ROWS, PROGRESS, 75.0)


@pytest.fixture(scope="module")
def served() -> Iterator[LivePage]:
    made = LivePage(0, lambda: OVERVIEW)
    yield made
    made.close()


def asked(
    served: LivePage, path: str | None = None, method: str = "GET", *, host: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """The answer to one request; the address is the one that is printed, unless ``path`` is another."""
    _, _, rest = served.address.partition("//")
    place, _, own = rest.partition("/")
    connection = http.client.HTTPConnection(place, timeout=HANG_S)
    try:
        connection.putrequest(method, f"/{own}" if path is None else path, skip_host=True)
        for each in (place,) if host is None else filter(None, host.split("|")):
            connection.putheader("Host", each)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def own_path(served: LivePage, more: str = "") -> str:
    return "/" + served.address.split("/", 3)[3] + more


def test_the_address_is_on_loopback_and_cannot_be_guessed(served: LivePage) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", served.address)
    other = LivePage(0, lambda: OVERVIEW)
    other.close()
    assert other.address.split("/")[3] != served.address.split("/")[3]


def test_whoever_has_the_address_reads_the_page_and_its_news(served: LivePage) -> None:
    status, headers, text = asked(served)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")
    status, _, news = asked(served, own_path(served, "now"))
    assert status == 200
    assert "1 of 3 experiments done, 1 running, 1 waiting; 1 m 15 s" in news
    port = served.address.split(":")[2].partition("/")[0]
    assert asked(served, host=f"localhost:{port}")[0] == 200
    status, headers, text = asked(served, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize("path", ["/", "/x/", "/x/now", "/now", "//", "/../", "/%00/", "/" + "a" * 32 + "/"])
def test_other_addresses_are_not_here_and_say_nothing(served: LivePage, path: str) -> None:
    status, _, text = asked(served, path)
    assert status == 404
    assert "test_a" not in text


def test_an_address_without_its_end_or_with_more_is_another(served: LivePage) -> None:
    own = own_path(served)
    for path in (own[:-1], own + "x", own + "?a", own[:-3] + "/", own.upper()):
        assert asked(served, path)[0] == 404, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "", "localhost:1", "127.0.0.1:80|evil.example"])
def test_a_wrong_host_is_refused(served: LivePage, host: str) -> None:
    """Otherwise a foreign page, after resolving its own name to this machine, could read the answers."""
    status, _, text = asked(served, host=host)
    assert status == 403
    assert "test_a" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nobody_writes(served: LivePage, method: str) -> None:
    status, _, text = asked(served, method=method)
    assert status == 501
    assert "test_a" not in text


def test_the_policy_allows_nothing_from_elsewhere(served: LivePage) -> None:
    _, headers, text = asked(served)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    (nonce,) = set(re.findall(r"nonce-([\w-]+)'", policy))
    assert re.findall(r'nonce="([^"]+)"', text) == [nonce] * 2
    assert nonce not in asked(served)[1]["Content-Security-Policy"]
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert not re.findall(r"(?:src|href|action)=\"(?!data:,)", text)
    assert "http://" not in text
    assert "https://" not in text


def test_a_request_that_never_comes_keeps_nobody_waiting(served: LivePage) -> None:
    place = served.address.split("/")[2].split(":")
    with socket.create_connection((place[0], int(place[1]))):
        assert asked(served)[0] == 200


def test_a_port_that_is_taken_is_said(served: LivePage) -> None:
    port = int(served.address.split(":")[2].partition("/")[0])
    with pytest.raises(UsageError, match=rf"--cloudbench-live {port}: .*; choose another port, or 0 for any"):
        LivePage(port, lambda: OVERVIEW)


def test_names_cannot_become_markup(served: LivePage) -> None:
    _, _, text = asked(served)
    assert "<script>alert" not in text
    assert "test_&lt;script&gt;alert(1)&lt;/script&gt;[&quot;&amp;?]" in text


def test_what_changes_is_well_formed_and_each_figure_has_its_words() -> None:
    points = [LivePoint(float(at), 10.0 + at, 0.1, 0.3, 0.0, None if at == 2 else 1.5) for at in range(5)]
    root = ElementTree.fromstring(f"<main>{body(OVERVIEW, points)}</main>".replace("scope=col", 'scope="col"'))
    figures = root.findall(".//svg")
    assert [each.get("role") for each in figures] == ["img"] * 3
    assert [each.text for each in figures[1][:2]] == [
        "Response time, last 10 s", "now p50 100 ms, p99 300 ms (dashed), at most 300 ms"
    ]  # fmt: skip
    assert [figures[1].get("aria-labelledby")] == [" ".join(str(each.get("id")) for each in figures[1][:2])]
    lines = {each.get("class"): each.get("d", "") for each in figures[2].findall("path")}
    assert lines["line s1"].count("M") == 2, "a gap where nothing is known"
    assert lines["line s0"].count("M") == 1
    bar = root.find(".//progress")
    assert bar is not None
    assert (bar.get("value"), bar.get("max")) == ("40", "100")
    groups = ["".join(each.itertext()) for each in root.findall(".//ul[@class='now']/li")]
    assert groups[2:] == ["2 throttled", "1 failed", "late 2.0 ms", "2 agents"]
    assert "".join(root.findall(".//ol/li")[0].itertext()) == "passed a.py::test_a 5 s"


def test_a_long_run_draws_every_fourth_point_and_the_last_one() -> None:
    points = [LivePoint(float(at), float(at), None, None, None, None) for at in range(600)]
    text = body(OVERVIEW, points)
    (line,) = re.findall(r'd="([^"]+)" class="line s0"', text)
    assert line.count("L") == 149
    places = [tuple(map(float, each.split())) for each in re.split("[ML]", line)[1:]]
    assert places[0] == pytest.approx((44, 92 - 82 * 3 / 600), abs=0.1)
    assert places[-1] == pytest.approx((336, 92 - 82 * 599 / 600), abs=0.1), "the axis ends at 600"
    assert "rate 599/s" in text
    assert text.count("<tr><td>") == 20


def test_before_the_first_run_nothing_is_known() -> None:
    text = body(Overview((), None, 0.0), [])
    assert "No run is in progress." in text
    assert "rate -" in text
    assert chart("x", {"a": [None, 0.0]}, [LivePoint(at, None, None, None, None, None) for at in (0.0, 1.0)], 1.0, "/s")
    assert page(text, "n").count("<main>") == 1


def test_the_figures_grow_while_a_run_lasts() -> None:
    meter = Meter()
    made = LivePage(0, meter.overview)
    try:
        meter.begin("a.py::test_a", 100, 0)
        meter.told("gw0", 50, 10, 0, [0.1])
        path = own_path(made, "now")
        assert wait_for(
            lambda: "L" in "".join(re.findall(r'd="([^"]*)" class="line s0"', asked(made, path)[2])), HANG_S, poll_s=0.2
        )
    finally:
        made.close()
    with pytest.raises(OSError):
        asked(made)


# --- a whole run ---

_BODY = """
import re, urllib.request

def test_read(experiment, payloads):
    experiment.run(payloads.random(10), arrival=FixedInterval(0.05), sensors=2, ops_per_sensor=60)

def test_second(experiment, payloads):
    experiment.run(payloads.random(10), arrival=FixedInterval(0.05), sensors=2, ops_per_sensor=4)
"""


@pytest.mark.slow
@SPREAD
def test_a_run_prints_its_address_once_and_answers_there(
    spread: Spread, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with lab_in(tmp_path_factory.mktemp("page")) as lab:
        running = lab.write(_BODY).start(*FOLDER, *spread, "--cloudbench-live", "0")
        address = running.wait_for("address", lambda: re.search(r"live view at http://(\S+?)(/\S+/)", running.text()))

        def shown() -> str:
            connection = http.client.HTTPConnection(address[1], timeout=HANG_S)
            connection.request("GET", f"{address[2]}now")
            text = connection.getresponse().read().decode()
            connection.close()
            return text if "/120 ops in" in text else ""

        assert "0 of 2 experiments done, 1 running, 1 waiting" in running.wait_for("progress", shown)
        run = running.end()
    assert run.status == 0, run.text
    assert run.text.count("live view at") == 1
    assert run.leftovers == []


def test_a_bad_port_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        run = lab.write(_BODY).run(*FOLDER, "--cloudbench-live", "70000")
        assert run.status == 4
        assert run.lines_with("--cloudbench-live 70000: expected a port from 0 to 65535")
