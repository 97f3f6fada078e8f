"""Credentials on other hosts. Only those that a driver needs are sent, and no other user can read them there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_cloudbench.model import Endpoint, UsageError
from pytest_cloudbench.providers import elsewhere
from pytest_cloudbench.providers.for_agents import Provided, SentAlong
from pytest_cloudbench.services.command import CommandService, load_recipe
from tests.fleet.harness import Lab

OTHER = "s3cret-of-somebody-else"


@pytest.mark.slow
def test_a_host_without_any_secret_uses_the_credentials_of_this_machine(lab: Lab, tmp_path: Path) -> None:
    """It gets those of the provider only, and they are in no environment, file or command line."""
    host_folder = tmp_path / "elsewhere"
    host_folder.mkdir()
    service = CommandService(load_recipe("webdav"))
    endpoint = service.start()
    try:
        address = endpoint.url.removeprefix("http://").rstrip("/")
        password = endpoint.credentials["password"]
        lab.write(
            f"""
            def test_it(experiment, payloads, provider):
                process = pathlib.Path("/proc/self")
                seen = process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()
                parent = pathlib.Path(f"/proc/{{os.getppid()}}")
                seen += parent.joinpath("cmdline").read_bytes() + parent.joinpath("environ").read_bytes()
                root = pathlib.Path.cwd()
                experiment.run(payloads.random(50), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=2).check()
                seen += b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
                pathlib.Path({str(host_folder / "seen")!r}).write_bytes(seen)
                password = provider.opened[1].sent.credentials["password"]
                print("it is", password)
                assert password == "", "so that pytest shows it"
            """
        )
        bare = f'command = ["env", "-i", "PATH=/usr/bin:/bin", "TMPDIR={host_folder}", "{sys.executable}"]'
        lab.write(f'[[host]]\nname = "bare"\nagents = 2\n{bare}\n', "hosts.toml")
        run = lab.run(
            "--provider", f"webdav://{address}?tls=0", "--cloudbench-hosts", "hosts.toml",
            env={
                "CLOUDBENCH_WEBDAV_USER": endpoint.credentials["user"], "CLOUDBENCH_WEBDAV_PASSWORD": password,
                "CLOUDBENCH_DROPBOX_ACCESS_TOKEN": OTHER,
            },
        )  # fmt: skip
    finally:
        service.stop()
    [entry] = run.entries.values()
    assert entry["extra_info"]["ok_rate"] == 1.0, run.text
    content = (host_folder / "seen").read_bytes()
    assert b"PATH=/usr/bin:/bin" in content
    assert password.encode() not in content
    assert OTHER.encode() not in content
    assert "it is" in run.text
    assert password not in run.text


def test_files_of_credentials_are_in_the_memory_of_the_agent(tmp_path: Path) -> None:
    cap = tmp_path / "cap"
    cap.write_text("URI:DIR2:secret")
    provided = Provided("tahoe", sent=SentAlong({"cap_file": str(cap)}, {str(cap): cap.read_bytes()}))
    assert "URI" not in repr(provided)
    received = elsewhere.unpack(Provided.from_plain(provided.plain()))
    cap.unlink()
    assert received.sent is not None
    name = received.sent.credentials["cap_file"]
    assert Path(name).read_text() == "URI:DIR2:secret"
    assert name.startswith("/proc/")


def test_addresses_in_urls_credentials_and_files_become_those_of_the_host(tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("[127.0.0.1]:5000 ssh-ed25519 AAAA\n")
    endpoint = Endpoint(
        {"api": "http://127.0.0.1:5000/x", "far": "http://198.51.100.7:5000/", "other": "http://localhost:50001"},
        {"auth_url": "http://127.0.0.1:5000/auth", "known_hosts": str(known_hosts)}, control="127.0.0.1:9", api="a",
    )  # fmt: skip
    ports = {("127.0.0.1", 5000): 6000, ("localhost", 50001): 50001}
    prepared = elsewhere.prepare(Provided("a", endpoint), lambda address: ports[address])
    assert prepared.endpoint is not None
    assert prepared.endpoint.urls == {
        "api": "http://127.0.0.1:6000/x", "far": "http://198.51.100.7:5000/", "other": "http://localhost:50001",
    }  # fmt: skip
    assert prepared.endpoint.credentials["auth_url"] == "http://127.0.0.1:6000/auth"
    assert prepared.endpoint.control == "", "which is for the controller"
    assert prepared.sent is not None
    assert prepared.sent.files == {str(known_hosts): b"[127.0.0.1]:6000 ssh-ed25519 AAAA\n"}


def test_a_service_that_nothing_leads_to_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="which no agent on another host reaches: name hosts by --cloudbench-hosts"):
        elsewhere.prepare(Provided("a", Endpoint({"": "http://127.0.0.1:1"})), None)


def test_array_with_local_metadata_is_refused_in_one_line() -> None:
    """Agents elsewhere would make metadata of their own, and each would miss what the others wrote."""
    array = Provided("raid:any", children=(Provided("folder:/one"), Provided("folder:/two")))
    with pytest.raises(UsageError, match="raid: its metadata is on this machine only"):
        elsewhere.prepare(array, None)
