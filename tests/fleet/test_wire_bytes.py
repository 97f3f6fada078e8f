"""Bytes on the wire in entries of real runs, by the kernel's counts."""

from __future__ import annotations

import sys

import pytest

from tests.runs import SPREAD, Spread

from .harness import FOLDER, IDEAL, Lab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")

ONE_AFTER_ANOTHER = """
    from pytest_cloudbench.workload.arrival import Threads
    from pytest_cloudbench.model import Verb

    def test_up(experiment, payloads):
        run = experiment.run(payloads.random(5000), arrival=Threads(2), files=20, keep=True)
        experiment.run(on=run.files, arrival=Threads(2), operation=Verb.GET, label="down")
"""
WIDER = """
    import requests

    sent = requests.Session.send

    def send(self, request, **more):
        request.headers["X-More"] = "x" * 190
        return sent(self, request, **more)

    requests.Session.send = send
"""


@pytest.mark.slow
@SPREAD
def test_every_entry_of_an_own_service_has_them(lab: Lab, spread: Spread) -> None:
    run = lab.write(ONE_AFTER_ANOTHER).run(*IDEAL, *spread)
    assert run.status == 0, run.text
    up, down = (entry["extra_info"] for entry in run.document["benchmarks"])
    for info in (up, down):
        assert (info["wire_by"], info["wire_unknown"]) == ("socket counters", None)
        assert 5000 < info["wire_bytes_per_op"] < 7500
    assert up["wire_connections"] >= 1, "the folder was made through one of them"


@pytest.mark.slow
def test_client_that_sends_more_is_reported_with_the_exact_amount(lab: Lab) -> None:
    """The second experiment reuses open connections, so only requests and answers are counted."""
    lab.write(ONE_AFTER_ANOTHER)
    before = lab.run(*IDEAL)
    after = lab.write(WIDER, "conftest.py").run(*IDEAL)
    infos = [
        next(entry["extra_info"] for entry in run.document["benchmarks"] if entry["extra_info"]["operation"] == "get")
        for run in (before, after)
    ]
    assert [info["wire_connections"] for info in infos] == [0, 0]
    assert infos[1]["wire_bytes_per_op"] - infos[0]["wire_bytes_per_op"] == 200


@pytest.mark.slow
def test_children_of_an_array_count_together(lab: Lab) -> None:
    run = lab.write(ONE_AFTER_ANOTHER).run("--provider", "raid:six")
    assert run.status == 0, run.text
    up = run.document["benchmarks"][0]["extra_info"]
    assert up["wire_by"] == "socket counters", up["wire_unknown"]
    assert up["wire_bytes_per_op"] > 1.5 * 5000, "any four of six are enough"


def test_wire_bytes_without_connection_are_unknown_with_reason(lab: Lab) -> None:
    run = lab.write(ONE_AFTER_ANOTHER).run(*FOLDER)
    assert run.status == 0, run.text
    for entry in run.document["benchmarks"]:
        info = entry["extra_info"]
        assert (info["wire_bytes_per_op"], info["wire_by"]) == (None, None)
        assert "connection" in info["wire_unknown"], "none was seen, or one of another program ended meanwhile"
