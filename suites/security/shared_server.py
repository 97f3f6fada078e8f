"""Does deduplication across users of a sync client leak? Two accounts share one server, if it can have accounts.

The first account stores a random file. The second stores it too, and a fresh one of the same size. A tap between it and
the server counts what it sends, in pairs whose order alternates, as ``deduplication`` does for providers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from pytest_cloudbench import (
    CloudbenchError,
    Endpoint,
    LocalClient,
    RandomContent,
    SyncClient,
    make_client,
)

from .clients import Observed
from .deduplication import PAIRS, SIZE_BYTES, Pair, judge_deduplication
from .rulings import Ruling, unknown
from .tap import Tap, sent_bytes

_SYNCED_S = 60.0


def ask_deduplication(observed: Observed, copies: int = 1) -> Ruling:
    """Answer whether an account of the client sends less for a file that another one has stored ``copies`` times."""
    return share_server(lambda: make_client(observed.spec), observed.spec, copies)


def share_server(make_account: Callable[[], SyncClient], seed: str, copies: int = 1) -> Ruling:
    """Let two accounts of one server store files, and judge the traffic of the second."""
    host = make_account()
    if not isinstance(host, LocalClient):
        return unknown("there is no second account of this client")
    if why := host.why_one_account():
        return unknown(f"two accounts cannot share a server: {why}")
    try:
        return judge_deduplication(_count_pairs(host, make_account, seed, copies), copies=copies)
    except (CloudbenchError, OSError) as error:
        return unknown(str(error).partition("\n")[0])


def _count_pairs(host: LocalClient, make_account: Callable[[], SyncClient], seed: str, copies: int) -> list[Pair]:
    with TemporaryDirectory(prefix="cloudbench-shared-") as name, ExitStack() as stack:
        folder = Path(name)
        stack.callback(host.stop)
        host.serve_accounts(folder / "server", ("first", "other"))
        tap = stack.enter_context(Tap(Endpoint({"server": f"http://127.0.0.1:{host.server_port}"})))
        assert tap.endpoint is not None
        ports = {"first": host.server_port, "other": urlsplit(tap.endpoint.url).port or 0}
        accounts = {
            name: _open_account(stack, host, make_account(), name, port, folder) for name, port in ports.items()
        }
        pairs = []
        for number in range(PAIRS):
            known_content, fresh_content = (
                RandomContent(f"{seed}/{kind}-{number}", SIZE_BYTES).read(0, SIZE_BYTES) for kind in ("known", "fresh")
            )
            for copy in range(copies):
                _store(accounts["first"], f"known-{number}-{copy}", known_content)
            counts = {}
            for kind, content in (("seen", known_content), ("new", fresh_content))[:: -1 if number % 2 else 1]:
                before_bytes = len(sent_bytes(tap.flows))
                _store(accounts["other"], f"{kind}-{number}", content)
                counts[kind] = len(sent_bytes(tap.flows)) - before_bytes
            pairs.append(Pair(counts["seen"], counts["new"]))
        return pairs


def _open_account(
    stack: ExitStack, host: LocalClient, client: SyncClient, name: str, port: int, folder: Path
) -> LocalClient:
    assert isinstance(client, LocalClient)
    stack.callback(client.stop)
    client.join(host, name, port, folder / name)
    client.start()
    return client


def _store(client: LocalClient, name: str, content: bytes) -> None:
    """Let a client bring a file to its server. Raises ClientError."""
    (client.workdir / "prepared").write_bytes(content)
    client.before_change()
    os.replace(client.workdir / "prepared", client.folder / name)
    client.after_change()
    if client.facts.watches_folder:  # other clients have ended by now, and have stored the file
        client.wait_synced(_SYNCED_S)
