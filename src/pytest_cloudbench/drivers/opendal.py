"""Driver for the services that OpenDAL's client in Rust knows: a contrast to each provider's own SDK.

What may live here: everything that is specific to OpenDAL as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

Contents are handed over whole, up and down: memory use grows with the file, and the time of the first byte says
nothing. The library retries only if it is told to; how many requests it sends is unknown. It drops white space at the
ends of a path, which would make it another file's: such paths are refused. Its services differ in what a folder is, so
only files are offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    check_params,
    kind_of_status,
    names_in,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.sdk import CloudErrors, Meaning, library_versions
from pytest_cloudbench.drivers.waits import requested_wait_s
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    UsageError,
    Verb,
    did_you_mean,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE})

# Not every service copies or renames: a connected driver declares what its service does.
_CAPABILITIES = Capabilities(
    digest=None,
    verbs=_VERBS | {Verb.COPY, Verb.MOVE},
    ranges=True,
    streams=False,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    via="opendal, a client in Rust that takes and gives whole contents; no retry layer",
)


# API to the library's service, and to its settings: ``{url}``, ``{target}``, or a credential's name in braces.
_SERVICES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "azure": ("azblob", {"container": "{target}", "endpoint": "{url}", "account_name": "{account}",
                         "account_key": "{account_key}"}),
    "s3": ("s3", {"bucket": "{target}", "endpoint": "{url}", "region": "us-east-1", "disable_config_load": "true",
                  "access_key_id": "{access_key_id}", "secret_access_key": "{secret_access_key}"}),
    "webdav": ("webdav", {"endpoint": "{url}", "username": "{user}", "password": "{password}"}),
}  # fmt: skip

# Settings whose names look like those of secrets: ids that services publish, and the path of a key's file.
_PUBLIC = frozenset({("cos", "secret_id"), ("sftp", "key")})

# --- error table ----------------------------------------------------------------------------------

_NAME_KINDS: Mapping[str, ErrorKind] = {
    "NotFound": ErrorKind.NOT_FOUND,
    "PermissionDenied": ErrorKind.AUTH,
    "IsADirectory": ErrorKind.CONFLICT,
    "NotADirectory": ErrorKind.CONFLICT,
    "AlreadyExists": ErrorKind.CONFLICT,
    "IsSameFile": ErrorKind.CONFLICT,
    "ConditionNotMatch": ErrorKind.CONFLICT,
    "Conflict": ErrorKind.CONFLICT,
    "RateLimited": ErrorKind.THROTTLED,
    "RangeNotSatisfied": ErrorKind.INVALID,
    "ConfigInvalid": ErrorKind.INVALID,
    "Unsupported": ErrorKind.INVALID,
}
_STATUS_KINDS: Mapping[int, ErrorKind] = {405: ErrorKind.CONFLICT}
_STATUS = re.compile(r"status: (\d{3})")
_HEADER = re.compile(r'"(retry-after|date)": "([^"]*)"')
_NO_ANSWER = re.compile(
    r"error sending request|send http request|timeout|connection (?:closed|reset|refused)|end of file|"
    r"reader got too little|broken pipe|operation timed out|incomplete|body from connection",
    re.IGNORECASE,
)


def _kind_of_error(error: Exception, words: str) -> ErrorKind:
    if (match := _STATUS.search(words)) and (status := int(match[1])) >= 400:
        return kind_of_status(status, _STATUS_KINDS)
    if kind := _NAME_KINDS.get(type(error).__name__):
        return kind
    return ErrorKind.NETWORK if _NO_ANSWER.search(words) else ErrorKind.SERVER


# --- connect --------------------------------------------------------------------------------------


class OpendalDriver:
    """One operator, which many threads may use."""

    imports = ("opendal", "opendal.layers", "opendal.config")
    capabilities: Capabilities = _CAPABILITIES
    apis: ClassVar[frozenset[str]] = frozenset(_SERVICES)
    no_cassette: ClassVar[str] = "OpenDAL, which is no Python, sends its requests"
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        # Fields are named as OpenDAL's settings: a service takes some of them, or none, or finds its own credentials.
        CredentialSet(
            (),
            ("access_key_id", "secret_access_key", "session_token", "account_name", "account_key", "sas_token",
             "credential", "token", "access_token", "refresh_token", "client_id", "client_secret", "username",
             "password", "application_key_id", "application_key", "access_key_secret", "secret_key", "security_token",
             "api_token", "runtime_token", "connection_string", "delegation", "temp_url_key", "encryption_key",
             "encryption_key_sha256", "server_side_encryption_customer_key", "server_side_encryption_customer_key_md5"),
            public=("access_key_id", "account_name", "application_key_id", "client_id", "username"),
            free=("username", "password"),
        ),
    )  # fmt: skip

    def __init__(self, service: str, settings: Mapping[str, str], timeout_s: float, remarks: Mapping[str, str]) -> None:
        import opendal

        layers = import_module("opendal.layers")
        operator = opendal.Operator(service, **settings)
        _make_client(opendal)
        self._operator, self._remarks = operator.layer(layers.TimeoutLayer(timeout_s, timeout_s)), remarks
        classes = [value for value in vars(opendal.exceptions).values() if isinstance(value, type)]
        self._errors = tuple(error for error in classes if issubclass(error, Exception))
        can = self._operator.capability()
        extra = {verb for verb, is_offered in ((Verb.COPY, can.copy), (Verb.MOVE, can.rename)) if is_offered}
        self.capabilities = replace(_CAPABILITIES, verbs=_VERBS | extra, server_side_copy=Verb.COPY in extra)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> OpendalDriver:
        """Return the driver for ``opendal:SERVICE?FIELD=VALUE&...``, with the service's settings. Nothing is sent."""
        redact.learn(_secret_values(spec.target, spec.params))  # before any message shows the spec
        timeout_s = timeout_of(spec)
        if endpoint is not None:
            check_params(spec, {"timeout_s"})
            service, settings = _emulated_settings(spec, endpoint)
        else:
            service = spec.target
            driver_params = {"timeout_s", "token_env"}
            if not service:
                check_params(spec, driver_params)
                raise SpecError(f"provider {redact.clean(spec.text)!r}: expected opendal:SERVICE?FIELD=VALUE")
            check_params(spec, {*driver_params, *_setting_names(spec)})
            params = {name: value for name, value in spec.params.items() if name not in driver_params}
            settings = {**usable_credentials(spec.scheme, cls.credential_sets, credentials), **params}
        redact.learn(_secret_values(service, settings))
        try:
            egress = egress_of(endpoint, settings.get("endpoint", ""))
            with egress_of(None).as_environment():
                return cls(service, settings, timeout_s, egress.remarks)
        except UsageError:
            raise
        except Exception as error:  # the library's errors have no common class
            problem = redact.clean(str(error).partition("\n")[0])
            raise SpecError(f"provider {redact.clean(spec.text)!r}: {problem}") from error

    def versions(self) -> Mapping[str, str]:
        """Return the library, and what is switched off in it."""
        return {**library_versions(("opendal",)), "opendal.retries": "off", **self._remarks}

    def close(self) -> None:
        """Do nothing: the library closes its connections once they are unused."""

    def _remote_path(self, verb: str, path: str) -> str:
        remote = "/".join(names_in(verb, path))
        if remote != remote.strip():
            raise CloudError(ErrorKind.INVALID, verb, path, detail="no path may begin or end with white space here")
        return remote

    def _file_path(self, verb: str, path: str) -> str:
        if remote := self._remote_path(verb, path):
            return remote
        raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME")

    def _cloud_errors(self, verb: str, path: str) -> CloudErrors:
        return CloudErrors(verb, path, self._explain_error)

    def _explain_error(self, error: Exception) -> Meaning | None:
        if not isinstance(error, self._errors):
            return None
        words = str(error).partition("Backtrace:")[0]
        return Meaning(_kind_of_error(error, words), words, requested_wait_s(dict(_HEADER.findall(words))))

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload a content that is in memory as a whole."""
        remote = self._file_path("put", path)
        data = content.read(0, content.size_bytes)
        with self._cloud_errors("put", path):
            self._operator.write(remote, data)
        return Entry(path, size_bytes=len(data))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset`` in one piece, once all have arrived."""
        remote = self._file_path("get", path)
        with self._cloud_errors("get", path):
            data = self._operator.read(remote, offset=offset) if offset else self._operator.read(remote)
        yield bytes(data)

    def stat(self, path: str) -> Entry:
        """Return what the service knows about one path."""
        remote = self._remote_path("stat", path)
        if not remote:
            return Entry("/", is_folder=True)
        with self._cloud_errors("stat", path):
            return _entry_of_metadata(path, self._operator.stat(remote))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all files below ``folder``. A missing folder is empty: NOT_FOUND means a missing bucket."""
        remote = self._remote_path("list", folder)
        with self._cloud_errors("list", folder):
            for item in self._operator.scan(f"{remote}/" if remote else "/"):
                entry = _entry_of_metadata(f"/{item.path}", item.metadata)
                if not entry.is_folder:
                    yield entry

    def delete(self, path: str) -> None:
        """Remove a file or, if there is none, all files whose paths begin with this one. No error if there are none."""
        remote = self._file_path("delete", path)
        with self._cloud_errors("delete", path):
            if self._operator.exists(remote) and self._operator.stat(remote).is_file:
                self._operator.delete(remote)
            else:
                self._operator.remove_all(f"{remote}/")

    def mkdir(self, path: str) -> None:
        """Do nothing: a put creates the folders that a service needs."""
        self._remote_path("mkdir", path)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file within the service."""
        old, new = self._file_path("copy", source), self._file_path("copy", target)
        with self._cloud_errors("copy", source):
            self._operator.copy(old, new)
            return _entry_of_metadata(target, self._operator.stat(new))

    def move(self, source: str, target: str) -> Entry:
        """Rename a file."""
        old, new = self._file_path("move", source), self._file_path("move", target)
        with self._cloud_errors("move", source):
            self._operator.rename(old, new)
            return _entry_of_metadata(target, self._operator.stat(new))


