"""The removal of secrets from requests and answers, for a file that people share.

What may live here: the selection of headers, the removal of values from addresses and bodies, and the shapes of
secrets. Pure, except for the secrets that the process knows (``redact``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.support import redact
from pytest_cloudbench.support.redact import TAKEN_OUT

_KEPT_HEADERS = re.compile(
    r"content-(type|range|length|md5)|accept-ranges|range|location|etag|last-modified|retry-after|.*-api-(arg|result)"
    r"|x-(ms|amz|goog|storage|openstack)-.*|x-.*(version|copy|token).*",
    re.IGNORECASE,
)
"""Headers that are kept. A replay needs no others, least of all those with tokens. Drivers classify errors by some."""
_EMPTIED_HEADERS = re.compile(r"x-.*(token|credential|signature|customer-key|encryption-key).*", re.IGNORECASE)
"""Headers of which only the name is kept."""

_SECRET_NAMES = (
    "access_token|refresh_token|id_token|client_secret|client_assertion|assertion|password|passwd|device_code|"
    "code_verifier|session_token|sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    "x-goog-credential|upload_id|uploadid|tempauth|sid|authkey|authorization"
)
_IN_FORMS = re.compile(rf"(?i)\b({_SECRET_NAMES})=[^&\s\"'<>]+")
_IN_JSON = re.compile(rf'(?i)("(?:{_SECRET_NAMES})"\s*:\s*)"[^"]*"')
_CAPABILITY = re.compile(r"\bURI(:|%3A)([A-Z][A-Z0-9-]*)(?:\1[\w-]+)+", re.ASCII)
"""An address that is also the key to its object, as in Tahoe-LAFS."""
_SECRET_SHAPES = re.compile(
    r"sl\.[\w-]{20,}|ya29\.[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}|(?i:bearer) [\w.~+/-]{12,}|-----BEGIN"
)
"""Shapes of tokens and keys. None may remain in a file."""


def looks_secret(text: str) -> bool:
    """Return whether a text contains a string that looks like a token or a key."""
    return bool(_SECRET_SHAPES.search(text))


def has_secret(text: str) -> bool:
    """Return whether a text contains a string that looks secret, or a known secret."""
    return looks_secret(text) or redact.clean(text) != text


def scrub_text(text: str) -> str:
    """Remove known secrets from a text, and values whose names show that they are secret."""
    # Known secrets first, so that a removed value has the same form whether or not it is also known.
    text = _IN_JSON.sub(rf'\1"{TAKEN_OUT}"', _IN_FORMS.sub(rf"\1={TAKEN_OUT}", redact.clean(text)))
    return _CAPABILITY.sub(rf"URI\1\2\1{TAKEN_OUT}", text)


def scrub_body(body: bytes) -> bytes:
    """Remove secrets from a body. A body that is not text has none."""
    try:
        return scrub_text(body.decode("utf-8")).encode()
    except UnicodeDecodeError:
        return body


def select_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that may be kept. Each value keeps its type: a text, or a list of texts."""
    return {name: _header_value(name, value) for name, value in headers.items() if _KEPT_HEADERS.fullmatch(name)}


def _header_value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_header_value(name, element) for element in value]
    return TAKEN_OUT if _EMPTIED_HEADERS.fullmatch(name) else scrub_text(str(value))
