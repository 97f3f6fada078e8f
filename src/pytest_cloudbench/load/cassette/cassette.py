"""Cassettes: a run's requests and answers in a file, so that its *behaviour* can be repeated without an account.

What may live here: recording and replaying through vcrpy, the file, and the refusals (``scrubbing`` selects what may be
kept of a request). A replay has no timing, so it is never a benchmark: gates and comparisons refuse it, and its entries
are doubtful. vcrpy is not safe for threads and does not see libraries that are not Python's. Calls are therefore made
one at a time, drivers on such libraries are refused, and a recording without a single request is an error.
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

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.drivers.base import Composite, Driver
from pytest_cloudbench.fleet.run import RunFacts
from pytest_cloudbench.load.cassette.scrubbing import has_secret, looks_secret, scrub_body, scrub_text, select_headers
from pytest_cloudbench.model import KIB, SERVICE_SCHEMES, ConfigError, ProviderSpec, ResultsError, UsageError, Verb
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.providers.leaves import load_credentials
from pytest_cloudbench.support import extras, opening

_MODES = ("record", "replay")
_MOST_BODY_BYTES = 64 * KIB
_MOST_FILE_BYTES = 256 * 1024 * KIB
_WRITTEN_BY_US = "expected a file that cloudbench_cassette=record wrote"
_RECORDED_KEYS = ("run_id", "seed", "provider")

_COMPARING_OPTIONS = (
    "benchmark_compare", "benchmark_compare_fail", "benchmark_autosave", "benchmark_save", "cloudbench_fail",
    "cloudbench_gate", "cloudbench_gate_budget", "cloudbench_gate_strict", "cloudbench_update_expectations",
)  # fmt: skip
"""Options that judge a run's results, or store them to judge others."""


def check_options(option: Any) -> None:
    """Raise UsageError for options that cannot be combined with a cassette."""
    mode, path = option.cloudbench_cassette
    option_text = f"cloudbench_cassette {mode} {path}"
    if mode not in _MODES:
        raise UsageError(f"{option_text}: expected record FILE or replay FILE")
    extras.require_extra("cassette", "cloudbench_cassette")
    if str(getattr(option, "dist", "no")) != "no":
        raise UsageError(f"{option_text}: works in one process; leave -n out")
    if getattr(option, "cloudbench_versus", None) is not None:
        raise UsageError(
            f"{option_text}: a cassette has one provider and keeps no times; leave --cloudbench-versus out"
        )
    if mode == "replay" and any(getattr(option, name, None) not in (None, False, []) for name in _COMPARING_OPTIONS):
        raise UsageError(f"{option_text}: a replay measures nothing: no gate and no comparison can judge it")


def recorded_values(option: Any) -> Mapping[str, str]:
    """Return ``run_id``, ``seed`` and ``provider`` of the recording to replay, empty without a replay.

    Raises ConfigError.
    """
    mode, path = option.cloudbench_cassette
    if mode != "replay":
        return {}
    recorded = _read_cassette(path)["recorded"]
    return {name: str(recorded[name]) for name in _RECORDED_KEYS}


def open_cassette(option: Any, facts: RunFacts) -> Cassette:
    """Open the cassette that the options name, and begin to record or replay. Raises UsageError."""
    (mode, path), specs = option.cloudbench_cassette, option.cloudbench_provider
    option_text = f"cloudbench_cassette {mode} {path}"
    spec = ProviderSpec.parse(specs[0]) if len(specs) == 1 else None
    if spec is None or spec.scheme in SERVICE_SCHEMES:
        raise UsageError(f"{option_text}: expected one --provider, and one that needs an account")
    bound = drivers.bind(spec)
    if issubclass(bound.driver, Composite):
        raise UsageError(f"{option_text}: {spec.scheme} is made of other providers: expected one of those")
    if why := getattr(bound.driver, "no_cassette", ""):
        raise UsageError(f"{option_text}: {spec.scheme} cannot be recorded: {why}")
    recorded = {"run_id": facts.run_id, "seed": facts.seed, "provider": specs[0]}
    if mode == "record":
        return Cassette(mode, path, recorded | {"account": _account_fields(option_text, bound)})
    stored = _read_cassette(path)["recorded"]
    if stored["provider"] != specs[0]:
        raise UsageError(f"{option_text}: it was recorded with --provider {stored['provider']}")
    return Cassette(mode, path, {**stored, **recorded})