def _make_client(library: Any) -> None:
    """Make the library's client for HTTP, one for the whole process.

    The library makes it at its first request, and it reads proxies and certificates from the environment then. So make
    it now, while the environment says what ``drivers.egress`` does, by a request to a port that does not exist.
    """
    with suppress(Exception):  # this request always fails, and the library's errors have no common class
        library.Operator("http", endpoint="http://127.0.0.1:0").stat("x")


def _entry_of_metadata(path: str, metadata: Any) -> Entry:
    if metadata.is_dir:
        return Entry(path, is_folder=True)
    return Entry(path, size_bytes=int(metadata.content_length))


def _secret_values(service: str, settings: Mapping[str, str]) -> list[str]:
    """Return the settings' values that no message may show."""
    return [value for name, value in settings.items() if redact.names_secret(name) and (service, name) not in _PUBLIC]


def _setting_names(spec: ProviderSpec) -> frozenset[str]:
    """Return the settings of a service. Raises SpecError for one that the library does not know."""
    fields_by_service = {
        name.removesuffix("Config").lower(): value.__annotations__
        for name, value in vars(import_module("opendal.config")).items()
        if name.endswith("Config") and name != "ServiceConfig"
    }
    service = spec.target.replace("-", "").lower()
    if service not in fields_by_service:
        expected = f"expected one of {', '.join(sorted(fields_by_service))}{did_you_mean(service, fields_by_service)}"
        raise SpecError(f"provider {redact.clean(spec.text)!r}: the library has no service of this name; {expected}")
    return frozenset(fields_by_service[service]) - {"scheme"}


def _emulated_settings(spec: ProviderSpec, endpoint: Endpoint) -> tuple[str, dict[str, str]]:
    """Return the service, and the settings that direct it to what stands in for the provider."""
    service, templates = _SERVICES[endpoint.api]
    values = {**endpoint.credentials, "url": endpoint.url.rstrip("/"), "target": spec.target}
    settings = {
        name: re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], ""), template)
        for name, template in templates.items()
    }
    return service, {name: value for name, value in settings.items() if value}
