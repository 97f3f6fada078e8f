"""The Dropbox SDK, without the parts that the driver does not use."""

from __future__ import annotations

from pytest_cloudbench.drivers.sdk_import import import_lazily

# The namespaces whose values the SDK's client does not need for its own definition. The others
# (files, sharing, paper...) run anyway, because default arguments of its methods come from them.
_LAZY_NAMESPACES = ("account", "account_id", "check", "contacts", "openid", "secondary_emails", "team", "team_log")
# Guesses the encoding of a body that does not name one; requests wants to know its version at once.
_LAZY_VERSIONED = {"charset_normalizer": "charset_normalizer.version"}

sdk = import_lazily("dropbox", _LAZY_NAMESPACES, _LAZY_VERSIONED)
"""The package."""
