"""A running sync client that a test did not start, in one of two network namespaces, for specs of ``external``.

Other programs use the same interface. Code that looks at the client from outside runs in the client's namespace, as a
user's pytest does on the user's machine.
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

_NAMELESS_PROGRAM = """
import socket, sys
address = (sys.argv[2], 4444)
if sys.argv[1] == "server":
    listener = socket.create_server(address)
    print("ready", flush=True)
    connection, _ = listener.accept()
    while connection.recv(65536):
        pass
else:
    with socket.create_connection(address) as connection:
        print("ready", flush=True)
        for line in sys.stdin:
            connection.sendall(b"x" * int(line))
"""


class ExternalClientLab:
    """A running client, whose ``external`` specs are to be examined.

    Attributes:
        pair: the client with its server. Only the test uses it, because specs must find the client from outside.
        link: the link between the two.
    """

    def __init__(self, stack: ExitStack, link: Link, pair: ReferenceClient, folder: Path) -> None:
        self.pair, self.link, self._stack, self._folder = pair, link, stack, folder

    def spec(self, *, verified: bool = True, **options: str) -> str:
        """Return the spec that a user would write: ``external?folder=...``."""
        values = {"folder": str(self.pair.folder), "interface": self.link.interface, **options}
        if verified:
            values["verify"] = f"diff -rq {self.pair.folder} {self.pair.stored}"
        return "external?" + "&".join(f"{key}={quote(value, safe='/*,:')}" for key, value in values.items())

    @property
    def enter(self) -> list[str]:
        """The words before a command that let it run where the client runs."""
        return self.link.enter("client", as_root=True)

    def run_python(self, code: str, *arguments: str) -> Any:
        """Run Python where the client runs. Returns its output, read as JSON."""
        words = [*self.enter, "env", f"PYTHONPATH={_ROOT / 'src'}", sys.executable, "-c", code, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self._folder)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def start_other_program(self, spec: str = "reference?server_name=other.example.org&connections=per-file") -> None:
        """Start another program that uploads all the time, to another port of the same address."""
        pair = self._stack.enter_context(_running_client(spec, self.link, self._folder / "other"))
        self._stack.callback(_repeat(lambda number: (pair.folder / f"{number}.bin").write_bytes(bytes(200_000))))

    def start_nameless_program(self, size_bytes: int) -> None:
        """Start another program whose connection shows no name, and which sends this many bytes five times a second."""
        address = self.link.address("server")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        sides: tuple[Side, ...] = ("server", "client")
        for side in sides:
            process = self.link.popen(side, [sys.executable, "-c", _NAMELESS_PROGRAM, side, address], **pipes)
            self._stack.callback(_end, process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        self._stack.callback(_repeat(lambda number: print(size_bytes, file=process.stdin, flush=True)))


def _repeat(work: Callable[[int], object]) -> Callable[[], None]:
    """Do some work five times a second from now on. Returns a function that stops it."""
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
def _running_client(spec: str, link: Link, folder: Path) -> Iterator[ReferenceClient]:
    pair = clients.make_client(spec)
    assert isinstance(pair, ReferenceClient)
    try:
        server_address, client_address = link.address("server"), link.address("client")
        pair.prepare(folder, server_address=server_address, client_address=client_address, runner=link)
        pair.start()
        yield pair
    finally:
        pair.stop()


@contextmanager
def open_external_client(spec: str, folder: Path, *, delay_ms: float = 10) -> Iterator[ExternalClientLab]:
    """Run the client of ``spec``. Skips where this machine has no links or captures."""
    with ExitStack() as stack:
        with skipping():
            link = stack.enter_context(Link(Way(delay_ms=delay_ms)))
            check(link.interface, netns=link.enter("client", as_root=True))
        yield ExternalClientLab(stack, link, stack.enter_context(_running_client(spec, link, folder / "desk")), folder)


def print_as_json(values: Sequence[str]) -> str:
    """Return Python code that prints these expressions as JSON."""
    return f"import json; print(json.dumps([{', '.join(values)}]))"
