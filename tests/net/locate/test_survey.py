"""Round trips by connects, and surveys that are stored, merged and judged again."""

from __future__ import annotations

import errno
import inspect
import json
import os
import socket
import subprocess
import sys

import pytest

from pytest_cloudbench.lab.locating import LocateTables
from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate import rtt, survey
from pytest_cloudbench.net.locate.survey import NameSeen, OwnerSeen, ServerSurvey, VantagePoint
from pytest_cloudbench.report.locations import format_remarks

REQUEST = {"addresses": ["127.0.0.1"], "connects": 3, "gap_s": 0.0, "timeout_s": 1.0, "controls": []}


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_open_and_closed_ports_both_give_round_trips() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = rtt.measure({**REQUEST, "port": server.getsockname()[1]})
    closed = rtt.measure({**REQUEST, "port": closed_port()})
    for answer in (opened, closed):
        assert len(answer["rtts"]["127.0.0.1"]) == 3
        assert 0 < min(answer["rtts"]["127.0.0.1"]) < 1000
        assert answer["has_proxy"] is None


@pytest.mark.parametrize("tick_ns", [1, 1_000_000, 15_625_000])
def test_a_clock_that_stands_still_is_seen(tick_ns: int) -> None:
    reads = iter(range(0, 100 * tick_ns, max(1, tick_ns // 7)))
    assert rtt.measure_tick_ms(lambda: next(reads) // tick_ns * tick_ns) == tick_ns / 1e6


def test_an_address_of_a_family_that_the_kernel_lacks_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class SocketWithoutIpv6(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, kind)

    monkeypatch.setattr(socket, "socket", SocketWithoutIpv6)
    answer = rtt.measure({**REQUEST, "addresses": ["::1", "127.0.0.1"], "port": closed_port(), "controls": ["::1"]})
    assert {address: len(rtts) for address, rtts in answer["rtts"].items()} == {"::1": 0, "127.0.0.1": 3}
    assert answer["has_proxy"] is False


def test_an_answer_for_an_address_of_nobody_is_a_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = rtt.measure({**REQUEST, "port": server.getsockname()[1], "controls": ["127.0.0.7"]})
    assert answer["has_proxy"] is True


def test_round_trip_script_runs_without_the_package() -> None:
    source = inspect.getsource(rtt) + "\nmain()\n"
    request = json.dumps({**REQUEST, "port": closed_port()}) + "\n"
    process = subprocess.run(
        [sys.executable, "-I", "-c", source], input=request, capture_output=True, text=True, check=True, timeout=60,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert len(json.loads(process.stdout)["rtts"]["127.0.0.1"]) == 3


OSLO_DAY_1 = VantagePoint("oslo", 59.91, 10.75, 0.0, {"192.0.2.1": [4.0, 3.0]}, False)
ROME_DAY_2 = VantagePoint("rome", 41.89, 12.48, 0.0, {"192.0.2.1": [21.0]}, False)


def test_surveys_of_several_days_are_one() -> None:
    first = ServerSurvey("2026-11-01T10:00:00Z", {"a.example": NameSeen(["192.0.2.1"], ["start"])}, [OSLO_DAY_1])
    second = ServerSurvey(
        "2026-11-02T10:00:00Z", {"a.example": NameSeen(["192.0.2.1", "192.0.2.2"], ["idle"])}, [ROME_DAY_2],
        owners={"192.0.2.1": OwnerSeen("Fjord")},
    )  # fmt: skip
    merged = survey.merge_surveys([second, first])
    assert survey.decode_survey(survey.encode_survey(merged), "s") == merged
    assert merged.names["a.example"] == NameSeen(["192.0.2.1", "192.0.2.2"], ["start", "idle"])
    evidences, left_out = survey.collect_evidence(merged, lambda address: None)
    assert {disc.vantage: disc.rtt_ms for disc in evidences[0].discs} == {"oslo": 3.0, "rome": 21.0}
    assert evidences[0].owner == "Fjord"
    assert left_out == {}


def test_a_vantage_point_of_unknown_place_does_not_count() -> None:
    lost = VantagePoint("lost", rtts={"192.0.2.1": [1.0]})
    gone = VantagePoint("gone", 1.0, 2.0, problem="no answer within 20 s")
    stored = ServerSurvey("2026-11-01", {"a.example": NameSeen(["192.0.2.1"])}, [lost, gone, OSLO_DAY_1])
    evidences, left_out = survey.collect_evidence(stored, lambda address: None)
    assert [disc.vantage for disc in evidences[0].discs] == ["oslo"]
    assert left_out == {"lost": "nobody said where it is", "gone": "no answer within 20 s"}


def test_several_addresses_of_one_anycast_service_have_no_place() -> None:
    oslo = VantagePoint("oslo", 59.91, 10.75, 0.0, {"192.0.2.1": [1.0], "192.0.2.2": [1.0]}, False)
    rome = VantagePoint("rome", 41.89, 12.48, 0.0, {"192.0.2.1": [1.0], "192.0.2.2": [1.0]}, False)
    milan = VantagePoint("milan", 45.46, 9.19, 0.0, {"192.0.2.1": [8.0], "192.0.2.2": [8.0]}, False)
    stored = ServerSurvey("2026-11-01", {"a.example": NameSeen(["192.0.2.1", "192.0.2.2"])}, [oslo, rome, milan])
    locations, left_out = LocateTables().judge(stored)
    assert {location.place for location in locations.values()} == {"unknown"}
    assert all(location.by.startswith("anycast") for location in locations.values())
    assert left_out == {}
    assert any("oslo contradicts all others" in line for line in format_remarks(stored, locations, left_out))


def test_addresses_that_were_not_asked_about_are_counted() -> None:
    addresses = [f"192.0.{number // 250}.{number % 250}" for number in range(300)]
    oslo = VantagePoint("oslo", 59.91, 10.75, 0.0, {address: [3.0] for address in [*addresses[:256], addresses[299]]})
    stored = ServerSurvey("2026-11-01", {"a.example": NameSeen(addresses)}, [oslo])
    assert stored.asked_addresses == addresses[:256]
    line = "43 of 300 addresses were not measured: a survey asks about 256 at most"
    assert line in [*format_remarks(stored, {}, {})]
    few = ServerSurvey("2026-11-01", {"a.example": NameSeen(addresses[:256])}, [oslo])
    assert not any("not measured" in remark for remark in format_remarks(few, {}, {}))


def test_one_name_at_two_places_is_two_vantage_points() -> None:
    moved = VantagePoint("oslo", 41.89, 12.48, 0.0, {"192.0.2.1": [21.0]}, False)
    stored = ServerSurvey("2026-11-01", {"a.example": NameSeen(["192.0.2.1"])}, [OSLO_DAY_1, moved])
    evidences, _ = survey.collect_evidence(stored, lambda address: None)
    assert [disc.vantage for disc in evidences[0].discs] == ["oslo", "oslo at 41.89,12.48"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "file: is not a survey"),
        ('{"taken": "x"}', "file: is not a survey"),
        ('{"taken": "x", "names": {"a": {"addresses": ["here"]}}}', "file: is not a survey"),
        ('{"taken": "x", "names": {}, "schema": 9}', "file: has schema 9"),
        ('{"taken": "x", "names": {}, "vantages": [{"name": "v", "latitude_deg": 99}]}', "v is at 99,0 within 0 km"),
    ],
)
def test_invalid_survey_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        survey.decode_survey(text.encode(), "file")
    assert "\n" not in str(error.value)
