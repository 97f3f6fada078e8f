"""The fault matrix: every driver against a service that answers every request with a fault.

Each test tries one fault on one driver, with all operations that the driver offers. It checks that each operation ends
in a CloudError of the right kind, that exactly one request has arrived (nothing is sent again, not even after a
refusal), that the driver counts as many requests as the server, that nothing goes to another host, that nothing hangs,
and that no secret is in any output, although the server puts the whole request into its answers.
"""

from __future__ import annotations

import gc
import logging
import ssl
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Counting
from pytest_cloudbench.model import KIB, MIB, Capabilities, CloudError, Endpoint, ErrorKind, ProviderSpec, Verb
from pytest_cloudbench.workload.payload import RandomContent
from tests.limits import HANG_S

from .rows import EITHER, JSON, ROWS, WITHOUT_HTTP, Row
from .server import Answer, FaultServer, fault_server

K = ErrorKind
SHORT = "timeout_s=0.5"
SMALL, LARGE = RandomContent("small", 5 * KIB), RandomContent("large", 4 * MIB)
PATH = "/faults/a.bin"
ECHO = b'{"error": "you said {echo}", "message": "{echo}"}'
PAGE = b"<html><body><h1>Oh no</h1><pre>{echo}</pre></body></html>"
HTML = {"content-type": "text/html; charset=utf-8"}
SAID = {**JSON, "x-you-said": "{echo}"}
TO = "https://{elsewhere}/faults/a.bin"
NOON = "Fri, 20 Nov 2026 12:00:00 GMT"

