"""Create a container in a new Azurite: ``azure_container.py URL NAME``, with the account in ``AZURITE_ACCOUNTS``.

What may live here: one request, signed as described on the REST API's page "Authorize with Shared Key". It cannot
import the package.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
from email.utils import formatdate
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

_VERSION = "2021-12-02"
_TIMEOUT_S = 30.0


def main(url: str, name: str) -> None:
    """Create the container."""
    account, _, key = os.environ["AZURITE_ACCOUNTS"].partition(":")
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    header_lines = "".join(f"{header}:{value}\n" for header, value in headers.items())
    resource = f"/{account}{urlsplit(url).path}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + header_lines + resource
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {account}:{signature}", "Content-Length": "0"}
    opener = build_opener(ProxyHandler({}))
    opener.open(Request(f"{url}/{name}?restype=container", headers=headers, method="PUT"), timeout=_TIMEOUT_S).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
