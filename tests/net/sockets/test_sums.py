"""Sums of the bytes that connections carried, from counts of sockets whose result is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_cloudbench.net.sockets.diag import LISTENING, TcpSocket, address_of
from pytest_cloudbench.net.sockets.sums import Carried, ServiceAddresses, sum_own_bytes, sum_service_bytes

ADDRESS = address_of(bytes([10, 0, 0, 1]))
SERVICE = (ADDRESS, 443)
ADDRESSES = ServiceAddresses([SERVICE])


def connection(number: int, up: int, down: int, state: int = 1) -> dict[int, TcpSocket]:
    """Return both ends of a connection. The client's cookie is the number, and the server's is a hundred more."""
    client = (ADDRESS, 50_000 + number)
    return {
        number: TcpSocket(number, state, client, SERVICE, up, down),
        100 + number: TcpSocket(100 + number, state, SERVICE, client, down, up),
    }


def change_socket(sockets: Mapping[int, TcpSocket], cookie: int, **values: int) -> dict[int, TcpSocket]:
    return {**sockets, cookie: replace(sockets[cookie], **values)}  # type: ignore[arg-type]  # the counts are integers


BEFORE = connection(1, 1000, 500)
AFTER = connection(1, 1700, 530)


def test_both_directions_count_once_after_the_start() -> None:
    assert sum_service_bytes(ADDRESSES, BEFORE, AFTER) == Carried(730, 0)
    assert sum_service_bytes(ADDRESSES, BEFORE, {**AFTER, **connection(2, 90, 9)}) == Carried(829, 1)


def test_closing_a_connection_counts_no_byte() -> None:
    closed = change_socket(change_socket(AFTER, 1, received_bytes=531), 101, received_bytes=1701)
    assert sum_service_bytes(ADDRESSES, BEFORE, closed, closed={1, 101}).bytes == 730


def test_undelivered_bytes_do_not_count() -> None:
    """The server sent its last bytes to a client that was gone, or a full queue refused bytes that were counted."""
    assert sum_service_bytes(ADDRESSES, BEFORE, change_socket(AFTER, 101, sent_bytes=554)).bytes == 730


def test_other_addresses_do_not_count() -> None:
    elsewhere = {
        5: TcpSocket(5, 1, SERVICE, (ADDRESS, 80), 7, 7),
        6: TcpSocket(6, 1, (ADDRESS, 50_001), (address_of(bytes([10, 0, 0, 2])), 443), 7, 7),
    }
    gone = {7: replace(elsewhere[6], cookie=7)}
    assert sum_service_bytes(ServiceAddresses([(ADDRESS, 8443)]), {**elsewhere, **gone}, elsewhere) == Carried(0, 0)


def test_all_loopback_addresses_are_the_same_service() -> None:
    first, second = address_of(bytes([127, 0, 0, 1])), address_of(bytes([127, 0, 5, 1]))
    ipv6 = bytes(15) + b"\x01"
    assert all((address, 443) in ServiceAddresses([(first, 443)]) for address in (first, second, ipv6))
    assert (first, 444) not in ServiceAddresses([(first, 443)])


def test_excluded_health_checks_do_not_count() -> None:
    assert sum_service_bytes(ADDRESSES, BEFORE, {**AFTER, **connection(2, 90, 9)}, excluded={2}) == Carried(730, 0)


def test_connections_closing_at_the_start_do_not_count() -> None:
    ending = change_socket(connection(3, 10, 10), 103, state=8)
    assert sum_service_bytes(ADDRESSES, {**BEFORE, **ending}, {**AFTER, 103: ending[103]}).bytes == 730


@pytest.mark.parametrize(
    ("after", "closed", "why"),
    [
        ({1: AFTER[1]}, (), "vanished"),
        ({**AFTER, 2: connection(2, 5, 5)[2]}, (), "only one end of 1 connection was seen"),
        ({**AFTER, 102: connection(2, 5, 5)[102]}, (), "only one end of 1 connection was seen"),
        (change_socket(AFTER, 1, sent_bytes=10), (), "was reset"),
        ({**AFTER, **change_socket(connection(2, 5, 0), 2, sent_bytes=0)}, {2, 102}, "was reset"),
        ({**AFTER, **connection(2, 5, 0), 3: replace(connection(2, 5, 0)[2], cookie=3)}, (), "a port was reused"),
    ],
)
def test_unknown_bytes_have_a_reason(after: dict[int, TcpSocket], closed: set[int], why: str) -> None:
    carried = sum_service_bytes(ADDRESSES, BEFORE, after, closed=closed, excluded={3})
    assert carried.bytes is None
    assert why in carried.why


def test_a_single_end_without_bytes_does_no_harm() -> None:
    refused = {2: connection(2, 0, 0)[2]}
    assert sum_service_bytes(ADDRESSES, BEFORE, {**AFTER, **refused}, closed={2}).bytes == 730


MINE, OTHERS = 71, 72


def client(number: int, up: int, down: int, *, inode: int = MINE, state: int = 1) -> dict[int, TcpSocket]:
    """Return a client's end of a connection to a service on another machine."""
    return {number: TcpSocket(number, state, (ADDRESS, 40_000 + number), SERVICE, up, down, up + 1, inode=inode)}


