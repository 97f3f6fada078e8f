"""Driver for SFTP servers with paramiko.

What may live here: everything that is specific to SFTP as a client, in this order: imports, capabilities, error table,
pipelining, connect, required verbs, optional verbs.

What the library does on its own, and how this driver handles it:

- Eight threads that share one of its clients hang: each operation has a connection from a pool to itself. There are as
  many connections as simultaneous operations, and the first operation on each includes the handshake.
- It closes a forgotten file when the collector finds it, which can be inside another request, whose lock it then waits
  for without end: files are closed here, also after a failure.
- Its pipelined writes lose the last refusals, and its prefetch leaves a thread behind when a download is abandoned:
  both are replaced by a window of requests over its own messages.
- It sends nothing again. Keys of an agent or of the home folder are not tried.
- Its reader of ``known_hosts`` fails on markers and knows no patterns: ``_sftp_login`` decides which host is trusted.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import BoundedSemaphore
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pytest_cloudbench.drivers._sftp_known_hosts import known_keys
from pytest_cloudbench.drivers._sftp_login import HostKeys, Untrusted, open_client, private_key
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    RequestCount,
    check_params,
    names_in,
    timeout_of,
    usable_credentials,
    walk,
)
from pytest_cloudbench.drivers.sdk import UNREADABLE, CloudErrors, Meaning, OwnError, SdkDriver, network_failure
from pytest_cloudbench.model import (
    KIB,
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
    chunks,
)
from pytest_cloudbench.support import opening

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.MOVE}),
    ranges=True,
    conflicts=frozenset({Conflict.PUT_ON_FOLDER, Conflict.PUT_BELOW_FILE, Conflict.GET_FOLDER, Conflict.MKDIR_ON_FILE}),
    moves_folders=True,
    # SFTP's requests for an empty file: open, stat if it is read, close. Each piece is one more; many are in flight.
    requests={Verb.PUT: 2, Verb.GET: 3, Verb.STAT: 1, Verb.LIST: 3, Verb.DELETE: 1, Verb.MOVE: 2},
    via="paramiko; one connection for each operation at a time; sends nothing again",
)

_PORT = 22
# A piece that every server takes, and how many are in flight.
_PIECE_BYTES = 32 * KIB
_WINDOW_PIECES = 64
# OpenSSH refuses connections while more than ten, of all agents together, have not logged in yet (MaxStartups).
_HANDSHAKES = 2

# --- error table ----------------------------------------------------------------------------------

_UNANSWERED = frozenset({"Authentication failed: transport shut down or saw EOF", "Authentication timeout."})
"""Messages of paramiko's failed authentications that mean a server which did not answer."""
_ERRNO_KINDS: Mapping[int | None, ErrorKind] = {errno.ENOENT: ErrorKind.NOT_FOUND, errno.EACCES: ErrorKind.AUTH}

# Version 3 of the protocol has one status for all other failures; only the words differ, and not on every server.
_WORD_KINDS: Mapping[str, ErrorKind] = {
    "no space": ErrorKind.QUOTA,
    "quota": ErrorKind.QUOTA,
    "too long": ErrorKind.INVALID,
    "not a directory": ErrorKind.CONFLICT,
    "is a directory": ErrorKind.CONFLICT,
    "not empty": ErrorKind.CONFLICT,
    "exist": ErrorKind.CONFLICT,
    "read only": ErrorKind.AUTH,
    "read-only": ErrorKind.AUTH,
}


# --- pipelining -----------------------------------------------------------------------------------


