"""Start a grid of Tahoe-LAFS on loopback: an introducer, storage servers and a gateway. Run by its path.

What may live here: the files of the nodes, their order, and the directory that runs write into. Arguments: the program,
the folder, how many shares are needed, how many servers a write has to reach, and the ports of the gateway, the
introducer and the storage servers. Each storage server gets one share. The grid ends when its first node ends or,
with ``--may-lose``, when the gateway ends. With ``--join`` this is one more storage server for a grid. Its arguments
are the program, the folder, the file with the grid's introducer, and a port. All nodes end with this process, even if
it is killed, because they end when their standard input does.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

_FURL = "private/introducer.furl"
_POLL_S = 0.1
_ASK_S = 60.0
_NO_CONNECTION = (OSError, http.client.HTTPException, ValueError, KeyError)

_INTRODUCER_CONFIG = """
[node]
web.port =
tub.port = tcp:{port}:interface=127.0.0.1
tub.location = tcp:127.0.0.1:{port}
"""
_STORAGE_CONFIG = """
[node]
nickname = {name}
web.port =
tub.port = tcp:{port}:interface=127.0.0.1
tub.location = tcp:127.0.0.1:{port}
[storage]
enabled = true
anonymous = true
"""
_GATEWAY_CONFIG = """
[node]
nickname = gateway
web.port = tcp:{web}:interface=127.0.0.1
tub.port = disabled
tub.location = disabled
[client]
shares.needed = {needed}
shares.happy = {happy}
shares.total = {total}
[storage]
enabled = false
"""


def main(*words: str) -> str:
    """Start all nodes and wait. Returns why the grid did not start, or why it ended."""
    if words[0] == "--join":
        return join_grid(*words[1:])
    may_lose = words[0] == "--may-lose"
    name, folder_path, *numbers = words[may_lose:]
    folder, (needed, happy, web, introducer, *storage) = Path(folder_path), map(int, numbers)
    program = shutil.which(name)
    if program is None:
        return f"{name} is not installed"
    ended = threading.Event()
    introducer_folder = _create_node(folder / "introducer", "introducer", _INTRODUCER_CONFIG.format(port=introducer))
    if not _start_node(program, introducer_folder, "introducer running", ended):
        return "the introducer did not start"
    furl = (introducer_folder / _FURL).read_text("utf-8").strip()
    gateway = _GATEWAY_CONFIG.format(web=web, needed=needed, happy=happy, total=len(storage))
    nodes = [_create_storage(folder / f"storage{number}", port, furl) for number, port in enumerate(storage, 1)]
    nodes.append(_create_node(folder / "gateway", "client", gateway, furl))
    threads = []
    for node in nodes:
        threads.append(threading.Thread(target=_start_node, args=(program, node, "client running", ended), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    while _connected_count(web) < len(storage):
        if ended.wait(_POLL_S):  # polled: no event says when the gateway has found the others
            return "a node ended"
    (folder / "cap").touch(0o600)
    (folder / "cap").write_bytes(_request(web, "POST", "/uri?t=mkdir"))
    print("the grid is ready", flush=True)  # noqa: T201  # the run waits for this line
    if may_lose:
        _PROCESSES["gateway"].wait()
    else:
        ended.wait()
    return "a node ended"


def join_grid(name: str, folder_path: str, furl_file: str, port: str) -> str:
    """Start one storage server of a grid and wait. Returns why it did not start, or that it ended."""
    program, ended = shutil.which(name), threading.Event()
    if program is None:
        return f"{name} is not installed"
    node = _create_storage(Path(folder_path) / "storage", int(port), Path(furl_file).read_text("utf-8").strip())
    if not _start_node(program, node, "client running", ended):
        return "the node did not start"
    print("the node is ready", flush=True)  # noqa: T201  # the run waits for this line
    ended.wait()
    return "the node ended"


def _create_storage(folder: Path, port: int, furl: str) -> Path:
    return _create_node(folder, "client", _STORAGE_CONFIG.format(name=folder.name, port=port), furl)


def _create_node(folder: Path, kind: str, config: str, furl: str = "") -> Path:
    """Create the folder of a node. Its program recognises the kind of node by the name of a file."""
    (folder / "private").mkdir(parents=True, mode=0o700)
    (folder / f"tahoe-{kind}.tac").touch()
    (folder / "tahoe.cfg").write_text(config)
    if furl:
        (folder / "private" / "introducers.yaml").write_text(json.dumps({"introducers": {"one": {"furl": furl}}}))
    return folder


_PROCESSES: dict[str, subprocess.Popen[str]] = {}
"""The nodes by name. Their standard inputs stay open as long as this process lives."""


def _start_node(program: str, node: Path, ready: str, ended: threading.Event) -> bool:
    """Start a node, wait, and return whether it said that it is ready. Set ``ended`` when the node ends."""
    process = subprocess.Popen(
        [program, "run", str(node)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    _PROCESSES[node.name] = process
    (node / "pid").write_text(str(process.pid))
    assert process.stdout is not None

    def follow_output() -> None:
        for line in process.stdout or ():
            sys.stderr.write(f"{node.name}: {line}")
        ended.set()

    for line in process.stdout:
        sys.stderr.write(f"{node.name}: {line}")
        if ready in line:
            threading.Thread(target=follow_output, daemon=True).start()
            return True
    ended.set()
    return False


def _request(web: int, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", web, timeout=_ASK_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise ValueError(f"{answer.status} {body[:200]!r}")
        return body
    finally:
        connection.close()


def _connected_count(web: int) -> int:
    """Return how many storage servers the gateway is connected to."""
    try:
        servers = json.loads(_request(web, "GET", "/?t=json"))["servers"]
    except _NO_CONNECTION:
        return 0
    return sum(server["connection_status"] == "connected" for server in servers)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
