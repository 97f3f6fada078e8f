"""Tests that measure the effect of each setting of a profile."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.emulators.behaviour import Behaviour, EmulatorClock
from pytest_cloudbench.emulators.profile import Freeze, change_profile, load_profile
from pytest_cloudbench.emulators.skin import Kind
from pytest_cloudbench.model import ServiceError
from pytest_cloudbench.support.clock import now_ns, sleep_until_ns

MIB = 1024 * 1024
_META = ("check/user", {"query": "x"})
Connect = Callable[[EmulatorService], Any]


def _duration_s(action: Callable[[], Any]) -> float:
    before_s = time.perf_counter()
    action()
    return time.perf_counter() - before_s


def _quickest_s(action: Callable[[], Any], below_s: float) -> float:
    """Return the first duration below a bound, or the shortest of 30. A busy machine can only lengthen durations."""
    durations_s = [_duration_s(action)]
    while durations_s[-1] >= below_s and len(durations_s) < 30:
        durations_s.append(_duration_s(action))
    return min(durations_s)


def _send(wire: Any, name: str, arg: str, body: bytes = b"") -> None:
    """Send a request without waiting for its answer."""
    headers = {"Authorization": f"Bearer {wire.token}", "Content-Type": "application/octet-stream"}
    wire.connection.request("POST", f"/2/{name}", body, {**headers, "Dropbox-API-Arg": arg})


def test_ideal_delays_and_refuses_nothing(wire: Any) -> None:
    replies = [(wire("files/upload", {"path": f"/{n}.bin"}, b"x" * 5120), wire(*_META)) for n in range(100)]
    assert {reply.status for pair in replies for reply in pair} == {200}
    assert _quickest_s(lambda: wire(*_META), 0.05) < 0.05


def test_latency(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"latency.median_s": 0.1, "latency.write_factor": 3, "latency.read_factor": 2})
    assert 0.1 <= _quickest_s(lambda: wire(*_META), 0.3) < 0.3
    assert 0.3 <= _quickest_s(lambda: wire("files/upload", {"path": "/a.bin"}, b"x"), 0.6) < 0.6
    assert 0.2 <= _quickest_s(lambda: wire("files/download", {"path": "/a.bin"}), 0.5) < 0.5
    emulator.control(set={"latency.median_s": 0, "latency.min_s": 0.05})
    assert 0.05 <= _quickest_s(lambda: wire(*_META), 0.3) < 0.3


def test_latency_distribution() -> None:
    profile = change_profile(
        load_profile("ideal"), {"latency.median_s": 0.1, "latency.sigma": 0.5, "latency.min_s": 0.06}
    )
    behaviour = Behaviour(profile, EmulatorClock(1), seed=3)
    draws = sorted(behaviour.latency_s(Kind.META) for _ in range(4000))
    assert draws[0] == 0.06
    assert draws[2000] == pytest.approx(0.1, rel=0.05)
    assert draws[3365] == pytest.approx(0.1 * 2.71828**0.5, rel=0.07)
    again = Behaviour(profile, EmulatorClock(1), seed=3)
    assert sorted(again.latency_s(Kind.META) for _ in range(4000)) == draws


def test_time_scale_shortens_delays(connect: Connect) -> None:
    with start_emulator("ideal", time_scale=20) as running:
        running.control(set={"latency.median_s": 4, "readiness.delay_s": 4})
        wire = connect(running)
        assert 0.2 <= _quickest_s(lambda: wire(*_META), 1.5) < 1.5
        wire("files/upload", {"path": "/a.bin"}, b"x")
        assert wire("files/get_metadata", {"path": "/a.bin"}).status == 200


def test_bandwidth(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"bandwidth.up_bytes_per_s": 5 * MIB})
    assert 0.2 <= _quickest_s(lambda: wire("files/upload", {"path": "/a.bin"}, b"x" * MIB), 0.6) < 0.6
    assert _quickest_s(lambda: wire("files/download", {"path": "/a.bin"}), 0.15) < 0.15
    emulator.control(set={"bandwidth.up_bytes_per_s": 0, "bandwidth.down_bytes_per_s": 5 * MIB})
    assert 0.2 <= _quickest_s(lambda: wire("files/download", {"path": "/a.bin"}), 0.6) < 0.6
    assert _quickest_s(lambda: wire("files/upload", {"path": "/b.bin"}, b"x" * MIB), 0.15) < 0.15


def test_delays_are_switched_off_and_on(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(
        set={
            "latency.median_s": 30,
            "bandwidth.up_bytes_per_s": 1,
            "freeze.period_s": 86_400,
            "freeze.duration_s": 86_000,
        }
    )
    emulator.faults(False)
    assert wire("files/upload", {"path": "/a.bin"}, b"x" * 100).status == 200  # the client would wait for 10 s
    emulator.control(set={"latency.median_s": 0.1, "bandwidth.up_bytes_per_s": 0, "freeze.duration_s": 0})
    emulator.reset()
    assert wire("files/upload", {"path": "/a.bin"}, b"x").status == 200
    emulator.faults(True)
    assert _duration_s(lambda: wire(*_META)) >= 0.1


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_error_rate(wire: Any, emulator: EmulatorService, rate: float) -> None:
    emulator.control(set={"faults.error_rate": rate})
    counts = Counter(wire("files/upload", {"path": f"/{n}.bin"}, b"x").status for n in range(200))
    assert counts[500] == pytest.approx(200 * rate, abs=0 if rate in (0, 1) else 25)
    emulator.control(set={"faults.error_rate": 0})
    assert len(wire("files/list_folder", {"path": ""}).value["entries"]) == counts[200]


def test_reset_rate(emulator: EmulatorService, connect: Connect) -> None:
    emulator.control(set={"faults.reset_rate": 1})
    wire = connect(emulator)
    for number in range(40):
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            wire("files/upload", {"path": f"/{number}.bin"}, b"x")
        wire.connection.close()
    emulator.control(set={"faults.reset_rate": 0})
    stored = len(wire("files/list_folder", {"path": ""}).value["entries"])
    assert 8 <= stored <= 32, "half of the resets come after the request was executed"
    assert emulator.control(get="stats")["stats"]["routes"]["files/upload"] == {"0": 40}


def test_corruption(wire: Any, emulator: EmulatorService) -> None:
    data = bytes(range(256)) * 20
    good = wire("files/upload", {"path": "/good.bin"}, data).value["content_hash"]
    emulator.control(set={"faults.corrupt_rate": 1})
    bad = wire("files/upload", {"path": "/bad.bin", "content_hash": good}, data)
    assert bad.status == 200
    assert bad.value["content_hash"] != good
    content = wire("files/download", {"path": "/bad.bin"}).value
    assert sum((one ^ other).bit_count() for one, other in zip(content, data, strict=True)) == 1
    assert wire("files/download", {"path": "/good.bin"}).value == data


def test_readiness(wire: Any, emulator: EmulatorService) -> None:
    wire("files/upload", {"path": "/in/old.bin"}, b"old")
    emulator.control(set={"readiness.delay_s": 0.4})
    cursor = wire("files/list_folder/get_latest_cursor", {"path": "/in"}).value["cursor"]
    before_s = time.perf_counter()
    rev = wire("files/upload", {"path": "/in/new.bin"}, b"new").value["rev"]
    wire("files/upload", {"path": "/in/old.bin", "mode": "overwrite"}, b"newer")
    assert wire("files/get_metadata", {"path": "/in/new.bin"}).status == 409
    assert wire("files/get_metadata", {"path": f"rev:{rev}"}).status == 409
    assert wire("files/download", {"path": "/in/old.bin"}).value == b"old"
    assert [entry["name"] for entry in wire("files/list_folder", {"path": "/in"}).value["entries"]] == ["old.bin"]
    assert wire("files/list_folder/longpoll", {"cursor": cursor}).value["changes"] is True
    assert time.perf_counter() - before_s >= 0.4
    assert wire("files/get_metadata", {"path": "/in/new.bin"}).status == 200
    later = wire("files/list_folder/longpoll", {"cursor": cursor})
    assert later.value["changes"] is True


def test_quota(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"quota.bytes": 1000})
    assert wire("files/upload", {"path": "/a.bin"}, b"x" * 600).status == 200
    assert wire("files/upload", {"path": "/a.bin", "mode": "overwrite"}, b"y" * 900).status == 200
    reply = wire("files/upload", {"path": "/b.bin"}, b"x" * 101)
    assert (reply.status, reply.value["error"]["reason"][".tag"]) == (409, "insufficient_space")
    copied = wire("files/copy_v2", {"from_path": "/a.bin", "to_path": "/c.bin"})
    assert copied.value["error"][".tag"] == "insufficient_quota"
    wire("files/delete_v2", {"path": "/a.bin"})
    assert wire("files/upload", {"path": "/b.bin"}, b"x" * 1000).status == 200


def test_freeze(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"freeze.period_s": 0.8, "freeze.duration_s": 0.4})
    answered_s, held_s = [time.perf_counter()], list[float]()
    while len(held_s) < 2 or min(held_s) >= 0.5:
        wire(*_META)
        answered_s.append(time.perf_counter())
        held_s += [gap_s for gap_s in (answered_s[-1] - answered_s[-2],) if gap_s > 0.35]
        assert len(held_s) < 30
    assert len(answered_s) > 3 * len(held_s), "it is answered in between"
    emulator.control(set={"freeze.period_s": 0, "freeze.duration_s": 0})
    assert _quickest_s(lambda: [wire(*_META) for _ in range(100)], 0.4) < 0.4


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("setting", "body"), [("throttle.max_in_flight", b""), ("throttle.write_lock", b"x" * 5120)])
def test_simultaneous_requests(emulator: EmulatorService, connect: Connect, setting: str, body: bytes) -> None:
    emulator.control(set={setting: 1, "latency.median_s": 1.5, "throttle.reason": "too_many_requests"})
    wires = [connect(emulator) for _ in range(3)]
    for wire in wires:
        wire.connection.connect()
    for number, wire in enumerate(wires):
        _send(wire, "files/upload", f'{{"path": "/{number}.bin"}}', body)
    answers = [wire.connection.getresponse() for wire in wires]
    assert sorted(answer.status for answer in answers) == [200, 429, 429]
    refusal = next(answer for answer in answers if answer.status == 429)
    assert refusal.headers["retry-after"] == "1"
    assert b'"too_many_requests"' in refusal.read()
    for answer in answers:
        answer.read()
    assert wires[0]("files/upload", {"path": "/later.bin"}, b"x").status == 200


def test_reads_take_no_tokens(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 0.001, "throttle.burst": 3})
    assert {wire(*_META).status for _ in range(20)} == {200}
    statuses = [wire("files/upload", {"path": f"/{n}.bin"}, b"x").status for n in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    stats = emulator.control(get="stats")["stats"]
    assert (stats["accepted_writes"], stats["refused"]) == (3, 2)
    assert stats["routes"]["files/upload"] == {"200": 3, "429": 2}


# Fifty sensors need a client that sends 50 uploads in such a second, also on a busy machine.
@pytest.mark.parametrize(("sensors", "time_scale", "low", "high"), [(10, 10, 0.0, 0.0), (50, 2, 0.1, 0.4)])
def test_default_profile_carries_ten_sensors_and_throttles_fifty(
    connect: Connect, sensors: int, time_scale: int, low: float, high: float
) -> None:
    """Sensors start together and upload once per second each, on an emulator whose time runs faster."""
    with start_emulator("dropbox", time_scale=time_scale) as running:
        wires = [connect(running) for _ in range(sensors)]
        for wire in wires:
            wire.connection.connect()
        statuses: Counter[int] = Counter()
        began_ns = now_ns()
        for second in range(8):
            for number, wire in enumerate(wires):
                _send(wire, "files/upload", f'{{"path": "/{number}/{second}.bin"}}', b"x" * 5120)
            for wire in wires:
                answer = wire.connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
            # The test depends on the sensors' schedule, so the next second begins by the clock.
            sleep_until_ns(began_ns + (second + 1) * 1_000_000_000 // time_scale)
        assert low <= statuses[429] / statuses.total() <= high, statuses


def test_control_refuses_settings_that_are_invalid_in_profiles(emulator: EmulatorService) -> None:
    with pytest.raises(ServiceError, match=r"latency\.median_s: expected a number from 0 to 3600, got 'x'"):
        emulator.control(set={"latency.median_s": "x"})
    with pytest.raises(ServiceError, match=r"latency\.typo: unknown"):
        emulator.control(set={"latency.typo": 1})
    with pytest.raises(ServiceError, match="cannot get"):
        emulator.control(get="nonsense")
    assert emulator.control(get="profile")["profile"]["latency.median_s"] == 0


def test_client_that_leaves_in_the_middle(emulator: EmulatorService, connect: Connect) -> None:
    emulator.control(set={"throttle.max_in_flight": 1})
    leaving, staying = connect(emulator), connect(emulator)
    leaving.connection.putrequest("POST", "/2/files/upload")
    for name, value in (("Authorization", f"Bearer {leaving.token}"), ("Content-Length", "1000000")):
        leaving.connection.putheader(name, value)
    leaving.connection.putheader("Dropbox-API-Arg", '{"path": "/half.bin"}')
    leaving.connection.endheaders(b"only the beginning")
    while staying(*_META).status == 200:
        pass
    leaving.connection.close()
    while staying(*_META).status == 429:
        pass
    assert staying("files/list_folder", {"path": ""}).value["entries"] == []


@pytest.mark.slow
def test_slots_make_others_wait_their_turn(emulator: EmulatorService, connect: Connect) -> None:
    """Five requests of 0.1 s run at the same time without a limit, and one after the other with one slot."""

    def five_s() -> float:
        wires = [connect(emulator) for _ in range(5)]
        for wire in wires:
            wire("check/user", {"query": "warm"})
        before_s = time.perf_counter()
        for number, wire in enumerate(wires):
            _send(wire, "files/upload", f'{{"path": "/{number}.bin"}}', b"x")
        assert [wire.connection.getresponse().status for wire in wires] == [200] * 5
        return time.perf_counter() - before_s

    emulator.control(set={"latency.median_s": 0.1})
    assert 0.1 <= min(five_s() for _ in range(4)) < 0.4
    emulator.control(set={"capacity.slots": 1})
    assert five_s() >= 0.5
    emulator.control(set={"capacity.slots": 0})
    assert min(five_s() for _ in range(4)) < 0.4


def test_a_reset_does_not_repeat_the_same_delays(wire: Any, emulator: EmulatorService) -> None:
    """With the same delays, repeats of an experiment would look alike, as if there were no noise."""
    emulator.control(set={"latency.median_s": 0.01, "latency.sigma": 2})
    rounds = []
    for _ in range(3):
        emulator.control(reset=True)
        rounds.append([round(_duration_s(lambda: wire(*_META)), 2) for _ in range(8)])
    assert len({tuple(delays_s) for delays_s in rounds}) > 1


def test_refill_gives_a_full_bucket_and_keeps_the_account(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 0.001, "throttle.burst": 3})
    assert [wire("files/upload", {"path": f"/{n}.bin"}, b"x").status for n in range(4)] == [200, 200, 200, 429]
    emulator.control(refill=True)
    assert wire("files/upload", {"path": "/again.bin"}, b"x").status == 200
    assert len(wire("files/list_folder", {"path": ""}).value["entries"]) == 4


class SetClock(EmulatorClock):
    """A clock that moves only when it is set. Waiting takes no time."""

    set_s = 1000.0

    def now_s(self) -> float:
        return self.set_s

    def real_s(self, emulated_s: float) -> float:
        return 0.0


def test_requests_held_by_a_freeze_continue_in_order() -> None:
    profile = replace(load_profile("ideal"), freeze=Freeze(period_s=10.0, duration_s=2.0))
    answered: list[int] = []

    async def request(behaviour: Behaviour, number: int) -> None:
        for _ in range(2):  # once before its body is read, and once before it is answered
            await behaviour.wait_until(0.0)
        answered.append(number)

    async def thaw() -> None:
        clock = SetClock(1.0)
        behaviour = Behaviour(profile, clock, 0)
        clock.set_s += 9
        tasks = [asyncio.create_task(request(behaviour, number)) for number in range(250)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert answered == []
        clock.set_s += 2
        while len(answered) < 100:
            await asyncio.sleep(0)
        assert len(answered) < 250
        await asyncio.gather(*tasks, request(behaviour, 250))
        await request(behaviour, 251)

    asyncio.run(thaw())
    assert answered == list(range(252))


def test_refill_begins_the_period_of_a_freeze_anew(wire: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"freeze.period_s": 1.0, "freeze.duration_s": 0.5})
    for _ in range(3):

        def at_once() -> None:
            emulator.control(refill=True)
            wire(*_META)

        assert _quickest_s(at_once, 0.4) < 0.4, "it has just begun: no freeze for half a second"
        assert any(_duration_s(lambda: wire(*_META)) >= 0.4 for _ in range(5000)), "and then it comes"


def test_lagging_listings_and_removals(wire: Any, emulator: EmulatorService) -> None:
    wire("files/upload", {"path": "/in/old.bin"}, b"old")
    emulator.control(set={"readiness.list_delay_s": 3600, "readiness.delete_delay_s": 3600})
    wire("files/upload", {"path": "/in/new.bin"}, b"new")
    wire("files/delete_v2", {"path": "/in/old.bin"})
    assert wire("files/download", {"path": "/in/new.bin"}).value == b"new"
    assert wire("files/download", {"path": "/in/old.bin"}).value == b"old"
    assert wire("files/get_metadata", {"path": "/in/old.bin"}).status == 200
    assert [entry["name"] for entry in wire("files/list_folder", {"path": "/in"}).value["entries"]] == ["old.bin"]
    assert wire("files/delete_v2", {"path": "/in/old.bin"}).status == 409, "a write sees that it is gone"
