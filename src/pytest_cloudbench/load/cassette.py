"""Cassettes: a run's requests and answers in a file, so that its *behaviour* can be repeated without an account.

What may live here: recording and replaying through vcrpy, what is scrubbed, and what is refused. A replay keeps no
timing, so it is never a benchmark: gates and comparisons refuse it, and its entries are doubtful. vcrpy is not safe for
threads and blind to libraries that are not Python's, so calls are made one at a time, and a recording without a single
request is an error.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

from pytest_cloudbench import credentials, drivers, extras, opening, redact
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.model import KIB, ConfigError, ProviderSpec, ResultsError, UsageError, Verb

__all__ = ["Cassette", "check_options", "header", "open_cassette", "scrubbed"]

_MODES = ("record", "replay")
_MOST_BODY_BYTES = 64 * KIB
_MOST_FILE_BYTES = 256 * 1024 * KIB
_HEADERS_KEPT = re.compile(
    r"content-(type|range|length)|accept-ranges|range|location|etag|last-modified|retry-after|.*-api-(arg|result)"
    r"|x-.*(version|copy).*",
    re.IGNORECASE,
)
"""Headers that are kept. A replay needs no others, least of all those with tokens."""

_NAMES = (
    "access_token|refresh_token|id_token|client_secret|client_assertion|assertion|password|passwd|device_code|"
    "code_verifier|session_token|sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    "x-goog-credential|upload_id|uploadid|tempauth|sid|authkey|authorization"
)
_IN_FORMS = re.compile(rf"(?i)\b({_NAMES})=[^&\s\"'<>]+")
_IN_JSON = re.compile(rf'(?i)("(?:{_NAMES})"\s*:\s*)"[^"]*"')
_SHAPES = re.compile(
    r"sl\.[\w-]{20,}|ya29\.[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}|(?i:bearer) [\w.~+/-]{12,}|-----BEGIN"
)
"""What tokens and keys look like. None may be left in a file."""


def check_options(option: Any) -> None:
    """Raise UsageError for options that cannot be combined with a cassette."""
    mode, path = option.cloudbench_cassette
    said = f"--cloudbench-cassette {mode} {path}"
    if mode not in _MODES:
        raise UsageError(f"{said}: expected record FILE or replay FILE")
    extras.require("cassette", "--cloudbench-cassette")
    if str(getattr(option, "dist", "no")) != "no":
        raise UsageError(f"{said}: works in one process; leave -n out")
    if mode == "replay":
        compares = ("benchmark_compare", "benchmark_compare_fail", "benchmark_autosave", "benchmark_save")
        if option.cloudbench_fail or any(getattr(option, name, None) not in (None, False, []) for name in compares):
            raise UsageError(f"{said}: a replay measures nothing: no gate and no comparison can judge it")


def header(option: Any) -> Mapping[str, str]:
    """Returns ``run_id``, ``seed`` and ``provider`` of the recording that is replayed; empty if none is.

    Raises ConfigError.
    """
    if option.cloudbench_cassette[0] != "replay":
        return {}
    path = option.cloudbench_cassette[1]
    found = _read(path).get("recorded")
    if not isinstance(found, dict) or {"run_id", "seed", "provider"} - found.keys():
        raise ConfigError(path, "recorded", "expected a file that --cloudbench-cassette record wrote")
    return {name: str(found[name]) for name in ("run_id", "seed", "provider")}


def open_cassette(option: Any, facts: RunFacts) -> Cassette:
    """Returns the cassette that the options name, recording or replaying already. Raises UsageError."""
    (mode, path), specs = option.cloudbench_cassette, option.cloudbench_provider
    if len(specs) != 1 or ProviderSpec.parse(specs[0]).scheme in ("emulated", "served", "local"):
        raise UsageError(f"--cloudbench-cassette {mode} {path}: expected one --provider, and one that needs an account")
    recorded = header(option)
    if recorded and recorded["provider"] != specs[0]:
        raise UsageError(f"--cloudbench-cassette replay {path}: it was recorded with --provider {recorded['provider']}")
    return Cassette(mode, path, {"run_id": facts.run_id, "seed": facts.seed, "provider": specs[0]})


class Cassette:
    """A recording, or the replay of one, from now until ``close``.

    Args:
        mode: ``record`` or ``replay``.
        path: the file.
        recorded: what a replay has to repeat: run id, seed and provider.

    Attributes:
        doubt: why entries of this session are not measurements.
        is_replay: whether nothing reaches the provider.
    """

    def __init__(self, mode: str, path: str, recorded: Mapping[str, str]) -> None:
        import vcr

        self._mode, self._path, self._recorded = mode, path, recorded
        self._too_large = ""
        self._lock, self._stack = threading.RLock(), ExitStack()
        self.is_replay = is_replay = mode == "replay"
        self.doubt = "replayed from a cassette: nothing was measured" if is_replay else (
            "recorded into a cassette, one request at a time"
        )  # fmt: skip
        if is_replay:
            self._pretend_credentials(ProviderSpec.parse(recorded["provider"]).scheme)
        else:
            Path(path).unlink(missing_ok=True)
        recorder = vcr.VCR(
            record_mode=vcr.mode.NONE if is_replay else vcr.mode.ALL, before_record_request=self._request,
            before_record_response=self._response, match_on=("method", "host", "port", "path", "query", "same"),
        )  # fmt: skip
        recorder.register_serializer("cloudbench", self)
        recorder.register_matcher("same", _same)
        self._cassette: Any = self._stack.enter_context(recorder.use_cassette(path, serializer="cloudbench"))

    def one_at_a_time(self, driver: Driver) -> Driver:
        """Returns the driver; from now on its calls wait for each other."""
        for name in (*(verb.value for verb in Verb), "mkdir", "space", "prepare"):
            if (method := getattr(driver, name, None)) is not None:
                setattr(driver, name, self._streams(method) if name in ("get", "list") else self._alone(method))
        return driver

    def close(self) -> None:
        """Write what was recorded. Raises ResultsError if it must not be kept."""
        requests = len(self._cassette)
        self._stack.close()
        if self._mode == "replay":
            return
        if problem := self._too_large or self._unfit(requests):
            Path(self._path).unlink(missing_ok=True)
            raise ResultsError(f"--cloudbench-cassette record {self._path}: {problem}; no file is kept")

    def _unfit(self, requests: int) -> str:
        """Returns why the file that was written must not be kept; empty if it may."""
        if not requests:
            return "nothing was recorded: this driver's requests are not Python's, and vcrpy cannot see them"
        text = Path(self._path).read_text("utf-8") if os.path.exists(self._path) else ""
        has_secret = _SHAPES.search(text) or redact.clean(text) != text
        return "something in it looks like a secret" if has_secret else ""

    # -- what vcrpy calls ---------------------------------------------------------------------------

    def serialize(self, cassette: Mapping[str, Any]) -> str:
        """Returns the file's text."""
        return json.dumps({"recorded": self._recorded, **_each(cassette, _packed)}, indent=1) + "\n"

    def deserialize(self, text: str) -> Any:
        """Returns what ``serialize`` was given."""
        return _each(json.loads(text), _unpacked)

    def _request(self, request: Any) -> Any:
        self._check(request.body)
        request.uri = scrubbed(request.uri)
        request.headers = _kept(request.headers)
        request.body = _scrubbed_body(request.body)
        return request

    def _response(self, response: dict[str, Any]) -> dict[str, Any]:
        body = response["body"].get("string")
        self._check(body)
        changed = _scrubbed_body(body)
        kept = _kept(response["headers"])
        for name in [name for name in kept if name.lower() == "content-length"]:
            kept[name] = [str(len(changed or b""))]
        return {**response, "headers": kept, "body": {"string": changed}}

    def _check(self, body: Any) -> None:
        size_bytes = len(body) if isinstance(body, (bytes, str)) else 0
        if size_bytes > _MOST_BODY_BYTES:
            self._too_large = f"a body of {size_bytes:,} bytes is above {_MOST_BODY_BYTES:,}; use smaller files"

    # -- helpers --------------------------------------------------------------------------------------

    def _pretend_credentials(self, scheme: str) -> None:
        """Provide made-up credentials for the time of the replay; nothing checks them."""
        needed: Any = getattr(drivers.driver_class(scheme), "credential_sets", ())
        for field in needed[0].required if needed else ():
            name = credentials.environment_name(scheme, field)
            if name not in os.environ:
                os.environ[name] = "replayed"
                self._stack.callback(os.environ.pop, name, None)

    def _alone(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def called(*args: Any) -> Any:
            with self._lock:
                return method(*args)

        return called

    def _streams(self, method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(method)
        def called(*args: Any) -> Iterator[Any]:
            with self._lock:  # a whole download at once: a body that is only half read would not be recorded
                items = list(method(*args))
            yield from items

        return called


def scrubbed(text: str) -> str:
    """Returns a text without values whose names say that they are secret, and without known secrets."""
    return redact.clean(_IN_JSON.sub(r'\1"scrubbed"', _IN_FORMS.sub(r"\1=scrubbed", text)))


def _scrubbed_body(body: Any) -> Any:
    if isinstance(body, str):
        return scrubbed(body)
    if not isinstance(body, bytes):
        return body
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return body
    changed = scrubbed(text)
    return body if changed == text else changed.encode()


def _kept(headers: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in headers.items() if _HEADERS_KEPT.fullmatch(name)}
    return {
        name: [scrubbed(each) for each in value] if isinstance(value, list) else scrubbed(str(value))
        for name, value in kept.items()
    }


def _same(one: Any, other: Any) -> None:
    """Raise AssertionError if two requests differ in their bodies, or in arguments that are sent in headers.

    Not by ``assert``, which pytest rewrites in plugins, too: it would look for minutes for where two bodies part.
    """
    if _body(one) != _body(other):
        raise AssertionError("bodies differ")
    if _arguments(one) != _arguments(other):
        raise AssertionError("arguments differ")


def _arguments(request: Any) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in request.headers.items() if name.lower().endswith("-api-arg")}


def _body(request: Any) -> bytes:
    """Returns the body without the boundary between the parts of a form, which is random."""
    body = request.body or b""
    body = body.encode() if isinstance(body, str) else bytes(body)
    kinds = [str(value) for name, value in request.headers.items() if name.lower() == "content-type"]
    found = re.search(r'boundary="?([^";]+)', kinds[0]) if kinds else None
    return body.replace(found[1].encode(), b"boundary") if found else body


def _packed(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _unpacked(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and value.keys() == {"base64"} else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns plain data with every leaf changed."""
    value = change(value)
    if isinstance(value, Mapping) and value.keys() != {"base64"}:
        return {name: _each(each, change) for name, each in value.items()}
    return [_each(each, change) for each in value] if isinstance(value, list) else value


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(opening.read_file(Path(path), _MOST_FILE_BYTES))
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read ({error.strerror or error}); expected a cassette") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, "", "expected a file that --cloudbench-cassette record wrote") from error
    return found if isinstance(found, dict) else {}
