"""A client that somebody else started, on a shared interface: only its own bytes count."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import ClientUnavailable, Proof
from pytest_cloudbench.lab.detect import Observation, judge_capabilities
from pytest_cloudbench.lab.sync.network import (
    OwnLink,
    UsersInterface,
    interface_addresses,
    link_doubts,
    network_of,
    proof_notes,
)
from pytest_cloudbench.net.link import Link, Way
from pytest_cloudbench.net.link.devices import INTERFACE
from pytest_cloudbench.results import journal
from tests.external_client import NAMED, ExternalClientLab, open_external_client, print_as_json
from tests.net.link.ways import open_or_skip
from tests.unprivileged import needs_root

SESSION = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import ClientUnavailable
from pytest_cloudbench.lab.detect import Step
from pytest_cloudbench.lab.sync.lab import Lab
from pytest_cloudbench.lab.sync.session import SyncSession
spec, folder, steps = sys.argv[1:]
with Lab(clients.make_client(spec), Path(folder), seed=folder, timeout_s=30) as lab:
    try:
        seen = SyncSession(lab).measure([Step(**each) for each in json.loads(steps)])
    except ClientUnavailable as error:
        print(json.dumps({"refused": str(error)}))
        sys.exit()
print(json.dumps({"seen": [asdict(each) for each in seen], "record": lab.record(), "notes": lab.notes()}))
"""
STEPS = (
    '[{"kind": "idle", "duration_s": 0.5}, {"kind": "new", "size_bytes": 1000000}, {"kind": "copy"}, '
    '{"kind": "many", "size_bytes": 50000, "files": 10}]'
)
_number = itertools.count()


def measure_by_kind(
    client_lab: ExternalClientLab, tmp_path: Path, steps: str = STEPS, **options: Any
) -> tuple[dict[str, Any], Any]:
    """Measure the steps. Return the observations by their kind, and the whole output of the session."""
    output = client_lab.run_python(
        SESSION, client_lab.spec(**options), str(tmp_path / f"session-{next(_number)}"), steps
    )
    assert not list(client_lab.pair.folder.glob("cloudbench-*")), "what was written is removed"
    return {observation["kind"]: observation for observation in output["seen"]}, output


@pytest.mark.slow
def test_by_name_beside_another_program_at_the_same_address(tmp_path: Path) -> None:
    with open_external_client(f"reference?deduplication=1&connections=per-file&{NAMED}", tmp_path) as client_lab:
        client_lab.start_other_program()
        before = client_lab.pair.counters()["received_bytes"]
        observations, output = measure_by_kind(client_lab, tmp_path, names="*.example.test")
        received = client_lab.pair.counters()["received_bytes"] - before
    assert all(not observation["reasons"] for observation in observations.values()), observations
    assert observations["idle"]["up_bytes"] == 0
    assert 1_000_000 < observations["new"]["up_bytes"] < 1_010_000
    assert 0 < observations["copy"]["up_bytes"] < 5_000, "the switch shows"
    assert observations["many"]["syns"] == 10
    assert sum(observation["up_bytes"] for observation in observations.values()) <= received, (
        "nothing that its server did not get"
    )
    network = output["record"]["link"]
    assert network["flows_of_others"] > 3
    assert network["nameless"] == {"flows": 0, "wire_bytes": 0}
    assert network["seen_servers"] == ["files.example.test"]
    assert network["round_trip_s"] == pytest.approx(0.02, rel=0.3)
    assert network["mode"] == "the user's own network, not shaped"
    assert any("20" in note and "measured from handshakes" in note for note in output["notes"])
    assert any("recognised by name (*.example.test): " in note for note in output["notes"])
    assert not any("on this machine" in note for note in output["notes"])
    assert not any("quiet network" in note for note in output["notes"])


def test_an_open_connection_has_no_name_and_is_not_guessed(tmp_path: Path) -> None:
    with open_external_client(f"reference?{NAMED}", tmp_path) as client_lab:
        refusal = client_lab.run_python(
            SESSION, client_lab.spec(names="*.example.test"), str(tmp_path / "session"), STEPS
        )["refused"]
        assert not list(client_lab.pair.folder.iterdir())
    assert "bytes were in flows without a name, which may or may not be the client's: say which servers" in refusal