ACTIONS: dict[str, Callable[[Any], object]] = {
    "put": lambda driver: driver.put(PATH, SMALL),
    "get": lambda driver: list(driver.get(PATH)),
    "stat": lambda driver: driver.stat(PATH),
    "list": lambda driver: list(driver.list("/faults")),
    "delete": lambda driver: driver.delete(PATH),
    "mkdir": lambda driver: driver.mkdir("/faults"),
    "copy": lambda driver: driver.copy(PATH, "/faults/b.bin"),
    "move": lambda driver: driver.move(PATH, "/faults/b.bin"),
    "share": lambda driver: driver.share(PATH),
}


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One fault of the server, and the error that it must cause.

    Attributes:
        name: its name in the test's id and in a row's ``kinds``.
        kinds: the right kinds of error. There are several only where libraries differ and neither is wrong.
        answer: the server's answer to every request.
        door: the door of the server that the driver uses.
        retry_after_s: the error's value of the same name.
        requests: the number of requests that arrive.
        breaks: ``body`` if it does not affect an operation that reads no body, ``sense`` if it does not affect raw
            content either.
        is_fresh: whether the driver has sent nothing before. Otherwise its connections may be kept.
    """

    name: str
    kinds: frozenset[ErrorKind]
    answer: Answer = field(default_factory=Answer)
    door: str = "right"
    retry_after_s: float | None = None
    requests: int = 1
    breaks: str = ""
    is_fresh: bool = False


def _fault(name: str, kind: ErrorKind | frozenset[ErrorKind], answer: Answer | None = None, **more: Any) -> Fault:
    kinds = kind if isinstance(kind, frozenset) else frozenset({kind})
    return Fault(name, kinds, answer or Answer(), **more)


FAULTS = [
    *(
        _fault(f"certificate-{door}", K.NETWORK, door=door, requests=0)
        for door in ("wrong_name", "wrong_authority", "ended")
    ),
    _fault("nobody-listens", K.NETWORK, door="closed", requests=0),
    _fault("reset-at-once", K.NETWORK, door="resetting", requests=0),
    _fault("reset", K.NETWORK, Answer(None, then="reset"), is_fresh=True),
    _fault("reset-of-a-kept-connection", EITHER, Answer(None, then="reset")),
    _fault("closed-without-an-answer", K.NETWORK, Answer(None, then="close"), is_fresh=True),
    _fault("closed-a-kept-connection", EITHER, Answer(None, then="close")),
    _fault("cut-short", K.NETWORK, Answer(200, b'{"a": 1', JSON, promised=4000, then="close"), breaks="body"),
    _fault("reset-in-the-body", K.NETWORK, Answer(200, b'{"a": 1', JSON, promised=4000, then="reset"), breaks="body"),
    _fault("no-http", EITHER, Answer(None, b"SSH-2.0-OpenSSH_9.2p1\r\n", then="close")),
    _fault("no-json", K.SERVER, Answer(200, b'{"a": ]', JSON), breaks="sense"),
    _fault("other-json", K.SERVER, Answer(200, b'["a", {"b": null}]', JSON), breaks="sense"),
    _fault("a-page", K.SERVER, Answer(200, PAGE, HTML), breaks="sense"),
    _fault("bytes", K.SERVER, Answer(200, bytes(range(256)) * 4), breaks="sense"),
    _fault("no-gzip", EITHER, Answer(200, b"\x1f\x8bnothing", {**JSON, "content-encoding": "gzip"}), breaks="sense"),
    _fault("500", K.SERVER, Answer(500, ECHO, SAID)),
    _fault("500-and-closed", K.SERVER, Answer(500, ECHO, {**SAID, "connection": "close"}, then="close")),
    _fault("502-page", K.SERVER, Answer(502, PAGE, HTML)),
    _fault("503-empty", K.SERVER, Answer(503)),
    _fault("503-retry-after", K.SERVER, Answer(503, ECHO, {**SAID, "retry-after": "5"}), retry_after_s=5.0),
    _fault("429-retry-after", K.THROTTLED, Answer(429, ECHO, {**SAID, "retry-after": "7"}), retry_after_s=7.0),
    _fault("429", K.THROTTLED, Answer(429, ECHO, SAID)),
    _fault("429-page", K.THROTTLED, Answer(429, PAGE, HTML)),
    _fault("429-date", K.THROTTLED, Answer(429, ECHO, {**SAID, "retry-after": NOON})),
    _fault(
        "429-date-after-its-own", K.THROTTLED,
        Answer(429, ECHO, {**SAID, "date": "Fri, 20 Nov 2026 11:59:30 GMT", "retry-after": NOON}),
        retry_after_s=30.0,
    ),
    _fault("429-nonsense", K.THROTTLED, Answer(429, ECHO, {**SAID, "retry-after": "soon"})),
    _fault("408-and-closed", K.NETWORK, Answer(408, headers={"connection": "close"}, then="close")),
    _fault("423", K.CONFLICT, Answer(423, ECHO, SAID)),
    _fault("401-expired", K.AUTH),  # each service's own words
    _fault("401-empty", K.AUTH, Answer(401)),
    *(
        _fault(f"{status}-to-another-host", K.SERVER, Answer(status, PAGE, {**HTML, "location": TO}))
        for status in (301, 302, 303, 307, 308)
    ),
    _fault("307-to-plain-http", K.SERVER, Answer(307, PAGE, {**HTML, "location": TO.replace("https", "http")})),
]  # fmt: skip

STALLS = [
    _fault("silence-in-the-handshake", K.NETWORK, door="mute"),
    _fault("silence-before-the-answer", K.NETWORK, Answer(None, then="hold")),
    _fault("silence-in-the-body", K.NETWORK, Answer(200, b'{"a": 1', JSON, 4000, then="hold"), breaks="body"),
]


# --- one driver at the server ---------------------------------------------------------------------


@dataclass
class Attempt:
    """The outcome of one operation."""

    verb: str
    error: BaseException | None
    counted: int | None


class Client:
    """A connected driver with threads of its own, so that hanging calls are noticed and threads reuse their caches."""

    def __init__(self, driver: Any, row: Row, threads: int = 1) -> None:
        self._driver, self._threads = driver, ThreadPoolExecutor(threads)
        offered = {verb.value for verb in self._driver.capabilities.verbs}
        offered |= {"mkdir"} if self._driver.capabilities.folders else set()
        self.verbs = [verb for verb in ACTIONS if verb in offered and verb not in row.silent]

    def begin(self, verb: str, action: Callable[[Any], object] | None = None) -> Future[Attempt]:
        return self._threads.submit(self._attempt, verb, action or ACTIONS[verb])

    def _attempt(self, verb: str, action: Callable[[Any], object]) -> Attempt:
        before = self._driver.requests() if isinstance(self._driver, Counting) else None
        error: BaseException | None = None
        try:
            action(self._driver)
        except Exception as raised:  # whatever a driver lets escape: the matrix reports it
            error = raised
        return Attempt(verb, error, None if before is None else self._driver.requests() - before)

    def self_description(self) -> str:
        """Return the driver's texts about itself."""
        return f"{self._driver!r} {self._driver} {self._driver.versions()} {self._driver.capabilities}"

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._driver.close()


