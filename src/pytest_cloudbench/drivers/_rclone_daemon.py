"""The daemon behind the rclone driver: one process for each agent, which ends with the agent, even a killed one.

What may live here: the remote for a service that stands in for a provider, the daemon's flags, and its start and end.
"""

from __future__ import annotations

import json
import os
import re
import secrets as chance
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from pytest_cloudbench.drivers.surroundings import TABLE, allowed_environment
from pytest_cloudbench.model import Endpoint, ServiceError
from pytest_cloudbench.services import guard
from pytest_cloudbench.services.child import Child
from pytest_cloudbench.support import redact

REMOTE = "cloudbench"
"""The name of the remote that leads to a service."""

# Without --ignore-times, a move onto a file of the same size may only remove the source.
_FLAGS = (
    "--retries", "1", "--low-level-retries", "1", "--no-unicode-normalization", "--use-server-modtime",
    "--ignore-times",
)  # fmt: skip

# A mistyped bucket is an error: rclone would create it, after a request to look for it.
_NO_NEW_BUCKETS = {
    f"RCLONE_{name}": "true"
    for name in ("AZUREBLOB_NO_CHECK_CONTAINER", "GCS_NO_CHECK_BUCKET", "OOS_NO_CHECK_BUCKET", "S3_NO_CHECK_BUCKET")
}

_START_S = 60.0
_SERVING = "Serving remote control on "
_LASTING = "2035-01-01T00:00:00Z"

# API to rclone's type of remote, and to the remote's options: ``{url}``, or a credential's name in braces, with an
# exclamation mark if rclone wants it obscured.
_TYPES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "azure": ("azureblob", {"account": "{account}", "key": "{account_key}", "endpoint": "{url}"}),
    "box": ("box", {"token": "{token}"}),
    "dropbox": ("dropbox", {"token": "{token}"}),
    "gcs": ("google cloud storage", {"endpoint": "{url}/storage/v1/", "anonymous": "true"}),
    "gdrive": ("drive", {"token": "{token}", "scope": "drive"}),
    "mega": ("mega", {"user": "{email}", "pass": "{password!}"}),
    "onedrive": ("onedrive", {"token": "{token}", "drive_id": "{drive_id}", "drive_type": "personal"}),
    "s3": ("s3", {"provider": "Other", "access_key_id": "{access_key_id}", "endpoint": "{url}",
                  "secret_access_key": "{secret_access_key}"}),
    "sftp": ("sftp", {"host": "{host}", "port": "{port}", "user": "{user}", "pass": "{password!}",
                      "known_hosts_file": "{known_hosts}"}),
    "swift": ("swift", {"auth": "{auth_url}", "auth_version": "1", "user": "{user}", "key": "{key}",
                        "no_chunk": "true"}),
    "webdav": ("webdav", {"url": "{url}", "vendor": "other", "user": "{user}", "pass": "{password!}"}),
}  # fmt: skip

SPOKEN = frozenset(_TYPES)
"""The APIs for which rclone can be directed to a service."""


