"""A user's desk for tests: two namespaces, one of which holds a sync client that the test did not start.

Other programs use the same interface. What looks at the client from outside runs in its namespace, as a user's pytest
does on the user's machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.reference.adapter import ReferenceClient
from pytest_cloudbench.net.capture import check
from pytest_cloudbench.net.link import Link, Side, Way
from tests.lab.sync.links import skipping

_ROOT = Path(__file__).resolve().parents[1]

NAMED = "server_name=files.example.test"
"""An option of the reference client: its server has a name, which its hellos show."""

_PLAIN = """
import socket, sys
where = (sys.argv[2], 4444)
if sys.argv[1] == "server":
    listener = socket.create_server(where)
    print("ready", flush=True)
    taken, _ = listener.accept()
    while taken.recv(65536):
        pass
else:
    with socket.create_connection(where) as talker:
        print("ready", flush=True)
        for line in sys.stdin:
            talker.sendall(b"x" * int(line))
"""


class Desk:
    """A running client, whose ``external`` specs are to be examined.

    Attributes:
        pair: the client with its server; only this object is told what happens.
        link: between them.
    """

    def __init__(self, stack: ExitStack, link: Link, pair: ReferenceClient, folder: Path) -> None:
        self.pair, self.link, self._stack, self._folder = pair, link, stack, folder

    def spec(self, *, verified: bool = True, **options: str) -> str:
        """What a user would write: ``external?folder=...``."""
        given = {"folder": str(self.pair.folder), "interface": self.link.interface, **options}
        if verified:
            given["verify"] = f"diff -rq {self.pair.folder} {self.pair.stored}"
        return "external?" + "&".join(f"{key}={quote(value, safe='/*,:')}" for key, value in given.items())

    @property
    def enter(self) -> list[str]:
        """Words before a command that let it run where the client runs."""
        return self.link.enter("client", as_root=True)

    def look(self, code: str, *arguments: str) -> Any:
        """Run Python where the client runs; what it printed, read as JSON."""
        words = [*self.enter, "env", f"PYTHONPATH={_ROOT / 'src'}", sys.executable, "-c", code, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self._folder)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def other_program(self, spec: str = "reference?server_name=other.example.org&connections=per-file") -> None:
        """Another program that uploads all the time, to another port of the same address."""
        pair = self._stack.enter_context(_running(spec, self.link, self._folder / "other"))
        self._stack.callback(_again(lambda number: (pair.folder / f"{number}.bin").write_bytes(bytes(200_000))))

    def nameless_program(self, size_bytes: int) -> None:
        """Another program with an open connection that shows no name, and this many bytes on it five times a second."""
        address = self.link.address("server")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        sides: tuple[Side, ...] = ("server", "client")
        for side in sides:
            process = self.link.popen(side, [sys.executable, "-c", _PLAIN, side, address], **pipes)
            self._stack.callback(_end, process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        self._stack.callback(_again(lambda number: print(size_bytes, file=process.stdin, flush=True)))


def _again(work: Callable[[int], object]) -> Callable[[], None]:
    """Do it five times a second from now on; returns what stops it."""
    stop = threading.Event()

    def run() -> None:
        for number in itertools.count():
            if stop.wait(0.2):
                return
            work(number)

    def end() -> None:
        stop.set()
        thread.join()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return end


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


@contextmanager
def _running(spec: str, link: Link, folder: Path) -> Iterator[ReferenceClient]:
    pair = clients.make_client(spec)
    assert isinstance(pair, ReferenceClient)
    try:
        server, mine = link.address("server"), link.address("client")
        pair.prepare(folder, server_address=server, client_address=mine, runner=link)
        pair.start()
        yield pair
    finally:
        pair.stop()


@contextmanager
def desk(spec: str, folder: Path, *, delay_ms: float = 10) -> Iterator[Desk]:
    """The client of ``spec``, running; a skip where this machine has no links or captures."""
    with ExitStack() as stack:
        with skipping():
            link = stack.enter_context(Link(Way(delay_ms=delay_ms)))
            check(link.interface, netns=link.enter("client", as_root=True))
        yield Desk(stack, link, stack.enter_context(_running(spec, link, folder / "desk")), folder)


def printed(values: Sequence[str]) -> str:
    """Python that prints these expressions as JSON."""
    return f"import json; print(json.dumps([{', '.join(values)}]))"
