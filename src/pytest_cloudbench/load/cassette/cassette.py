"""Cassettes: a run's requests and answers in a file, so that its *behaviour* can be repeated without an account.

What may live here: recording and replaying through vcrpy, the file, and what is refused (``scrubbing`` says what of a
request may be kept). A replay keeps no timing, so it is never a benchmark: gates and comparisons refuse it, and its
entries are doubtful. vcrpy is not safe for threads and blind to libraries that are not Python's, so calls are made one
at a time, drivers on such libraries are refused, and a recording without a single request is an error.
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
from pytest_cloudbench.load.cassette.scrubbing import has_secret, kept_headers, looks_secret, scrubbed, scrubbed_body
from pytest_cloudbench.model import KIB, ConfigError, ProviderSpec, ResultsError, UsageError, Verb
from pytest_cloudbench.providers import credentials, load_credentials
from pytest_cloudbench.support import extras, opening

_MODES = ("record", "replay")
_MOST_BODY_BYTES = 64 * KIB
_MOST_FILE_BYTES = 256 * 1024 * KIB
_WRITTEN_BY_US = "expected a file that cloudbench_cassette=record wrote"
_RECORDED = ("run_id", "seed", "provider")

_COMPARING = (
    "benchmark_compare", "benchmark_compare_fail", "benchmark_autosave", "benchmark_save", "cloudbench_fail",
    "cloudbench_gate", "cloudbench_gate_budget", "cloudbench_gate_strict", "cloudbench_update_expectations",
)  # fmt: skip
"""Options that judge what a run measures, or keep it to judge others by."""


def check_options(option: Any) -> None:
    """Raise UsageError for options that cannot be combined with a cassette."""
    mode, path = option.cloudbench_cassette
    said = f"cloudbench_cassette {mode} {path}"
    if mode not in _MODES:
        raise UsageError(f"{said}: expected record FILE or replay FILE")
    extras.require_extra("cassette", "cloudbench_cassette")
    if str(getattr(option, "dist", "no")) != "no":
        raise UsageError(f"{said}: works in one process; leave -n out")
    if getattr(option, "cloudbench_versus", None) is not None:
        raise UsageError(f"{said}: a cassette has one provider and keeps no times; leave --cloudbench-versus out")
    if mode == "replay" and any(getattr(option, name, None) not in (None, False, []) for name in _COMPARING):
        raise UsageError(f"{said}: a replay measures nothing: no gate and no comparison can judge it")


def header(option: Any) -> Mapping[str, str]:
    """Return ``run_id``, ``seed`` and ``provider`` of the recording that is replayed; empty if none is.

    Raises ConfigError.
    """
    mode, path = option.cloudbench_cassette
    if mode != "replay":
        return {}
    found = _read(path)["recorded"]
    return {name: str(found[name]) for name in _RECORDED}


def open_cassette(option: Any, facts: RunFacts) -> Cassette:
    """Return the cassette that the options name, recording or replaying already. Raises UsageError."""
    (mode, path), specs = option.cloudbench_cassette, option.cloudbench_provider
    said = f"cloudbench_cassette {mode} {path}"
    spec = ProviderSpec.parse(specs[0]) if len(specs) == 1 else None
    if spec is None or spec.scheme in ("emulated", "served", "local"):
        raise UsageError(f"{said}: expected one --provider, and one that needs an account")
    bound = drivers.bind(spec)
    if issubclass(bound.driver, Composite):
        raise UsageError(f"{said}: {spec.scheme} is made of other providers: expected one of those")
    if why := getattr(bound.driver, "no_cassette", ""):
        raise UsageError(f"{said}: {spec.scheme} cannot be recorded: {why}")
    recorded = {"run_id": facts.run_id, "seed": facts.seed, "provider": specs[0]}
    if mode == "record":
        return Cassette(mode, path, recorded | {"account": _account(said, bound)})
    known = _read(path)["recorded"]
    if known["provider"] != specs[0]:
        raise UsageError(f"{said}: it was recorded with --provider {known['provider']}")
    return Cassette(mode, path, {**known, **recorded})


class Cassette:
    """A recording, or the replay of one, from now until ``close``.

    Args:
        mode: ``record`` or ``replay``.
        path: the file.
        recorded: what a replay has to repeat: run id, seed, provider, and how it logs in (``account``).

    Attributes:
        doubt: why entries of this session are not measurements.
        is_replay: whether nothing reaches the provider.

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
            self._cassette: Any = stack.enter_context(self._recorder().use_cassette(path, serializer="cloudbench"))
            if self.is_replay:
                _pretend(recorded, stack)
            self._stack = stack.pop_all()

    def _recorder(self) -> Any:
        import vcr

        recorder = vcr.VCR(
            record_mode=vcr.mode.NONE if self.is_replay else vcr.mode.ALL, decode_compressed_response=True,
            before_record_request=self._request, before_record_response=self._response,
            match_on=("method", "host", "port", "path", "query", "same"),
        )  # fmt: skip
        recorder.register_serializer("cloudbench", self)
        recorder.register_persister(self)
        recorder.register_matcher("same", _same)
        return recorder

    def one_at_a_time(self, driver: Driver) -> Driver:
        """Return the driver; from now on its calls wait for each other."""
        for name in (*(verb.value for verb in Verb), "mkdir", "space", "prepare"):
            if (method := getattr(driver, name, None)) is not None:
                setattr(driver, name, self._streams(method) if name in ("get", "list") else self._alone(method))
        return driver

    def close(self) -> None:
        """Write what was recorded, if it may be kept. Raises ResultsError."""
        self._stack.close()
        if self.is_replay:
            return
        said = f"cloudbench_cassette record {self._path}"
        if problem := self._too_large or self._unfit():
            raise ResultsError(f"{said}: {problem}; no file is kept")
        try:
            opening.write_whole(Path(self._path), lambda file: file.write(self._text.encode()))
        except OSError as error:
            raise ResultsError(f"{said}: cannot be written ({error.strerror or error})") from error

    def _unfit(self) -> str:
        """Return why what was recorded must not be kept; empty if it may."""
        if not self._text:
            return "nothing was recorded: this driver's requests are not Python's, and vcrpy cannot see them"
        return "something in it looks like a secret" if has_secret(self._text) else ""

    # -- what vcrpy calls ---------------------------------------------------------------------------

    def load_cassette(self, path: str, serializer: Any) -> Any:
        """Return what is replayed. Raises ConfigError."""
        from vcr.persisters.filesystem import CassetteNotFoundError
        from vcr.serialize import deserialize

        if not self.is_replay:
            raise CassetteNotFoundError
        found = _read(path)
        try:
            _check_interactions(found["interactions"])
            return deserialize(json.dumps(found), serializer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(path, "interactions", _WRITTEN_BY_US) from error

    def save_cassette(self, path: str, cassette: Any, serializer: Any) -> None:
        """Keep what was recorded; ``close`` writes it."""
        from vcr.serialize import serialize

        self._text = serialize(cassette, serializer)

    def serialize(self, cassette: Mapping[str, Any]) -> str:
        """Return the file's text."""
        return json.dumps({"recorded": self._recorded, **_each(cassette, _packed)}, indent=1) + "\n"

    def deserialize(self, text: str) -> Any:
        """Return what ``serialize`` was given."""
        return _each(json.loads(text), _unpacked)

    def _request(self, request: Any) -> Any:
        body = _bytes_of(request.body)
        self._check(body)
        # A new one: vcrpy's gives back what was a file or an iterator as such.
        return type(request)(request.method, scrubbed(request.uri), scrubbed_body(body), kept_headers(request.headers))

    def _response(self, response: dict[str, Any]) -> dict[str, Any]:
        body = _bytes_of(response["body"].get("string"))
        self._check(body)
        changed, kept = scrubbed_body(body), kept_headers(response["headers"])
        # An answer without a body may still tell the size of one.
        for name in [name for name in kept if name.lower() == "content-length" and body]:
            kept[name] = [str(len(changed))]
        return {**response, "headers": kept, "body": {"string": changed}}

    def _check(self, body: bytes) -> None:
        if len(body) > _MOST_BODY_BYTES:
            self._too_large = f"a body of {len(body):,} bytes is above {_MOST_BODY_BYTES:,}; use smaller files"

    # -- helpers --------------------------------------------------------------------------------------

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


def _same(one: Any, other: Any) -> None:
    """Raise AssertionError if two requests differ in their bodies, or in arguments that are sent in headers.

    Not by ``assert``, which pytest rewrites in plugins, too: it would take minutes to find where two bodies differ.
    """
    if _body(one) != _body(other):
        raise AssertionError("bodies differ")
    if _arguments(one) != _arguments(other):
        raise AssertionError("arguments differ")


def _arguments(request: Any) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in request.headers.items() if name.lower().endswith("-api-arg")}


