"""The live page in a headless Chromium, which is controlled by HTTP requests of WebDriver."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.report.live import Meter
from pytest_cloudbench.report.live_digest import LiveDigests
from pytest_cloudbench.report.live_page import LivePage
from pytest_cloudbench.support.clock import wait_for
from tests.limits import HANG_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="needs a browser (tools/testbed install chromium)"),
]
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
Send = Callable[..., Any]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Send]:
    """A function that sends a command to the test's own browser and returns its value."""
    log = tmp_path / "chromedriver.txt"
    driver = subprocess.Popen(["chromedriver", "--port=0", f"--log-path={log}"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    try:
        line = next(line for line in driver.stdout if "successfully on port " in line)
        port = line.rpartition("on port ")[2].strip().rstrip(".")

        def send(path: str, body: object = None, method: str | None = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/session{path}", data, method=method)
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                return json.load(answer)["value"]

        capabilities = {"goog:chromeOptions": {"args": ARGUMENTS}, "goog:loggingPrefs": {"browser": "ALL"}}
        number = send("", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        yield lambda path, body=None: send(f"/{number}{path}", body)
        send(f"/{number}", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(HANG_S)
        driver.stdout.close()


def test_live_page_on_a_phone_updates_and_keeps_focus(browser: Send) -> None:
    meter = Meter()
    meter.expect_experiments([f"a.py::test_{'long' * 20}[{number}]" for number in range(3)])
    meter.follower = digests = LiveDigests()
    meter.begin_run("a.py::test_one", 1000, 0, agents=1)
    meter.add_totals("gw0", 70, 5, 0, [0.1, 0.2])
    page = LivePage(0, meter.overview, digests)

    def evaluate(script: str) -> Any:
        return browser("/execute/sync", {"script": f"return {script}", "args": []})

    def becomes_true(script: str) -> bool:
        return wait_for(lambda: bool(evaluate(script)), HANG_S, poll_s=0.2)

    try:
        size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        browser("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
        browser("/url", {"url": page.address})
        assert evaluate("document.documentElement.scrollWidth <= 360")
        assert evaluate("document.querySelectorAll('figure svg[role=img][aria-labelledby]').length") == 2
        assert evaluate("getComputedStyle(document.querySelector('#p-throttled rect')).fill") == "rgb(217, 146, 26)"
        evaluate("(document.querySelector('#over-time details').open = true, "
             "document.querySelector('#over-time summary').focus())")  # fmt: skip
        meter.add_totals("gw0", 77, 5, 0, [0.1])
        assert becomes_true("document.querySelector('main').innerText.includes('77/1,000 ops')")
        assert becomes_true("document.querySelector('#over-time p').textContent.includes('72 succeeded, 5 throttled')")
        assert evaluate("document.activeElement === document.querySelector('#over-time summary')")
        assert evaluate("document.querySelector('#over-time details').open")
        evaluate("document.getElementById('pause').click()")
        assert evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        meter.add_totals("gw0", 88, 5, 0, [0.1])
        evaluate("document.getElementById('pause').click()")
        assert becomes_true("document.querySelector('main').innerText.includes('88/1,000 ops')")
        assert browser("/se/log", {"type": "browser"}) == [], "no error on the console"
    finally:
        page.close()
    assert becomes_true("document.getElementById('state').textContent.startsWith('no answer: the run has ended')")
