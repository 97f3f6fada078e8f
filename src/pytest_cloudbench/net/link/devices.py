"""Namespaces and network devices, by system calls: a program is needed only for what only netlink can do.

What may live here: making and setting up; no policy. Linux only, in the holder's process. Needs CAP_SYS_ADMIN and
CAP_NET_ADMIN, if only in a user namespace of its own.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
import subprocess

ADDRESSES = {"client": ("198.18.0.1", "2001:2::1"), "server": ("198.18.0.2", "2001:2::2")}
"""IPv4 and IPv6 of each side, from the ranges for benchmarks (RFC 2544, RFC 5180)."""
INTERFACE = "cloudbench0"
"""The link's device, in either namespace."""
HARDWARE_ADDRESS = "02:00:c6:12:00:01"
"""Of both ends of a veth link: without ARP Linux addresses a packet to its own device's address."""
MTU_BYTES = 1500

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _TUN_BARE = 0x400454CA, 0x1001  # IFF_TUN | IFF_NO_PI
_SET_ADDRESS, _SET_MASK = 0x8916, 0x891C
_RTM_NEWLINK, _REQUEST_AND_ACK, _IFLA_MTU, _IFLA_TXQLEN = 16, 0x5, 4, 13
_UP, _NOARP = 0x1, 0x80
_ETHTOOL = 0x8946
# Name to ethtool's commands (get, set). Checksums and scatter-gather first: the others depend on them.
_OFFLOADS = {
    "tx_checksum": (0x16, 0x17),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}
_QUEUE_PACKETS = 20_000
_SOCKET_BUFFER_BYTES = 64 * 1024 * 1024
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 263, 6, 20, 23
_ETH_P_ALL = 3


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # os.unshare and os.setns came with Python 3.12


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def enter_user_namespace() -> None:
    """Become root of a new user namespace. Raises OSError where that is not allowed."""
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc().unshare(_NEWUSER), "unshare of a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def new_net() -> int:
    """Enter a new network namespace where devices keep quiet; a descriptor that keeps it. Raises OSError."""
    _checked(_libc().unshare(_NEWNET), "unshare of a network namespace")
    _quiet_ipv6()
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_net(namespace: int) -> None:
    """Enter a network namespace by its descriptor."""
    _checked(_libc().setns(namespace, _NEWNET), "setns")


def make_tun(name: str) -> int:
    """A TUN device in this namespace; its descriptor gives and takes bare IP packets."""
    import fcntl

    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_BARE))
    return descriptor


def _command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OSError(error.errno, f"{words[0]} is not installed (package iproute2)") from error
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")


def make_veth(name: str, peer: str, peer_namespace: int) -> None:
    """A veth pair with one end here and the other in ``peer_namespace``, both with HARDWARE_ADDRESS."""
    there = f"/proc/{os.getpid()}/fd/{peer_namespace}"
    end = ["address", HARDWARE_ADDRESS]
    _command("ip", "link", "add", name, *end, "type", "veth", "peer", "name", peer, *end, "netns", there)


def link_headers(header_bytes: int) -> dict[int, bytes]:
    """The link header of a packet between our devices, by the length of its addresses."""
    if not header_bytes:
        return {4: b"", 16: b""}
    both = bytes.fromhex(HARDWARE_ADDRESS.replace(":", "")) * 2
    return {4: both + b"\x08\x00", 16: both + b"\x86\xdd"}


