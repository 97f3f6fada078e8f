"""A logged-in account of MEGA, through the parts of async-mega-py.

What may live here: requests, as coroutines of one event loop. The SDK logs in, derives keys, encrypts, cuts into
chunks, computes and checks MACs. Its own tree is not used: it reads the whole account again after each change, and
misses what other clients change. The tree here follows the service's log of events, as MEGA's own clients do.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers._mega_loop import CountedSession
from pytest_cloudbench.drivers._mega_tree import NodeTree
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.sdk import OwnError
from pytest_cloudbench.model import Content, Endpoint, ErrorKind
from pytest_cloudbench.support import redact

if TYPE_CHECKING:
    from types import TracebackType

API_URL = "https://g.api.mega.co.nz"
_LINK = "https://mega.nz/{kind}/{handle}#{key}"
_WAITS = ("X-MEGA-Time-Left", "Retry-After")
_GONE, _TOO_MANY_EVENTS, _ENDED_SESSION = -9, -6, -15


class _ContentPath:
    """Stands in for the path of a file to upload, which the SDK opens and reads to its end."""

    def __init__(self, name: str, content: Content) -> None:
        self.name, self._content, self._offset = name, content, 0

    def open(self, _mode: str) -> _ContentPath:
        """Return this object, at the beginning of the content."""
        self._offset = 0
        return self

    def read(self, length: int) -> bytes:
        """Return the next bytes."""
        data = self._content.read(self._offset, length)
        self._offset += len(data)
        return data

    def __enter__(self) -> _ContentPath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _bound_api_class(url: str, on_end: Callable[[str | None], None]) -> Any:
    """Return the SDK's class for requests, bound to a service, without retries.

    Calls ``on_end`` with the id of a session that has ended, as the service's refusal of a request shows.
    """
    import yarl
    from mega.api import MegaAPI
    from mega.errors import RequestError

    post_once = vars(MegaAPI)["post"].__wrapped__

    class BoundAPI(MegaAPI):
        """One attempt for each request. Raises the refusal of an upload, which the SDK would return as a handle."""

        _entrypoint = yarl.URL(url)

        async def post(self, json: Any, params: dict[str, Any] | None = None) -> Any:
            try:
                return await post_once(self, json, params)
            except RequestError as error:
                if error.code == _ENDED_SESSION:
                    on_end(self.session_id)
                raise

        async def upload_chunk(self, upload_url: Any, offset: int, data: bytes) -> str:
            answer = str(await super().upload_chunk(upload_url, offset, data))
            if answer.startswith("-") and answer[1:].isdigit():
                raise RequestError(int(answer))
            return answer

    return BoundAPI


class MegaAccount:
    """An account of MEGA, which logs in at the first operation.

    Args:
        endpoint: the service that stands in for MEGA; None for MEGA itself.
        email: the user.
        password: the password.
        timeout_s: for each single step of a request.
    """

    def __init__(self, endpoint: Endpoint | None, email: str, password: str, timeout_s: float) -> None:
        base_url = endpoint.url if endpoint else API_URL
        self._endpoint, self._email, self._password, self._timeout_s = endpoint, email, password, timeout_s
        self.egress = egress_of(endpoint, base_url)
        self._commands = _bound_api_class(f"{base_url}/cs", self._forget)
        self._events = _bound_api_class(f"{base_url}/sc", self._forget)
        self._session: CountedSession | None = None
        self._core: Any = None
        self._is_logged_in = False
        self._lock = asyncio.Lock()
        self._tree, self._sequence_token, self._applied_events = NodeTree(), "", 0
        self._prepared: set[str] = set()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    # ---------------------------------------------------------------- login, and the tree

    async def _log_in(self) -> None:
        from mega import auth
        from mega.core import MegaCore
        from mega.errors import RequestError
        from mega.vault import MegaVault

        if self._session is None:
            self._session = CountedSession(self.egress, self._timeout_s, _WAITS, "X-Hashcash")
        api, events = self._commands(self._session), self._events(self._session)
        for client in (api, events):
            client._rate_limiter = contextlib.nullcontext()  # it would allow only 100 requests a minute
        try:
            session = await auth.login(api, self._email, self._password)
        except RequestError as error:
            if error.code != _GONE:
                raise
            raise OwnError(ErrorKind.AUTH, "no account has this name and password") from error
        redact.learn([session.session_id])
        api.session_id = events.session_id = session.session_id
        self._api, self._log = api, events
        core = MegaCore(api, vault=MegaVault(session.master_key))
        await self._read_account(core)
        self._core, self._is_logged_in = core, True

    async def _read_account(self, core: Any) -> None:
        answer = await core.api.post({"a": "f", "c": 1, "r": 1})
        core.vault.update(answer)
        nodes = await core.deserialize_nodes(answer["f"])
        root = next(node.id for node in nodes if node.type.name == "ROOT_FOLDER")
        links = {link["ph"]: link["h"] for link in answer.get("ph", ())}
        self._tree, self._sequence_token = NodeTree(nodes, links, root), answer["sn"]
        self._applied_events = 0

    async def tree(self) -> NodeTree:
        """Return the tree as the service knows it now: one request, with a short answer if nothing has changed."""
        if not self._is_logged_in:
            async with self._lock:
                if not self._is_logged_in:
                    await self._log_in()
                    return self._tree
        from mega.errors import RequestError

        tree, sequence_token, applied_before = self._tree, self._sequence_token, self._applied_events
        try:
            answer = await self._log.post([], {"sn": sequence_token})
        except RequestError as error:
            if error.code != _TOO_MANY_EVENTS:
                raise
            async with self._lock:
                if self._tree is tree:  # else another thread has read everything
                    await self._read_account(self._core)
            return self._tree
        if "a" in answer and tree is self._tree:
            # The answer to another thread's request may have come first, and may have held more events.
            already_applied = self._applied_events - applied_before
            for event in answer["a"][already_applied:]:
                self._apply_event(event)
            if len(answer["a"]) > already_applied:
                self._sequence_token, self._applied_events = answer["sn"], applied_before + len(answer["a"])
        return self._tree

    def _apply_event(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("i") == self._api.client_id:
            return  # its own changes are in the tree
        tree, action = self._tree, event.get("a")
        if action == "t":
            for raw_node in event["t"]["f"]:
                self._add_node(raw_node)
        elif action == "d":
            tree.remove(event["n"])
        elif action == "u" and event["n"] in tree and "at" in event:
            node = tree.get(event["n"])
            attributes = self._core.decrypt_attrs(event["at"], node._crypto.key, node.id)
            tree.add(dataclasses.replace(node, attributes=attributes))
        elif action == "ph" and event.get("d"):
            tree.links.pop(event["ph"], None)
        elif action == "ph":
            tree.links[event["ph"]] = event["h"]

    def _add_node(self, raw_node: Any) -> Any:
        from mega.data_structures import Node

        node = self._core.decrypt(Node.parse(raw_node))
        self._tree.add(node)
        return node

    def _forget(self, session_id: str | None) -> None:
        """Log in again at the next operation if the present session has ended: a late refusal may be of a former one.

        What is known of the account stays, because other operations are under way with it.
        """
        if self._is_logged_in and session_id == self._api.session_id:
            self._is_logged_in = False

    async def prepare(self, folder: str) -> None:
        """Look up a folder once: later puts into it do not ask what has changed."""
        if (await self.tree()).folder_at(folder) is not None:
            self._prepared.add(folder)

    # ---------------------------------------------------------------- looking up

    async def find_node(self, path: str) -> Any:
        """Return the node of a path, as the service knows it now."""
        return _first_node((await self.tree()).nodes_at(path))

    async def descendants(self, folder: str) -> list[tuple[str, Any]]:
        """Return everything below a folder."""
        tree = await self.tree()
        if _first_node(tree.nodes_at(folder)).is_file:
            raise OwnError(ErrorKind.CONFLICT, "a file, not a folder")
        return [*tree.descendants(folder)]

    async def _ensure_folder(self, path: str) -> Any:
        """Return a folder. Creates it and its parents if it does not exist."""
        existing = self._tree.folder_at(path)
        if existing is not None:
            return existing
        async with self._lock:  # two threads would make two folders of one name
            parent, current = self._tree.folder_at("/"), ""
            for name in filter(None, path.split("/")):
                current += f"/{name}"
                existing = self._tree.folder_at(current)
                if existing is None and self._tree.files_at(current):
                    raise OwnError(ErrorKind.CONFLICT, f"{current} is a file")
                parent = existing if existing is not None else await self._create_folder(parent, name)
        return parent

    async def _create_folder(self, parent: Any, name: str) -> Any:
        key = tuple(random.randrange(2**32) for _ in range(4))  # made as the SDK makes keys
        return (
            await self._create_nodes(
                parent, [{"h": "xxxxxxxx", "t": 1, **self._encrypt_attributes({"n": name}, key, key)}]
            )
        )[0]

    def _encrypt_attributes(self, attributes: dict[str, Any], key: Any, full_key: Any) -> dict[str, str]:
        """Return attributes and key encrypted as the service stores them."""
        from mega.crypto import a32_to_base64, b64_url_encode, encrypt_attr, encrypt_key

        return {
            "a": b64_url_encode(encrypt_attr(attributes, key)),
            "k": a32_to_base64(encrypt_key(full_key, self._core.vault.master_key)),
        }

    async def _create_nodes(self, parent: Any, entries: Sequence[dict[str, Any]]) -> list[Any]:
        api = self._api
        answer = await api.post({"a": "p", "t": parent.id, "n": entries, "i": api.client_id})
        return [self._add_node(raw_node) for raw_node in answer["f"]]

    # ---------------------------------------------------------------- content

    async def put(self, path: str, content: Content) -> Any:
        """Upload, and then remove the file that had the path before, because MEGA keeps both."""
        from mega import upload

        folder, _, name = path.rpartition("/")
        if not self._is_logged_in or folder not in self._prepared or self._tree.folder_at(folder) is None:
            await self.tree()
        if self._tree.folder_at(path) is not None:
            raise OwnError(ErrorKind.CONFLICT, "a folder has this path; MEGA would keep a file beside it")
        parent = await self._ensure_folder(folder)
        source: Any = _ContentPath(name, content)  # a path for the SDK
        handle, crypto = await upload.upload(self._api, source, content.size_bytes)
        answer = await upload.finish_upload(
            self._api, self._core.vault.master_key, handle, source, parent.id, crypto.full_key, crypto.key
        )
        former = self._tree.files_at(path)
        node = self._add_node(answer["f"][0])
        if former:
            await self._destroy_nodes([file.id for file in former], may_be_gone=True)
        return node

    async def read_pieces(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file's content in the chunks of its MAC, the last one only after the MAC was checked."""
        from mega.chunker import MegaChunker, get_chunks

        node = await self.find_node(path)
        if not node.is_file:
            raise OwnError(ErrorKind.CONFLICT, "a folder, not a file")
        answer = await self._api.post({"a": "g", "g": 1, "n": node.id, "ssl": 2})
        crypto, size_bytes = node._crypto, answer["s"]
        chunker = MegaChunker(crypto.key, crypto.iv, crypto.meta_mac)
        async with self._api.get(answer["g"]) as response:
            for offset, length in get_chunks(size_bytes):
                piece = chunker.read(await response.content.readexactly(length))
                if offset + length == size_bytes:
                    chunker.check_integrity()
                if piece:
                    yield piece

    # ---------------------------------------------------------------- changes

    async def delete(self, path: str) -> None:
        """Remove all nodes at a path for good, not into the rubbish bin, which counts against the quota."""
        nodes = (await self.tree()).nodes_at(path)
        _first_node(nodes)
        await self._destroy_nodes([node.id for node in nodes])

    async def _destroy_nodes(self, handles: Sequence[str], *, may_be_gone: bool = False) -> None:
        api = self._api
        commands = [{"a": "d", "n": handle, "i": api.client_id} for handle in handles]
        await self._send_commands(commands, accepted=(0, _GONE) if may_be_gone else (0,))
        for handle in handles:
            self._tree.remove(handle)

    async def _send_commands(self, commands: Sequence[dict[str, Any]], accepted: tuple[int, ...] = (0,)) -> None:
        """Send commands in one request. The SDK raises if a single command fails, but ignores failures in a list."""
        from mega.errors import RequestError

        try:
            answers = await self._api.post(list(commands))
        except RequestError as error:
            if error.code not in accepted:
                raise
            return
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, int) and answer not in accepted:
                raise RequestError(answer)

    async def mkdir(self, path: str) -> None:
        """Make a folder and its parents."""
        tree = await self.tree()
        if tree.folder_at(path) is None and tree.files_at(path):
            raise OwnError(ErrorKind.CONFLICT, "a file has this path; MEGA would keep a folder beside it")
        await self._ensure_folder(path)

    async def copy(self, source: str, target: str) -> Any:
        """Copy a file, or a folder with all below it, on the server: new nodes have the same content and keys."""
        node, parent = await self._prepare_transfer(source, target)
        entries: list[dict[str, Any]] = []
        pending = [(node, "")]
        while pending:
            original, parent_id = pending.pop()
            name = target.rpartition("/")[2] if original is node else original.attributes.name
            attributes = dataclasses.replace(original.attributes, name=name).serialize()
            entry = {
                "h": original.id,
                "t": int(original.type),
                **self._encrypt_attributes(attributes, original._crypto.key, original._crypto.full_key),
            }
            entries.append(entry | ({"p": parent_id} if parent_id else {}))
            if not original.is_file:
                pending += [(child, original.id) for child in self._tree.children_of(original)]
        return (await self._create_nodes(parent, entries))[0]

    async def move(self, source: str, target: str) -> Any:
        """Give a node another parent, another name or both: one request of up to two commands."""
        node, parent = await self._prepare_transfer(source, target)
        api, name = self._api, target.rpartition("/")[2]
        attributes = dataclasses.replace(node.attributes, name=name)
        commands: list[dict[str, Any]] = []
        if parent.id != node.parent_id:
            commands.append({"a": "m", "n": node.id, "t": parent.id, "i": api.client_id})
        if name != node.attributes.name:
            sealed = self._encrypt_attributes(attributes.serialize(), node._crypto.key, node._crypto.full_key)
            commands.append({"a": "a", "n": node.id, "at": sealed["a"], "i": api.client_id})
        await self._send_commands(commands)
        moved = dataclasses.replace(node, parent_id=parent.id, attributes=attributes)
        self._tree.add(moved)
        return moved

    async def _prepare_transfer(self, source: str, target: str) -> tuple[Any, Any]:
        node = await self.find_node(source)
        if self._tree.nodes_at(target):
            raise OwnError(ErrorKind.CONFLICT, f"{target} exists; MEGA would keep both")
        if f"{target}/".startswith(f"{source}/"):
            raise OwnError(ErrorKind.INVALID, "a folder cannot be put into itself")
        return node, await self._ensure_folder(target.rpartition("/")[0])

    # ---------------------------------------------------------------- links, space

    async def share(self, path: str) -> str:
        """Return the public link of a file, with its key."""
        from mega.crypto import a32_to_base64

        node = await self.find_node(path)
        if not node.is_file:
            raise OwnError(ErrorKind.INVALID, "this driver shares files only")
        handle = await self._api.post({"a": "l", "n": node.id, "i": self._api.client_id})
        self._tree.links[handle] = node.id
        return _LINK.format(kind="file", handle=handle, key=a32_to_base64(node._crypto.full_key))

    async def revoke(self, url: str) -> None:
        """End a public link."""
        tree = await self.tree()
        handle = url.partition("#")[0].rpartition("/")[2]
        if handle not in tree.links:
            raise OwnError(ErrorKind.NOT_FOUND, "no such link")
        await self._api.post({"a": "l", "n": tree.links[handle], "d": 1, "i": self._api.client_id})
        tree.links.pop(handle, None)

    async def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes in all."""
        if not self._is_logged_in:
            await self.tree()
        account = await self._core.get_account_stats()
        return int(account["cstrg"]), int(account["mstrg"])


def _first_node(nodes: Sequence[Any]) -> Any:
    if not nodes:
        raise OwnError(ErrorKind.NOT_FOUND, "no such path")
    return nodes[0]
