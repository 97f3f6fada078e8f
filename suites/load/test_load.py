"""How fast and how reliably does a provider take this load, which the command line states?

``cloudbench put``, ``get`` and ``mixed`` run these tests. With a rate, operations are due at fixed times (an open
loop). Without one, each thread begins an operation as soon as its last one has ended (a closed loop).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_cloudbench import FixedInterval, Mixture, ThinkTime, Verb, require_success

from .source import get_test, mixed_test, put_test

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Result

    from .conftest import ShowTest
    from .source import Workload

MIXED_RATE_PER_S = 20.0


def test_put(experiment: Experiment, payloads: Payloads, workload: Workload, show_test: ShowTest) -> None:
    """New files are uploaded."""
    payload = payloads.random(workload.size_bytes)
    if workload.rate_per_s is None:
        result = experiment.run(
            payload, arrival=ThinkTime(0), sensors=workload.threads, ops_per_sensor=workload.most_ops,
            for_s=workload.for_s,
        )  # fmt: skip
    else:
        result = experiment.run(
            payload, arrival=FixedInterval(workload.interval_s, workload.interval_s), sensors=workload.sensors,
            for_s=workload.for_s,
        )  # fmt: skip
    show_test(put_test(workload))
    _check(result)
    assert result["silent_loss_rate"] == 0, "files were lost that the provider had accepted"


def test_get(experiment: Experiment, payloads: Payloads, workload: Workload, show_test: ShowTest) -> None:
    """Files that were uploaded before are downloaded in turn, and compared."""
    sensors = workload.sensors
    upload = experiment.run(
        payloads.random(workload.size_bytes), arrival=ThinkTime(0), sensors=sensors,
        ops_per_sensor=workload.files_per_sensor, keep=True, store=False,
    )  # fmt: skip
    assert upload["ok"] == upload["ops"], "the files to download could not be uploaded"
    if workload.rate_per_s is None:
        result = experiment.run(
            on=upload.files, in_turn=True, operation=Verb.GET, arrival=ThinkTime(0), sensors=sensors,
            ops_per_sensor=workload.most_ops, for_s=workload.for_s,
        )  # fmt: skip
    else:
        result = experiment.run(
            on=upload.files, in_turn=True, operation=Verb.GET,
            arrival=FixedInterval(workload.interval_s, workload.interval_s), sensors=sensors, for_s=workload.for_s,
        )  # fmt: skip
    show_test(get_test(workload))
    _check(result)


def test_mixed(experiment: Experiment, payloads: Payloads, workload: Workload, show_test: ShowTest) -> None:
    """Each sensor uploads, and then runs random operations on the file that it uploaded last."""
    workload = workload if workload.rate_per_s else replace(workload, rate_per_s=MIXED_RATE_PER_S)
    times = FixedInterval(workload.interval_s, workload.interval_s)
    asked, uploads = f"{workload.shares.get(Verb.PUT, 0):.0%}", f"{workload.put_share:.0%}"
    note = f"about {uploads} of the operations are uploads, not {asked}: each sensor begins with one".replace("%", " %")
    result = experiment.run(
        payloads.random(workload.size_bytes),
        arrival=Mixture(times, workload.shares, workload.size_bytes),
        sensors=workload.sensors,
        for_s=workload.for_s,
        notes=[note] if uploads != asked else [],
    )
    show_test(mixed_test(workload))
    _check(result)
    assert result["silent_loss_rate"] == 0, "files were lost that the provider had accepted"


def _check(result: Result) -> None:
    """Check expectations, that something succeeded, and that content that was read is what was written."""
    if not result["ops"]:
        pytest.fail("no operation was due in this time: choose a longer --for or a higher --rate", pytrace=False)
    require_success(result)
    result.check()
    assert result["corrupt_rate"] == 0, "content or size differed from what was uploaded"
