"""The part of a driver that is the same for all SDKs: errors as CloudError, downloads, versions, requests and closing.

What may live here: code that knows no provider. A driver says what an error of its library means; all else about errors
is here. Drivers without an SDK have the same from ``web``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, NamedTuple

from pytest_cloudbench.drivers.base import RequestCount, detail_of, kind_of_status
from pytest_cloudbench.drivers.waits import requested_wait_s
from pytest_cloudbench.model import KIB, CloudError, ErrorKind
from pytest_cloudbench.support import redact


class Meaning(NamedTuple):
    """The meaning of a library's error.

    Attributes:
        kind: the reason, in the words shared by all providers.
        words: the provider's own words. Secrets, and what differs from request to request, are taken out later.
        retry_after_s: the seconds that the provider asked to wait, if it did.
    """

    kind: ErrorKind
    words: str
    retry_after_s: float | None = None


UNREADABLE = Meaning(ErrorKind.SERVER, "the answer cannot be read")


UNLIMITED_POOL = 0
"""The size of urllib3's pool that keeps each connection. Above a limit, an operation would pay for a new handshake.

A pool of another size is filled with placeholders inside the first operation: 10,000 of them take 10 ms.
"""

# An HTTP library waits for a whole piece: a small first one marks the first byte.
_FIRST_PIECE_BYTES = 1 * KIB
# With 64 KiB, a get of 4 MiB takes a quarter longer than the library alone; with more than 256, no less.
_PIECE_BYTES = 256 * KIB


class OwnError(Exception):
    """An error that a driver finds itself, in a path or in an answer: the cause of the CloudError that is raised."""

    def __init__(self, kind: ErrorKind, words: str, retry_after_s: float | None = None) -> None:
        super().__init__(words)
        self.meaning = Meaning(kind, words, retry_after_s)


def require_etag(etag: str | None) -> str:
    """Return an answer's entity tag. Raises OwnError if it has none: then a proxy has answered, not the service."""
    if not etag:
        raise OwnError(ErrorKind.SERVER, "the answer has no ETag")
    return etag


def meaning_of_refusal(status: int, words: str, headers: Mapping[str, str], kind: ErrorKind | None = None) -> Meaning:
    """Return what an unsuccessful answer means. Its status tells the kind if the provider's words do not."""
    text = f"{status} {words}".strip()
    return Meaning(kind or kind_of_status(status), text, requested_wait_s(headers))


def network_failure(error: Exception) -> Meaning:
    """Return what the failure of a connection means."""
    return Meaning(ErrorKind.NETWORK, str(error) or type(error).__name__)


def read_pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield what ``read`` returns until that is empty: a small piece, which marks the first byte, then large ones."""
    piece_bytes = _FIRST_PIECE_BYTES
    while piece := read(piece_bytes):
        yield piece
        piece_bytes = _PIECE_BYTES


def response_pieces(response: Any) -> Iterator[bytes]:
    """Yield the body of a ``requests`` response as ``read_pieces`` does. Raises that library's error if it is cut."""
    # Kept in a variable: if this iterator were closed, a chunked body would end with it.
    beginning = response.iter_content(_FIRST_PIECE_BYTES)
    if piece := next(beginning, b""):
        yield piece
        yield from response.iter_content(_PIECE_BYTES)


class CloudErrors:
    """A context that raises every error inside it as CloudError, without the secrets that libraries put into errors.

    Args:
        verb: the operation, for errors.
        path: what it is about, for errors.
        explain: returns what an error means, or None for a mistake of the driver's own, which is raised unchanged.
    """

    __slots__ = ("_explain", "_path", "_verb")

    def __init__(self, verb: str, path: str, explain: Callable[[Exception], Meaning | None]) -> None:
        self._verb, self._path, self._explain = verb, path, explain

    def __enter__(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, CloudError):
            return
        meaning = error.meaning if isinstance(error, OwnError) else self._explain(error)
        if meaning is None:
            return
        kind, detail, retry_after_s = meaning
        redact.clean_error(error)
        detail = detail_of(detail, self._path)
        del meaning  # its words may hold a secret, and ``pytest -l`` shows what the frame of a raised error holds
        raise CloudError(kind, self._verb, self._path, retry_after_s=retry_after_s, detail=detail) from error


def library_versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions, and of ``openssl`` if it is among them."""
    return {name: ssl.OPENSSL_VERSION if name == "openssl" else version(name) for name in libraries}


class SdkDriver:
    """The common part of drivers whose SDK lets them count its requests.

    A subclass has ``_explain_error``. It lists the SDK's ``libraries``, and the ``settings`` by which they are used.

    Args:
        sent: counts the requests of each thread.
        remarks: the user's proxy and certificates, for the entry.
        opened: the connections that ``close`` closes, in this order.
    """

    libraries: ClassVar[tuple[str, ...]]
    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, sent: RequestCount, remarks: Mapping[str, str], *opened: Any) -> None:
        self._sent, self._remarks, self._opened = sent, remarks, [*opened]

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        return {**library_versions(self.libraries), **self.settings, **self._remarks}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            connection.close()

    def requests(self) -> int:
        """Return how many requests this thread has sent so far."""
        return self._sent.requests

    def _cloud_errors(self, verb: str, path: str) -> AbstractContextManager[Any]:
        """Return a context that raises every error of the library as CloudError."""
        return CloudErrors(verb, path, self._explain_error)

    def _explain_error(self, error: Exception) -> Meaning | None:
        """Return what an error of the library means, or None for a mistake of the driver's own."""
        raise NotImplementedError
