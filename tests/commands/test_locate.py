"""``cloudbench locate`` as a user runs it, with a DNS server and a registry of these tests on loopback."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_cloudbench.commands import cli
from pytest_cloudbench.net.locate.content import read_content
from pytest_cloudbench.net.locate.sphere import Position, distance_km
from pytest_cloudbench.results.locations import LOCATIONS, StoredLocations
from tests.limits import HANG_S
from tests.net.locate.content_times import expected_layer
from tests.net.locate.dns_server import ANYONE, Zone, serve_dns
from tests.net.locate.rdap_server import Registry, bootstrap, network, serve_rdap
from tests.net.traffic import craft
from tests.truths import Truths

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "captures"
NAME = "files.fjord.example"


@dataclass
class Internet:
    zone: Zone
    registry: Registry
    options: list[str]


@contextmanager
def internet(folder: Path, addresses: list[str]) -> Iterator[Internet]:
    """Serve a resolver that knows one name, a registry that knows loopback, and a port that accepts connections."""
    zone = Zone({NAME: {ANYONE: addresses}})
    registry = Registry({"127.0.0.0/8": network("127.0.0.0/8", "Fjord Storage AS")})
    with (
        serve_dns(zone) as resolver,
        serve_rdap(registry) as url,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        (folder / "resolvers.txt").write_text(f"{resolver}\n", "utf-8")
        (folder / "rdap.json").write_text(bootstrap(url, "127.0.0.0/8"), "utf-8")
        port = str(server.getsockname()[1])
        files = ["--resolvers", str(folder / "resolvers.txt"), "--rdap", str(folder / "rdap.json")]
        yield Internet(zone, registry, [*files, "--port", port])


def test_a_name_gets_a_line_with_operator_place_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with internet(tmp_path, ["127.0.0.1"]) as net:
        assert cli.main(["locate", NAME, "--here", "Oslo", *net.options]) == 0
    _, _, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        rf"{NAME} +1  Fjord Storage AS  within \d+ km of Oslo  round trips, 1 point", line
    ), line  # fmt: skip


def test_a_name_without_an_address_has_no_known_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with internet(tmp_path, ["127.0.0.1"]) as net:
        assert cli.main(["locate", NAME, "absent.example", "--here", "Oslo", *net.options]) == 1
    text = capsys.readouterr().out
    assert "km of Oslo" in text
    assert "absent.example" in text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user, with a configuration of pytest."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_saved_location_is_stated_by_runs_of_providers_at_that_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with internet(home, ["127.0.0.1"]) as net:
        cli.main(["locate", NAME, "--here", "Oslo", "--save", "seen.json", *net.options])
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"stored in results/{LOCATIONS}, and with each run of")
    stated = StoredLocations(home / "results").find("webdav:files", NAME)
    assert (stated["operator"], stated["servers"], stated["nearest_km"]) == ("Fjord Storage AS", 1, 0.0)
    assert stated["place"].endswith("km of Oslo")
    assert 0 < stated["farthest_km"] < 500


def test_unknown_location_stores_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with internet(home, ["203.0.113.9"]) as net:  # a network for documentation, whose location nobody publishes
        cli.main(["locate", NAME, "--save", "seen.json", *net.options])
    assert "stored in" not in capsys.readouterr().out
    assert not (home / "results").exists()


def test_saved_survey_is_judged_again_without_queries(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = home / "seen.json"
    with internet(home, ["127.0.0.1"]) as net:
        cli.main(["locate", NAME, "--here", "59.91,10.75", "--save", str(saved), *net.options])
    first = capsys.readouterr().out.partition("stored in ")[0]
    counts = len(net.zone.asked), len(net.registry.asked)
    assert cli.main(["locate", "--judge", str(saved)]) == 0
    assert capsys.readouterr().out == first
    assert (len(net.zone.asked), len(net.registry.asked)) == counts


def make_survey(folder: Path, name: str, position: Position, rtt_ms: float, date: str) -> str:
    path = folder / f"{name}.json"
    vantage = {
        "name": name, "latitude_deg": position[0], "longitude_deg": position[1], "rtts": {"192.0.2.1": [rtt_ms]},
        "has_proxy": False,
    }  # fmt: skip
    names = {NAME: {"addresses": ["192.0.2.1"]}}
    path.write_text(json.dumps({"taken": date, "names": names, "vantages": [vantage]}), "utf-8")
    return str(path)


def test_surveys_of_several_hosts_and_days_give_one_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    berlin = Position(52.52, 13.41)
    places = {"oslo": Position(59.91, 10.75), "rome": Position(41.89, 12.48), "paris": Position(48.86, 2.35)}
    files = [
        make_survey(tmp_path, name, position, distance_km(position, berlin) / 100 * 1.1, f"2026-11-0{day}T10:00:00Z")
        for day, (name, position) in enumerate(places.items(), 1)
    ]
    assert cli.main(["locate", "--judge", *files, "--json"]) == 0
    server = json.loads(capsys.readouterr().out)["servers"]["192.0.2.1"]
    region = server["region"]
    center = Position(region["latitude_deg"], region["longitude_deg"])
    assert distance_km(center, berlin) <= region["radius_km"] < 500
    assert server["vantage_points"] == 3


def test_anycast_has_no_place_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        make_survey(tmp_path, "oslo", Position(59.91, 10.75), 1.0, "2026-11-01"),
        make_survey(tmp_path, "rome", Position(41.89, 12.48), 1.0, "2026-11-01"),
    ]
    assert cli.main(["locate", "--judge", *files]) == 1
    assert "anycast: at least 2 servers share the address" in capsys.readouterr().out


@contextmanager
def serve_file(answer: bytes, *headers: str) -> Iterator[tuple[str, list[str]]]:
    """Serve the same answer on loopback for every path. Yield the URL and the list of requested paths.

    It is written by hand, because the milliseconds in which ``http.server`` reads a request count as distance.
    """
    paths = list[str]()
    status = "200 OK" if answer else "404 Not Found"
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(answer)}", *headers, "", "")).encode()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while request := self.rfile.readline():
                paths.append(request.split()[1].decode())
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(head + answer)
                if "Connection: close" in headers:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True  # a connection may still be open at the end
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", paths
        finally:
            server.shutdown()
            thread.join()


def test_content_from_a_storage_comes_within_a_round_trip(
    home: Path, capsys: pytest.CaptureFixture[str], truths: Truths
) -> None:
    with serve_file(bytes(300_000)) as (url, paths):
        words = ["locate", "--content", *(f"{url}/new-{number}?key=s3cret" for number in range(4)), "--here", "Oslo"]
        cli.main([*words, "--json", "--save", "seen.json"])
    server = json.loads(capsys.readouterr().out)["servers"]["127.0.0.1"]
    assert re.search(r"; \d.* MB/s at first, .* MB/s when read again", server["layer_by"])
    assert len(paths) == 20
    seen = (home / "seen.json").read_text("utf-8")
    assert "s3cret" not in seen
    layer = expected_layer(json.loads(seen)["content"]["127.0.0.1"], truths)
    assert server["layer"] == layer
    cli.main(["locate", "--judge", "seen.json", "--json"])
    assert json.loads(capsys.readouterr().out)["servers"]["127.0.0.1"]["layer"] == layer


def test_connection_for_content_is_open_before_round_trips_are_measured() -> None:
    requests = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/new"
        reading = pool.submit(read_content, url, "127.0.0.1", HANG_S)
        first, _ = listener.accept()
        with first:
            while len(requests) < 5:
                requests.append(first.recv(1 << 16))
                first.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew")
        assert reading.result(HANG_S).problem == ""
    assert all(request.startswith(b"GET /new ") for request in requests)


def test_content_url_is_sent_as_browsers_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_file(b"content") as (url, paths):
        cli.main(["locate", "--content", f"{url}/ü/a b%20'c?näme=ß&d=e", "--json"])
        cli.main(["locate", "--content", f"{url}/\udcff"])
    assert {*paths} == {"/%C3%BC/a%20b%20'c?n%C3%A4me=%C3%9F&d=e"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("answer", "header", "reason"),
    [
        (b"content", "Age: 7", "another server than the origin answered"),
        (b"content", "Via: 1.1 edge", "another server than the origin answered"),
        (b"", "X-Nothing: 1", "it answers 404 without content"),
        (b"content", "Connection: close", "it ends the connection after each answer"),
    ],
)
def test_inconclusive_content_leaves_server_layer_unknown(
    home: Path, capsys: pytest.CaptureFixture[str], answer: bytes, header: str, reason: str
) -> None:
    with serve_file(answer, header) as (url, _):
        cli.main(["locate", "--content", f"{url}/new", "--json"])
    server = json.loads(capsys.readouterr().out)["servers"]["127.0.0.1"]
    assert (server["layer"], reason in server["layer_by"]) == ("unknown", True), server["layer_by"]


def test_content_of_others_is_not_read_unless_the_user_agrees(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    cli.main(["locate", "--content", "https://203.0.113.9/new", "--save", "seen.json"])
    assert "not measured: 1 address of others" in capsys.readouterr().out
    survey = json.loads((home / "seen.json").read_bytes())
    assert (survey["content"], survey["hops"]) == ({}, {})


@pytest.mark.parametrize("url", ["new.bin", "ftp://a.example/x", "https://user@a.example/x", "https://[/x"])
def test_locate_refuses_invalid_content_url(home: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert cli.main(["locate", "--content", url]) == 4
    assert "--content: expected URLs such as" in capsys.readouterr().err


def test_foreign_servers_are_not_contacted_without_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with internet(tmp_path, ["52.216.1.1", "52.216.1.2"]) as net:
        assert cli.main(["locate", NAME, *net.options]) == 0
    text = capsys.readouterr().out
    assert "us-east-1" in text
    assert "not confirmed" in text
    assert "not measured: 2 addresses of others; --cloudbench-yes connects ten times" in text
    assert net.registry.asked == []


def test_only_a_name_with_other_answers_for_other_networks_heeds_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "subnets.txt").write_text("198.51.100.0/24\n203.0.113.0/24\n", "utf-8")
    with internet(home, ["127.0.0.1"]) as net:
        nets = {ANYONE: ["127.0.0.1"], "198.51.100.0/24": ["127.0.0.2"], "203.0.113.0/24": ["127.0.0.3"]}
        net.zone.names = {NAME: {ANYONE: ["127.0.0.1"]}, "near.fjord.example": nets}
        words = [NAME, "near.fjord.example", "--subnets", "subnets.txt", "--rate", "2000", "--json"]
        cli.main(["locate", *words, *net.options])
    names = json.loads(capsys.readouterr().out)["names"]
    assert {name: seen["heeds_subnets"] for name, seen in names.items()} == {NAME: None, "near.fjord.example": True}


def test_the_servers_of_a_capture_are_listed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with internet(tmp_path, []) as net:
        cli.main(["locate", "--capture", str(FOLDER / "names.pcapng"), "--json", *net.options])
    names = json.loads(capsys.readouterr().out)["names"]
    assert any(entry["addresses"] for entry in names.values())
    assert not any(kind == "A" and re.fullmatch(r"[\d.]+", name) for name, kind in net.zone.asked)


def test_only_servers_of_a_capture_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [
        (5000, "233.252.0.9", 9), (5353, "ff02::fb", 5353), (17500, "255.255.255.255", 17500), (5353, "10.0.0.9", 5353),
        (68, "10.0.0.9", 67),
    ]  # fmt: skip
    frames = [
        (craft.START_NS, craft.udp("fe80::1" if ":" in address else "10.0.0.1", client_port, address, port, b"1"))
        for client_port, address, port in others
    ]
    for server, port in (("192.0.2.1", 443), ("192.0.2.53", 853)):
        segments = [replace(segment, server=server, server_port=port) for segment in craft.connection(b"x" * 1000)]
        frames += craft.records(segments)
    (tmp_path / "all.pcap").write_bytes(craft.pcap(frames))
    with internet(tmp_path, []) as net:
        cli.main(["locate", "--capture", str(tmp_path / "all.pcap"), "--json", *net.options])
    assert [*json.loads(capsys.readouterr().out)["names"]] == ["192.0.2.1"]


def test_capture_with_a_name_that_no_host_can_have_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label, address = "bücher".encode(), bytes([192, 0, 2, 1])
    question = bytes([len(label)]) + label + b"\0" + bytes([0, 1, 0, 1])
    record = b"\xc0\x0c" + bytes([0, 1, 0, 1, 0, 0, 0, 60, 0, 4]) + address
    answer = bytes([0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]) + question + record
    frames = [(craft.START_NS, craft.udp("10.0.0.1", 53, "10.0.0.2", 40_000, answer))]
    segments = craft.connection(b"x" * 1000)
    frames += craft.records([replace(segment, client="10.0.0.2", server="192.0.2.1") for segment in segments])
    (tmp_path / "odd.pcap").write_bytes(craft.pcap(frames))
    with internet(tmp_path, []) as net:
        assert cli.main(["locate", "--capture", str(tmp_path / "odd.pcap"), "--json", *net.options]) == 1
    names = json.loads(capsys.readouterr().out)["names"]
    assert [(name, seen["addresses"]) for name, seen in names.items()] == [("b\ufffd\ufffdcher", ["192.0.2.1"])]


def test_a_narrow_terminal_gets_no_longer_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cloudbench.commands.locate.output_width", lambda: 80)
    files = [make_survey(tmp_path, name, Position(59.91, 10.75), 30.0, "2026-11-01") for name in ("oslo", "bergen")]
    cli.main(["locate", "--judge", *files])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected names, or --capture FILE, or --judge FILE"),
        (["a.example", "--judge", "x"], "expected names, or --capture FILE, or --judge FILE"),
        (["two words"], "'two words' is no host name"),
        (["a.example", "--here", "Atlantis"], "--here: 'Atlantis': expected a city"),
        (["a.example", "--rate", "0"], "--rate 0: expected questions a second"),
        (["a.example", "--rate", "nan"], "--rate nan: expected questions a second"),
        (["fe80::1%eth0"], "'fe80::1%eth0' is an address in one network"),
        (["999.1.1.1"], "'999.1.1.1' is no host name"),
        (["https://a.example/x"], "is no host name: expected one such as storage.example.com, without scheme or port"),
        (["a.example", "--port", "0"], "--port 0: expected a number from 1 to 65535"),
        (["a.example", "--resolvers", "absent.txt"], "absent.txt: No such file or directory"),
        (["a.example", "--cloudbench-hosts", "absent.toml"], "absent.toml: cannot be read (No such file or directory)"),
        (["--judge", "absent.json"], "absent.json: No such file or directory"),
        (["--capture", "absent.pcap"], "absent.pcap"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["locate", *arguments]) == 4
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert "\n" not in error.rstrip("\n")


@pytest.mark.parametrize(
    ("leads_to", "operator"), [(["127.0.0.1"], "Google"), ([], "Google"), (["192.0.2.9"], ""), (["::1"], "")]
)
def test_reverse_name_must_resolve_to_its_address(
    home: Path, capsys: pytest.CaptureFixture[str], leads_to: list[str], operator: str
) -> None:
    name = "lhr25s34-in-f14.1e100.net"
    with internet(home, ["127.0.0.1"]) as net:
        net.registry.networks = {}
        net.zone.ptr = {"1.0.0.127.in-addr.arpa": name}
        net.zone.names = {NAME: {ANYONE: ["127.0.0.1"]}, **({name: {ANYONE: leads_to}} if leads_to else {})}
        cli.main(["locate", NAME, "--here", "London", "--json", *net.options])
    server = json.loads(capsys.readouterr().out)["servers"]["127.0.0.1"]
    assert server["operator"] == operator
    assert ("name of the server" in server["known_by"]) is bool(operator)


def test_truncated_capture_is_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (FOLDER / "tls13.pcapng").read_bytes()
    for size in (len(data), 20_000):
        (home / "some.pcapng").write_bytes(data[:size])
        with internet(home, []) as net:
            assert cli.main(["locate", "--capture", "some.pcapng", *net.options]) == 1
        captured = capsys.readouterr()
        assert "storage.example.com" in captured.out
        assert ("some.pcapng: servers may be missing: the file ends within" in captured.err) is (size == 20_000)


def test_unknown_location_of_a_host_is_refused_before_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[host]]\nname = "a"\ncommand = ["false"]\nlabels = {location = "Atlantis"}\n', "utf-8")
    with internet(tmp_path, ["127.0.0.1"]) as net:
        assert cli.main(["locate", NAME, "--cloudbench-hosts", str(hosts), *net.options]) == 4
    assert "host a: location: 'Atlantis': expected a city" in capsys.readouterr().err
    assert net.zone.asked == []


def test_a_host_that_does_not_answer_does_not_count_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(
        '[[host]]\nname = "gone"\ncommand = ["false"]\nlabels = {location = "Rome"}\n'
        '[[host]]\nname = "here"\ncommand = ["python3"]\nlabels = {location = "Oslo"}\n', "utf-8",
    )  # fmt: skip
    with internet(tmp_path, ["127.0.0.1"]) as net:
        assert cli.main(["locate", NAME, "--cloudbench-hosts", str(hosts), *net.options]) == 0
    text = capsys.readouterr().out
    assert "km of Oslo  round trips, 1 point" in text
    assert "gone does not count: false ended with exit status 1" in text


AMAZON = {
    "prefixes": [
        {"ip_prefix": "203.0.113.0/25", "region": "eu-north-1", "service": "S3"},
        {"ip_prefix": "203.0.113.128/25", "region": "eu-north-1", "service": "S3"},
        {"ip_prefix": "198.51.100.0/24", "region": "GLOBAL", "service": "CLOUDFRONT"},
    ],
    "ipv6_prefixes": [{"ipv6_prefix": "2001:db8::/32", "region": "eu-west-1", "service": "AMAZON"}],
}
MICROSOFT = {
    "values": [
        {"properties": {"region": "norwaye", "systemService": "AzureStorage", "addressPrefixes": [f"203.0.{n}.0/24"]}}
        for n in (1, 2, 3)
    ]
}


@pytest.fixture
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's own tables, which does not exist at first."""
    monkeypatch.setattr("pytest_cloudbench.lab.locating.renewed_folder", lambda: tmp_path / "own")
    monkeypatch.setattr("pytest_cloudbench.commands.locate_update.renewed_folder", lambda: tmp_path / "own")
    return tmp_path / "own"


