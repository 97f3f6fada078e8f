"""The variables and files that the libraries of each driver read, and the one place where they are closed.

What may live here: the table, with a row for each variable, file or service of the network that a library reads, and
``closed``. A spec says where requests go and with what, so each row is closed, or has a reason why it is passed
through. ``drivers.egress`` has the rule for proxies and certificates. ``docs/reference/surroundings.md`` is made of
this table, and ``tests/drivers/test_surroundings.py`` sets all of it to hostile values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import RLock

from pytest_cloudbench.model import SpecError


@dataclass(frozen=True, slots=True)
class Surrounding:
    """Something beside the spec and the credentials that a library reads.

    Attributes:
        name: of a variable, a file in the home (``~/...``) or a service of the network (``host:...``). A star stands
            for any letters.
        closed: how it is kept from having an effect; empty if it is passed through.
        passed: the reason why it is passed through; empty if it is closed.
        hostile: a value that would change requests if it were obeyed; empty if a test must not set it.
    """

    name: str
    closed: str = ""
    passed: str = ""
    hostile: str = ""

    def __post_init__(self) -> None:
        if bool(self.closed) == bool(self.passed):
            raise ValueError(f"{self.name}: it is either closed, or passed through for a reason")

    @property
    def is_variable(self) -> bool:
        """True for a variable of the environment."""
        return not self.name.startswith(("~", "host:"))


ALLOWED = (
    # What the interpreter, the C library and pytest need.
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "TEMP",
    "TMP", "PYTHON*", "PYTEST*", "VIRTUAL_ENV", "COV_*", "COVERAGE_*", "XDG_*", "LD_*", "DYLD_*",
    # What Windows needs.
    "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES*", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC",
    "PATHEXT", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "NUMBER_OF_PROCESSORS", "PROCESSOR_*",
    # This project's own, the machine's policy for TLS, and keys by which users read their own captures.
    "CLOUDBENCH_*", "OPENSSL_CONF", "OPENSSL_MODULES", "SSLKEYLOGFILE",
)  # fmt: skip
"""Variables that libraries may see while a driver connects, besides those that its rows pass through."""

RULE = "for real hosts only, never for loopback, by one rule for all drivers"
"""Why proxies and certificates are passed through. Libraries do not see them: drivers hand them on."""

_HOSTILE = "cloudbench-hostile"
_NOWHERE = "http://127.0.0.1:9"
_UNSEEN = "not seen: the environment is closed while the driver connects"
_TRUST_ENV = "trust_env=False"
_KEYS = "the driver gives the keys itself"
_LIST = "not in the list of which its environment is made"


def _closed(names: str, how: str = _UNSEEN, hostile: str = _HOSTILE) -> tuple[Surrounding, ...]:
    return tuple(Surrounding(name, closed=how, hostile=hostile) for name in names.split())


def _passed(names: str, why: str, hostile: str = "") -> tuple[Surrounding, ...]:
    return tuple(Surrounding(name, passed=why, hostile=hostile) for name in names.split())


_AWS_WHO = """
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_SECURITY_TOKEN AWS_CREDENTIAL_EXPIRATION AWS_PROFILE
    AWS_DEFAULT_PROFILE AWS_ROLE_ARN AWS_ROLE_SESSION_NAME AWS_WEB_IDENTITY_TOKEN_FILE
    AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI AWS_CONTAINER_AUTHORIZATION_TOKEN
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE AWS_EC2_METADATA_DISABLED
"""
_AWS_WHERE = """
    AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_ENDPOINT_URL_STS AWS_EC2_METADATA_SERVICE_ENDPOINT
"""
_AWS_FILES = "AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE ~/.aws/config ~/.aws/credentials"
_ASKED_FOR = "only if the credentials name a profile of it"
_OWN_WAY = "only if neither the spec nor the credentials say who asks, and the service has a way to find out"
_REMOTES = "the spec names a remote of it"
_COMMANDS = """
    AWS_VAULT_* GNUPGHOME GPG_* PASSWORD_STORE_* DBUS_SESSION_BUS_ADDRESS BW_* OP_* KRB5*
