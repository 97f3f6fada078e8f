"""Creation of namespaces and network devices by system calls, with ``ip`` and ``tc`` where only netlink works.

Linux only, in the holder's process. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN, at least in its own user namespace.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
import subprocess

ADDRESSES = {"client": ("198.18.0.1", "2001:2::1"), "server": ("198.18.0.2", "2001:2::2")}
"""IPv4 and IPv6 address of each side, from the benchmarking ranges (RFC 2544, RFC 5180)."""
INTERFACE = "cloudbench0"
"""Name of the link's device in both namespaces."""
HARDWARE_ADDRESS = "02:00:c6:12:00:01"
"""MAC address of both ends of a veth link, because without ARP Linux sends to the address of its own device."""
MTU_BYTES = 1500

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _TUN_FLAGS = 0x400454CA, 0x1001  # IFF_TUN | IFF_NO_PI
_SET_ADDRESS, _SET_MASK = 0x8916, 0x891C
_RTM_NEWLINK, _REQUEST_AND_ACK, _IFLA_MTU, _IFLA_TXQLEN = 16, 0x5, 4, 13
_RTM_NEWADDR, _IFA_LOCAL, _IFA_F_NODAD = 20, 2, 0x2
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_ETHTOOL = 0x8946
# ethtool's commands (get, set) by name. Checksums come first, because the others depend on them.
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


def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # os.unshare and os.setns need Python 3.12


def _raise_on_error(result: int, action: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{action}: {os.strerror(ctypes.get_errno())}")


def enter_user_namespace() -> None:
    """Become root of a new user namespace. Raises OSError if that is not allowed."""
    uid, gid = os.geteuid(), os.getegid()
    _raise_on_error(_load_libc().unshare(_NEWUSER), "unshare of a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def enter_new_net() -> int:
    """Enter a new network namespace without automatic traffic and return its descriptor. Raises OSError."""
    _raise_on_error(_load_libc().unshare(_NEWNET), "unshare of a network namespace")
    _silence_ipv6()
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_net(namespace: int) -> None:
    """Enter a network namespace by its descriptor."""
    _raise_on_error(_load_libc().setns(namespace, _NEWNET), "setns")


def make_tun(name: str) -> int:
    """Create a TUN device in this namespace and return its descriptor, which carries IP packets without header."""
    import fcntl

    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_FLAGS))
    return descriptor


def _run_command(*words: str) -> None:
    try:
        process = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OSError(error.errno, f"{words[0]} is not installed (package iproute2)") from error
    if process.returncode:
        raise OSError(f"{' '.join(words)}: {(process.stderr or process.stdout).strip()}")


def make_veth(name: str, peer: str, peer_namespace: int) -> None:
    """Create a veth pair from here to ``peer_namespace``, with HARDWARE_ADDRESS at both ends."""
    namespace_path = f"/proc/{os.getpid()}/fd/{peer_namespace}"
    device_options = ["address", HARDWARE_ADDRESS]
    veth = ["type", "veth", "peer", "name", peer, *device_options, "netns", namespace_path]
    _run_command("ip", "link", "add", name, *device_options, *veth)


def make_link_headers(header_bytes: int) -> dict[int, bytes]:
    """Return the link header of packets between our devices, by the length of an IP address (4 or 16)."""
    if not header_bytes:
        return {4: b"", 16: b""}
    addresses = bytes.fromhex(HARDWARE_ADDRESS.replace(":", "")) * 2
    return {4: addresses + b"\x08\x00", 16: addresses + b"\x86\xdd"}


def bring_up(name: str, extra_flags: int = 0) -> None:
    """Bring up a device of this namespace, with a queue long enough for bursts.

    It uses netlink because the older call for the queue length is forbidden in user namespaces.
    """
    flags = _IFF_UP | extra_flags
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, socket.if_nametoindex(name), flags, flags)
    if name != "lo":
        for attribute, number in ((_IFLA_MTU, MTU_BYTES), (_IFLA_TXQLEN, _QUEUE_PACKETS)):
            body += struct.pack("HHI", 8, attribute, number)
    _ask_kernel(_RTM_NEWLINK, body, f"{name} cannot be brought up")


