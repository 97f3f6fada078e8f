"""Specs that name one of several accounts with the same provider: ``dropbox?account_number=2``.

The number selects the credentials, such as ``CLOUDBENCH_DROPBOX_2_ACCESS_TOKEN``, and is no parameter of the driver.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.model import SpecError

_PARAM = "account_number"
_WRITTEN = re.compile(rf"([?&]){_PARAM}=[^&]*&?")


def split_number(bound: BoundSpec, *, is_child: bool) -> tuple[BoundSpec, int]:
    """Return a spec without its account number, and the number, or 0 if it has none. Raises SpecError."""
    spec = bound.spec
    text = spec.params.get(_PARAM)
    if text is None:
        return bound, 0
    reasons = {
        "it has no accounts": not bound.credential_sets,
        "an array numbers the accounts of its children itself": is_child,
        "token_env names the account": "token_env" in spec.params,
    }
    for why, holds in reasons.items():
        if holds:
            raise SpecError(f"provider {spec.text!r}: {why}; leave {_PARAM} out")
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 99):
        raise SpecError(f"provider {spec.text!r}: {_PARAM} is a number from 1 to 99")
    params = {name: value for name, value in spec.params.items() if name != _PARAM}
    bare = replace(spec, text=_WRITTEN.sub(r"\1", spec.text).rstrip("?&"), params=params)
    return replace(bound, spec=bare), int(text)


def with_number(text: str, number: int) -> str:
    """Return a spec that names an account by its number. 0 leaves the spec as it is."""
    return f"{text}{'&' if '?' in text else '?'}{_PARAM}={number}" if number else text