@pytest.mark.slow
def test_names_that_lack_a_server_are_found_out(tmp_path: Path) -> None:
    """The content goes to a server that nobody named. The client must not look like one that sends almost nothing."""
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as client_lab:
        client_lab.start_other_program()
        for spec in (client_lab.spec(names="login.example.test"), client_lab.spec(servers="192.0.2.1")):
            refusal = client_lab.run_python(SESSION, spec, str(tmp_path / f"session-{next(_number)}"), STEPS)["refused"]
            assert "it counts as in sync, but nothing from the client was captured" in refusal
            assert ("files.example.test (1," in refusal) == ("names=" in spec), refusal


@pytest.mark.slow
def test_addresses_of_servers_name_an_open_connection(tmp_path: Path) -> None:
    with open_external_client("reference?deduplication=1", tmp_path) as client_lab:
        observations, output = measure_by_kind(
            client_lab, tmp_path, servers=f"{client_lab.link.address('server')},2001:2::/48"
        )
    assert all(not observation["reasons"] for observation in observations.values()), observations
    assert 1_000_000 < observations["new"]["up_bytes"] < 1_010_000
    assert observations["new"]["syns"] == 0
    assert 0 < observations["copy"]["up_bytes"] < 5_000
    assert output["record"]["link"]["round_trip_s"] == pytest.approx(0.02, rel=0.5)
    assert any("measured from acknowledgements" in note for note in output["notes"])


@pytest.mark.slow
def test_small_nameless_traffic_is_reported_beside_the_number(tmp_path: Path) -> None:
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as client_lab:
        client_lab.start_nameless_program(500)
        observations, output = measure_by_kind(client_lab, tmp_path, names="*.example.test")
    assert all(not observation["reasons"] for observation in observations.values()), observations
    assert 1_000_000 < observations["new"]["up_bytes"] < 1_010_000
    assert observations["new"]["nameless_bytes"] > 500
    assert any(note.startswith("1 flow / ") and note.endswith(": not counted") for note in output["notes"])


@pytest.mark.slow
def test_quiet_is_reported_as_a_weaker_proof(tmp_path: Path) -> None:
    with open_external_client(f"reference?connections=per-file&{NAMED}", tmp_path) as client_lab:
        steps = '[{"kind": "new", "size_bytes": 1000000}]'
        observations, output = measure_by_kind(
            client_lab, tmp_path, steps, verified=False, names="*.example.test", quiet_s="1"
        )
    assert not observations["new"]["reasons"]
    assert output["record"]["proofs"] == [Proof.QUIET.value]
    assert any(
        "a quiet network is taken as a sign that the server had everything, which is weaker" in note
        for note in output["notes"]
    )


@pytest.mark.slow
def test_a_server_that_is_near_shows_no_waits(tmp_path: Path) -> None:
    """Without a delay, an answer arrives before the next bytes although the client did not wait for it."""
    with open_external_client(
        f"reference?bundling=pipelined&connections=one&{NAMED}", tmp_path, delay_ms=0
    ) as client_lab:
        steps = STEPS.replace('{"kind": "copy"}', '{"kind": "few", "size_bytes": 5000, "files": 2}')
        observations, _ = measure_by_kind(client_lab, tmp_path, steps, servers=client_lab.link.address("server"))
    verdicts = judge_capabilities([Observation(**observation) for observation in observations.values()])
    for name in ("chunking", "bundling"):
        assert verdicts[name].answer == "unknown"
        assert "the server is near (round trip 0." in verdicts[name].detail


def test_external_client_names_missing_options(tmp_path: Path) -> None:
    def find_refusal(**options: str) -> str:
        client = clients.make_client("external", folder=str(tmp_path), **options)
        network = network_of(client, Way())
        assert isinstance(network, UsersInterface)
        with pytest.raises(ClientUnavailable) as raised:
            network.open(client, tmp_path.parent / f"{tmp_path.name}-work")
        network.close()
        assert not list(tmp_path.iterdir())
        return str(raised.value)

    assert "give interface, the one that the client uses; there are: lo" in find_refusal(names="*.example.com")
    assert "cannot identify the client's traffic on lo; give names, product or servers" in find_refusal(interface="lo")
    assert "no address of none0 is known; give address" in find_refusal(interface="none0", names="*.example.com")