class Cassette:
    """A recording, or the replay of one, from now until ``close``.

    Args:
        mode: ``record`` or ``replay``.
        path: the file.
        recorded: the values that a replay repeats: run id, seed, provider, and the fields of its login (``account``).

    Attributes:
        doubt: the reason why entries of this session are not measurements.
        is_replay: True if nothing reaches the provider.

    Raises ConfigError if the file cannot be replayed, or must not be replaced.
    """

    def __init__(self, mode: str, path: str, recorded: Mapping[str, Any]) -> None:
        self._path, self._recorded, self._text = path, recorded, ""
        self._too_large = ""
        self._lock = threading.RLock()
        self.is_replay = mode == "replay"
        self.doubt = "replayed from a cassette: nothing was measured" if self.is_replay else (
            "recorded into a cassette, one request at a time"
        )  # fmt: skip
        if not self.is_replay:
            _check_target(Path(path))
        with ExitStack() as stack:
            self._cassette: Any = stack.enter_context(self._make_recorder().use_cassette(path, serializer="cloudbench"))
            if self.is_replay:
                _provide_fake_credentials(recorded, stack)
            self._stack = stack.pop_all()

    def _make_recorder(self) -> Any:
        import vcr

        recorder = vcr.VCR(
            record_mode=vcr.mode.NONE if self.is_replay else vcr.mode.ALL, decode_compressed_response=True,
            before_record_request=self._scrub_request, before_record_response=self._scrub_response,
            match_on=("method", "host", "port", "path", "query", "same"),
        )  # fmt: skip
        recorder.register_serializer("cloudbench", self)
        recorder.register_persister(self)
        recorder.register_matcher("same", _match_requests)
        return recorder

    def serialize_calls(self, driver: Driver) -> Driver:
        """Return the driver with calls that wait for each other."""
        for name in (*(verb.value for verb in Verb), "mkdir", "space", "prepare"):
            if (method := getattr(driver, name, None)) is not None:
                setattr(driver, name, self._lock_stream(method) if name in ("get", "list") else self._lock_call(method))
        return driver

    def close(self) -> None:
        """Write the recording, if it may be kept. Raises ResultsError."""
        self._stack.close()
        if self.is_replay:
            return
        option_text = f"cloudbench_cassette record {self._path}"
        if problem := self._too_large or self._find_problem():
            raise ResultsError(f"{option_text}: {problem}; no file is kept")
        try:
            opening.write_whole(Path(self._path), lambda file: file.write(self._text.encode()))
        except OSError as error:
            raise ResultsError(f"{option_text}: cannot be written ({error.strerror or error})") from error

    def _find_problem(self) -> str:
        """Return the reason if the recording must not be kept, or an empty text."""
        if not self._text:
            return "nothing was recorded: this driver's requests are not Python's, and vcrpy cannot see them"
        return "something in it looks like a secret" if has_secret(self._text) else ""

    # -- called by vcrpy ---------------------------------------------------------------------------

    def load_cassette(self, path: str, serializer: Any) -> Any:
        """Return the recording to replay. Raises ConfigError."""
        from vcr.persisters.filesystem import CassetteNotFoundError
        from vcr.serialize import deserialize

        if not self.is_replay:
            raise CassetteNotFoundError
        content = _read_cassette(path)
        try:
            _check_interactions(content["interactions"])
            return deserialize(json.dumps(content), serializer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(path, "interactions", _WRITTEN_BY_US) from error

    def save_cassette(self, path: str, cassette: Any, serializer: Any) -> None:
        """Keep the recording, which ``close`` writes."""
        from vcr.serialize import serialize

        self._text = serialize(cassette, serializer)

    def serialize(self, cassette: Mapping[str, Any]) -> str:
        """Return the file's text."""
        return json.dumps({"recorded": self._recorded, **_map_leaves(cassette, _encode_bytes)}, indent=1) + "\n"

    def deserialize(self, text: str) -> Any:
        """Return the recording from the file's text."""
        return _map_leaves(json.loads(text), _decode_bytes)

    def _scrub_request(self, request: Any) -> Any:
        body = _read_body(request.body)
        self._check_size(body)
        # A new request, because vcrpy's own would return a body that was a file or an iterator as such.
        return type(request)(request.method, scrub_text(request.uri), scrub_body(body), select_headers(request.headers))

    def _scrub_response(self, response: dict[str, Any]) -> dict[str, Any]:
        body = _read_body(response["body"].get("string"))
        self._check_size(body)
        scrubbed, headers = scrub_body(body), select_headers(response["headers"])
        # An answer without a body (to HEAD) may still have the size of one.
        for name in [name for name in headers if name.lower() == "content-length" and body]:
            headers[name] = [str(len(scrubbed))]
        return {**response, "headers": headers, "body": {"string": scrubbed}}

    def _check_size(self, body: bytes) -> None:
        if len(body) > _MOST_BODY_BYTES:
            self._too_large = f"a body of {len(body):,} bytes is above {_MOST_BODY_BYTES:,}; use smaller files"

    # -- helpers --------------------------------------------------------------------------------------

    def _lock_call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def locked(*args: Any) -> Any:
            with self._lock:
                return method(*args)

        return locked

    def _lock_stream(self, method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(method)
        def locked(*args: Any) -> Iterator[Any]:
            with self._lock:  # a whole download at once, because vcrpy does not record a body that is only half read
                items = list(method(*args))
            yield from items

        return locked


def _match_requests(first: Any, second: Any) -> None:
    """Raise AssertionError if two requests differ in their bodies, or in arguments that are sent in headers.

    ``assert`` is not used, because pytest rewrites it in plugins, too, and would take minutes to compare two bodies.
    """
    if _comparable_body(first) != _comparable_body(second):
        raise AssertionError("bodies differ")
    if _header_arguments(first) != _header_arguments(second):
        raise AssertionError("arguments differ")


def _header_arguments(request: Any) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in request.headers.items() if name.lower().endswith("-api-arg")}


def _comparable_body(request: Any) -> bytes:
    """Return the body without the boundary between the parts of a form, which is random."""
    body = _read_body(request.body)
    kinds = [str(value) for name, value in request.headers.items() if name.lower() == "content-type"]
    boundary = re.search(r'boundary="?([^";]+)', kinds[0]) if kinds else None
    return body.replace(boundary[1].encode(), b"boundary") if boundary else body


def _read_body(body: Any) -> bytes:
    """Return the bytes of a body that is a text, bytes, a file or an iterator. vcrpy gives a new one at each access."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if hasattr(body, "read"):
        return _read_body(body.read())
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(map(_read_body, body))


# --- the account ----------------------------------------------------------------------------------

_NOT_FAKED = {"connection_string": "it says where the account is and holds its key: set its account and key instead"}
_FILE_FIELDS = re.compile(r".*_file|profile|known_hosts")
"""Fields that name a place with credentials, which another machine does not have."""
_CREDENTIAL_FORMS = {"cap": "URI:DIR2:{}"}
"""The forms of fields whose beginning drivers check."""


def _account_fields(option_text: str, bound: BoundSpec) -> Mapping[str, str | None]:
    """Return the login fields of a replay, with the values of those that are not secret. Raises UsageError."""
    sets = bound.credential_sets
    if not sets:
        return {}
    values = load_credentials(bound)
    if any(map(_FILE_FIELDS.fullmatch, values)):
        return dict.fromkeys(sets[0].required)
    for name in _NOT_FAKED.keys() & values:
        raise UsageError(f"{option_text}: {bound.spec.scheme}: {name}: {_NOT_FAKED[name]}")
    public = {name for fields in sets for name in fields.public}
    return {name: value if name in public and not looks_secret(value) else None for name, value in values.items()}


def _provide_fake_credentials(recorded: Mapping[str, Any], stack: ExitStack) -> None:
    """Provide made-up credentials, and no others, until the stack is closed. Nothing checks them."""
    bound = drivers.bind(ProviderSpec.parse(recorded["provider"]))
    sets = bound.credential_sets
    if not sets:
        return
    names = {name: None for fields in sets for name in (*fields.required, *fields.optional)}
    fakes = {name: value or _fake_credential(name) for name, value in recorded.get("account", {}).items()}
    fakes = fakes or {name: _fake_credential(name) for name in sets[0].required}
    values = {credentials.environment_name(bound.owner, name): fakes.get(name) for name in names}
    if "token_env" in bound.spec.params:
        values[bound.spec.params["token_env"]] = _fake_credential(bound.token_field)
    for variable, value in values.items():
        stack.callback(_set_variable, variable, os.environ.get(variable))
        _set_variable(variable, value)


def _fake_credential(field: str) -> str:
    """Return a random credential in base64, which some drivers need.

    It must not be a word, because messages would hide that word.
    """
    return _CREDENTIAL_FORMS.get(field, "{}").format(base64.b64encode(os.urandom(24)).decode())


def _set_variable(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


# --- the file -------------------------------------------------------------------------------------


def _encode_bytes(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _decode_bytes(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and value.keys() == {"base64"} else value


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return plain data with every leaf changed."""
    value = change(value)
    if isinstance(value, Mapping) and value.keys() != {"base64"}:
        return {name: _map_leaves(element, change) for name, element in value.items()}
    return [_map_leaves(element, change) for element in value] if isinstance(value, list) else value


def _read_cassette(path: str) -> dict[str, Any]:
    """Return a cassette's content. Raises ConfigError for a file that is not one."""
    try:
        content = json.loads(opening.read_file(Path(path), _MOST_FILE_BYTES))
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read ({error.strerror or error}); expected a cassette") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, "", _WRITTEN_BY_US) from error
    recorded = content.get("recorded") if isinstance(content, dict) else None
    if not isinstance(recorded, dict) or not all(isinstance(recorded.get(name), str) for name in _RECORDED_KEYS):
        raise ConfigError(path, "recorded", _WRITTEN_BY_US)
    account = recorded.get("account", {})
    if not isinstance(account, dict) or not all(isinstance(value, (str, type(None))) for value in account.values()):
        raise ConfigError(path, "account", _WRITTEN_BY_US)
    return dict(content)


def _check_interactions(interactions: Any) -> None:
    """Raise TypeError or KeyError for interactions that vcrpy could not replay."""
    for interaction in interactions:
        request, response = interaction["request"], interaction["response"]
        texts, tables = (request["method"], request["uri"]), (request["headers"], response["headers"], response["body"])
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(table, dict) for table in tables):
            raise TypeError("request")
        if not isinstance(response["status"]["code"], int) or "body" not in request:
            raise TypeError("response")


def _check_target(path: Path) -> None:
    """Raise ConfigError if a recording cannot be written there, or would replace another file."""
    if path.exists() or path.is_symlink():
        try:
            _read_cassette(str(path))
        except ConfigError as error:
            raise ConfigError(str(path), "", "exists and is not a cassette: name another file") from error
    elif not path.parent.is_dir():
        raise ConfigError(str(path), "", f"{path.parent} is not a folder")
    elif not os.access(path.parent, os.W_OK):
        raise ConfigError(str(path), "", f"nothing can be written into {path.parent}")
