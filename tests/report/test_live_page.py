"""The page of the live view: its content, its answers over real HTTP, and the requests that it refuses."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report.live import AgentReport, ExperimentRow, Meter, Overview, Progress
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.report.live_page import LivePage, list_host_headers
from pytest_cloudbench.support.clock import wait_for
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


SECOND = 1_000_000_000


def measure_two_experiments(*, seconds: int = 60) -> LiveDigests:
    """Return digests of one agent's reports on two experiments, once a second. Nothing ends from 20 to 30 s."""
    digests = LiveDigests()
    for nodeid, line in (("a.py::test_a", "run 1"), (HOSTILE, "upload"), (HOSTILE, HOSTILE)):
        digests.begin(nodeid, line, 0)
        for at in range(1, seconds + 1):
            ok = 0 if 20 < at <= 30 else 10
            digests.take(AgentReport("gw0", at * SECOND, ok, 2 * bool(ok), 1 * bool(ok), 3, [0.1, 0.2][:ok], ok / 2))
    return digests


@pytest.fixture(scope="module")
def live_page() -> Iterator[LivePage]:
    page = LivePage(0, lambda: OVERVIEW, measure_two_experiments())
    yield page
    page.close()


def request(
    live_page: LivePage, path: str | None = None, method: str = "GET", *, host: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """Return the response to one request, by default to the printed address."""
    _, _, location = live_page.address.partition("//")
    netloc, _, token_path = location.partition("/")
    connection = http.client.HTTPConnection(netloc, timeout=HANG_S)
    try:
        connection.putrequest(method, f"/{token_path}" if path is None else path, skip_host=True)
        for name in (netloc,) if host is None else filter(None, host.split("|")):
            connection.putheader("Host", name)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def own_path(live_page: LivePage, more: str = "") -> str:
    return "/" + live_page.address.split("/", 3)[3] + more


def test_address_is_on_loopback_with_random_token(live_page: LivePage) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", live_page.address)
    other = LivePage(0, lambda: OVERVIEW, LiveDigests())
    other.close()
    assert other.address.split("/")[3] != live_page.address.split("/")[3]


def test_address_serves_page_and_updates(live_page: LivePage) -> None:
    status, headers, text = request(live_page)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")
    status, _, news = request(live_page, own_path(live_page, "now"))
    assert status == 200
    assert "1 of 3 experiments done, 1 running, 1 waiting; 1 m 15 s" in news
    port = live_page.address.split(":")[2].partition("/")[0]
    assert request(live_page, host=f"localhost:{port}")[0] == 200
    status, headers, text = request(live_page, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize("path", ["/", "/x/", "/x/now", "/now", "//", "/../", "/%00/", "/" + "a" * 32 + "/"])
def test_unknown_addresses_are_not_found(live_page: LivePage, path: str) -> None:
    status, _, text = request(live_page, path)
    assert status == 404
    assert "test_a" not in text


def test_incomplete_or_longer_address_is_not_found(live_page: LivePage) -> None:
    base = own_path(live_page)
    others = ("x", "?a", "0/", "4/", "01/", "1", "1/x", "1/1/", "/", "-1/", "now/", "999999999/")
    for path in (base[:-1], base[:-3] + "/", base.upper(), *(base + ending for ending in others)):
        assert request(live_page, path)[0] == 404, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "", "localhost:1", "127.0.0.1:80|evil.example"])
def test_wrong_host_is_rejected(live_page: LivePage, host: str) -> None:
    """Without this check, a foreign page could resolve its own name to this machine and read the answers."""
    status, _, text = request(live_page, host=host)
    assert status == 403
    assert "test_a" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_writing_methods_are_rejected(live_page: LivePage, method: str) -> None:
    status, _, text = request(live_page, method=method)
    assert status == 501
    assert "test_a" not in text


def test_policy_allows_no_foreign_content(live_page: LivePage) -> None:
    _, headers, text = request(live_page)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    (nonce,) = set(re.findall(r"nonce-([\w-]+)'", policy))
    assert re.findall(r'nonce="([^"]+)"', text) == [nonce] * 2
    assert nonce not in request(live_page)[1]["Content-Security-Policy"]
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert not re.findall(r"(?:src|href|action)=\"(?!data:(?:,|text/csv)|[0-9]+/\")", text)
    assert "http://" not in text
    assert "https://" not in text