def test_clean_removes_files_of_killed_run_from_mirrored_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDBENCH_JOURNAL", str(tmp_path / "journal.jsonl"))
    mirrored = tmp_path / "mirrored"
    mirrored.mkdir()
    (mirrored / "mine.txt").write_text("stays")
    program = (
        "import os, signal, sys; from pathlib import Path; from pytest_cloudbench.lab import clients\n"
        "from pytest_cloudbench.lab.sync.network import UsersInterface\n"
        "options = {'interface': 'lo', 'servers': '127.0.0.1', 'address': '127.0.0.1'}\n"
        "client = clients.make_client('external', folder=sys.argv[1], **options)\n"
        "network = UsersInterface(client.facts.outside); network.open(client, Path(sys.argv[2]))\n"
        "(client.folder / 'x').write_text('goes')\n"
        "if sys.argv[3:]: network.close()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for extra_args in ([], ["at its end"]):
        argv = [sys.executable, "-c", program, str(mirrored), str(tmp_path / "work"), *extra_args]
        assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
        assert len(journal.pending_folders()[0]) == len(list(mirrored.glob("cloudbench-*"))) == (0 if extra_args else 1)
        assert cli.main(["clean"]) == 0
        assert [path.name for path in mirrored.iterdir()] == ["mine.txt"]
        assert journal.pending_folders() == ([], [])


def test_addresses_are_the_kernels() -> None:
    addresses = interface_addresses("lo")
    if not addresses:
        pytest.skip("lo has no address here, or this is not Linux")
    assert "127.0.0.1" in addresses
    assert interface_addresses("none0") == ()


def test_addresses_of_either_kind(tmp_path: Path) -> None:
    with open_external_client("reference", tmp_path) as client_lab:
        code = "from pytest_cloudbench.lab.sync.network import interface_addresses as of\n"
        addresses = client_lab.run_python(code + print_as_json(["of('cloudbench0')", "of('lo')"]))
        expected = client_lab.link.address("client")
    assert expected in addresses[0]
    assert expected not in addresses[1]


def test_any_other_client_has_a_link_of_its_own() -> None:
    assert isinstance(network_of(clients.make_client("reference"), Way(delay_ms=10), Way(delay_ms=20)), OwnLink)
    assert network_of(clients.make_client("reference"), Way(delay_ms=10), Way(delay_ms=20)).round_trip_s == 0.03
    assert proof_notes([Proof.CONTENT]) == []


@pytest.mark.parametrize("proofs", [{Proof.CLIENT}, {Proof.CONTENT, Proof.CLIENT}, set(Proof)])
def test_a_client_whose_own_word_counted_is_named_in_a_note(proofs: set[Proof]) -> None:
    note = "that the server had everything is the client's own word: what the server holds was not compared"
    assert note in proof_notes(proofs)
    assert len(proof_notes(proofs)) == 1 + (Proof.QUIET in proofs)


# --- packets that a busy machine's forwarder missed ---

SEND = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(50):
    udp.sendto(b"late", (sys.argv[1], 9))
"""


def send_too_fast(link: Link) -> None:
    """Send more packets than wait at the client's end, while the forwarder does not run."""
    link.run("client", ["ip", "link", "set", "dev", INTERFACE, "txqueuelen", "2"], check=True)
    forwarder = link._open_process()
    forwarder.send_signal(signal.SIGSTOP)
    try:
        link.run("client", [sys.executable, "-c", SEND, link.address("server")], check=True)
    finally:
        forwarder.send_signal(signal.SIGCONT)


@needs_root
def test_packets_missed_while_a_client_uses_the_link_are_doubts() -> None:
    with open_or_skip(up=Way(delay_ms=1), mode="tun") as link:
        link.measure(stream_s=0)
        before = link_doubts(link)
        send_too_fast(link)
        (doubt,) = set(link_doubts(link)) - set(before)
        assert doubt.startswith("link: up: the forwarder missed ")
        assert doubt.endswith(" packets")


@needs_root
def test_packets_missed_before_a_measurement_do_not_count_in_it() -> None:
    with open_or_skip(up=Way(delay_ms=1), mode="tun") as link:
        send_too_fast(link)
        assert any("missed" in text for text in link.deviations())
        link.run("client", ["ip", "link", "set", "dev", INTERFACE, "txqueuelen", "1000"], check=True)
        assert not any("missed" in text for text in link.measure(stream_s=0).off)
        assert not any("missed" in text for text in link.deviations())
