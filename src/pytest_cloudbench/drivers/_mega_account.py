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
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers._mega_loop import CountedSession
from pytest_cloudbench.drivers._mega_tree import NodeTree
from pytest_cloudbench.drivers.egress import leaving
from pytest_cloudbench.model import Content, Endpoint, ErrorKind
from pytest_cloudbench.support import redact

if TYPE_CHECKING:
    from types import TracebackType

API_URL = "https://g.api.mega.co.nz"
_LINK = "https://mega.nz/{kind}/{handle}#{key}"
_WAITS = ("X-MEGA-Time-Left", "Retry-After")
_GONE, _TOO_MANY_EVENTS = -9, -6


class Unfit(Exception):
    """The tree shows that an operation cannot be done, or that its path would become ambiguous."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class _Source:
    """What the SDK takes for the path of a file to upload: it opens the path and reads to the end."""

    def __init__(self, name: str, content: Content) -> None:
        self.name, self._content, self._place = name, content, 0

    def open(self, _mode: str) -> _Source:
        """Start from the beginning."""
        return self

    def read(self, length: int) -> bytes:
        """Return the next bytes."""
        data = self._content.read(self._place, length)
        self._place += len(data)
        return data

    def __enter__(self) -> _Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _api_class(url: str) -> Any:
    """Return the SDK's class for requests, bound to a service, without retries."""
    import yarl
    from mega.api import MegaAPI
    from mega.errors import RequestError

    class BoundAPI(MegaAPI):
        """One attempt for each request. Raises the refusal of an upload, which the SDK would return as a handle."""

        _entrypoint = yarl.URL(url)
        post = vars(MegaAPI)["post"].__wrapped__

        async def upload_chunk(self, upload_url: Any, offset: int, data: bytes) -> str:
            told = str(await super().upload_chunk(upload_url, offset, data))
            if told.startswith("-") and told[1:].isdigit():
                raise RequestError(int(told))
            return told

    return BoundAPI