def test_stalled_request_does_not_block_others(live_page: LivePage) -> None:
    address = live_page.address.split("/")[2].split(":")
    with socket.create_connection((address[0], int(address[1]))):
        assert request(live_page)[0] == 200


def test_browser_that_goes_away_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    page = LivePage(0, lambda: OVERVIEW, LiveDigests())
    others = {*threading.enumerate()}
    try:
        with socket.create_connection(("127.0.0.1", int(page.address.split(":")[2].partition("/")[0]))) as browser:
            browser.sendall(b"GET / HT")
            assert wait_for(lambda: bool({*threading.enumerate()} - others), HANG_S, poll_s=0.001), "it is served"
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        assert wait_for(lambda: {*threading.enumerate()} <= others, HANG_S, poll_s=0.001), "nobody is served"
    finally:
        page.close()
    assert capfd.readouterr() == ("", "")


def test_mistake_of_the_page_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def read() -> Overview:
        raise ZeroDivisionError

    page = LivePage(0, read, LiveDigests())
    try:
        with pytest.raises(http.client.RemoteDisconnected):
            request(page)
    finally:
        page.close()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_used_port_is_an_error(live_page: LivePage) -> None:
    port = int(live_page.address.split(":")[2].partition("/")[0])
    with pytest.raises(UsageError, match=rf"--cloudbench-live {port}: .*; choose another port, or 0 for any"):
        LivePage(port, lambda: OVERVIEW, LiveDigests())


def test_names_are_escaped(live_page: LivePage) -> None:
    _, _, text = request(live_page)
    assert "<script>alert" not in text
    assert "test_&lt;script&gt;alert(1)&lt;/script&gt;[&quot;&amp;\\x1b]" in text


def parse_page(text: str) -> ElementTree.Element:
    """Parse our HTML, which is XML except for some attributes without quotes."""
    return ElementTree.fromstring(f"<main>{text}</main>".replace("<span class=of>", "<span>").replace("class=soft", ""))


def texts(root: ElementTree.Element, path: str) -> list[str]:
    return ["".join(element.itertext()) for element in root.findall(path)]


def test_running_experiment_has_figures_and_all_are_listed(live_page: LivePage) -> None:
    root = parse_page(request(live_page, own_path(live_page, "now"))[2])
    bar = root.find(".//progress")
    assert bar is not None
    assert (bar.get("value"), bar.get("max")) == ("40", "100")
    assert texts(root, ".//ul[@class='now']/li")[2:] == ["2 throttled", "1 failed", "late 2.0 ms", "2 agents"]
    assert [element.strip() for element in texts(root, ".//ol/li")][::2] == ["passed a.py::test_a 5 s", "waiting b"]
    assert [element.get("href") for element in root.findall(".//ol/li/a")] == ["1/", "2/"]


def test_live_figures_equal_report_figures(live_page: LivePage) -> None:
    root = parse_page(request(live_page, own_path(live_page, "figures"))[2])
    assert [element.get("id") for element in root.findall(".//figure")] == ["response-times", "over-time"]
    drawings = root.findall(".//svg")
    assert [element.get("role") for element in drawings] == ["img"] * 2
    times, course = drawings
    axes = texts(times, "text")
    assert {"response time", "answered within", "90 %"} <= set(axes)
    assert "upload" in axes, "a line for each run"
    assert len(times.findall("path[@class='line s1']")) == 2, "the line, and its mark in the legend"
    about_times, about_course = texts(root, ".//figcaption/p")
    assert "A sample of 200 of 1,000 operations." in about_times
    assert "500 succeeded, 100 throttled, 50 failed" in about_course
    assert "Once nothing ended although operations waited" in about_course
    styles = {element.get("class") for element in course.iter("rect")}
    assert {"silence", "o-ok", "o-throttled", "o-failed"} <= styles
    assert "operations ended per second" in texts(course, "text")
    frozen = [
        element for element in course.iter("rect") if element.get("class") == "silence" and "data-tip" in element.attrib
    ]
    covered = [
        (float(element.get("y", 0)), float(element.get("y", 0)) + float(element.get("height", 0))) for element in frozen
    ]
    legend = [
        float(element.get("y", 0)) for element in course.iter("text") if element.text in ("throttled", "nothing ended")
    ]
    assert len(frozen) == len(legend) == 2
    assert not [y for y in legend for top, bottom in covered if top < y < bottom], "a freeze hides no legend"
    assert len(root.findall(".//details")) == 2, "the numbers of both"