"""
_FOR_COMMANDS = "for a command that gives a password, if a profile or a remote names one"
_ENV_AUTH = "only if the remote says so (env_auth, key_use_agent)"
_GOOGLE_FILES = "credentials where Google's programs keep them, if no place of this project's has any"

LIBRARIES: Mapping[str, tuple[Surrounding, ...]] = {
    "every library for HTTP": (
        *_passed("HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy", RULE, _NOWHERE),
        *_passed("NO_PROXY no_proxy", RULE, f"{_HOSTILE}.invalid"),
        *_passed(
            "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE HTTPLIB2_CA_CERTS SSL_CERT_FILE SSL_CERT_DIR", RULE,
            f"/{_HOSTILE}/ca.pem",
        ),
    ),
    "requests": _closed("NETRC ~/.netrc ~/_netrc", _TRUST_ENV, "~/.netrc"),
    "httpx": _closed("NETRC ~/.netrc", _TRUST_ENV, "~/.netrc"),
    "aiohttp": (
        *_closed("NETRC ~/.netrc ~/_netrc", _TRUST_ENV, "~/.netrc"),
        *_closed("AIOHTTP_NO_EXTENSIONS YARL_NO_EXTENSIONS", "chooses between equal implementations", "1"),
    ),
    "httplib2": _closed(
        "httplib2_decode_limit_hard httplib2_decode_limit_safe httplib2_decode_limit_ratio httplib2_decode_limit_chunk",
        "the driver decodes answers itself", "1",
    ),
    "botocore": (
        *_closed(_AWS_WHO, _KEYS),
        *_closed(_AWS_WHERE, "ignore_configured_endpoint_urls", _NOWHERE),
        *_closed("""
            AWS_REGION AWS_DEFAULT_REGION AWS_MAX_ATTEMPTS AWS_RETRY_MODE AWS_DEFAULTS_MODE AWS_DATA_PATH
            AWS_SDK_UA_APP_ID AWS_EXECUTION_ENV AWS_ACCOUNT_ID AWS_ACCOUNT_ID_ENDPOINT_MODE
            AWS_AUTH_SCHEME_PREFERENCE AWS_STS_REGIONAL_ENDPOINTS AWS_SIGV4A_SIGNING_REGION_SET
            AWS_DISABLE_REQUEST_COMPRESSION AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES AWS_REQUEST_CHECKSUM_CALCULATION
            AWS_RESPONSE_CHECKSUM_VALIDATION AWS_METADATA_SERVICE_TIMEOUT AWS_METADATA_SERVICE_NUM_ATTEMPTS
            AWS_CREDENTIAL_FILE AWS_LOGIN_CACHE_DIRECTORY BOTOCORE_EXPERIMENTAL__PLUGINS BOTO_CONFIG BOTO_DISABLE_CRT
        """),
        *_closed("""
            AWS_USE_FIPS_ENDPOINT AWS_USE_DUALSTACK_ENDPOINT AWS_S3_USE_ARN_REGION
            AWS_S3_DISABLE_EXPRESS_SESSION_AUTH AWS_S3_DISABLE_MULTIREGION_ACCESS_POINTS
            AWS_S3_US_EAST_1_REGIONAL_ENDPOINT AWS_IGNORE_CONFIGURED_ENDPOINT_URLS AWS_ENDPOINT_DISCOVERY_ENABLED
        """, hostile="true"),
        *_closed("AWS_LAMBDA_FUNCTION_NAME _X_AMZN_TRACE_ID", "the handler that adds its header is taken out"),
        *_passed(_AWS_FILES, _ASKED_FOR, f"/{_HOSTILE}/aws"),
        *_passed(
            "BOTO_EXPERIMENTAL__ADD_PROXY_HOST_HEADER",
            "an experiment of the SDK's, which has no other switch and is read before each request",
        ),
        *_passed(_COMMANDS, _FOR_COMMANDS),
        *_closed("~/.aws/models", "only the SDK's own descriptions of services are read"),
        *_closed("~/.boto host:169.254.169.254", _KEYS),
    ),
    "obstore": (
        *_closed(_AWS_WHO),
        *_closed(f"{_AWS_WHERE} AWS_ENDPOINT AWS_STS_ENDPOINT AWS_METADATA_ENDPOINT AWS_PROXY_URL", hostile=_NOWHERE),
        *_closed("""
            AWS_SKIP_SIGNATURE AWS_ALLOW_HTTP AWS_ALLOW_INVALID_CERTIFICATES AWS_HTTP1_ONLY AWS_HTTP2_ONLY
            AWS_S3_EXPRESS AWS_UNSIGNED_PAYLOAD AWS_VIRTUAL_HOSTED_STYLE_REQUEST AWS_IMDSV1_FALLBACK AWS_REQUEST_PAYER
            AWS_DISABLE_TAGGING AWS_DISABLE_BULK_DELETE AWS_SSE_BUCKET_KEY_ENABLED AWS_RANDOMIZE_ADDRESSES
        """, hostile="true"),
        *_closed("AWS_CHECKSUM_ALGORITHM", hostile="SHA256"),
        *_closed("AWS_SERVER_SIDE_ENCRYPTION", hostile="AES256"),
        *_closed("AWS_CONDITIONAL_PUT AWS_COPY_IF_NOT_EXISTS", hostile="header: x-hostile: y"),
        *_closed("""
            AWS_REGION AWS_DEFAULT_REGION AWS_BUCKET AWS_BUCKET_NAME AWS_SSE_KMS_KEY_ID AWS_SSE_CUSTOMER_KEY_BASE64
            AWS_TOKEN AWS_PROXY_EXCLUDES AWS_PROXY_CA_CERTIFICATE AWS_USER_AGENT AWS_DEFAULT_CONTENT_TYPE
            AWS_DEFAULT_HEADERS AWS_ROOT_CERTIFICATE AWS_*
        """),
        *_closed("host:169.254.169.254", _KEYS),
    ),
    "opendal": (
        *_closed("AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_S3_ENDPOINT AZBLOB_ENDPOINT HF_ENDPOINT", hostile=_NOWHERE),
        *_closed("AWS_REGION AWS_DEFAULT_REGION HF_TOKEN HF_HUB_DISABLE_XET"),
        *_passed(
            f"""{_AWS_WHO} {_AWS_FILES} AZURE_* GOOGLE_APPLICATION_CREDENTIALS ALIBABA_CLOUD_* TENCENTCLOUD_* TKE_*
            HUAWEI_CLOUD_* VOLCENGINE_* ~/.config/gcloud host:169.254.169.254 host:metadata.google.internal""",
            _OWN_WAY,
        ),
    ),
    "dropbox": _closed(
        """DROPBOX_DOMAIN DROPBOX_API_DOMAIN DROPBOX_WEB_DOMAIN DROPBOX_API_HOST DROPBOX_API_CONTENT_HOST
        DROPBOX_API_NOTIFY_HOST DROPBOX_WEB_HOST""",
        hostile=f"{_HOSTILE}.invalid",
    ),
    "azure-core": (
        *_closed("AZURE_HTTP_USER_AGENT", "user_agent_use_env=False"),
        *_closed("AZURE_TRACING_ENABLED", "tracing is switched off for each request", "true"),
        *_closed("AZURE_SDK_TRACING_IMPLEMENTATION", "tracing is switched off for each request", "opentelemetry"),
        *_closed("AZURE_LOG_LEVEL AZURE_SDK_LOGGING_MULTIRECORD", "changes only what is logged", "DEBUG"),
        *_closed("AZURE_CLOUD AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_ACCOUNT AZURE_STORAGE_KEY", _KEYS),
    ),
    "google-auth": (
        *_closed("""
            GOOGLE_CLOUD_PROJECT GCLOUD_PROJECT GOOGLE_CLOUD_QUOTA_PROJECT GOOGLE_CLOUD_UNIVERSE_DOMAIN GAE_ENV
            GOOGLE_API_CERTIFICATE_CONFIG CLOUDSDK_CONTEXT_AWARE_USE_CLIENT_CERTIFICATE APPENGINE_RUNTIME NO_GCE_CHECK
            CLOUDSDK_CONTEXT_AWARE_CERTIFICATE_CONFIG_FILE_PATH GOOGLE_SDK_PYTHON_LOGGING_SCOPE REMOTE_ADDR
            GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES
        """),
        *_closed("GOOGLE_API_USE_CLIENT_CERTIFICATE", hostile="true"),
        *_closed("GOOGLE_API_USE_MTLS_ENDPOINT", hostile="always"),
        *_closed("GCE_METADATA_HOST GCE_METADATA_ROOT GCE_METADATA_IP", _KEYS, "127.0.0.1:9"),
        *_closed("host:metadata.google.internal", _KEYS),
        *_passed("GOOGLE_APPLICATION_CREDENTIALS CLOUDSDK_CONFIG ~/.config/gcloud", _GOOGLE_FILES, f"/{_HOSTILE}/key"),
    ),
    "google-cloud-storage": (
        *_closed("STORAGE_EMULATOR_HOST API_ENDPOINT_OVERRIDE", hostile=_NOWHERE),
        *_closed("API_VERSION_OVERRIDE", hostile="v9"),
        *_closed("ENABLE_GCS_PYTHON_CLIENT_OTEL_TRACES DISABLE_GCS_PYTHON_CLIENT_OTEL_METRICS", hostile="true"),
    ),
    "python-swiftclient": _closed(
        """ST_AUTH ST_USER ST_KEY ST_AUTH_VERSION SWIFTCLIENT_INSECURE OS_AUTH_URL OS_USERNAME OS_PASSWORD
        OS_PROJECT_NAME OS_AUTH_TOKEN OS_STORAGE_URL OS_REGION_NAME OS_CACERT OS_CERT OS_KEY OS_AUTH_TYPE
        OS_SERVICE_TYPE OS_ENDPOINT_TYPE""",
        _KEYS,
    ),
    "async-mega-py": _closed("MEGA_EMAIL MEGA_PWD", _KEYS),
    "paramiko": (
        *_closed("SSH_AUTH_SOCK", "allow_agent=False"),
        *_closed("~/.ssh/id_rsa ~/.ssh/id_ecdsa ~/.ssh/id_ed25519", "look_for_keys=False"),
        *_closed("~/.ssh/config", "not read"),
        *_passed("~/.ssh/known_hosts", "which host keys are trusted, if neither the spec nor the credentials say"),
    ),
    "rclone": (
        *_passed(
            "RCLONE_CONFIG RCLONE_CONFIG_* RCLONE_PASSWORD_COMMAND XDG_CONFIG_HOME ~/.config/rclone ~/.rclone.conf",
            _REMOTES,
        ),
        *_passed(f"{_AWS_WHO} {_AWS_FILES} AWS_REGION AZURE_* GOOGLE_APPLICATION_CREDENTIALS OS_* ST_*", _ENV_AUTH),
        *_passed("SSH_AUTH_SOCK", _ENV_AUTH),
        *_passed(_COMMANDS, _FOR_COMMANDS),
        *_closed("RCLONE_LOG_FILE", _LIST, f"/{_HOSTILE}/log"),
        *_closed("RCLONE_LOG_LEVEL", _LIST, "ERROR"),
        *_closed("""
            RCLONE_QUIET RCLONE_USE_JSON_LOG RCLONE_SYSLOG RCLONE_DRY_RUN RCLONE_IMMUTABLE RCLONE_NO_CHECK_CERTIFICATE
            RCLONE_RC_NO_AUTH RCLONE_S3_ENV_AUTH RCLONE_NO_GZIP_ENCODING RCLONE_INTERACTIVE
        """, _LIST, "true"),
        *_closed("""
            RCLONE_S3_ENDPOINT RCLONE_WEBDAV_URL RCLONE_SWIFT_AUTH RCLONE_BIND RCLONE_USER_AGENT RCLONE_HEADER
            RCLONE_BWLIMIT RCLONE_RC_ADDR RCLONE_RC_USER RCLONE_RC_PASS RCLONE_RC_BASEURL RCLONE_RC_CERT
            RCLONE_RC_HTPASSWD RCLONE_RC_TEMPLATE RCLONE_CACHE_DIR RCLONE_TEMP_DIR RCLONE_RETRIES RCLONE_TIMEOUT
            RCLONE_LOW_LEVEL_RETRIES RCLONE_CA_CERT RCLONE_CLIENT_CERT RCLONE_HTTP_PROXY RCLONE_ENCODING RCLONE_EXCLUDE
            RCLONE_FILTER RCLONE_*
        """, _LIST),
    ),
}  # fmt: skip
"""Maps a library to what it reads."""

_HTTP = "every library for HTTP"
USES: Mapping[str, tuple[str, ...]] = {
    "azure": (_HTTP, "requests", "azure-core"),
    "box": (_HTTP, "requests"),
    "dropbox": (_HTTP, "requests", "dropbox"),
    "dropbox+fast": (_HTTP, "httpx"),
    "folder": (),
    "gcs": (_HTTP, "requests", "google-auth", "google-cloud-storage"),
    "gdrive": (_HTTP, "httplib2", "google-auth"),
    "mega": (_HTTP, "aiohttp", "async-mega-py"),
    "onedrive": (_HTTP, "httpx"),
    "opendal": (_HTTP, "opendal"),
    "raid": (),
    "rclone": (_HTTP, "rclone"),
    "s3": (_HTTP, "botocore"),
    "s3+fast": (_HTTP, "obstore"),
    "sftp": ("paramiko",),
    "swift": (_HTTP, "requests", "python-swiftclient"),
    "tahoe": (_HTTP, "httpx"),
    "webdav": (_HTTP, "httpx"),
}
"""Maps each scheme of this package to its driver's libraries. A composite reads nothing, but its children do."""