class MegaAccount:
    """Logs in at the first operation.

    Args:
        endpoint: the service that stands in for MEGA; None for MEGA itself.
        email: the user.
        password: the password.
        timeout_s: for each single step of a request.
    """

    def __init__(self, endpoint: Endpoint | None, email: str, password: str, timeout_s: float) -> None:
        base_url = endpoint.url if endpoint else API_URL
        self._endpoint, self._email, self._password, self._timeout_s = endpoint, email, password, timeout_s
        self.egress = leaving(endpoint, base_url)
        self._commands, self._events = _api_class(f"{base_url}/cs"), _api_class(f"{base_url}/sc")
        self._session: CountedSession | None = None
        self._core: Any = None
        self._lock = asyncio.Lock()
        self._tree, self._place, self._position = NodeTree(), "", 0
        self._prepared: set[str] = set()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    # ---------------------------------------------------------------- login, and the tree

    async def _login(self) -> None:
        from mega import auth
        from mega.core import MegaCore
        from mega.errors import RequestError
        from mega.vault import MegaVault

        if self._session is None:
            self._session = CountedSession(self.egress, self._timeout_s, _WAITS, "X-Hashcash")
        api, events = self._commands(self._session), self._events(self._session)
        for each in (api, events):
            each._rate_limiter = contextlib.nullcontext()  # it would allow only 100 requests a minute
        try:
            found = await auth.login(api, self._email, self._password)
        except RequestError as error:
            if error.code != _GONE:
                raise
            raise Unfit(ErrorKind.AUTH, "no account has this name and password") from error
        redact.learn([found.session_id])
        api.session_id = events.session_id = found.session_id
        self._api, self._log = api, events
        core = MegaCore(api, vault=MegaVault(found.master_key))
        await self._read_all(core)
        self._core = core

    async def _read_all(self, core: Any) -> None:
        answer = await core.api.post({"a": "f", "c": 1, "r": 1})
        core.vault.update(answer)
        nodes = await core.deserialize_nodes(answer["f"])
        root = next(node.id for node in nodes if node.type.name == "ROOT_FOLDER")
        links = {link["ph"]: link["h"] for link in answer.get("ph", ())}
        self._tree, self._place = NodeTree(nodes, links, root), answer["sn"]
        self._position = 0

    async def tree(self) -> NodeTree:
        """Return the tree as the service knows it now: one request, with a short answer if nothing has changed."""
        if self._core is None:
            async with self._lock:
                if self._core is None:
                    await self._login()
                    return self._tree
        from mega.errors import RequestError

        tree, place, position = self._tree, self._place, self._position
        try:
            answer = await self._log.post([], {"sn": place})
        except RequestError as error:
            if error.code != _TOO_MANY_EVENTS:
                raise
            async with self._lock:
                if self._tree is tree:  # else another thread has read everything
                    await self._read_all(self._core)
            return self._tree
        if "a" in answer and tree is self._tree:
            # The answer to another thread's request may have come first, and may have held more events.
            known = self._position - position
            for event in answer["a"][known:]:
                self._apply(event)
            if len(answer["a"]) > known:
                self._place, self._position = answer["sn"], position + len(answer["a"])
        return self._tree

    def _apply(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("i") == self._api.client_id:
            return  # its own changes are in the tree
        tree, what = self._tree, event.get("a")
        if what == "t":
            for plain in event["t"]["f"]:
                self._add(plain)
        elif what == "d":
            tree.remove(event["n"])
        elif what == "u" and event["n"] in tree and "at" in event:
            node = tree.get(event["n"])
            attributes = self._core.decrypt_attrs(event["at"], node._crypto.key, node.id)
            tree.add(dataclasses.replace(node, attributes=attributes))
        elif what == "ph" and event.get("d"):
            tree.links.pop(event["ph"], None)
        elif what == "ph":
            tree.links[event["ph"]] = event["h"]

    def _add(self, plain: Any) -> Any:
        from mega.data_structures import Node

        node = self._core.decrypt(Node.parse(plain))
        self._tree.add(node)
        return node

    async def forget(self) -> None:
        """Log in again at the next operation: the session has ended."""
        self._core = None

    async def prepare(self, folder: str) -> None:
        """Look up a folder once: later puts into it do not ask what has changed."""
        if (await self.tree()).folder(folder) is not None:
            self._prepared.add(folder)

    # ---------------------------------------------------------------- looking up

    async def node(self, path: str) -> Any:
        """Return the node of a path, as the service knows it now."""
        return _first((await self.tree()).named(path))

    async def below(self, folder: str) -> list[tuple[str, Any]]:
        """Return everything below a folder."""
        tree = await self.tree()
        if _first(tree.named(folder)).is_file:
            raise Unfit(ErrorKind.CONFLICT, "a file, not a folder")
        return [*tree.under(folder)]

    async def _folder(self, path: str) -> Any:
        """Return a folder; creates it and its parents if it does not exist."""
        found = self._tree.folder(path)
        if found is not None:
            return found
        async with self._lock:  # two threads would make two folders of one name
            above, here = self._tree.folder("/"), ""
            for name in filter(None, path.split("/")):
                here += f"/{name}"
                found = self._tree.folder(here)
                if found is None and self._tree.files(here):
                    raise Unfit(ErrorKind.CONFLICT, f"{here} is a file")
                above = found if found is not None else await self._new_folder(above, name)
        return above

    async def _new_folder(self, parent: Any, name: str) -> Any:
        key = tuple(random.randrange(2**32) for _ in range(4))  # made as the SDK makes keys
        return (await self._new_nodes(parent, [{"h": "xxxxxxxx", "t": 1, **self._sealed({"n": name}, key, key)}]))[0]

    def _sealed(self, attributes: dict[str, Any], key: Any, full_key: Any) -> dict[str, str]:
        """Return attributes and key as the service stores them."""
        from mega.crypto import a32_to_base64, b64_url_encode, encrypt_attr, encrypt_key

        return {
            "a": b64_url_encode(encrypt_attr(attributes, key)),
            "k": a32_to_base64(encrypt_key(full_key, self._core.vault.master_key)),
        }

    async def _new_nodes(self, parent: Any, entries: Sequence[dict[str, Any]]) -> list[Any]:
        api = self._api
        answer = await api.post({"a": "p", "t": parent.id, "n": entries, "i": api.client_id})
        return [self._add(plain) for plain in answer["f"]]

    # ---------------------------------------------------------------- content

    async def put(self, path: str, content: Content) -> Any:
        """Upload; then remove what had the path before, because MEGA keeps both."""
        from mega import upload

        above, _, name = path.rpartition("/")
        if above not in self._prepared or self._tree.folder(above) is None:
            await self.tree()
        if self._tree.folder(path) is not None:
            raise Unfit(ErrorKind.CONFLICT, "a folder has this path; MEGA would keep a file beside it")
        parent = await self._folder(above)
        source: Any = _Source(name, content)  # a path for the SDK
        handle, crypto = await upload.upload(self._api, source, content.size_bytes)
        answer = await upload.finish_upload(
            self._api, self._core.vault.master_key, handle, source, parent.id, crypto.full_key, crypto.key
        )
        former = self._tree.files(path)
        node = self._add(answer["f"][0])
        if former:
            await self._destroy([each.id for each in former], may_be_gone=True)
        return node

    async def pieces(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file's content in the chunks of its MAC; the last one only after the MAC has proved right."""
        from mega.chunker import MegaChunker, get_chunks

        node = await self.node(path)
        if not node.is_file:
            raise Unfit(ErrorKind.CONFLICT, "a folder, not a file")
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
        """Remove all that has a path, for good: not into the rubbish bin, which counts against the quota."""
        found = (await self.tree()).named(path)
        _first(found)
        await self._destroy([node.id for node in found])

    async def _destroy(self, handles: Sequence[str], *, may_be_gone: bool = False) -> None:
        api = self._api
        commands = [{"a": "d", "n": handle, "i": api.client_id} for handle in handles]
        await self._each(commands, fine=(0, _GONE) if may_be_gone else (0,))
        for handle in handles:
            self._tree.remove(handle)

    async def _each(self, commands: Sequence[dict[str, Any]], fine: tuple[int, ...] = (0,)) -> None:
        """Send commands in one request. The SDK raises if a single command fails, but ignores failures in a list."""
        from mega.errors import RequestError

        try:
            answers = await self._api.post(list(commands))
        except RequestError as error:
            if error.code not in fine:
                raise
            return
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, int) and answer not in fine:
                raise RequestError(answer)

    async def mkdir(self, path: str) -> None:
        """Make a folder and its parents."""
        tree = await self.tree()
        if tree.folder(path) is None and tree.files(path):
            raise Unfit(ErrorKind.CONFLICT, "a file has this path; MEGA would keep a folder beside it")
        await self._folder(path)

    async def copy(self, source: str, target: str) -> Any:
        """Copy on the server, a folder with all below it: new nodes of the same content and keys."""
        node, parent = await self._place_for(source, target)
        entries: list[dict[str, Any]] = []
        left = [(node, "")]
        while left:
            each, above = left.pop()
            name = target.rpartition("/")[2] if each is node else each.attributes.name
            attributes = dataclasses.replace(each.attributes, name=name).serialize()
            entry = {
                "h": each.id,
                "t": int(each.type),
                **self._sealed(attributes, each._crypto.key, each._crypto.full_key),
            }
            entries.append(entry | ({"p": above} if above else {}))
            if not each.is_file:
                left += [(child, each.id) for child in self._tree.children(each)]
        return (await self._new_nodes(parent, entries))[0]

    async def move(self, source: str, target: str) -> Any:
        """Give a node another parent, another name or both: one request of up to two commands."""
        node, parent = await self._place_for(source, target)
        api, name = self._api, target.rpartition("/")[2]
        attributes = dataclasses.replace(node.attributes, name=name)
        commands: list[dict[str, Any]] = []
        if parent.id != node.parent_id:
            commands.append({"a": "m", "n": node.id, "t": parent.id, "i": api.client_id})
        if name != node.attributes.name:
            sealed = self._sealed(attributes.serialize(), node._crypto.key, node._crypto.full_key)
            commands.append({"a": "a", "n": node.id, "at": sealed["a"], "i": api.client_id})
        await self._each(commands)
        moved = dataclasses.replace(node, parent_id=parent.id, attributes=attributes)
        self._tree.add(moved)
        return moved

    async def _place_for(self, source: str, target: str) -> tuple[Any, Any]:
        node = await self.node(source)
        if self._tree.named(target):
            raise Unfit(ErrorKind.CONFLICT, f"{target} exists; MEGA would keep both")
        if f"{target}/".startswith(f"{source}/"):
            raise Unfit(ErrorKind.INVALID, "a folder cannot be put into itself")
        return node, await self._folder(target.rpartition("/")[0])

    # ---------------------------------------------------------------- links, space

    async def share(self, path: str) -> str:
        """Return the public link of a file, with its key."""
        from mega.crypto import a32_to_base64

        node = await self.node(path)
        if not node.is_file:
            raise Unfit(ErrorKind.INVALID, "this driver shares files only")
        handle = await self._api.post({"a": "l", "n": node.id, "i": self._api.client_id})
        self._tree.links[handle] = node.id
        return _LINK.format(kind="file", handle=handle, key=a32_to_base64(node._crypto.full_key))

    async def revoke(self, url: str) -> None:
        """End a public link."""
        tree = await self.tree()
        handle = url.partition("#")[0].rpartition("/")[2]
        if handle not in tree.links:
            raise Unfit(ErrorKind.NOT_FOUND, "no such link")
        await self._api.post({"a": "l", "n": tree.links[handle], "d": 1, "i": self._api.client_id})
        tree.links.pop(handle, None)

    async def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes in all."""
        if self._core is None:
            await self.tree()
        found = await self._core.get_account_stats()
        return int(found["cstrg"]), int(found["mstrg"])


def _first(nodes: Sequence[Any]) -> Any:
    if not nodes:
        raise Unfit(ErrorKind.NOT_FOUND, "no such path")
    return nodes[0]