class _Window:
    """Requests in flight, and their answers, which come in any order."""

    def __init__(self, sftp: Any) -> None:
        self._sftp, self._answers = sftp, dict[int, tuple[int, Any]]()
        self.waiting: deque[tuple[int, int, int]] = deque()

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        """Store an answer. The library calls this method with each one."""
        self._answers[number] = (kind, message)

    def send(self, kind: int, handle: bytes, offset: int, length: int, *data: Any) -> None:
        """Send one request about a piece of a file."""
        from paramiko.sftp import int64

        number = self._sftp._async_request(self, kind, handle, int64(offset), *(data or (length,)))
        self.waiting.append((number, offset, length))

    def oldest_answer(self) -> tuple[int, Any, int, int]:
        """Wait for the answer to the oldest request. Return it, with offset and length of the piece."""
        from paramiko.sftp import CMD_STATUS

        number, offset, length = self.waiting.popleft()
        while number not in self._answers:
            self._sftp._read_response()
        kind, message = self._answers.pop(number)
        if kind == CMD_STATUS:
            self._sftp._convert_status(message)
        return kind, message, offset, length


class _Connection:
    """One SSH connection with one SFTP channel."""

    def __init__(self, client: Any, sent: RequestCount, timeout_s: float) -> None:
        self.client, self.sftp = client, client.open_sftp()
        self.sftp.get_channel().settimeout(timeout_s)
        send = self.sftp._async_request

        def counted_send(*args: Any) -> Any:
            sent.count()
            return send(*args)

        self.sftp._async_request = counted_send

    def is_open(self) -> bool:
        """Return whether it can be used."""
        channel, transport = self.sftp.get_channel(), self.client.get_transport()
        return transport is not None and transport.is_active() and not channel.closed

    def close(self) -> None:
        """Close the connection. No error if it is broken already."""
        with suppress(Exception):
            self.client.close()


# --- connect --------------------------------------------------------------------------------------


