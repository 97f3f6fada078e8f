"""The one narrow seam between experiments and sync clients.

Here are the protocol, the facts that a client declares, and what all clients started by this package share: their life
cycle, and waiting for a verified destination.

The life of a client::

    prepare(workdir)  ->  start()
        ->  { before_change(); change files in folder; after_change(); wait_synced() } ...  ->  stop()

``prepare`` finds the programs and ports, ``start`` brings up the server half and then the client half and returns
when an idle pair is in sync. A client is used from one thread.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

from pytest_cloudbench.lab.clients.processes import (
    Loopback,
    Processes,
    Runner,
    Side,
    find_binary,
    free_port,
    program_version,
)
from pytest_cloudbench.lab.clients.trees import FolderTree, difference
from pytest_cloudbench.model import ClientError, UsageError

CAPABILITIES = ("chunking", "bundling", "deduplication", "delta", "compression")
"""The ways in which a client may save traffic or time (IMC 2013, section 4)."""

_START_S = 60.0


class Proof(Enum):
    """The ways in which ``wait_synced`` knows that the client is in sync."""

    CONTENT = "the server holds the same content"
    CLIENT = "the client said so"
    QUIET = "the network was quiet"


@dataclass(frozen=True, slots=True)
class Documented:
    """A claim of a client's documentation about a capability: yes, no or unknown, and in which words."""

    answer: Literal["yes", "no", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outside:
    """The place where a client on the user's own network is captured, and the signs that tell its traffic.

    Attributes:
        interface: its name.
        addresses: the client's, or empty for all of the interface.
        names: patterns of its servers' names.
        servers: addresses or networks of its servers.
    """

    interface: str
    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The facts about a client that are known without running it.

    Attributes:
        name: from the registry, or from its TOML file.
        watches_folder: whether it notices changes by itself. If not, ``after_change`` runs it.
        binaries: programs that must be installed, of both sides.
        testbed: its name for ``tools/testbed install``, or empty if it has none.
        documented: answers to CAPABILITIES by its documentation, with the options it was given. Detectors are checked
            against them, and never read them.
        outside: set for a client that this package does not start: it runs on the user's own network.
        over: the name of the client that this one only stands in front of, otherwise empty.
        is_plain_here: whether this package sets it up without encryption on the link, although it may support it.
        trusts: what it recognises its server by, if not by a certificate of an authority, or empty.
        is_peer: whether its other side is not a server, but a device of the same user.
    """

    name: str
    watches_folder: bool
    binaries: tuple[str, ...] = ()
    testbed: str = ""
    documented: Mapping[str, Documented] = field(default_factory=dict)
    outside: Outside | None = None
    over: str = ""
    is_plain_here: bool = False
    trusts: str = ""
    is_peer: bool = False


class ClientUnavailable(UsageError):
    """The client cannot be measured here now, and the message says how to enable it."""


class MissingProgramError(ClientUnavailable):
    """A program of the client is not installed, and the message names the command that installs it."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """The other side: a second device, otherwise the server.

    Attributes:
        folder: where it keeps what it has received.
        side: the side that its processes belong to.
        bytes_moved: returns its (received, sent) bytes since its start. None if they cross the link.
    """

    folder: Path
    side: Side
    bytes_moved: Callable[[], tuple[int, int]] | None = None


class SyncClient(Protocol):
    """A sync client and its server, as an experiment uses them."""

    @property
    def facts(self) -> ClientFacts:
        """The facts that are known without running it."""
        ...

    @property
    def folder(self) -> Path:
        """The folder in which files are changed. It exists after ``prepare``."""
        ...

    def prepare(
        self,
        workdir: Path,
        *,
        server_address: str = "127.0.0.1",
        client_address: str = "127.0.0.1",
        runner: Runner | None = None,
    ) -> None:
        """Find programs and ports, and write configuration below ``workdir``.

        Raises ClientUnavailable (MissingProgramError), or UsageError when it cannot run here.
        """
        ...

    def start(self) -> None:
        """Bring both halves up, and return when they are connected and in sync. Raises ClientError."""
        ...

    def before_change(self) -> None:
        """Prepare for a change of files, for clients whose sync state only their traffic shows."""
        ...

    def after_change(self) -> None:
        """Run a client that does not watch the folder. No effect for one that does. Raises ClientError."""
        ...

    def wait_synced(self, timeout_s: float) -> Proof:
        """Wait until the server has the folder's current content. Returns how that is known.

        Raises ClientError, with the last lines of the logs, when a process ends or the time is over, and
        ClientUnavailable when nothing can tell.
        """
        ...

    def idle(self, duration_s: float) -> None:
        """Leave it alone for that long, to see what it does by itself. Raises ClientError when a process ends."""
        ...

    def stop(self) -> None:
        """End every process of both halves. Safe to call again."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Return names and versions of the programs, for the results."""
        ...

    def pids(self, side: Side) -> tuple[int, ...]:
        """Return the running processes of one side."""
        ...

    def cpu_s(self, side: Side) -> float | None:
        """Return the CPU seconds of one side since the start, including ended commands, or None if unknown."""
        ...

    def receiver(self) -> Receiver | None:
        """Return the side where files arrive, after ``prepare``, or None if it is not on this machine."""
        ...


class HostedAccount(NamedTuple):
    """One of several accounts of a server.

    Attributes:
        host: the client whose server it is.
        name: of the account.
        port: at which the server is reached on loopback.
    """

    host: LocalClient
    name: str
    port: int


class LocalClient(ABC):
    """The parts shared by clients that this package starts.

    Subclasses implement the abstract methods, in this order.
    """

    facts: ClientFacts
    own_names: frozenset[str] = frozenset()
    """Files and folders in ``folder`` or in the stored one that the client keeps for itself."""
    start_s: float = _START_S
    """Seconds a half may take to come up."""
    search_path: tuple[str, ...] = ()
    """Folders searched first for programs."""
    accounts: Mapping[str, str] = {}
    """The secrets of the accounts that its server has besides its own, by their names."""
    account: HostedAccount | None = None
    """The account that it has on the server of another client, in place of a server of its own."""

    # --- what a client implements -----------------------------------------------------------------

    @abstractmethod
    def _configure(self) -> None:
        """Write configuration files. ``server_port`` is free."""

    @abstractmethod
    def _start_server(self) -> None:
        """Start the server half, and return when it can be connected to."""

    @abstractmethod
    def _start_client(self) -> None:
        """Start the client half, and return when it watches the folder, or is ready to run."""

    version_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The arguments that print a program's version, if not ``--version``. Without arguments, it is not asked."""

    def before_change(self) -> None:  # noqa: B027  # the same
        """No effect: the server's content is inspected instead."""

    def after_change(self) -> None:  # noqa: B027  # most clients watch, and need not override it
        """No effect: it watches the folder."""

    def _is_settled(self) -> bool:
        """Return whether the client itself is finished, too. Called when the content is equal."""
        return True

    def _stored(self) -> Path:
        """Return a folder with the content that the server would return. Reading it sends nothing over the link."""
        return self.stored

    # --- what they share --------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The folder in which files are changed."""
        return self.workdir / "folder"

    @property
    def server_host(self) -> str:
        """The server's address as a URL has it."""
        return f"[{self.server_address}]" if ":" in self.server_address else self.server_address

    @property
    def stored(self) -> Path:
        """The server's own folder, or what the server keeps of an account there."""
        return self.workdir / "stored" if self.account is None else self.account.host.stored / self.account.name

    def prepare(
        self,
        workdir: Path,
        *,
        server_address: str = "127.0.0.1",
        client_address: str = "127.0.0.1",
        runner: Runner | None = None,
    ) -> None:
        """Find programs and ports, and write configuration below ``workdir``. Raises MissingProgramError."""
        self.stop()
        self.programs = self._find_programs()
        self.workdir = workdir.resolve()
        self.server_address, self.client_address = server_address, client_address
        self.server_port = free_port(server_address) if self.account is None else self.account.port
        for folder in (self.workdir, self.folder, self.stored):
            folder.mkdir(parents=True, exist_ok=True)
        self.processes = Processes(self.workdir, runner or Loopback())
        self._folder_tree = FolderTree(self.folder, self.own_names)
        self._stored_trees: dict[Path, FolderTree] = {}
        try:
            self._configure()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Bring both halves up. Raises ClientError, leaving nothing running."""
        try:
            if self.account is None:
                self._start_server()
            self._start_client()
        except BaseException:
            self.stop()
            raise

    def wait_synced(self, timeout_s: float) -> Proof:
        """Return when the server would return exactly the folder's current content."""
        self.processes.check()
        digests = self._folder_tree.digests()
        if not self.facts.watches_folder:
            # Its run has ended, so the server gets nothing more.
            self._must_hold(digests, self.held(), self.processes.last_run_words())
            return Proof.CONTENT
        sizes_bytes = self._folder_tree.sizes_bytes()
        stored = self._stored_tree()

        def is_equal() -> bool:
            # Sizes cost no reading, so they are asked first.
            return stored.sizes_bytes() == sizes_bytes and stored.digests() == digests and self._is_settled()

        try:
            self.processes.wait_until(is_equal, timeout_s, "the server did not have the folder's content")
        except ClientError as error:
            self._must_hold(digests, stored.digests(), f"; {error}")
            raise
        return Proof.CONTENT

    def _must_hold(self, expected: Mapping[str, str], held: Mapping[str, str], suffix: str) -> None:
        if differences := difference(expected, held):
            raise ClientError(f"{self.facts.name}: the server differs from the folder: {differences}{suffix}")

    def idle(self, duration_s: float) -> None:
        """Leave it alone for that long. Raises ClientError as soon as a process ends."""
        self.processes.idle(duration_s)

    def held(self) -> dict[str, str]:
        """Return the files that the server would return: relative path to SHA-256."""
        return self._stored_tree().digests()

    def stop(self) -> None:
        """End every process of both halves. Safe to call again, and before ``prepare``."""
        if hasattr(self, "processes"):
            self.processes.stop()

    def versions(self) -> Mapping[str, str]:
        """Return programs and the versions they report, without programs that are not installed."""
        arguments_by_program = {name: self.version_arguments.get(name, ("--version",)) for name in self.facts.binaries}
        return {
            name: program_version(path, *arguments)
            for name, arguments in arguments_by_program.items()
            if arguments and (path := find_binary(name)) is not None
        }

    def pids(self, side: Side) -> tuple[int, ...]:
        """Return the processes of one side that run now, with their descendants."""
        return self.processes.pids(side)

    def cpu_s(self, side: Side) -> float | None:
        """Return the CPU seconds of one side since the start, including ended commands."""
        return self.processes.cpu_s(side)

    def receiver(self) -> Receiver:
        """Return the server's half. For some clients it is a second device, for some it keeps no plain files."""
        return Receiver(self.stored, "server")

    def why_one_account(self) -> str:
        """Return why its server cannot have several accounts. Empty if it can."""
        return "as it is set up here, its server has one account"

    def serve_accounts(self, workdir: Path, names: Collection[str]) -> None:
        """Start only its server, on loopback, with accounts for others to ``join``. Raises what ``prepare`` does."""
        self.accounts = {name: secrets.token_hex(16) for name in names}
        self.prepare(workdir)
        for name in names:  # before the start, because a server may remember what it has
            (self.stored / name).mkdir()
        self._start_server()

    def join(self, host: LocalClient, name: str, port: int, workdir: Path) -> None:
        """Prepare as an account of the running server of a client of the same kind, see ``HostedAccount``."""
        self.account = HostedAccount(host, name, port)
        self.prepare(workdir)

    def secrets(self) -> Mapping[str, str]:
        """Return the secrets that the client was given, by name, after ``prepare``. Empty if none is known."""
        return {}

    def lead_elsewhere(self, address: str, port: int, authority: str, folder: Path) -> list[str]:
        """Return a command that leads the client to another HTTPS server, with invented content and secrets.

        ``authority`` is the file of the authority to trust, and ``folder`` an empty one. The client need not be
        prepared. Empty if no such command is known.
        """
        del address, port, authority, folder
        return []

    def missing(self) -> str:
        """Return why it cannot run here, with the command that fixes it, or nothing when all programs are installed."""
        try:
            self._find_programs()
        except MissingProgramError as error:
            return str(error)
        return ""

    def _find_programs(self) -> dict[str, str]:
        paths = {name: find_binary(name, self.search_path) for name in self.facts.binaries}
        missing = [name for name, path in paths.items() if path is None]
        reasons = [f"{os.path.abspath(name)} is not an executable file" for name in missing if os.sep in name]
        if uninstalled := [name for name in missing if os.sep not in name]:
            verb = "is" if len(uninstalled) == 1 else "are"
            fix = f": tools/testbed install {self.facts.testbed}" if self.facts.testbed else ""
            reasons.append(f"{' and '.join(uninstalled)} {verb} not installed{fix}")
        if reasons:
            raise MissingProgramError("; ".join(reasons))
        return {name: path for name, path in paths.items() if path is not None}

    def as_plain_user(self) -> list[str]:
        """Return words to put before a server's command, so that it does not take this user for root.

        In a user namespace without rights outside, this user has number 0 but may not become another user, as servers
        do that root starts.
        """
        argv = ["id", "-u"]
        user_number = self.processes.run("server", "id", argv, timeout_s=self.start_s, counted=False).strip()
        if user_number != "0" or os.geteuid() == 0:
            return []
        return ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]

    def _stored_tree(self) -> FolderTree:
        root = self._stored()
        return self._stored_trees.setdefault(root, FolderTree(root, self.own_names))


def client_option(client: str, options: Mapping[str, str], name: str, allowed: Collection[str], default: str) -> str:
    """Return the value of one option. Raises UsageError, which names the allowed values."""
    value = options.get(name, default)
    if value not in allowed:
        raise UsageError(f"client {client!r}: {name} must be one of {', '.join(sorted(allowed))}; not {value!r}")
    return value