TABLE: Mapping[str, tuple[Surrounding, ...]] = {
    scheme: tuple(row for library in libraries for row in LIBRARIES[library]) for scheme, libraries in USES.items()
}
"""Maps each scheme of this package to what its driver's libraries read."""


def rows_of(scheme: str, driver: type) -> tuple[Surrounding, ...] | None:
    """Return the rows of a driver: those of this table, or of a class attribute ``surroundings``.

    None for a driver of another distribution that has none: what it reads is unknown then, and nothing is closed to it.
    Raises SpecError.
    """
    rows = TABLE.get(scheme, getattr(driver, "surroundings", None))
    if rows is not None and not (isinstance(rows, tuple) and all(isinstance(row, Surrounding) for row in rows)):
        raise SpecError(f"provider {scheme!r}: {driver.__qualname__}.surroundings is not a tuple of Surrounding")
    return rows


_LOCK = RLock()
_hidden: dict[str, str] | None = None


@contextmanager
def closed(rows: Iterable[Surrounding] | None) -> Iterator[None]:
    """Hide environment variables inside the context, except those in ``ALLOWED`` and those that the rows pass through.

    Drivers give their libraries arguments against what those read later. But some libraries read variables when they
    are imported or when they make a client, and have no argument against it: a client in Rust takes settings from all
    variables that begin with ``AWS_``. The environment is one for all threads, so it is closed only here, and only for
    a moment: while a driver connects, and while it renews keys of a profile. A process that another thread starts at
    that moment sees less, too.
    """
    global _hidden  # noqa: PLW0603 - there is one environment for the whole process
    if rows is None:
        yield
        return
    with _LOCK:
        if _hidden is not None:  # a driver that connects another one
            yield
            return
        visible = _visible_names(rows)
        _hidden = hidden = {name: value for name, value in os.environ.items() if name not in visible}
        try:
            for name in hidden:
                del os.environ[name]
            yield
        finally:
            _hidden = None
            for name, value in hidden.items():
                os.environ.setdefault(name, value)


def environment() -> Mapping[str, str]:
    """Return the environment as the user has set it, also while it is closed."""
    with _LOCK:
        return {**os.environ, **(_hidden or {})}


def allowed_environment(rows: Iterable[Surrounding]) -> dict[str, str]:
    """Return the environment of a child process: ``ALLOWED``, and what the rows pass through."""
    variables, visible = environment(), _visible_names(rows)
    return {name: value for name, value in variables.items() if name in visible}


def _visible_names(rows: Iterable[Surrounding]) -> frozenset[str]:
    """Return the variables that are set and allowed or passed through. A row that closes one by its name wins."""
    rows = [row for row in rows if row.is_variable]
    passed = [*ALLOWED, *(row.name for row in rows if row.passed and row.passed != RULE)]
    kept_out = {row.name for row in rows if row.closed and "*" not in row.name}
    return frozenset(
        name for name in environment() if name not in kept_out and any(fnmatchcase(name, pattern) for pattern in passed)
    )