class SftpDriver(SdkDriver):
    """A pool of connections. Each serves one thread at a time."""

    imports = ("paramiko", "paramiko.sftp")
    libraries = ("paramiko", "cryptography")
    settings: Mapping[str, str] = {"paramiko.retries": "has none", "paramiko.compression": "off"}
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    no_cassette: ClassVar[str] = "it sends no HTTP"
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(
            ("user", "password"),
            ("known_hosts",),
            public=("user", "known_hosts"),
            free=("user", "password", "known_hosts"),
        ),
        CredentialSet(
            ("user", "key_file"), ("passphrase",), public=("user", "key_file"), free=("user", "key_file", "passphrase")
        ),
    )

    def __init__(self, base: str, open_client: Callable[[], Any], timeout_s: float) -> None:
        import paramiko

        super().__init__(RequestCount(), {})
        self._base, self._open_client, self._timeout_s = base, open_client, timeout_s
        self._idle: deque[_Connection] = deque()
        self._handshakes = BoundedSemaphore(_HANDSHAKES)
        self._refused = (paramiko.AuthenticationException, Untrusted)
        self._broken = (paramiko.SSHException, EOFError, TimeoutError)
        self._unreadable = paramiko.SFTPError

    @staticmethod
    def address_of(spec: ProviderSpec) -> str:
        """Return the address of the server that a spec names."""
        return f"sftp://{spec.target}"

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> SftpDriver:
        """Return the driver for ``sftp://HOST[:PORT]/PATH``. ``/~/PATH`` is below the home folder. Nothing is sent.

        ``?known_hosts=FILE`` names another file than ``~/.ssh/known_hosts``; ``?host_key=SHA256:...`` is the only key
        that is accepted.
        """
        check_params(spec, {"host_key", "known_hosts", "timeout_s", "token_env"})
        host, port, base = _parse_address(spec, endpoint.url if endpoint else f"sftp://{spec.target}")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        host_key = spec.params.get("host_key", "").replace(" ", "+")  # parsing a spec turns "+" into a space
        hosts_file = secrets.get("known_hosts") or spec.params.get("known_hosts") or "~/.ssh/known_hosts"
        if host_key and not host_key.startswith("SHA256:"):
            raise SpecError(f"provider {spec.text!r}: host_key is SHA256:... as ssh-keygen -l prints it")
        known_hosts = "" if host_key else hosts_file
        texts = {}
        for name in filter(None, (known_hosts, secrets.get("key_file"))):
            try:
                texts[name] = opening.read_file(Path(name).expanduser())
            except (OSError, ValueError) as error:
                why = opening.explain_error(error)
                advice = "; or give ?host_key=SHA256:..." if name == known_hosts else ""
                raise SpecError(f"provider {spec.text!r}: {name} cannot be read ({why}){advice}") from error
        timeout_s = timeout_of(spec)
        key = None
        if "key_file" in secrets:
            key = private_key(secrets["key_file"], texts[secrets["key_file"]], secrets.get("passphrase"))
        text = texts[known_hosts].decode(errors="replace") if known_hosts else ""
        keys = HostKeys(host_key, known_keys(text, host, port))
        return cls(base, lambda: open_client(host, port, secrets, key, keys, timeout_s), timeout_s)

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    def _remote_path(self, verb: str, path: str) -> str:
        names = names_in(verb, path)
        return "/".join([self._base, *names]) or "/"  # OpenSSH knows no empty path

    @contextmanager
    def _connected(self, verb: str, path: str) -> Iterator[_Connection]:
        """Yield a connection for this thread alone, and raise every error as CloudError.

        A connection is not used again if answers are still outstanding, because a caller stopped in the middle, or if
        one could not be read.
        """
        connection: _Connection | None = None
        is_usable = False

        def explain_error(error: Exception) -> Meaning | None:
            is_lost = connection is None or not connection.is_open()
            return network_failure(error) if is_lost and isinstance(error, OSError) else self._explain_error(error)

        try:
            with CloudErrors(verb, path, explain_error):
                try:
                    connection = self._idle.pop()
                except IndexError:
                    connection = self._new_connection()
                yield connection
            is_usable = True
        except CloudError as error:
            is_usable = error.kind is not ErrorKind.NETWORK and not isinstance(error.__cause__, self._unreadable)
            raise
        finally:
            if connection is not None and is_usable and connection.is_open() and not connection.sftp._expecting:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()

    def _new_connection(self) -> _Connection:
        if not self._handshakes.acquire(timeout=self._timeout_s):
            raise TimeoutError("the connections before this one are still being opened")
        try:
            client = self._open_client()
            try:
                return _Connection(client, self._sent, self._timeout_s)
            except BaseException:
                client.close()
                raise
        finally:
            self._handshakes.release()

    def _explain_error(self, error: Exception) -> Meaning | None:
        words = str(error) or type(error).__name__
        if isinstance(error, self._refused) and words not in _UNANSWERED:
            return Meaning(ErrorKind.AUTH, words)
        if isinstance(error, UnicodeDecodeError):
            return Meaning(ErrorKind.SERVER, "a name that is not UTF-8")
        if isinstance(error, self._unreadable):
            return Meaning(ErrorKind.SERVER, f"{UNREADABLE.words}: {words}")
        if isinstance(error, self._broken):
            return network_failure(error)
        if isinstance(error, OSError):
            lower_words = words.lower()
            kinds = [kind for word, kind in _WORD_KINDS.items() if word in lower_words]
            kind = _ERRNO_KINDS.get(error.errno) or (kinds[0] if kinds else ErrorKind.SERVER)
            return Meaning(kind, error.strerror or words)
        return None

    def _is_folder(self, connection: _Connection, remote: str) -> bool:
        """Return whether a path is a folder. False also if the server does not tell."""
        try:
            return S_ISDIR(connection.sftp.stat(remote).st_mode or 0)
        except OSError:
            return False

    def _make_folder(self, connection: _Connection, verb: str, remote: str) -> None:
        """Create a folder and those above it, trying the innermost first, since the others usually exist.

        The folder that the spec names is never created, because a mistyped one would stay for good.
        """
        if len(remote) <= len(self._base):
            if self._is_folder(connection, remote or "/"):
                return
            detail = f"the folder that the spec names is missing: {remote}"
            raise CloudError(ErrorKind.NOT_FOUND, verb, remote, detail=detail)
        try:
            connection.sftp.mkdir(remote)
        except OSError as error:
            if not connection.is_open():
                raise
            parent = remote.rpartition("/")[0]
            if error.errno == errno.ENOENT:
                self._make_folder(connection, verb, parent)
                with suppress(OSError):  # another thread may have been faster
                    connection.sftp.mkdir(remote)
            try:
                is_folder = S_ISDIR(connection.sftp.stat(remote).st_mode or 0)
            except OSError:
                raise error from None  # nothing is in the way: the server's own reason counts
            if not is_folder:
                detail = "no folder can be where a file is"
                raise CloudError(ErrorKind.CONFLICT, verb, remote, detail=detail) from error

    @contextmanager
    def _open_file(self, verb: str, path: str, mode: str) -> Iterator[tuple[Any, Any]]:
        """Yield a channel for this thread alone and an open file, and close the file.

        The library would ignore the server's answer to closing.
        """
        from paramiko.sftp import CMD_CLOSE

        remote = self._remote_path(verb, path)
        with self._connected(verb, path) as connection:
            file = self._open_handle(connection, verb, path, remote, mode)
            file._closed = True  # else the collector would close it, too
            try:
                yield connection.sftp, file
            except Exception as error:
                # Otherwise the connection is closed, and its files with it.
                is_reused = connection.is_open() and not isinstance(error, self._unreadable)
                if is_reused and not connection.sftp._expecting:
                    with suppress(Exception):  # the first failure counts
                        connection.sftp._request(CMD_CLOSE, file.handle)
                raise
            connection.sftp._request(CMD_CLOSE, file.handle)

    def _open_handle(self, connection: _Connection, verb: str, path: str, remote: str, mode: str) -> Any:
        """Open a file. To write one, its folder is created if it is missing."""
        try:
            try:
                return connection.sftp.open(remote, mode)
            except OSError as error:
                parent = remote.rpartition("/")[0]
                if error.errno != errno.ENOENT or mode != "wb" or not parent:
                    raise
                self._make_folder(connection, verb, parent)
                return connection.sftp.open(remote, mode)
        except OSError as error:
            if error.errno != errno.ENOENT and connection.is_open() and self._is_folder(connection, remote):
                raise CloudError(ErrorKind.CONFLICT, verb, path, detail="it is a folder") from error
            raise

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Write straight to the target, and read the answer to each write and to closing the file."""
        from paramiko.sftp import CMD_WRITE, int64

        size_bytes = content.size_bytes
        with self._open_file("put", path, "wb") as (sftp, file):
            if 0 < size_bytes <= _PIECE_BYTES:  # a window for one write would cost a few percent of the put's CPU
                sftp._request(CMD_WRITE, file.handle, int64(0), content.read(0, size_bytes))
            else:
                self._write_pieces(_Window(sftp), file.handle, content)
        return Entry(path, size_bytes=size_bytes)

    def _write_pieces(self, window: _Window, handle: bytes, content: Content) -> None:
        from paramiko.sftp import CMD_WRITE

        offset = 0
        for piece in chunks(content, _PIECE_BYTES):
            if len(window.waiting) == _WINDOW_PIECES:
                window.oldest_answer()
            window.send(CMD_WRITE, handle, offset, len(piece), piece)
            offset += len(piece)
        while window.waiting:
            window.oldest_answer()

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset``. It is opened when the first piece is asked for."""
        from paramiko.sftp import CMD_DATA, CMD_READ, SFTPError

        with self._open_file("get", path, "rb") as (sftp, file):
            status = file.stat()
            if S_ISDIR(status.st_mode or 0):
                raise CloudError(ErrorKind.CONFLICT, "get", path, detail="it is a folder")
            window, position, end = _Window(sftp), offset, _require_attribute(status.st_size, "its size")
            while position < end or window.waiting:
                while position < end and len(window.waiting) < _WINDOW_PIECES:
                    length = min(_PIECE_BYTES, end - position)
                    window.send(CMD_READ, file.handle, position, length)
                    position += length
                kind, message, begin, length = window.oldest_answer()
                if kind != CMD_DATA:
                    raise SFTPError("expected data")
                data = message.get_string()
                if not data:
                    raise SFTPError("no data before the end")
                if len(data) < length:  # the rest comes next
                    window.send(CMD_READ, file.handle, begin + len(data), length - len(data))
                    window.waiting.rotate(1)
                yield data

    def stat(self, path: str) -> Entry:
        """Return what the server knows about one path."""
        remote = self._remote_path("stat", path)
        with self._connected("stat", path) as connection:
            return _entry_of_status(path, connection.sftp.stat(remote))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder`` that is a file or a folder."""
        return walk(folder, self._list_children)

    def _list_children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        remote = self._remote_path("list", folder)
        with self._connected("list", folder) as connection:
            children = sorted(connection.sftp.listdir_attr(remote), key=lambda child: str(child.filename))
            entries = [
                _entry_of_status(f"{folder.rstrip('/')}/{child.filename}", child)
                for child in children
                if S_ISDIR(mode := _mode_of(child)) or S_ISREG(mode)
            ]
        yield from ((entry, entry.path) for entry in entries)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents. The folder that the spec names stays."""
        remote = self._remote_path("delete", path)
        if not path.strip("/"):
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        with self._connected("delete", path) as connection:
            try:
                connection.sftp.remove(remote)
            except OSError as error:
                is_gone = error.errno == errno.ENOENT or not connection.is_open()
                if is_gone or not S_ISDIR(connection.sftp.lstat(remote).st_mode or 0):
                    raise
                _remove_tree(connection.sftp, remote)

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        remote = self._remote_path("mkdir", path)
        if path.strip("/"):
            with self._connected("mkdir", path) as connection:
                self._make_folder(connection, "mkdir", remote)

    # --- optional verbs ---------------------------------------------------------------------------

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. Some servers replace an existing target, others refuse."""
        old, new = self._remote_path("move", source), self._remote_path("move", target)
        with self._connected("move", source) as connection:
            try:
                connection.sftp.rename(old, new)
            except OSError as error:
                if error.errno != errno.ENOENT or not connection.is_open():
                    raise
                connection.sftp.lstat(old)  # a missing source must leave no new folder behind
                self._make_folder(connection, "move", new.rpartition("/")[0])
                connection.sftp.rename(old, new)
            return _entry_of_status(target, connection.sftp.stat(new))


def _entry_of_status(path: str, status: Any) -> Entry:
    if S_ISDIR(_mode_of(status)):
        return Entry(path, is_folder=True)
    return Entry(path, size_bytes=_require_attribute(status.st_size, "its size"))


def _mode_of(status: Any) -> int:
    return _require_attribute(status.st_mode, "whether it is a folder")


def _require_attribute(attribute: int | None, what: str) -> int:
    """Return an attribute. Raises OwnError if the server has left it out, as the protocol allows."""
    if attribute is None:
        raise OwnError(ErrorKind.SERVER, f"the server does not tell {what}")
    return attribute


def _remove_tree(sftp: Any, remote: str) -> None:
    """Remove a folder with all its contents."""
    for child in sftp.listdir_attr(remote):
        path = f"{remote}/{child.filename}"
        with suppress(FileNotFoundError):  # somebody else may have removed it meanwhile
            if S_ISDIR(child.st_mode or 0):
                _remove_tree(sftp, path)
            else:
                sftp.remove(path)
    sftp.rmdir(remote)


def _parse_address(spec: ProviderSpec, url: str) -> tuple[str, int, str]:
    """Return host, port and base folder, which is empty for the root and ``.`` for the home folder."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
    except ValueError:
        host, port = "", _PORT
    if not host or parts.username is not None or parts.fragment:
        expected = "sftp://HOST[:PORT]/PATH, without user and password: these are credentials"
        raise SpecError(f"provider {spec.text!r}: expected {expected}")
    path = unquote(parts.path).rstrip("/")
    if path == "/~" or path.startswith("/~/"):
        return host, port, f".{path[2:]}"
    return host, port, path