def test_each_measured_experiment_has_a_page(live_page: LivePage) -> None:
    status, _, text = request(live_page, own_path(live_page, "1/"))
    assert status == 200
    assert "<h2>a.py::test_a</h2>" in text
    assert "<progress" not in text, "another one is running"
    assert '<a href="../1/" aria-current="true">' in text
    assert 'href="../2/"' in text
    assert request(live_page, own_path(live_page, "1/figures"))[2] in text
    assert "1 of 3 experiments done" in request(live_page, own_path(live_page, "1/now"))[2]
    assert "Not measured yet." in request(live_page, own_path(live_page, "3/"))[2]


def test_page_has_no_inline_styles(live_page: LivePage) -> None:
    assert 'style="' not in request(live_page)[2]


def test_page_before_the_first_and_after_the_last_run() -> None:
    page = LivePage(0, lambda: Overview((), None, 0.0), LiveDigests())
    try:
        assert "No run is in progress." in request(page)[2]
        assert "<figure" not in request(page)[2]
    finally:
        page.close()
    page = LivePage(0, lambda: Overview(ROWS[:1], None, 9.0), measure_two_experiments())
    try:
        assert "No run is in progress." in request(page)[2]
        assert request(page)[2].count("<figure") == 2, "of the one that ran last"
    finally:
        page.close()


def test_figures_are_cached_until_there_are_reports() -> None:
    meter, digests = Meter(), LiveDigests()
    meter.follower = digests
    page = LivePage(0, meter.overview, digests)

    def count_drawn() -> str:
        return str(re.findall(r'data-drawn="(\d+)"', request(page, own_path(page, "now"))[2])[0])

    try:
        meter.begin_run("a.py::test_a", 100, 0)
        meter.add_totals("gw0", 50, 10, 0, [0.1])
        assert [count_drawn(), count_drawn()] == ["1", "1"]
        meter.add_totals("gw0", 60, 10, 0, [0.1])
        assert wait_for(lambda: count_drawn() == "2", HANG_S, poll_s=0.2)
        assert "50 succeeded, 10 throttled" in request(page, own_path(page, "figures"))[2]
        assert count_drawn() == "2"
    finally:
        page.close()
    with pytest.raises(OSError):
        request(page)


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
def test_run_prints_its_address_and_serves_it(spread: Spread, tmp_path_factory: pytest.TempPathFactory) -> None:
    with lab_in(tmp_path_factory.mktemp("page")) as lab:
        running = lab.write(_BODY).start(*FOLDER, *spread, "--cloudbench-live", "0")
        address = running.wait_for("address", lambda: re.search(r"live view at http://(\S+?)(/\S+/)", running.text()))

        def fetch_with(name: str, part: str) -> str:
            connection = http.client.HTTPConnection(address[1], timeout=HANG_S)
            connection.request("GET", f"{address[2]}{name}")
            text = connection.getresponse().read().decode()
            connection.close()
            return text if part in text else ""

        progress = running.wait_for("progress", lambda: fetch_with("now", "/120 ops in"))
        assert "0 of 2 experiments done, 1 running, 1 waiting" in progress
        assert "by the time at which they ended" in running.wait_for(
            "figures", lambda: fetch_with("figures", 'id="over-time"')
        )
        run = running.end()
    assert run.status == 0, run.text
    assert run.text.count("live view at") == 1
    assert run.leftovers == []


def test_bad_port_is_a_usage_error(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        run = lab.write(_BODY).run(*FOLDER, "--cloudbench-live", "70000")
        assert run.status == 4
        assert run.lines_with("--cloudbench-live 70000: expected a port from 0 to 65535")


@SPREAD
def test_a_taken_port_is_a_usage_error(spread: Spread, tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = lab.write(_BODY).run(*spread, "--cloudbench-live", str(port))
        assert run.status == 4, run.text
        assert len(run.lines_with(f"ERROR: --cloudbench-live {port}: ")) == 1, run.text
        assert "INTERNALERROR" not in run.text
        assert "Traceback" not in run.text
        assert run.leftovers == []


def test_the_usual_port_may_be_missing_from_the_host_header() -> None:
    assert list_host_headers(80) == {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}
    assert list_host_headers(8080) == {"127.0.0.1:8080", "localhost:8080"}
