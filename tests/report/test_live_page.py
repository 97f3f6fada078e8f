"""The page of the live view: what it answers and to whom, over real HTTP, and what it shows."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.report.live import AgentReport, ExperimentRow, Meter, Overview, Progress
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.report.live_page import LivePage
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


def measured(*, seconds: int = 60) -> LiveDigests:
    """What an agent has said of two experiments, once a second; nothing ended from 20 to 30 s."""
    digests = LiveDigests()
    for nodeid, line in (("a.py::test_a", "run 1"), (HOSTILE, "upload"), (HOSTILE, HOSTILE)):
        digests.begin(nodeid, line, 0)
        for at in range(1, seconds + 1):
            ok = 0 if 20 < at <= 30 else 10
            digests.take(AgentReport("gw0", at * SECOND, ok, 2 * bool(ok), 1 * bool(ok), 3, [0.1, 0.2][:ok], ok / 2))
    return digests


@pytest.fixture(scope="module")
def served() -> Iterator[LivePage]:
    made = LivePage(0, lambda: OVERVIEW, measured())
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
    other = LivePage(0, lambda: OVERVIEW, LiveDigests())
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
    others = ("x", "?a", "0/", "4/", "01/", "1", "1/x", "1/1/", "/", "-1/", "now/", "999999999/")
    for path in (own[:-1], own[:-3] + "/", own.upper(), *(own + each for each in others)):
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
    assert not re.findall(r"(?:src|href|action)=\"(?!data:(?:,|text/csv)|[0-9]+/\")", text)
    assert "http://" not in text
    assert "https://" not in text


def test_a_request_that_never_comes_keeps_nobody_waiting(served: LivePage) -> None:
    place = served.address.split("/")[2].split(":")
    with socket.create_connection((place[0], int(place[1]))):
        assert asked(served)[0] == 200


def test_a_port_that_is_taken_is_said(served: LivePage) -> None:
    port = int(served.address.split(":")[2].partition("/")[0])
    with pytest.raises(UsageError, match=rf"--cloudbench-live {port}: .*; choose another port, or 0 for any"):
        LivePage(port, lambda: OVERVIEW, LiveDigests())


def test_names_cannot_become_markup(served: LivePage) -> None:
    _, _, text = asked(served)
    assert "<script>alert" not in text
    assert "test_&lt;script&gt;alert(1)&lt;/script&gt;[&quot;&amp;\\x1b]" in text


def parsed(text: str) -> ElementTree.Element:
    """HTML that we make is XML but for some attributes without quotes."""
    return ElementTree.fromstring(f"<main>{text}</main>".replace("<span class=of>", "<span>").replace("class=soft", ""))


def texts(root: ElementTree.Element, path: str) -> list[str]:
    return ["".join(each.itertext()) for each in root.findall(path)]


def test_the_running_experiment_is_told_in_numbers_and_all_are_listed(served: LivePage) -> None:
    root = parsed(asked(served, own_path(served, "now"))[2])
    bar = root.find(".//progress")
    assert bar is not None
    assert (bar.get("value"), bar.get("max")) == ("40", "100")
    assert texts(root, ".//ul[@class='now']/li")[2:] == ["2 throttled", "1 failed", "late 2.0 ms", "2 agents"]
    assert [each.strip() for each in texts(root, ".//ol/li")][::2] == ["passed a.py::test_a 5 s", "waiting b"]
    assert [each.get("href") for each in root.findall(".//ol/li/a")] == ["1/", "2/"]


def test_its_figures_are_those_of_the_report(served: LivePage) -> None:
    root = parsed(asked(served, own_path(served, "figures"))[2])
    assert [each.get("id") for each in root.findall(".//figure")] == ["response-times", "over-time"]
    drawings = root.findall(".//svg")
    assert [each.get("role") for each in drawings] == ["img"] * 4, "each for a page and for a telephone"
    times, _, course, _ = drawings
    axes = texts(times, "text")
    assert {"response time", "answered within", "90 %"} <= set(axes)
    assert "upload" in axes, "a line for each run"
    assert len(times.findall("path[@class='line s1']")) == 2, "the line, and its mark in the legend"
    assert "A sample of 200 of 1,000 operations." in texts(times, "desc")[0]
    said = texts(course, "desc")[0]
    assert "500 succeeded, 100 throttled, 50 failed" in said
    assert "Once nothing ended although operations waited" in said
    styles = {each.get("class") for each in course.iter("rect")}
    assert {"silence", "o-ok", "o-throttled", "o-failed"} <= styles
    assert "operations ended per second" in texts(course, "text")
    frozen = [each for each in course.iter("rect") if each.get("class") == "silence" and "data-tip" in each.attrib]
    covered = [(float(each.get("y", 0)), float(each.get("y", 0)) + float(each.get("height", 0))) for each in frozen]
    legend = [float(each.get("y", 0)) for each in course.iter("text") if each.text in ("throttled", "nothing ended")]
    assert len(frozen) == len(legend) == 2
    assert not [y for y in legend for top, bottom in covered if top < y < bottom], "a freeze hides no legend"
    assert len(root.findall(".//details")) == 2, "the numbers of both"


def test_each_experiment_that_was_measured_has_a_page(served: LivePage) -> None:
    status, _, text = asked(served, own_path(served, "1/"))
    assert status == 200
    assert "<h2>a.py::test_a</h2>" in text
    assert "<progress" not in text, "another one is running"
    assert '<a href="../1/" aria-current="true">' in text
    assert 'href="../2/"' in text
    assert asked(served, own_path(served, "1/figures"))[2] in text
    assert "1 of 3 experiments done" in asked(served, own_path(served, "1/now"))[2]
    assert "Not measured yet." in asked(served, own_path(served, "3/"))[2]


def test_the_page_forbids_styles_of_elements_and_has_none(served: LivePage) -> None:
    assert 'style="' not in asked(served)[2]


def test_before_the_first_run_nothing_is_known_and_after_the_last_one_it_stays() -> None:
    made = LivePage(0, lambda: Overview((), None, 0.0), LiveDigests())
    try:
        assert "No run is in progress." in asked(made)[2]
        assert "<figure" not in asked(made)[2]
    finally:
        made.close()
    made = LivePage(0, lambda: Overview(ROWS[:1], None, 9.0), measured())
    try:
        assert "No run is in progress." in asked(made)[2]
        assert asked(made)[2].count("<figure") == 2, "of the one that ran last"
    finally:
        made.close()


def test_figures_are_drawn_once_for_all_readers_and_anew_when_there_is_news() -> None:
    meter, digests = Meter(), LiveDigests()
    meter.follower = digests
    made = LivePage(0, meter.overview, digests)

    def drawn() -> str:
        return str(re.findall(r'data-drawn="(\d+)"', asked(made, own_path(made, "now"))[2])[0])

    try:
        meter.begin_run("a.py::test_a", 100, 0)
        meter.add_totals("gw0", 50, 10, 0, [0.1])
        assert [drawn(), drawn()] == ["1", "1"]
        meter.add_totals("gw0", 60, 10, 0, [0.1])
        assert wait_for(lambda: drawn() == "2", HANG_S, poll_s=0.2)
        assert "50 succeeded, 10 throttled" in asked(made, own_path(made, "figures"))[2]
        assert drawn() == "2"
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

        def got(what: str, part: str) -> str:
            connection = http.client.HTTPConnection(address[1], timeout=HANG_S)
            connection.request("GET", f"{address[2]}{what}")
            text = connection.getresponse().read().decode()
            connection.close()
            return text if part in text else ""

        now = running.wait_for("progress", lambda: got("now", "/120 ops in"))
        assert "0 of 2 experiments done, 1 running, 1 waiting" in now
        assert "by the time at which they ended" in running.wait_for(
            "figures", lambda: got("figures", 'id="over-time"')
        )
        run = running.end()
    assert run.status == 0, run.text
    assert run.text.count("live view at") == 1
    assert run.leftovers == []


def test_a_bad_port_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        run = lab.write(_BODY).run(*FOLDER, "--cloudbench-live", "70000")
        assert run.status == 4
        assert run.lines_with("--cloudbench-live 70000: expected a port from 0 to 65535")
