"""Make the small real captures in fixtures/captures, and store how tshark analyses them.

It needs Linux, root, tcpdump, tshark, ethtool, ip and nft. Each capture is made between two network namespaces, so
nothing else is in it. Another run changes times and ports, but no sizes, names or dropped packets. ``--answers`` only
asks tshark again.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "fixtures" / "captures"
ANSWERS = FOLDER / "tshark.json"
A, B = "cloudbench-a", "cloudbench-b"
FIELDS = (
    "frame.number", "ip.src", "ipv6.src", "tcp.stream", "tcp.len", "tcp.flags.syn", "tcp.flags.ack",
    "tcp.analysis.retransmission", "tcp.analysis.fast_retransmission", "tcp.analysis.spurious_retransmission",
    "tcp.analysis.out_of_order", "tcp.analysis.keep_alive", "tls.handshake.extensions_server_name",
    "tcp.analysis.initial_rtt",
)  # fmt: skip


def run(*command: str) -> str:
    """Run a command and return its output. Raises RuntimeError if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {process.stderr}")
    return process.stdout


# --- two namespaces ---


@contextmanager
def link(*, offload: bool) -> Iterator[None]:
    """Create two namespaces with a cable between them: 10.9.0.1 and .2, fd09::1 and ::2."""
    try:
        for name in (A, B):
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "cb0", "netns", A, "type", "veth", "peer", "name", "cb0", "netns", B)
        for number, name in enumerate((A, B), 1):
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.cb0.accept_dad=0")
            run("ip", "-n", name, "link", "set", "cb0", "up")
            state = "on" if offload else "off"
            parts = ["tso", state, "gso", state, "gro", state] + ([] if offload else ["tx", "off"])
            run("ip", "netns", "exec", name, "ethtool", "-K", "cb0", *parts)
            run("ip", "-n", name, "addr", "add", f"10.9.0.{number}/24", "dev", "cb0")
            run("ip", "-n", name, "addr", "add", f"fd09::{number}/64", "dev", "cb0", "nodad")
        yield
    finally:
        for name in (A, B):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def capture(file: str, *options: str, device: str = "cb0") -> Iterator[None]:
    """Capture in the first namespace: .pcapng by dumpcap, .pcap by tcpdump."""
    path = FOLDER / file
    path.unlink(missing_ok=True)
    if path.suffix == ".pcapng":
        command = ["dumpcap", "-q", "-i", device, "-B", "64", "-w", str(path), *options]
        ready = "File:"
    else:
        command = ["tcpdump", "-i", device, "-B", "32768", "--immediate-mode", "-Z", "root", "-w", str(path), *options]
        ready = "listening on"
    process = subprocess.Popen(["ip", "netns", "exec", A, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if ready in line:
            break
    try:
        yield
        time.sleep(1.0)  # for packets that are still in the kernel's ring
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    path.chmod(0o644)


# --- the two ends: this file is run again in each namespace ---


def serve(address: str, kind: str, port: int) -> None:
    """Answer ``ok`` to each connection when all has been received. The kind ``file`` first sends 60,000 bytes."""
    if kind == "dns":
        return serve_dns(address, port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    context: ssl.SSLContext | None = None
    if kind.startswith("tls"):
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        authority.issue_cert("storage.example.com").configure_cert(context)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        if kind == "file":
            connection.sendall(payload(60_000))
        if kind == "chunks":
            for size in (20_000, 20_000, 20_000, 5_000):
                remaining = size
                while remaining:
                    remaining -= len(connection.recv(remaining))
                connection.sendall(b"ok")
        with suppress(OSError):  # the other end may reset
            while connection.recv(1 << 16):
                pass
            connection.sendall(b"ok")
        connection.close()


def serve_dns(address: str, port: int) -> None:
    """Answer each question with 10.9.0.2."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    print("ready", flush=True)
    while True:
        question, peer = server.recvfrom(512)
        record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + bytes([10, 9, 0, 2])
        server.sendto(question[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + question[12:] + record, peer)


def payload(size: int) -> bytes:
    """Return bytes that look random and are always the same."""
    from pytest_cloudbench.workload.payload import Payloads

    return Payloads("captures").random(size).content(0, 0).read(0, size)


def talk(address: str, task: str, port: int) -> None:
    """Run one client."""
    if task == "dns":
        query = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        name = b"".join(bytes([len(part)]) + part for part in b"upload.example.com".split(b"."))
        query.sendto(
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + b"\x00\x00\x01\x00\x01", (address, 53)
        )
        query.recv(512)
        task = "send:3000"
    if task == "quic":
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.sendto(quic_initial("quic.example.com"), (address, 443))
        sock.sendto(b"\x40" + payload(1100), (address, 443))
        return
    if task == "reuse":
        return talk_reuse(address, port)
    connection: socket.socket = socket.create_connection((address, port))
    if task.startswith("tls"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        if task == "tls12":
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        connection = context.wrap_socket(connection, server_hostname="storage.example.com")
        connection.sendall(payload(20_000))
    if task == "chunks":
        for size in (20_000, 20_000, 20_000, 5_000):
            connection.sendall(payload(size))
            connection.recv(2)
    if task == "canary":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = b"." * 1000 + b"CANARY-IN-PLAIN-TEXT" + b"." * 1000
        connection.sendall(body[:1010])
        time.sleep(0.05)
        connection.sendall(body[1010:])
    elif task == "idle":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.sendall(b"hello")
        time.sleep(3.5)
    elif task.startswith("send"):
        connection.sendall(payload(int(task.partition(":")[2])))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
    connection.close()


def talk_reuse(address: str, port: int) -> None:
    """Open two connections from one port. The first ends by a reset."""
    for size in (2_000, 5_000):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.bind(("10.9.0.1", 45_000))
        connection.connect((address, port))
        connection.sendall(payload(size))
        time.sleep(0.2)
        connection.close()


def quic_initial(name: str, target: bytes = bytes(range(8))) -> bytes:
    """Return a client's first QUIC packet with a TLS hello in it (RFC 9001, section 5), as browsers send it.

    ``target`` is the connection's number, of eight bytes.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hmac import HMAC
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    def expand(secret: bytes, label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(algorithm=hashes.SHA256(), length=length, info=info).derive(secret)

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h3"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        hello = outgoing.read()[5:]
    extract = HMAC(bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a"), hashes.SHA256())
    extract.update(target)
    secret = expand(extract.finalize(), b"client in", 32)
    key, vector, mask_key = (
        expand(secret, label, size) for label, size in ((b"quic key", 16), (b"quic iv", 12), (b"quic hp", 16))
    )
    frames = b"\x06\x00" + (0x4000 | len(hello)).to_bytes(2, "big") + hello
    frames = frames.ljust(1162, b"\0")
    head = (
        b"\xc3\x00\x00\x00\x01\x08" + target + b"\x00\x00" + (0x4000 | len(frames) + 20).to_bytes(2, "big") + bytes(4)
    )
    sealed = AESGCM(key).encrypt(vector, frames, head)
    mask = Cipher(algorithms.AES(mask_key), modes.ECB()).encryptor().update(sealed[:16])
    number = bytes(value ^ cover for value, cover in zip(head[-4:], mask[1:5], strict=True))
    return bytes([head[0] ^ (mask[0] & 15)]) + head[1:-4] + number + sealed


@contextmanager
def server(kind: str, address: str, port: int) -> Iterator[None]:
    """Run the server end in the second namespace."""
    process = inside(B, "serve", address, kind, port)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def inside(name: str, *words: object) -> subprocess.Popen[str]:
    """Start this file in a namespace."""
    command = ["ip", "netns", "exec", name, sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def client(*words: object) -> None:
    """Run one client in the first namespace."""
    process = inside(A, "talk", *words)
    process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"client {words}: exit status {process.returncode}")


def drop(name: str, rule: str) -> None:
    """Drop packets that come into a namespace by a rule of nft, without randomness."""
    run(
        "ip",
        "netns",
        "exec",
        name,
        "nft",
        "add table inet t; add chain inet t c { type filter hook input priority 0; }",
    )
    run("ip", "netns", "exec", name, "nft", f"add rule inet t c {rule} drop")


# --- the captures ---


def simple(
    file: str, task: str, kind: str = "sink", *, address: str = "10.9.0.2", options: Sequence[str] = (),
    offload: bool = False, lossy: Sequence[tuple[str, str]] = (), device: str = "cb0", port: int = 9000,
) -> Callable[[], None]:  # fmt: skip
    """Return a function that captures one client and one server."""

    def make() -> None:
        with link(offload=offload), server(kind, address, port):
            for name, rule in lossy:
                drop(name, rule)
            with capture(file, *options, device=device):
                client(address, task, port)

    return make


def capture_vlan() -> None:
    """Capture an upload, and put one VLAN tag into each frame, or two: not every kernel has VLAN devices."""
    simple("vlan.pcap", "send:40000")()
    path = FOLDER / "vlan.pcap"
    data, offset, count = path.read_bytes(), 24, 0
    result = data[:24]
    while offset < len(data):
        size = int.from_bytes(data[offset + 8 : offset + 12], "little")
        tags = b"\x81\x00\x00\x07" if count % 3 else b"\x88\xa8\x00\x09\x81\x00\x00\x07"
        lengths = 2 * (size + len(tags)).to_bytes(4, "little")
        frame = data[offset + 16 : offset + 16 + size]
        result += data[offset : offset + 8] + lengths + frame[:12] + tags + frame[12:]
        offset, count = offset + 16 + size, count + 1
    path.write_bytes(result)


def capture_names() -> None:
    """Capture DNS, then a connection to the address in the answer, then QUIC."""
    with link(offload=False), server("dns", "10.9.0.2", 53), server("sink", "10.9.0.2", 443), capture("names.pcapng"):
        client("10.9.0.2", "dns", 443)
        client("10.9.0.2", "quic", 443)


EVERY = "tcp dport 9000 meta length > 500 numgen inc mod {} == 5"
BACK = "tcp sport 9000 meta length > 500 numgen inc mod {} == 7"
CAPTURES: dict[str, Callable[[], None]] = {
    "upload-ipv4.pcapng": simple("upload-ipv4.pcapng", "send:100000"),
    "upload-ipv6.pcapng": simple("upload-ipv6.pcapng", "send:60000", address="fd09::2"),
    "download.pcap": simple("download.pcap", "receive", "file"),
    "vlan.pcap": capture_vlan,
    "offload.pcap": simple("offload.pcap", "send:200000", offload=True),
    "snaplen.pcap": simple("snaplen.pcap", "tls", "tls", options=("-s", "96"), port=443),
    "cooked.pcap": simple("cooked.pcap", "send:20000", options=("-y", "LINUX_SLL"), device="any"),
    "cooked2.pcap": simple("cooked2.pcap", "send:20000", options=("-y", "LINUX_SLL2"), device="any"),
    "nanoseconds.pcap": simple("nanoseconds.pcap", "send:20000", options=("--time-stamp-precision=nano",)),
    "tls13.pcapng": simple("tls13.pcapng", "tls", "tls", port=443),
    "tls12.pcapng": simple("tls12.pcapng", "tls12", "tls", port=443),
    "canary.pcapng": simple("canary.pcapng", "canary"),
    "chunks.pcapng": simple("chunks.pcapng", "chunks", "chunks"),
    "keep-alive.pcapng": simple("keep-alive.pcapng", "idle"),
    "reuse.pcapng": simple("reuse.pcapng", "reuse"),
    "loss-up.pcapng": simple("loss-up.pcapng", "send:150000", lossy=[(B, EVERY.format(11))]),
    "loss-heavy.pcapng": simple("loss-heavy.pcapng", "send:60000", lossy=[(B, EVERY.format(6))]),
    "loss-down.pcapng": simple("loss-down.pcapng", "receive", "file", lossy=[(A, BACK.format(9))]),
    "loss-syn.pcapng": simple("loss-syn.pcapng", "send:9000", lossy=[(B, "tcp flags == syn numgen inc mod 2 == 0")]),
    "loss-ack.pcapng": simple("loss-ack.pcapng", "send:90000", lossy=[(A, "tcp sport 9000 numgen inc mod 2 == 1")]),
    "names.pcapng": capture_names,
}  # fmt: skip


def ask_tshark(path: Path) -> dict[str, object]:
    """Return tshark's analysis of a capture: sums by sender, and the numbers of the frames that it marks."""
    options = [word for field in FIELDS for word in ("-e", field)]
    lines = run("tshark", "-n", "-r", str(path), "-T", "fields", *options).splitlines()
    rows = [dict(zip(FIELDS, line.split("\t"), strict=False)) for line in lines]
    bytes_by_sender: dict[str, int] = {}
    marked: dict[str, list[int]] = {field.rpartition(".")[2]: [] for field in FIELDS[7:12]}
    for row in rows:
        if row.get("tcp.len"):
            sender = row["ip.src"] or row["ipv6.src"]
            bytes_by_sender[sender] = bytes_by_sender.get(sender, 0) + int(row["tcp.len"])
        for field in FIELDS[7:12]:
            if row.get(field):
                marked[field.rpartition(".")[2]].append(int(row["frame.number"]))
    opening = [row for row in rows if row.get("tcp.flags.syn") in ("1", "True")]
    return {
        "packets": len(rows),
        "streams": len({row["tcp.stream"] for row in rows if row.get("tcp.stream")}),
        "payload_bytes": bytes_by_sender,
        "syns": sum(row["tcp.flags.ack"] in ("0", "False") for row in opening),
        "syn_acks": sum(row["tcp.flags.ack"] in ("1", "True") for row in opening),
        **marked,
        "names": sorted({row[FIELDS[12]] for row in rows if row.get(FIELDS[12])}),
        "initial_rtt_s": sorted({float(row[FIELDS[13]]) for row in rows if row.get(FIELDS[13])}),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Make captures, or be one end of one, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="captures to make (default: all)")
    parser.add_argument("--answers", action="store_true", help="make none, ask tshark again")
    options = parser.parse_args(argv)
    if options.words[:1] in (["serve"], ["talk"]):
        end = serve if options.words[0] == "serve" else talk
        end(options.words[1], options.words[2], int(options.words[3]))
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in () if options.answers else options.words or CAPTURES:
        CAPTURES[name]()
        print(f"{name}: {(FOLDER / name).stat().st_size:,} bytes", flush=True)
    version = run("tshark", "--version").split("\n", 1)[0].split(" (")[0]
    captures = {path.name: ask_tshark(path) for path in sorted(FOLDER.glob("*.pcap*"))}
    document = {"tshark": version, "captures": captures}
    ANSWERS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
