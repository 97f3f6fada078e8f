"""Operations that fail at a limit of the machine that carries them: the figures are then not the provider's."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from pytest_cloudbench.load.engine.engine import Budget, Engine
from pytest_cloudbench.load.engine.limits import find_own_limit
from pytest_cloudbench.model import CloudError, ErrorKind, Op
from pytest_cloudbench.support.clock import now_ns
from pytest_cloudbench.workload.arrival import FixedInterval, plan

from .test_in_flight import Call

NO_FILES = os.strerror(errno.EMFILE)


def make_error(cause: BaseException | None) -> CloudError:
    """Make a driver's error with a cause."""
    error = CloudError(ErrorKind.NETWORK, "put", "/a")
    error.__cause__ = cause
    return error


def hide_as_requests_does(system_error: OSError) -> BaseException:
    """Hide a system's error as the library of the Dropbox driver does."""
    import ssl

    from requests.exceptions import SSLError
    from urllib3.connectionpool import HTTPSConnectionPool
    from urllib3.exceptions import MaxRetryError

    hidden = ssl.SSLError(system_error)
    return SSLError(MaxRetryError(HTTPSConnectionPool("example.org"), "/a", hidden))


def hide_as_context(system_error: OSError) -> BaseException:
    try:
        try:
            raise system_error
        except OSError:
            raise ValueError("cannot connect") from None
    except ValueError as error:
        return error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM])
def test_a_limit_is_found_wherever_a_library_hides_it(number: int) -> None:
    system_error = OSError(number, os.strerror(number))
    for hidden in (system_error, hide_as_requests_does(system_error), hide_as_context(system_error)):
        assert find_own_limit(make_error(hidden)) == os.strerror(number)


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOSPC, errno.EACCES])
def test_a_failure_of_the_provider_or_on_the_way_is_no_limit(number: int) -> None:
    assert find_own_limit(make_error(None)) == ""
    assert find_own_limit(make_error(hide_as_requests_does(OSError(number, "x")))) == ""
    first, second = ValueError("one"), ValueError("other")
    first.__context__, second.__cause__ = second, first
    assert find_own_limit(make_error(first)) == "", "errors in a circle"


@contextlib.contextmanager
def few_files(more: int) -> Iterator[list[socket.socket]]:
    """Let this process open only so many more files. Yield a list of sockets that are closed at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = list[socket.socket]()
    with socket.socket() as newest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest.fileno() + more, hard))
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("warm_up_ns", [0, 10**15], ids=["measured", "warm-up"])
def test_a_run_that_lacks_files_is_doubtful(warm_up_ns: int) -> None:
    ops = list[Op]()
    with few_files(8) as opened:

        def open_socket(sensor: int, seq: int) -> None:
            try:
                opened.append(socket.socket())
            except OSError as error:
                raise CloudError(ErrorKind.NETWORK, "put", "/a") from error

        engine = Engine(Call(open_socket), ops.append, 0, threading.Event(), Budget())
        start_ns = now_ns()
        engine.measured_from_ns = start_ns + warm_up_ns
        engine.run_schedule(plan(FixedInterval(0.0), range(20), 1, "seed"), start_ns)
    assert len(ops) == 20
    assert 0 < sum(op.kind is ErrorKind.NETWORK for op in ops) < 20
    doubt = f"operations failed at limits of their own machine ({NO_FILES}), and not at the provider"
    assert engine.doubts == ([] if warm_up_ns else [doubt])