def connect(scheme: str, server: FaultServer, door: str = "right", params: str = "", threads: int = 1) -> Client:
    """Connect the driver of a row to one of the server's doors."""
    row = ROWS[scheme]
    target, _, others = row.spec.partition("?")
    query = "&".join(filter(None, [others, params]))
    spec = ProviderSpec.parse(f"{scheme}{target}" + (f"?{query}" if query else ""))
    door = "plain" if row.is_plain and door == "right" else door
    return Client(drivers.connect(spec, row.endpoint(server.url(door), server.ca_file), {}), row, threads)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with fault_server(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.fixture
def _refused_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the sockets of refused connections, which httplib2 leaves to the interpreter, before the next test."""
    yield
    fault = request.node.callspec.params.get("fault")
    if fault is None or fault.door == "closed":
        gc.collect()


@pytest.fixture(autouse=True)
def _secrets_of_test() -> None:
    """Replace the fixture for all tests: a client of one test serves others, and its secrets last as long."""


Clients = Callable[..., Client]


@pytest.fixture(scope="module")
def clients(server: FaultServer) -> Iterator[Clients]:
    """A function that returns a driver's client at a door: the one that all its tests share, or a new one."""
    with ExitStack() as stack:
        clients_by_door: dict[tuple[str, str], Client] = {}

        def client(scheme: str, door: str = "right", *, is_fresh: bool = False) -> Client:
            if is_fresh or (scheme, door) not in clients_by_door:
                new_client = connect(scheme, server, door)
                stack.callback(new_client.close)
                clients_by_door[scheme, door] = new_client
            return clients_by_door[scheme, door]

        yield client


# --- problems --------------------------------------------------------------------------------------


def errors_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all its causes."""
    error_ids: set[int] = set()
    while error is not None and id(error) not in error_ids:
        error_ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def describe_error(error: BaseException | None) -> str:
    """Return everything that people, logs and other processes can see of an error."""
    texts = [] if error is None else traceback.format_exception(error)
    for cause in errors_of(error):
        texts += [repr(cause), str(cause), repr(cause.args), repr(getattr(cause, "detail", ""))]
    return "\n".join(texts)


def problems_of(row: Row, fault: Fault, attempt: Attempt, server: FaultServer) -> Iterator[str]:
    """Yield the problems of one attempt."""
    error, kinds = attempt.error, row.kinds.get(fault.name, fault.kinds)
    kinds = row.kinds.get(f"{fault.name} {attempt.verb}", kinds)
    if error is None:
        yield "was taken for a success"
    elif not isinstance(error, CloudError):
        yield f"let {type(error).__name__} out: {error}"
    else:
        if error.kind not in kinds:
            yield f"kind is {error.kind.value}, not {' or '.join(kind.value for kind in kinds)}: {error}"
        if error.retry_after_s != (wait_s := fault.retry_after_s if row.tells_wait else None):
            yield f"retry_after_s is {error.retry_after_s}, not {wait_s}"
        # If the library accepts the answer, the driver itself must refuse it.
        if error.__cause__ is None and fault.breaks != "sense" and not 300 <= (fault.answer.status or 0) < 400:
            yield "has no cause"
    is_followed = row.follows and any(entry.door == "elsewhere" for entry in server.requests)
    expected = fault.requests + (fault.answer.status == 500 and attempt.verb in row.asks_why)
    if len(server.requests) != expected and not is_followed:
        yield f"{len(server.requests)} requests arrived, not {expected}: {[entry.line for entry in server.requests]}"
    if len({entry.line for entry in server.requests}) < len(server.requests) and not is_followed:
        yield f"a request was repeated: {[entry.line for entry in server.requests]}"
    if len(server.connections) > max(1, expected) and not is_followed:
        yield f"it connected {len(server.connections)} times: {server.connections}"
    if fault.requests and attempt.counted not in (None, len(server.requests)):
        yield f"it counted {attempt.counted} requests, and {len(server.requests)} arrived"
    if "elsewhere" in server.connections and not row.follows:
        yield "it went to another host"
    for entry in server.requests:
        if entry.door == "elsewhere":
            yield from leaks(row, entry.head, "what it sent to another host")
    yield from leaks(row, describe_error(error), "its error")


def leaks(row: Row, text: str, where: str) -> Iterator[str]:
    """Yield the secrets that a text shows."""
    for name, secret in row.secrets.items():
        if secret in text:
            at = text.index(secret)
            yield f"{where} shows {name}: ...{text[max(0, at - 60) : at + 20]}"


def answer_of(row: Row, fault: Fault) -> Answer:
    if fault.name == "401-expired":
        return row.expired
    begins = row.begins if fault.breaks == "body" else {}
    return replace(fault.answer, headers={**fault.answer.headers, **begins})


def verbs_for(row: Row, fault: Fault, verbs: list[str]) -> list[str]:
    """Return the operations that a fault can break."""
    if row.is_plain and fault.door != "right":
        return []
    unbroken = row.unread if fault.breaks else frozenset()
    unbroken |= row.raw if fault.breaks == "sense" else frozenset()
    return [verb for verb in verbs if verb not in unbroken]


QUICK = frozenset({"dropbox", "s3"})
"""Two drivers with different libraries: an SDK on requests, and botocore. All others together take long."""


def schemes(quick: frozenset[str]) -> list[Any]:
    """Return the schemes of the rows as parameters. Those that are not quick are marked as slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in ROWS]