OWN_BEFORE, OWN_AFTER = client(1, 100, 50), client(1, 170, 80)


def test_own_bytes_count_after_the_start() -> None:
    others = client(3, 5, 5, inode=OTHERS)
    assert sum_own_bytes([MINE], OWN_BEFORE, {**OWN_AFTER, **client(2, 4, 6), **others}, {}) == Carried(110, 1)


def test_closing_an_own_connection_counts_no_byte() -> None:
    assert sum_own_bytes([MINE], OWN_BEFORE, client(1, 170, 81, state=8), {}).bytes == 100


def test_ended_connections_of_others_do_no_harm() -> None:
    others = client(3, 5, 5, inode=OTHERS)
    refused, health_check = client(4, 0, 0, inode=0), client(5, 9, 9, inode=0)
    carried = sum_own_bytes(
        [MINE], {**OWN_BEFORE, **others}, OWN_AFTER, {**others, **refused, **health_check}, excluded={5}
    )
    assert carried.bytes == 100


@pytest.mark.parametrize(
    ("after", "gone", "why"),
    [
        (OWN_AFTER, client(3, 5, 5, inode=0), "may belong to this run"),
        ({}, client(1, 170, 80, inode=0), "may belong to this run"),
        ({**OWN_AFTER, **client(3, 5, 5, inode=0, state=5)}, {}, "may belong to this run"),
        (client(1, 170, 80, inode=0, state=5), {}, "may belong to this run"),
        ({}, {}, "vanished"),
        ({1: replace(OWN_AFTER[1], acked_bytes=160)}, {}, "counts of sent and of acknowledged bytes differ"),
        (OWN_BEFORE, {}, "no connection of this run's own processes was seen"),
    ],
)
def test_incomplete_counts_of_own_connections_have_a_reason(
    after: dict[int, TcpSocket], gone: dict[int, TcpSocket], why: str
) -> None:
    carried = sum_own_bytes([MINE], OWN_BEFORE, after, gone)
    assert carried.bytes is None
    assert why in carried.why


def test_unacknowledged_bytes_in_flight_are_expected() -> None:
    assert (
        sum_own_bytes([MINE], OWN_BEFORE, {1: replace(OWN_AFTER[1], acked_bytes=160, has_unacked=True)}, {}).bytes
        == 100
    )


def test_internal_and_incoming_connections_do_not_count() -> None:
    page = (ADDRESS, 8000)
    internal = {
        10: TcpSocket(10, LISTENING, page, (bytes(16), 0), 0, 0, inode=MINE),
        11: TcpSocket(11, 1, page, (ADDRESS, 60_000), 900, 900, 900, inode=MINE),
        12: TcpSocket(12, 1, page, (ADDRESS, 60_001), 700, 700, 700, inode=MINE),
        13: TcpSocket(13, 1, (ADDRESS, 60_001), page, 700, 700, 701, inode=MINE),
    }
    gone = {14: replace(internal[11], cookie=14, inode=0)}
    assert sum_own_bytes([MINE], OWN_BEFORE, {**OWN_AFTER, **internal}, gone).bytes == 100
