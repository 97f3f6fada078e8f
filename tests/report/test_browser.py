"""A page in a real browser has no console messages, fits the window, and has no serious violation found by axe."""

from __future__ import annotations

import base64
import contextlib
import csv
import http.client
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pytest_cloudbench.commands.cli import main
from pytest_cloudbench.judge.by_host import figures_by_host
from pytest_cloudbench.judge.records import OpTable
from tests.network_guard import with_index
from tests.report.stored import HOSTILE, entry, operations, store
from tests.report.test_hosts import host, operations_from_two_hosts
from tests.report.test_sides import comparison_info
from tests.results.stored_runs import DAY_MS, START_MS, info
from tests.results.stored_runs import store as store_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs a browser (tools/testbed install chromium)",
    ),
]
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


class Browser:
    """A headless Chromium that is controlled by the WebDriver protocol."""

    def __init__(self, port: int, profile: Path) -> None:
        self._port, self._session = port, ""
        options = {"args": [*QUIET.split(), f"--user-data-dir={profile}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
                  "timeouts": {"script": 300_000}}  # fmt: skip
        self._session = (
            "/session/" + self.do("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        )

    def do(self, verb: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=400)
        connection.request(verb, self._session + path, json.dumps(body) if body is not None else None)
        response = json.loads(connection.getresponse().read())["value"]
        connection.close()
        assert not (isinstance(response, dict) and "error" in response), response
        return response

    def run(self, script: str, *values: Any) -> Any:
        return self.do("POST", "/execute/sync", {"script": script, "args": list(values)})

    def look(self, scheme: str, width: int) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", {"features": features})
        self.cdp("Emulation.setDeviceMetricsOverride",
                 {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})  # fmt: skip

    def cdp(self, command: str, params: Any) -> Any:
        return self.do("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def console(self) -> list[str]:
        return [record["message"] for record in self.do("POST", "/se/log", {"type": "browser"})]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        port = next(
            int(match[1]) for line in driver.stdout if (match := re.search(r"successfully on port (\d+)", line))
        )
        session = Browser(port, tmp_path_factory.mktemp("profile"))
        yield session
        with contextlib.suppress(AssertionError):
            session.do("DELETE", "")
    finally:
        driver.kill()
        driver.communicate()


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    folder = tmp_path_factory.mktemp("stored")
    iot = "suites/iot/test_iot.py::test_table_4_2"
    entries = [
        entry(folder, iot, provider, list(operations(300, taken_ms, throttled=9, frozen_at=90)),
              {"sensors": sensors, "interval_s": 1}, loss_rate=0.1, notes=[HOSTILE], doubts=["engine saturated"])
        for provider, taken_ms in (("emulated:ideal", 30), (f"folder:/{HOSTILE}", 80)) for sensors in (10, 30, 50, 80)
    ]  # fmt: skip
    entries.append(entry(folder, "suites/sync_capabilities/test_sync_capabilities.py::test_table_1", "mine",
                         params={"capability": "Chunking"}, answer="yes", how="4 MiB"))  # fmt: skip
    batching: dict[str, Any] = {
        "each_second_bytes": [40, 60],
        "file_bytes": 100,
        "published": {"uds_tue": 15, "source": HOSTILE},
    }
    entries += [entry(folder, "suites/batching/test_batching.py::test_download", client, **batching)
                for client in ("a", HOSTILE)]  # fmt: skip
    quotes = "suites/sync_capabilities/test_sync_capabilities.py::test_figure_3"
    entries += [entry(folder, quotes, "mine", params={"files": files}, syns=files) for files in (1, 100)]
    entries.append(entry(folder, iot, "folder:/gated", params={"sensors": 10}, outcome="failed",
                         gate={"answer": "broken", "lines": [f"gate broken: {HOSTILE}"]}))  # fmt: skip
    ops = operations_from_two_hosts()
    entries.append(entry(folder, "test_it.py::test_hosts", "folder:/far", ops, hosts=[host("oslo"), host(HOSTILE)],
                         by_host=figures_by_host(OpTable.of(ops, {0: "oslo", 1: HOSTILE}), None)))  # fmt: skip
    store(folder / "0001_r.json", entries)
    sides = store_run(folder / "sides", 1, {f"test_it.py::test_two[{HOSTILE}]": comparison_info()})
    for number in range(1, 13):
        stored_info = info(quiet_p50=0.1 * (1 + number // 7), quiet_ops=300, start_wall_ms=START_MS + number * DAY_MS,
                    run_id=str(number), doubts=["late"] * (number == 3))  # fmt: skip
        store_run(folder / "results", number, {f"test_it.py::test_{HOSTILE}": stored_info}, commit=HOSTILE)
    page = ["0001_r.json", str(sides), "last", "--storage", "results", "-o", "page.html"]
    with contextlib.chdir(folder):
        assert main(["report", *page]) == 0
    browser.do("POST", "/url", {"url": f"file://{folder}/page.html"})
    return browser


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which brings axe-core")
    done = subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "axe-core@4"], cwd=folder,
                          env=with_index(), capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        pytest.skip(f"axe-core cannot be installed: {done.stderr[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_page_has_no_serious_accessibility_violation(page: Browser, axe: str, scheme: str, width: int) -> None:
    page.look(scheme, width)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.run(f"{axe}; window.axe = axe")
    violations = page.do("POST", "/execute/async", {"args": [], "script": (
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then("
        "found => done(found.violations.map(each => [each.impact, each.id, each.nodes[0].html.slice(0, 200)])))"
    )})  # fmt: skip
    assert [violation for violation in violations if violation[0] in ("serious", "critical")] == []


@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_window_width(page: Browser, width: int) -> None:
    page.look("light", width)
    assert page.run("return document.documentElement.scrollWidth") <= width
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    sizes = page.run("""return [...document.querySelectorAll('figure text')].map(
        each => [parseFloat(getComputedStyle(each).fontSize), each.getScreenCTM()]).map(
        ([size, matrix]) => size * Math.hypot(matrix.a, matrix.b))""")
    assert min(sizes) > 10  # pixels, as high as a footnote
    cut_off = """return [...document.querySelectorAll('figure')].filter(
        each => each.querySelector('svg').clientWidth > each.clientWidth).length"""
    assert page.run(cut_off) == 0


def open_numbers(page: Browser, title: str) -> str:
    """Open the numbers of the first figure with a title, and return its ID when they are a table."""
    script = """const [title, done] = arguments;
        const figure = [...document.querySelectorAll('figure')].find(
            each => each.querySelector('figcaption :first-child').textContent === title);
        for (let each = figure; each; each = each.parentElement) if (each.tagName === 'DETAILS') each.open = true;
        const numbers = figure.querySelector('details');
        const told = () => done(figure.id);
        if (figure.querySelector('table')) told();
        else { numbers.addEventListener('toggle', told); numbers.open = true; }"""
    return str(page.do("POST", "/execute/async", {"args": [title], "script": script}))


@pytest.mark.parametrize("title", ["Response times", "What clients can do", "History: emulated:dropbox"])
def test_numbers_become_a_table_and_a_file(page: Browser, title: str) -> None:
    page.look("light", 1280)
    page_text = Path(page.run("return decodeURIComponent(location.pathname)")).read_text(encoding="utf-8")
    name = open_numbers(page, title)
    figure = page_text[page_text.index(f'<figure id="{name}"') :]
    match = re.search(r'<pre tabindex="0">(.*?)</pre>', figure, re.DOTALL)
    assert match is not None
    link = page.run("return document.querySelector(`#${arguments[0]} a[download]`).getAttribute('href')", name)
    assert unquote(link.partition(",")[2]) == unescape(match[1])
    assert page.run("return document.querySelector(`#${arguments[0]} a`).download", name) == f"{name}.csv"
    rows = page.run("""return [...document.querySelectorAll(`#${arguments[0]} tr`)].map(
        row => [...row.children].map(cell => cell.textContent))""", name)  # fmt: skip
    csv_rows = list(csv.reader(io.StringIO(unescape(match[1]))))
    assert rows[0] == csv_rows[0]
    assert len(rows) == len(csv_rows) > 3
    for row, numbers in zip(rows[1:], csv_rows[1:], strict=True):
        for cell, number in zip(row, numbers, strict=True):
            try:
                assert float(cell) == pytest.approx(float(number), rel=5e-4)
            except ValueError:
                assert cell == {"": "-", "True": "yes", "False": "no"}.get(number, number)


def test_tip_of_a_bar_has_its_numbers(page: Browser) -> None:
    page.look("light", 1280)
    name = open_numbers(page, "Over time: emulated:ideal")
    tip, part = page.run(
        """const mark = document.querySelector(`#${arguments[0]} path.rows`), box = mark.getBoundingClientRect();
        const at = {clientX: box.left + box.width * 0.999, clientY: box.top + 5, bubbles: true};
        mark.dispatchEvent(new PointerEvent('pointermove', at));
        const row = [...document.querySelectorAll(`#${arguments[0]} tbody tr:last-child > *`)];
        return [document.querySelector('#tip').textContent, row.map(each => each.textContent)]""", name,
    )  # fmt: skip
    head = ["from, s", "median, s", "99 %, s", "ok", "throttled"]
    assert tip == "; ".join(f"{title}: {cell}" for title, cell in zip(head, part, strict=True))


def test_tables_are_cards_on_a_telephone(page: Browser) -> None:
    page.look("light", 360)
    wider = """return [...document.querySelectorAll('.scroll')].filter(
        each => each.clientWidth && each.scrollWidth > each.clientWidth).map(each => each.ariaLabel)"""
    assert page.run(wider) == []
    titles = """return [...document.querySelectorAll('table.values td')].filter(each => each.offsetWidth).map(
        each => getComputedStyle(each, '::before').content)"""
    assert {'"loss rate"', '"p50 ms"', '"p99 ms"'} <= set(page.run(titles))
    tops = "return ['#good-and-bad', '#measured'].map(name => document.querySelector(name).offsetTop)"
    good_and_bad, measured = page.run(tops)
    assert good_and_bad < measured  # the numbers before what they were measured on


def test_links_open_their_folded_target(page: Browser) -> None:
    page.look("light", 1280)
    names = page.run("return [...document.querySelectorAll('main a[href^=\"#\"]')].map(each => each.hash.slice(1))")
    assert names
    for name in dict.fromkeys(names):
        page.run("location.hash = arguments[0]", name)
        assert page.run("return !!document.getElementById(arguments[0])", name), name
    folded = page.run("return [...document.querySelectorAll('details.run[id]')].map(each => each.id)")
    page.run(
        "document.getElementById(arguments[0]).open = false; location.hash = ''; location.hash = arguments[0]",
        folded[0],
    )
    assert page.do("POST", "/execute/async", {"args": [folded[0]], "script": (
        "const [name, done] = arguments; setTimeout(() => done(document.getElementById(name).open), 50)"
    )})  # fmt: skip


def test_folded_parts_are_printed(page: Browser) -> None:
    printed = base64.b64decode(page.cdp("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 4


def test_page_logs_nothing_to_the_console(page: Browser) -> None:
    assert page.console() == []