# --- the matrix -----------------------------------------------------------------------------------


def test_every_driver_has_a_row() -> None:
    """A driver without HTTP has none. Only a faulty service shows whether a driver reports errors truthfully."""
    assert {*ROWS, *WITHOUT_HTTP} == {*drivers.schemes()}
    assert not ROWS.keys() & WITHOUT_HTTP.keys()


@pytest.fixture
def outputs(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """A function that returns everything that was logged, at any level, and printed."""
    caplog.set_level(logging.DEBUG)

    def read_outputs() -> str:
        printed = capfd.readouterr()
        records = [f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.records]
        return "\n".join([caplog.text, *records, printed.out, printed.err])

    return read_outputs


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("scheme", schemes(QUICK))
@pytest.mark.usefixtures("_refused_sockets")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_fault(scheme: str, fault: Fault, server: FaultServer, clients: Clients, outputs: Callable[[], str]) -> None:
    row, problems = ROWS[scheme], list[str]()
    client = clients(scheme, fault.door, is_fresh=fault.is_fresh)
    if not (verbs := verbs_for(row, fault, client.verbs)):
        pytest.skip("nothing that this fault could break")
    for verb in verbs:
        if "kept" in fault.name:
            server.say(Answer(500, b"{}", JSON))
            client.begin(verb).result(HANG_S)
        server.say(answer_of(row, fault))
        attempt = client.begin(verb).result(HANG_S)
        problems += [f"{verb}: {problem}" for problem in problems_of(row, fault, attempt, server)]
    problems += leaks(row, outputs(), "what was logged or printed")
    problems += leaks(row, client.self_description(), "the driver")
    assert problems == []


@pytest.mark.parametrize("scheme", schemes(QUICK))
def test_reset_in_an_upload(scheme: str, server: FaultServer, clients: Clients) -> None:
    """The connection ends while the file is still being sent."""
    server.say(Answer(None, then="reset", at_head=True))
    attempt = clients(scheme, is_fresh=True).begin("put", lambda driver: driver.put(PATH, LARGE)).result(HANG_S)
    fault = _fault("reset-in-an-upload", K.NETWORK)
    assert [*problems_of(ROWS[scheme], fault, attempt, server)] == []


@pytest.mark.parametrize("scheme", schemes(frozenset({"dropbox"})))
def test_nothing_hangs_past_its_timeout(scheme: str, server: FaultServer) -> None:
    """The service stalls in the handshake, before its answer, or in the middle of it.

    All operations run at once, so that the test takes one timeout and not twenty.
    """
    row, problems = ROWS[scheme], list[str]()
    for fault in STALLS:
        server.say(answer_of(row, fault))
        client = connect(scheme, server, fault.door, SHORT, len(ACTIONS))
        began = {verb: client.begin(verb) for verb in verbs_for(row, fault, client.verbs)}
        for verb, future in began.items():
            error = future.result(HANG_S).error
            if not isinstance(error, CloudError) or error.kind is not K.NETWORK:
                problems.append(f"{verb}, {fault.name}: {error!r}")
        # On a busy machine a handshake alone may take the whole timeout: then no request arrives.
        if len(server.connections) != len(began) or len(server.requests) > len(began):
            problems.append(f"{fault.name}: {len(server.connections)} connections, {len(server.requests)} requests")
        client.close()
    assert problems == []


DIFFER = [
    _fault("nobody-listens", K.NETWORK, door="closed"),
    _fault("cut-short", EITHER, Answer(200, b'{"a": "{path}"', JSON, 4000, then="close"), breaks="body"),
    _fault("500", K.SERVER, Answer(500, b'{"error": "request {id} for {path} failed"}', JSON)),
    _fault("404", K.NOT_FOUND, Answer(404, b"<Error><Code>NoSuchKey</Code><Key>{path}</Key><Id>{id}</Id></Error>")),
    _fault("429-page", K.THROTTLED, Answer(429, b"<html><body>Not now.<p>Request {id}: {path}</body></html>", HTML)),
]
"""Faults whose own text, or the library's text about them, differs from request to request."""


@pytest.mark.parametrize("scheme", schemes(QUICK))
@pytest.mark.usefixtures("_refused_sockets")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_errors_of_one_kind_have_one_text(scheme: str, server: FaultServer, clients: Clients) -> None:
    """If the details of errors differed between two files, they could not be counted."""
    problems = []
    for fault in DIFFER:
        client, row = clients(scheme, fault.door), ROWS[scheme]
        for verb in {"put", "get", "stat"} & set(verbs_for(row, fault, client.verbs)):
            reports = list[tuple[str, str]]()
            for path in ("/faults/s00001-000001.bin", "/faults/b 2/another (file)-20.bin"):
                server.say(answer_of(row, fault))
                error = client.begin(verb, partial(_operate, verb, path)).result(HANG_S).error
                assert isinstance(error, CloudError), (verb, fault.name)
                reports.append((error.kind.value, error.detail))
            if reports[0] != reports[1]:
                problems.append("\n".join(map(str, (verb, fault.name, *reports))))
    assert not problems, "\n".join(problems)


def _operate(verb: str, path: str, driver: Any) -> object:
    """Do an operation on a path."""
    return driver.put(path, SMALL) if verb == "put" else list(driver.get(path)) if verb == "get" else driver.stat(path)


# --- the matrix itself ----------------------------------------------------------------------------


class Careless:
    """A driver with all the mistakes that the matrix must find."""

    capabilities = Capabilities(None, frozenset({Verb.PUT}), folders=False)

    def __init__(self, endpoint: Endpoint) -> None:
        import httpx

        self._url, self._token = endpoint.url, endpoint.credentials["access_token"]
        trusted = ssl.create_default_context(cafile=endpoint.ca_file)
        self._http = httpx.Client(verify=trusted, trust_env=False, follow_redirects=True)

    def requests(self) -> int:
        return 0

    def put(self, path: str, _content: object) -> None:
        for _ in range(2):
            answer = self._http.post(self._url, headers={"Authorization": f"Bearer {self._token}"}, content=b"x")
            if answer.status_code < 500:
                break
        if not answer.is_success:
            raise CloudError(K.SERVER, "put", path, detail=answer.text)

    def versions(self) -> dict[str, str]:
        return {"token": self._token}

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def careless(server: FaultServer) -> Iterator[Client]:
    client = Client(Careless(ROWS["dropbox"].endpoint(server.url(), server.ca_file)), ROWS["dropbox"])
    yield client
    client.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("500", ["2 requests arrived", "it counted 0 requests", "has no cause", "its error shows access_token"]),
        ("429-retry-after", ["kind is server, not throttled", "retry_after_s is None, not 7.0"]),
        ("307-to-another-host", ["it went to another host", "it connected 2 times"]),
        ("no-json", ["was taken for a success"]),
        ("reset", ["Error out: "]),
    ],
)
def test_matrix_finds_faults_of_a_careless_driver(
    name: str, expected: list[str], server: FaultServer, careless: Client
) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    server.say(fault.answer)
    problems = [*problems_of(ROWS["dropbox"], fault, careless.begin("put").result(HANG_S), server)]
    assert [words for words in expected if not any(words in problem for problem in problems)] == [], problems
    assert [*leaks(ROWS["dropbox"], careless.self_description(), "the driver")]