def _ask_kernel(message: int, body: bytes, problem: str) -> None:
    """Send a netlink message to the kernel and wait for its answer. Raises OSError."""
    request = struct.pack("IHHII", 16 + len(body), message, _REQUEST_AND_ACK, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.sendto(request, (0, 0))
        error = -struct.unpack_from("i", route.recv(4096), 16)[0]
    if error:
        raise OSError(error, f"{problem}: {os.strerror(error)}")


def open_packet_socket(name: str) -> int:
    """Return a descriptor that reads and writes whole frames of a device in this namespace."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK) as frames:
        for option, size in ((33, _SOCKET_BUFFER_BYTES), (32, _SOCKET_BUFFER_BYTES)):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE
            try:
                frames.setsockopt(socket.SOL_SOCKET, option, size)
            except PermissionError:  # in a user namespace, net.core.rmem_max limits the size
                frames.setsockopt(socket.SOL_SOCKET, 8 if option == 33 else 7, size)  # SO_RCVBUF, SO_SNDBUF
        frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        frames.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        frames.bind((name, _ETH_P_ALL))
        return frames.detach()


def count_missed(descriptor: int) -> int:
    """Return the number of frames that a packet socket had no room for since the last call."""
    with socket.socket(fileno=os.dup(descriptor)) as frames:
        return int(struct.unpack("II", frames.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1])


def make_netem(name: str, way: dict[str, float]) -> None:
    """Apply one direction's delay, jitter, loss and rate to a device. Raises OSError if the kernel has no netem."""
    options = ["delay", f"{way['delay_ms']}ms", f"{way['jitter_ms']}ms", "loss", f"{way['loss'] * 100}%"]
    packets = 100_000
    if way["rate_bit_per_s"]:
        options += ["rate", f"{int(way['rate_bit_per_s'])}bit", "-14"]  # count packets without their link header
        bytes_in_flight = way["rate_bit_per_s"] / 8 * way["delay_ms"] / 1000  # the limit also counts these
        packets = max(2, int((way["queue_bytes"] + bytes_in_flight) / MTU_BYTES))
    _run_command("tc", "qdisc", "replace", "dev", name, "root", "netem", "limit", str(packets), *options)


def redirect_packets(source: str, target: str) -> None:
    """Make the kernel forward everything that one device of this namespace receives to another one."""
    _run_command("tc", "qdisc", "add", "dev", source, "ingress")
    all_packets = ["protocol", "all", "u32", "match", "u32", "0", "0"]
    action = ["action", "mirred", "egress", "redirect", "dev", target]
    _run_command("tc", "filter", "add", "dev", source, "parent", "ffff:", *all_packets, *action)


def remove_device(name: str) -> None:
    """Remove a device of this namespace if it exists. Raises OSError."""
    if name in (label for _, label in socket.if_nameindex()):
        _run_command("ip", "link", "delete", name)


def switch_off_offloads(name: str) -> dict[str, bool]:
    """Switch off offloads, which make captured packets differ from those on a wire.

    Returns each offload's name and whether it is still on.
    """
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
                except OSError:  # the device has no such switch
                    continue
            state[offload] = bool(value[1])
    return state


def _silence_ipv6() -> None:
    """Switch off IPv6's automatic addresses, router solicitation and duplicate address detection."""
    for key, value in (("accept_dad", 0), ("accept_ra", 0), ("router_solicitations", 0), ("addr_gen_mode", 1)):
        try:
            with open(f"/proc/sys/net/ipv6/conf/default/{key}", "w", encoding="ascii") as file:
                file.write(str(value))
        except OSError:  # no IPv6, or /proc/sys is read-only
            return


def set_up_device(name: str, ipv4: str, ipv6: str) -> bool:
    """Configure loopback and a device of this namespace (/24 and /64). Returns whether the device has IPv6."""
    import fcntl

    bring_up("lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, text in ((_SET_ADDRESS, ipv4), (_SET_MASK, "255.255.255.0")):
            sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
            fcntl.ioctl(any_socket, request, struct.pack("16s16s8x", name.encode(), sockaddr))
    bring_up(name, _IFF_NOARP)
    # Without the flag, the address is usable only after the kernel's own thread has looked for duplicates.
    body = struct.pack("BBBBI", socket.AF_INET6, 64, _IFA_F_NODAD, 0, socket.if_nametoindex(name))
    try:
        address = socket.inet_pton(socket.AF_INET6, ipv6)
        _ask_kernel(_RTM_NEWADDR, body + struct.pack("HH", 20, _IFA_LOCAL) + address, f"{name} gets no {ipv6}")
    except OSError:
        return False
    return True


def open_counters() -> int:
    """Return a descriptor of this namespace's device counters that is readable from any namespace."""
    return os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)


def read_counters(descriptor: int, name: str) -> dict[str, int]:
    """Return the packets, bytes and drops of a device."""
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