def _body(request: Any) -> bytes:
    """Return the body without the boundary between the parts of a form, which is random."""
    body = _bytes_of(request.body)
    kinds = [str(value) for name, value in request.headers.items() if name.lower() == "content-type"]
    found = re.search(r'boundary="?([^";]+)', kinds[0]) if kinds else None
    return body.replace(found[1].encode(), b"boundary") if found else body


def _bytes_of(body: Any) -> bytes:
    """Return a body that is a text, bytes, a file or an iterator; vcrpy gives a new one of these for each look."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if hasattr(body, "read"):
        return _bytes_of(body.read())
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(map(_bytes_of, body))


# --- the account ----------------------------------------------------------------------------------

_NOT_MADE_UP = {"connection_string": "it says where the account is and holds its key: set its account and key instead"}
_HOLDERS = re.compile(r".*_file|profile|known_hosts")
"""Fields that name where credentials are: another machine has none there."""
_FORMS = {"cap": "URI:DIR2:{}"}
"""Fields of which drivers know the beginning."""


def _account(said: str, bound: BoundSpec) -> Mapping[str, str | None]:
    """Return the fields by which a replay logs in, and the values of those that are not secret. Raises UsageError."""
    sets = bound.credential_sets
    if not sets:
        return {}
    found = load_credentials(bound)
    if any(map(_HOLDERS.fullmatch, found)):
        return dict.fromkeys(sets[0].required)
    for name in _NOT_MADE_UP.keys() & found:
        raise UsageError(f"{said}: {bound.spec.scheme}: {name}: {_NOT_MADE_UP[name]}")
    public = {name for fields in sets for name in fields.public}
    return {name: value if name in public and not looks_secret(value) else None for name, value in found.items()}


def _pretend(recorded: Mapping[str, Any], stack: ExitStack) -> None:
    """Provide made-up credentials, and no others, until the stack is closed; nothing checks them."""
    bound = drivers.bind(ProviderSpec.parse(recorded["provider"]))
    sets = bound.credential_sets
    if not sets:
        return
    names = {name: None for fields in sets for name in (*fields.required, *fields.optional)}
    wanted = {name: value or _made_up(name) for name, value in recorded.get("account", {}).items()}
    wanted = wanted or {name: _made_up(name) for name in sets[0].required}
    values = {credentials.environment_name(bound.owner, name): wanted.get(name) for name in names}
    if "token_env" in bound.spec.params:
        values[bound.spec.params["token_env"]] = _made_up(sets[0].required[0])
    for variable, value in values.items():
        stack.callback(_set, variable, os.environ.get(variable))
        _set(variable, value)


def _made_up(field: str) -> str:
    """Return a credential that is not a word: messages would hide the word. Some drivers need it in base64."""
    return _FORMS.get(field, "{}").format(base64.b64encode(os.urandom(24)).decode())


def _set(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


# --- the file -------------------------------------------------------------------------------------


def _packed(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _unpacked(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and value.keys() == {"base64"} else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return plain data with every leaf changed."""
    value = change(value)
    if isinstance(value, Mapping) and value.keys() != {"base64"}:
        return {name: _each(each, change) for name, each in value.items()}
    return [_each(each, change) for each in value] if isinstance(value, list) else value


