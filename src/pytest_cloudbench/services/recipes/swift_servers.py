"""OpenStack Swift on loopback, from the system's packages: one replica, one device, no root.

What may live here: ``serve FOLDER PORT PORT PORT PORT PORT`` (proxy, account, container, object, memcached) writes
rings and configurations and starts five processes, which end with this one; ``container URL NAME`` makes a container.
Run by the system's Python, which has Swift; it cannot import the package. The password is in ``SWIFT_KEY``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

_KINDS = ("account", "container", "object")
_PR_SET_PDEATHSIG = 1
_TIMEOUT_S = 30.0
_POLL_S = 0.02

_COMMON = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {folder}/etc
devices = {folder}/devices
mount_check = false
user = {user}
workers = 0
log_level = ERROR
"""

_SERVER = """
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

_PROXY = """
[pipeline:main]
pipeline = catch_errors cache tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = 60
conn_timeout = 10
recoverable_node_timeout = 60
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
[filter:tempauth]
use = egg:swift#tempauth
user_cloudbench_tester = {key} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""


def main(command: str, *arguments: str) -> int:
    """Run the command, and return the exit status."""
    if command == "container":
        _make_container(*arguments)
        return 0
    folder, *ports = arguments
    return _start_all_servers(Path(folder), list(map(int, ports)))


def _start_all_servers(folder: Path, ports: list[int]) -> int:
    """Start Swift's servers and memcached. Returns the exit status of the first that ends."""
    proxy, *backends, memcached = ports
    import pwd

    etc, user = folder / "etc", pwd.getpwuid(os.geteuid()).pw_name
    etc.mkdir()
    (folder / "devices" / "d1").mkdir(parents=True)
    (etc / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = cloudbench\n[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    _make_rings(etc, dict(zip(_KINDS, backends, strict=True)))
    as_user = ["-u", user] if os.geteuid() == 0 else []
    argv = ["memcached", "-l", "127.0.0.1", "-p", str(memcached), "-U", "0", *as_user]
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)  # noqa: PLW1509  # no other thread
    for kind, port in zip(_KINDS, backends, strict=True):
        text = _COMMON.format(port=port, folder=folder, user=user) + _SERVER.format(kind=kind)
        _start_server(etc, kind, text)
    for port in (*backends, memcached):
        _wait_until_listening(port)
    text = _COMMON.format(port=proxy, folder=folder, user=user)
    text += _PROXY.format(memcached=memcached, key=os.environ["SWIFT_KEY"])
    _start_server(etc, "proxy", text)
    return os.waitstatus_to_exitcode(os.wait()[1]) or 1


def _make_rings(etc: Path, ports: dict[str, int]) -> None:
    import pkg_resources  # noqa: F401  # slow to import, and otherwise each server would import it
    from swift.common import wsgi  # noqa: F401  # the same
    from swift.common.ring import RingBuilder

    for kind, port in ports.items():
        builder: Any = RingBuilder(1, 1, 1)
        addresses = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
        builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "d1", "meta": "", **addresses})
        builder.rebalance()
        builder.get_ring().save(str(etc / f"{kind}.ring.gz"))


def _start_server(etc: Path, kind: str, text: str) -> int:
    """Fork a server, so that Swift is imported only once, which is most of the work."""
    path = etc / f"{kind}-server.conf"
    path.touch(0o600)
    path.write_text(text)
    if pid := os.fork():
        return pid
    _end_with_parent()
    status = 1
    try:
        from swift.common.wsgi import run_wsgi

        status = run_wsgi(str(path), f"{kind}-server") or 0
    finally:
        os._exit(status)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_listening(port: int) -> None:
    """Return when a server listens. There is no event for that, so a refused connection is tried again."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S).close()
        except ConnectionRefusedError:
            if ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                sys.exit(f"a server ended with {ended.si_status}")
            signal.sigtimedwait((), _POLL_S)
        else:
            return


def _make_container(url: str, name: str) -> None:
    opener = build_opener(ProxyHandler({}))
    login = Request(url, headers={"X-Auth-User": "cloudbench:tester", "X-Auth-Key": os.environ["SWIFT_KEY"]})
    with opener.open(login, timeout=_TIMEOUT_S) as answer:
        storage, token = answer.headers["X-Storage-Url"], answer.headers["X-Auth-Token"]
    put = Request(f"{storage}/{name}", headers={"X-Auth-Token": token, "Content-Length": "0"}, method="PUT")
    opener.open(put, timeout=_TIMEOUT_S).close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