def settings(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment that gives rclone one remote, which leads to a service and nowhere else.

    An API with no option for its address goes through the service's proxy, which refuses all other hosts.
    """
    from urllib.parse import urlsplit

    kind, templates = _TYPES[endpoint.api]
    parts = urlsplit(endpoint.url)
    token = json.dumps({"access_token": endpoint.credentials.get("access_token", ""), "token_type": "bearer",
                        "refresh_token": "", "expiry": _LASTING})  # fmt: skip
    values = {
        **endpoint.credentials, "url": endpoint.url.rstrip("/"), "token": token, "host": parts.hostname or "",
        "port": str(parts.port or ""),
    }  # fmt: skip
    if endpoint.api == "onedrive" and "drive_id" not in values:
        values["drive_id"] = _drive_id(endpoint)
    options = {"type": kind}
    for name, template in templates.items():
        text = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], ""), template)
        if template.endswith("!}"):
            text = _obscure_password(values.get(template[1:-2], ""))
        options[name] = text
    environment = {f"RCLONE_CONFIG_{REMOTE}_{name}".upper(): value for name, value in options.items() if value}
    if endpoint.api == "mega":
        environment["X_MEGA_API_URL"] = endpoint.url.rstrip("/")
    if endpoint.proxy and "{url}" not in "".join(templates.values()) and endpoint.api not in ("mega", "sftp"):
        environment["HTTPS_PROXY"] = endpoint.proxy
    if endpoint.ca_file:  # for some requests rclone has a client that ignores its flag --ca-cert
        environment |= {"SSL_CERT_FILE": endpoint.ca_file, "RCLONE_CA_CERT": endpoint.ca_file}
    return environment


def _drive_id(endpoint: Endpoint) -> str:
    """Ask a service for the id of the account's drive, which a remote of this type needs. Raises OSError."""
    import ssl
    from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

    context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    headers = {"authorization": f"Bearer {endpoint.credentials['access_token']}"}
    with opener.open(Request(f"{endpoint.url.rstrip('/')}/v1.0/me/drive", headers=headers), timeout=_START_S) as answer:
        return str(json.loads(answer.read())["id"])


def _program_path() -> str:
    """Return the path of rclone. The folder of this Python comes first, because the wheel installs it there."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which("rclone", path=path) or "rclone"


def _obscure_password(text: str) -> str:
    """Return a password in the form in which remotes hold it."""
    done = subprocess.run(
        [_program_path(), "obscure", "-"], input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=_START_S,
        env={"PATH": os.environ.get("PATH", os.defpath), "RCLONE_CONFIG": os.devnull},
    )  # fmt: skip
    return done.stdout.decode().strip()


class Daemon:
    """An rclone with its remote control, on a port of loopback and with a password. It starts when it is first needed.

    Args:
        endpoint: the service that its only remote leads to; None for the user's own remotes.
        egress: variables that say how its requests leave this machine.
        timeout_s: how long it waits for a connection, or for the next bytes.

    Attributes:
        flags: the flags that switch off or bound what it does. No flag switches off the pacers of its backends.
        user: the user name for its remote control.
        password: that user's password.
    """

    def __init__(self, endpoint: Endpoint | None, egress: Mapping[str, str], timeout_s: float) -> None:
        self.flags = (*_FLAGS, "--contimeout", f"{timeout_s:g}s", "--timeout", f"{timeout_s:g}s")
        self._endpoint, self._egress, self._lock = endpoint, egress, Lock()
        self._child: Child | None = None
        self._folder, self._url = "", ""
        self.user, self.password = "cloudbench", chance.token_urlsafe(24)
        redact.learn([self.password])

    def url(self) -> str:
        """Return the daemon's URL. Starts the daemon first if it is not running. Raises ServiceError."""
        with self._lock:
            if not self._url:
                try:
                    self._start()
                except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                    raise ServiceError(f"rclone did not start: {error}") from error
                finally:
                    if not self._url:
                        self._end()
            return self._url

    def _start(self) -> None:
        """Start rclone and learn where it listens. Raises ServiceError."""
        self._folder = tempfile.mkdtemp(prefix="cloudbench-rclone-")
        log = Path(self._folder, "log")
        environment = {
            "RCLONE_RC_USER": self.user, "RCLONE_RC_PASS": self.password, "TMPDIR": self._folder,
            "RCLONE_ASK_PASSWORD": "false", **_NO_NEW_BUCKETS,
        }  # fmt: skip
        if self._endpoint is None:
            environment = {**allowed_environment(TABLE["rclone"]), **self._egress, **environment}
        else:
            path = os.environ.get("PATH", os.defpath)
            environment |= {"PATH": path, "HOME": self._folder, "RCLONE_CONFIG": str(Path(self._folder, "none.conf"))}
            environment |= settings(self._endpoint)
        argv = [_program_path(), "rcd", "--rc-addr", "127.0.0.1:0", "--rc-serve", *self.flags]
        child = Child([sys.executable, "-I", "-S", str(guard.__file__)], log_path=log, env=environment)
        self._child = child
        message = {"argv": argv, "folder": self._folder, "port": 0, "ready": _SERVING}
        child.write(json.dumps(message).encode() + b"\n")
        if not child.readline(_START_S):
            child.wait()
            raise ServiceError(f"rclone did not start: {child.exit_reason()}")
        match = re.search(rf"{_SERVING}(http://\S+)", log.read_text("utf-8", "replace"))
        if match is None:
            raise ServiceError("rclone did not say where it listens")
        self._url = match[1]

    def stop(self) -> None:
        """End the daemon. Safe to call again."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)  # still there if nothing started or the guard was killed
