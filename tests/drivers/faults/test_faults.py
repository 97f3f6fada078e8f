"""The fault matrix: every driver against a service that is faulty, whatever it is asked.

One test is one fault of one driver, with all operations that the driver offers. It holds that each ends in a CloudError
of the right kind, that exactly one request has arrived (nothing is sent again, and what is refused stays refused), that
the driver counts what the server counts, that nothing goes to another host, that nothing hangs, and that no
secret is in any output, although the server puts the whole request into its answers.
"""

from __future__ import annotations

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
    """What the server does, and what must come of it.

    Attributes:
        name: what it is called in the test's id, and in a row's ``kinds``.
        kinds: any of these is right; several only where libraries differ and neither is wrong.
        answer: what the server answers to everything.
        door: where the driver knocks.
        retry_after_s: what the error must say.
        requests: how many arrive.
        breaks: ``body`` if it does not affect an operation that reads no body, ``sense`` if it does not affect raw
            content either.
        is_fresh: the driver has not sent anything before; otherwise its connections may be kept.
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
    _fault("429-date", K.THROTTLED, Answer(429, ECHO, {**SAID, "retry-after": "Fri, 20 Nov 2026 12:00:00 GMT"})),
    _fault("429-nonsense", K.THROTTLED, Answer(429, ECHO, {**SAID, "retry-after": "soon"})),
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
    """A connected driver, used by its own threads: a hanging call is noticed, and what a thread caches is reused."""

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

    def shown(self) -> str:
        """What the driver says about itself."""
        return f"{self._driver!r} {self._driver} {self._driver.versions()} {self._driver.capabilities}"

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._driver.close()


def connect(scheme: str, server: FaultServer, door: str = "right", params: str = "", threads: int = 1) -> Client:
    """The driver of a row, at one of the server's doors."""
    row = ROWS[scheme]
    target, _, others = row.spec.partition("?")
    asked = "&".join(filter(None, [others, params]))
    spec = ProviderSpec.parse(f"{scheme}{target}" + (f"?{asked}" if asked else ""))
    door = "plain" if row.is_plain and door == "right" else door
    return Client(drivers.connect(spec, row.endpoint(server.url(door), server.ca_file), {}), row, threads)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with fault_server(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.fixture(autouse=True)
def _secrets_of_test() -> None:
    """Replace the fixture of all tests: clients that one test has made serve others, and their secrets last as long."""


Clients = Callable[..., Client]


@pytest.fixture(scope="module")
def clients(server: FaultServer) -> Iterator[Clients]:
    """A driver's client at a door; one for all of a driver's tests, or a new one."""
    with ExitStack() as stack:
        known: dict[tuple[str, str], Client] = {}

        def client(scheme: str, door: str = "right", *, is_fresh: bool = False) -> Client:
            if is_fresh or (scheme, door) not in known:
                made = connect(scheme, server, door)
                stack.callback(made.close)
                known[scheme, door] = made
            return known[scheme, door]

        yield client


# --- what is wrong ---------------------------------------------------------------------------------


def errors_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def shown(error: BaseException | None) -> str:
    """All that people, logs and other processes can see of an error."""
    texts = [] if error is None else traceback.format_exception(error)
    for each in errors_of(error):
        texts += [repr(each), str(each), repr(each.args), repr(getattr(each, "detail", ""))]
    return "\n".join(texts)


def problems_of(row: Row, fault: Fault, attempt: Attempt, server: FaultServer) -> Iterator[str]:
    """What is wrong with one attempt."""
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
    is_followed = row.follows and any(asked.door == "elsewhere" for asked in server.asked)
    expected = fault.requests + (fault.answer.status == 500 and attempt.verb in row.asks_why)
    if len(server.asked) != expected and not is_followed:
        yield f"{len(server.asked)} requests arrived, not {expected}: {[asked.line for asked in server.asked]}"
    if len({asked.line for asked in server.asked}) < len(server.asked) and not is_followed:
        yield f"a request was repeated: {[asked.line for asked in server.asked]}"
    if len(server.connections) > max(1, expected) and not is_followed:
        yield f"it connected {len(server.connections)} times: {server.connections}"
    if fault.requests and attempt.counted not in (None, len(server.asked)):
        yield f"it counted {attempt.counted} requests, and {len(server.asked)} arrived"
    if "elsewhere" in server.connections and not row.follows:
        yield "it went to another host"
    for asked in server.asked:
        if asked.door == "elsewhere":
            yield from leaks(row, asked.head, "what it sent to another host")
    yield from leaks(row, shown(error), "its error")


def leaks(row: Row, text: str, where: str) -> Iterator[str]:
    """Secrets that a text shows."""
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
    """The operations that a fault can break."""
    if row.is_plain and fault.door != "right":
        return []
    unbroken = row.unread if fault.breaks else frozenset()
    unbroken |= row.raw if fault.breaks == "sense" else frozenset()
    return [verb for verb in verbs if verb not in unbroken]


QUICK = frozenset({"dropbox", "s3"})
"""Their libraries differ: an SDK on requests, and botocore. The others take long together."""


def schemes(quick: frozenset[str]) -> list[Any]:
    """The rows, those that are not quick marked as slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in ROWS]


# --- the matrix -----------------------------------------------------------------------------------


def test_every_driver_has_a_row() -> None:
    """Or does not use HTTP: without a faulty service it is not known whether a driver reports errors truthfully."""
    assert {*ROWS, *WITHOUT_HTTP} == {*drivers.schemes()}
    assert not ROWS.keys() & WITHOUT_HTTP.keys()


@pytest.fixture
def outputs(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """All that was logged, at any level, and printed."""
    caplog.set_level(logging.DEBUG)

    def read() -> str:
        printed = capfd.readouterr()
        told = [f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.records]
        return "\n".join([caplog.text, *told, printed.out, printed.err])

    return read


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("scheme", schemes(QUICK))
# httplib2 leaves the socket of a refused connection to the interpreter.
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
    problems += leaks(row, client.shown(), "the driver")
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
    """A service that accepts and says nothing, one that reads and says nothing, and one that stops in the middle.

    All operations at once, so that the test takes one timeout and not twenty.
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
        if len(server.connections) != len(began) or len(server.asked) > len(began):
            problems.append(f"{fault.name}: {len(server.connections)} connections, {len(server.asked)} requests")
        client.close()
    assert problems == []


DIFFER = [
    _fault("nobody-listens", K.NETWORK, door="closed"),
    _fault("cut-short", EITHER, Answer(200, b'{"a": "{path}"', JSON, 4000, then="close"), breaks="body"),
    _fault("500", K.SERVER, Answer(500, b'{"error": "request {id} for {path} failed"}', JSON)),
    _fault("404", K.NOT_FOUND, Answer(404, b"<Error><Code>NoSuchKey</Code><Key>{path}</Key><Id>{id}</Id></Error>")),
    _fault("429-page", K.THROTTLED, Answer(429, b"<html><body>Not now.<p>Request {id}: {path}</body></html>", HTML)),
]
"""Faults whose text, or the library's, differs from request to request."""


@pytest.mark.parametrize("scheme", schemes(QUICK))
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_errors_of_one_kind_have_one_text(scheme: str, server: FaultServer, clients: Clients) -> None:
    """On two files: otherwise details would differ from file to file, and could not be counted."""
    problems = []
    for fault in DIFFER:
        client, row = clients(scheme, fault.door), ROWS[scheme]
        for verb in {"put", "get", "stat"} & set(verbs_for(row, fault, client.verbs)):
            said = list[tuple[str, str]]()
            for path in ("/faults/s00001-000001.bin", "/faults/b 2/another (file)-20.bin"):
                server.say(answer_of(row, fault))
                error = client.begin(verb, partial(_on, verb, path)).result(HANG_S).error
                assert isinstance(error, CloudError), (verb, fault.name)
                said.append((error.kind.value, error.detail))
            if said[0] != said[1]:
                problems.append("\n".join(map(str, (verb, fault.name, *said))))
    assert not problems, "\n".join(problems)


def _on(verb: str, path: str, driver: Any) -> object:
    """An operation on a path."""
    return driver.put(path, SMALL) if verb == "put" else list(driver.get(path)) if verb == "get" else driver.stat(path)


# --- the matrix itself ----------------------------------------------------------------------------


class Careless:
    """A driver that makes all the mistakes that the matrix must find."""

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
    ("name", "found"),
    [
        ("500", ["2 requests arrived", "it counted 0 requests", "has no cause", "its error shows access_token"]),
        ("429-retry-after", ["kind is server, not throttled", "retry_after_s is None, not 7.0"]),
        ("307-to-another-host", ["it went to another host", "it connected 2 times"]),
        ("no-json", ["was taken for a success"]),
        ("reset", ["Error out: "]),
    ],
)
def test_matrix_finds_faults_of_a_careless_driver(
    name: str, found: list[str], server: FaultServer, careless: Client
) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    server.say(fault.answer)
    problems = [*problems_of(ROWS["dropbox"], fault, careless.begin("put").result(HANG_S), server)]
    assert [words for words in found if not any(words in problem for problem in problems)] == [], problems
    assert [*leaks(ROWS["dropbox"], careless.shown(), "the driver")]