def bring_up(name: str, extra_flags: int = 0) -> None:
    """Switch a device of this namespace on, with a queue long enough for bursts.

    By netlink, because the older call for the queue's length is closed to user namespaces.
    """
    flags = _UP | extra_flags
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, socket.if_nametoindex(name), flags, flags)
    if name != "lo":
        for attribute, number in ((_IFLA_MTU, MTU_BYTES), (_IFLA_TXQLEN, _QUEUE_PACKETS)):
            body += struct.pack("HHI", 8, attribute, number)
    request = struct.pack("IHHII", 16 + len(body), _RTM_NEWLINK, _REQUEST_AND_ACK, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.sendto(request, (0, 0))
        error = -struct.unpack_from("i", route.recv(4096), 16)[0]
    if error:
        raise OSError(error, f"{name} cannot be switched on: {os.strerror(error)}")


def forwarding_socket(name: str) -> int:
    """A descriptor that gives and takes whole frames of a device in this namespace."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK) as frames:
        for option, size in ((33, _SOCKET_BUFFER_BYTES), (32, _SOCKET_BUFFER_BYTES)):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE
            try:
                frames.setsockopt(socket.SOL_SOCKET, option, size)
            except PermissionError:  # in a user namespace: what net.core.rmem_max allows
                frames.setsockopt(socket.SOL_SOCKET, 8 if option == 33 else 7, size)  # SO_RCVBUF, SO_SNDBUF
        frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        frames.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        frames.bind((name, _ETH_P_ALL))
        return frames.detach()


def count_missed(descriptor: int) -> int:
    """Number of frames that a forwarding socket had no room for since the last call."""
    with socket.socket(fileno=os.dup(descriptor)) as frames:
        return int(struct.unpack("II", frames.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1])


def make_netem(name: str, way: dict[str, float]) -> None:
    """Put one direction's delay, jitter, loss and rate on a device. Raises OSError where the kernel has no netem."""
    words = ["delay", f"{way['delay_ms']}ms", f"{way['jitter_ms']}ms", "loss", f"{way['loss'] * 100}%"]
    packets = 100_000
    if way["rate_bit_per_s"]:
        words += ["rate", f"{int(way['rate_bit_per_s'])}bit", "-14"]  # IP packets count, not their link header
        held = way["rate_bit_per_s"] / 8 * way["delay_ms"] / 1000  # bytes on the way, in addition to those that queue
        packets = max(2, int((way["queue_bytes"] + held) / MTU_BYTES))
    _command("tc", "qdisc", "replace", "dev", name, "root", "netem", "limit", str(packets), *words)


def redirect(source: str, target: str) -> None:
    """Let the kernel send out on one device of this namespace what comes in on another."""
    _command("tc", "qdisc", "add", "dev", source, "ingress")
    all_packets = ["protocol", "all", "u32", "match", "u32", "0", "0"]
    action = ["action", "mirred", "egress", "redirect", "dev", target]
    _command("tc", "filter", "add", "dev", source, "parent", "ffff:", *all_packets, *action)


def remove(name: str) -> None:
    """Remove a device of this namespace, if there is one. Raises OSError."""
    if name in (label for _, label in socket.if_nameindex()):
        _command("ip", "link", "delete", name)


def switch_off_offloads(name: str) -> dict[str, bool]:
    """Switch off what makes packets in a capture unlike those on a wire; returns the names of what is still on."""
    import fcntl

    state = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload, (get, put) in _OFFLOADS.items():
            value = array.array("I", [put, 0])
            for command in (put, get):
                value[0] = command
                request = struct.pack("16sQ16x", name.encode(), value.buffer_info()[0])
                try:
                    fcntl.ioctl(any_socket, _ETHTOOL, request)
                except OSError:  # the device has no such switch; its actual state is read below
                    continue
            state[offload] = bool(value[1])
    return state


def _quiet_ipv6() -> None:
    """Switch off IPv6's own traffic: automatic addresses, looking for routers, waiting for duplicate addresses."""
    for key, value in (("accept_dad", 0), ("accept_ra", 0), ("router_solicitations", 0), ("addr_gen_mode", 1)):
        try:
            with open(f"/proc/sys/net/ipv6/conf/default/{key}", "w", encoding="ascii") as file:
                file.write(str(value))
        except OSError:  # no IPv6, or /proc/sys is read-only: addresses then take a second to be usable
            return


def set_up(name: str, ipv4: str, ipv6: str) -> bool:
    """Set addresses (/24, /64) and flags of a device in this namespace, and loopback. Returns whether it has IPv6."""
    import fcntl

    bring_up("lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, text in ((_SET_ADDRESS, ipv4), (_SET_MASK, "255.255.255.0")):
            sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
            fcntl.ioctl(any_socket, request, struct.pack("16s16s8x", name.encode(), sockaddr))
    bring_up(name, _NOARP)
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as any_socket:
            address = socket.inet_pton(socket.AF_INET6, ipv6)
            fcntl.ioctl(any_socket, _SET_ADDRESS, address + struct.pack("Ii", 64, socket.if_nametoindex(name)))
    except OSError:
        return False
    return True


def open_counters() -> int:
    """A descriptor of this namespace's device counters, readable from any namespace."""
    return os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)


def read_counters(descriptor: int, name: str) -> dict[str, int]:
    """Packets, bytes and drops of a device."""
    for line in os.pread(descriptor, 65536, 0).decode().splitlines():
        label, _, numbers = line.partition(":")
        if label.strip() == name:
            values = [int(word) for word in numbers.split()]
            return {
                "received_bytes": values[0],
                "received_packets": values[1],
                "received_dropped": values[3],
                "sent_bytes": values[8],
                "sent_packets": values[9],
                "sent_dropped": values[11],
            }
    return {}