def _read(path: str) -> dict[str, Any]:
    """Return a cassette's content. Raises ConfigError for a file that is not one."""
    try:
        found = json.loads(opening.read_file(Path(path), _MOST_FILE_BYTES))
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read ({error.strerror or error}); expected a cassette") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, "", _WRITTEN_BY_US) from error
    recorded = found.get("recorded") if isinstance(found, dict) else None
    if not isinstance(recorded, dict) or not all(isinstance(recorded.get(name), str) for name in _RECORDED):
        raise ConfigError(path, "recorded", _WRITTEN_BY_US)
    account = recorded.get("account", {})
    if not isinstance(account, dict) or not all(isinstance(value, (str, type(None))) for value in account.values()):
        raise ConfigError(path, "account", _WRITTEN_BY_US)
    return dict(found)


def _check_interactions(found: Any) -> None:
    """Raise TypeError or KeyError for what vcrpy could not replay."""
    for each in found:
        request, response = each["request"], each["response"]
        texts, tables = (request["method"], request["uri"]), (request["headers"], response["headers"], response["body"])
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(table, dict) for table in tables):
            raise TypeError("request")
        if not isinstance(response["status"]["code"], int) or "body" not in request:
            raise TypeError("response")


def _check_target(path: Path) -> None:
    """Raise ConfigError if what is recorded cannot be written there, or would replace something else."""
    if path.exists() or path.is_symlink():
        try:
            _read(str(path))
        except ConfigError as error:
            raise ConfigError(str(path), "", "exists and is not a cassette: name another file") from error
    elif not path.parent.is_dir():
        raise ConfigError(str(path), "", f"{path.parent} is not a folder")
    elif not os.access(path.parent, os.W_OK):
        raise ConfigError(str(path), "", f"nothing can be written into {path.parent}")