def place_of(address: str, capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    path = folder / "one.json"
    path.write_text(json.dumps({"taken": "2026-11-01", "names": {"a.example": {"addresses": [address]}}}), "utf-8")
    capsys.readouterr()
    cli.main(["locate", "--judge", str(path), "--json"])
    return str(json.loads(capsys.readouterr().out)["servers"][address]["place"])


def test_ranges_of_one_operator_are_renewed_and_those_of_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own_tables: Path
) -> None:
    for name, document in (("amazon", AMAZON), ("microsoft", MICROSOFT)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    files = [f"Amazon={tmp_path / 'amazon.json'}", f"Microsoft={tmp_path / 'microsoft.json'}"]
    assert cli.main(["locate", "--update", *files]) == 0
    assert capsys.readouterr().out.splitlines() == ["Amazon: 4 ranges", "Microsoft: 3 ranges"]
    assert place_of("203.0.113.200", capsys, tmp_path).startswith("eu-north-1")
    assert place_of("203.0.2.7", capsys, tmp_path).startswith("norwaye")
    assert place_of("52.216.1.1", capsys, tmp_path) == "unknown"  # Amazon's old ranges are gone
    assert place_of("34.90.0.1", capsys, tmp_path).startswith("europe-west4")  # Google's stay
    assert [path.name for path in own_tables.iterdir()] == ["prefixes.txt"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "is not a file of ranges of Amazon"),
        ("{}", "has 0 ranges of Amazon, which cannot be all"),
        ('{"prefixes": [{"ip_prefix": "here"}]}', "is not a file of ranges of Amazon"),
    ],
)
def test_invalid_range_file_changes_nothing(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], own_tables: Path
) -> None:
    (tmp_path / "bad.json").write_text(text, "utf-8")
    assert cli.main(["locate", "--update", f"Amazon={tmp_path / 'bad.json'}"]) == 1
    assert words in capsys.readouterr().out
    assert not own_tables.exists()


def test_invalid_address_of_ranges_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], own_tables: Path
) -> None:
    location = "http://127.0.0.1:9/a b"
    assert cli.main(["locate", "--update", f"Amazon={location}"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"Amazon: kept as it was: {location}: ")
    assert not own_tables.exists()


def test_lists_of_registries_are_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str], own_tables: Path) -> None:
    (tmp_path / "v4.json").write_text(bootstrap("https://new.example/", "203.0.113.0/24"), "utf-8")
    assert cli.main(["locate", "--update", f"registries={tmp_path / 'v4.json'}"]) == 0
    assert capsys.readouterr().out == "registries: lists of 2026-11-01\n"
    assert "new.example" in (own_tables / "rdap.json").read_text("utf-8")


def test_operator_without_a_permanent_address_needs_a_file(
    capsys: pytest.CaptureFixture[str], own_tables: Path
) -> None:
    assert cli.main(["locate", "--update", "Microsoft"]) == 1
    assert "download it, and give --update Microsoft=FILE" in capsys.readouterr().out
    assert cli.main(["locate", "--update", "Nobody=x"]) == 4
    assert "--update Nobody=x: expected one of Amazon, Google, Microsoft, Cloudflare" in capsys.readouterr().err
