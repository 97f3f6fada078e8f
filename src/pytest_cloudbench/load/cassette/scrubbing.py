"""What of requests and answers may be in a file that people share.

What may live here: which headers are kept, what is taken out of addresses and bodies, and what secrets look like. Pure,
except for what the process knows to be secret (``redact``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.support import redact
from pytest_cloudbench.support.redact import TAKEN_OUT

_KEPT = re.compile(
    r"content-(type|range|length|md5)|accept-ranges|range|location|etag|last-modified|retry-after|.*-api-(arg|result)"
    r"|x-(ms|amz|goog|storage|openstack)-.*|x-.*(version|copy|token).*",
    re.IGNORECASE,
)
"""Headers that are kept: a replay needs no others, least of all those with tokens. Drivers classify errors by some."""
_EMPTIED = re.compile(r"x-.*(token|credential|signature|customer-key|encryption-key).*", re.IGNORECASE)
"""Headers of which only the name is kept."""

_NAMES = (
    "access_token|refresh_token|id_token|client_secret|client_assertion|assertion|password|passwd|device_code|"
    "code_verifier|session_token|sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    "x-goog-credential|upload_id|uploadid|tempauth|sid|authkey|authorization"
)
_IN_FORMS = re.compile(rf"(?i)\b({_NAMES})=[^&\s\"'<>]+")
_IN_JSON = re.compile(rf'(?i)("(?:{_NAMES})"\s*:\s*)"[^"]*"')
_CAPABILITY = re.compile(r"\bURI(:|%3A)([A-Z][A-Z0-9-]*)(?:\1[\w-]+)+", re.ASCII)
"""An address that is also the key to what it names."""
_SHAPES = re.compile(
    r"sl\.[\w-]{20,}|ya29\.[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}|(?i:bearer) [\w.~+/-]{12,}|-----BEGIN"
)
"""What tokens and keys look like. None may be left in a file."""


def looks_secret(text: str) -> bool:
    """Return whether a text holds what looks like a token or a key."""
    return bool(_SHAPES.search(text))


def has_secret(text: str) -> bool:
    """Return whether a text holds what looks secret, or is known to be."""
    return looks_secret(text) or redact.clean(text) != text


def scrubbed(text: str) -> str:
    """Return a text without values whose names say that they are secret, and without known secrets."""
    # Known secrets first: a value that is taken out has one form then, whether or not it is known, too.
    text = _IN_JSON.sub(rf'\1"{TAKEN_OUT}"', _IN_FORMS.sub(rf"\1={TAKEN_OUT}", redact.clean(text)))
    return _CAPABILITY.sub(rf"URI\1\2\1{TAKEN_OUT}", text)


def scrubbed_body(body: bytes) -> bytes:
    """Return a body without secrets; one that is not text has none."""
    try:
        return scrubbed(body.decode("utf-8")).encode()
    except UnicodeDecodeError:
        return body


def kept_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that may be kept, each as it was given: a text, or a list of them."""
    return {name: _kept(name, value) for name, value in headers.items() if _KEPT.fullmatch(name)}


def _kept(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_kept(name, each) for each in value]
    return TAKEN_OUT if _EMPTIED.fullmatch(name) else scrubbed(str(value))
