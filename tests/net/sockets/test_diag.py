"""The kernel's messages about sockets, without a kernel."""

from __future__ import annotations

import socket
import struct

import pytest

from pytest_cloudbench.net.sockets.diag import (
    DONE,
    FAILED,
    SOCKET,
    TcpSocket,
    UncountedError,
    address_of,
    is_loopback,
    make_dump_request,
    make_port_filter,
    read_errno,
    read_socket,
    split_messages,
)


def tcp_info(sent_bytes: int, resent_bytes: int, received_bytes: int, length: int = 280) -> bytes:
    info = bytearray(280)
    struct.pack_into("=I", info, 24, 2)
    struct.pack_into("=QQ", info, 120, 3000, received_bytes)
    struct.pack_into("=QQ", info, 200, sent_bytes, resent_bytes)
    return bytes(info[:length])


def body(
    family: int = socket.AF_INET, local: str = "127.0.0.1", remote: str = "127.0.0.2", info: bytes | None = None
) -> bytes:
    """Return a message as Linux writes it, with an attribute of odd length before the counts."""
    ends = [socket.inet_pton(family, address).ljust(16, b"\0") for address in (local, remote)]
    content = struct.pack("=BBBB", family, 1, 0, 0) + struct.pack("!HH", 4711, 443) + b"".join(ends)
    content += struct.pack("=III", 0, 7, 1) + struct.pack("=IIIII", 0, 0, 0, 1000, 99)
    content += struct.pack("=HHB3x", 5, 8, 0)
    return content if info is None else content + struct.pack("=HH", 4 + len(info), 2) + info


def message(kind: int, content: bytes) -> bytes:
    data = struct.pack("=IHHII", 16 + len(content), kind, 2, 1, 0) + content
    return data + bytes(-len(data) % 4)


@pytest.mark.parametrize(
    ("family", "local", "remote"),
    [(socket.AF_INET, "127.0.0.1", "10.1.2.3"), (socket.AF_INET6, "::1", "2001:db8::7")],
)
def test_a_socket_message_is_parsed(family: int, local: str, remote: str) -> None:
    tcp_socket = read_socket(body(family, local, remote, tcp_info(5000, 1200, 77)))
    local_address, remote_address = (address_of(socket.inet_pton(family, address)) for address in (local, remote))
    assert tcp_socket == TcpSocket(
        1 << 32 | 7, 1, (local_address, 4711), (remote_address, 443), 3800, 77, 3000, True, 99
    ), "each byte once"


def test_an_ipv4_address_is_the_same_in_both_families() -> None:
    packed = socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")
    assert packed == address_of(socket.inet_aton("127.0.0.1"))
    assert is_loopback(packed)
    assert is_loopback(socket.inet_pton(socket.AF_INET6, "::1"))
    assert not is_loopback(address_of(socket.inet_aton("10.0.0.1")))


def test_remains_of_a_closed_connection_have_no_counts() -> None:
    assert read_socket(body()) is None


def test_kernels_before_4_19_do_not_count_sent_bytes() -> None:
    with pytest.raises(UncountedError, match=r"Linux 4\.19 does"):
        read_socket(body(info=tcp_info(1, 0, 1, length=192)))


@pytest.mark.parametrize("cut", [3, 40, 90])
def test_truncated_messages_raise(cut: int) -> None:
    data = message(SOCKET, body(info=tcp_info(1, 0, 1)))
    with pytest.raises(UncountedError, match="cut off"):
        list(split_messages(data[:cut]))
    with pytest.raises(UncountedError, match="cut off"):
        read_socket(body()[: min(cut, 71)])


def test_joined_messages_are_split() -> None:
    parts = [(SOCKET, body(info=tcp_info(3, 0, 4))), (FAILED, struct.pack("=i", -2)), (DONE, struct.pack("=i", 0))]
    messages = list(split_messages(b"".join(message(kind, content) for kind, content in parts)))
    assert messages == parts
    assert [read_errno(content) for _, content in messages[1:]] == [2, 0]


def test_the_request_asks_for_tcp_with_counts() -> None:
    request = make_dump_request(socket.AF_INET6)
    assert struct.unpack_from("=IHH", request) == (len(request), 20, 0x301)
    family, protocol, extensions, states = struct.unpack_from("=BBBxI", request, 16)
    assert (family, protocol, extensions) == (socket.AF_INET6, socket.IPPROTO_TCP, 2)
    assert states & 1 << 1, "established"
    assert not states & 1 << 6, "not what is over"


def passes(program: bytes, data: bytes) -> bool:
    """Run a filter of loads, comparisons and returns as the kernel does. Return whether the data passes."""
    steps, index, loaded = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, yes, no, value = steps[index]
        index += 1
        if code == 0x06:
            return bool(value)
        if code == 0x28:
            (loaded,) = struct.unpack_from("!H", data, value)
        else:
            assert code == 0x15
            index += yes if loaded == value else no


@pytest.mark.parametrize(
    ("ends", "should_pass"),
    [((50000, 443), True), ((8080, 50000), True), ((443, 8080), True), ((0, 0), True), ((50000, 80), False)],
)
def test_only_sockets_of_the_ports_pass_the_filter(ends: tuple[int, int], should_pass: bool) -> None:
    data = bytearray(message(SOCKET, body(info=tcp_info(1, 0, 1))))
    struct.pack_into("!HH", data, 20, *ends)
    assert passes(make_port_filter([443, 8080]), bytes(data)) is should_pass
