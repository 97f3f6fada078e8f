"""The commands that a client sends in lists to one address, each with its answer.

What may live here: one function per command. What the server cannot read (names, keys) passes through as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pytest_cloudbench.emulators.mega.errors import Code, Failure
from pytest_cloudbench.emulators.mega.login import User, decode
from pytest_cloudbench.emulators.mega.state import AccountState, PendingContent, Secret, is_seen, secret_of
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError

_UNLIMITED_BYTES = 2**50
_EXPORTED = "EXP"
_NEARLY_FULL = 9000  # hundredths of a percent: from here on the service warns

_Command = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a list of commands applies to.

    Attributes:
        state: the account's content.
        account: the user.
        now_s: the time.
        base_url: the address that the client used, for addresses in answers.
        public: the link to the public folder that handles refer to; empty: to the account's own nodes.
        session: the client's session.
    """

    state: AccountState
    account: User
    now_s: float
    base_url: str
    public: str = ""
    session: str = ""

    def node(self, handle: object) -> Node:
        """Returns the node of a handle: anywhere in the account, or in the public folder. Raises Failure."""
        found = self.state.read(handle, self.now_s)
        if self.public:
            top = self.state.linked(self.public, self.now_s)
            place = found if isinstance(found, Folder) else found.parent
            if found is not top and (place is None or not self.state.store.holds(top, place)):
                raise Failure(Code.ENOENT)
        return found


# ---------------------------------------------------------------- the user


def _prelogin(asked: Asked, command: _Command) -> Any:
    return asked.account.prelogin(command.get("user"))


def _login(asked: Asked, command: _Command) -> Any:
    return asked.account.login(command.get("user"), command.get("uh"), command.get("sek"))


def _logout(asked: Asked, command: _Command) -> Any:
    asked.account.end(asked.session)
    return 0


def _user(asked: Asked, command: _Command) -> Any:
    account = asked.account
    return {
        "u": account.user, "s": 1, "since": 1_577_836_800, "ipcc": "NZ", "email": account.email,
        "emails": [account.email], "pemails": [], "name": "Emulated User", "c": 1, "ts": "", "aav": account.version,
        "pubk": account.public_key(), **account.keys(),
    }  # fmt: skip


def _quota(asked: Asked, command: _Command) -> Any:
    state = asked.state
    counts = {}
    for top in (state.root, state.inbox, state.trash):
        files = [node for node in top.below() if isinstance(node, File)]
        folders = sum(isinstance(node, Folder) for node in top.below())
        counts[top.id] = [sum(file.versions[-1].blob.size_bytes for file in files), len(files), folders, 0, 0]
    return {
        "mstrg": state.store.quota_bytes or _UNLIMITED_BYTES, "cstrg": state.store.used_bytes, "cstrgn": counts,
        "uslw": _NEARLY_FULL, "usl": 0, "utype": 0, "srvratio": 0, "bt": 0, "tah": [0] * 6, "tar": 0, "tal": 0,
        "rua": 0, "ruo": 0, "tuo": 0, "tua": 0, "caxfer": 0, "csxfer": 0, "rtt": 1,
        "balance": [["0.00", "EUR"]], "subs": [], "plans": [], "features": [],
    }  # fmt: skip


# ---------------------------------------------------------------- reading


def _fetch(asked: Asked, command: _Command) -> Any:
    """All nodes of the account, of a public folder, or the one of a public link."""
    state, now_s = asked.state, asked.now_s
    if "p" in command:
        return {"f": [state.plain(state.linked(command["p"], now_s))]}
    if asked.public:
        top = state.linked(asked.public, now_s)
        if not isinstance(top, Folder):
            raise Failure(Code.ENOENT)
        nodes = [state.plain(node, top.id) for node in state.below(top, now_s)]
        nodes[0]["p"] = ""
        return {"f": nodes, "ok": [], "s": [], "noc": 1, "sn": state.place(now_s)}
    tops = [state.root, state.inbox, state.trash]
    if command.get("part"):
        tops = [state.folder(command.get("n"), now_s)]
    seen = [node for top in tops for node in state.below(top, now_s)]
    seen += state.store.fading(tops[0] if command.get("part") else None, now_s)
    shares = {handle: share for handle, share in state.shares.items() if _lives(asked, handle)}
    return {
        "f": [state.plain(node) for node in seen],
        "ok": [{"h": handle, "ha": share["ha"], "k": share["ok"]} for handle, share in shares.items()],
        "s": [{"h": handle, "u": _EXPORTED, "r": 0, "ts": int(float(share["ts"]))} for handle, share in shares.items()],
        "ph": [{"h": handle, "ph": link} for link, handle in state.links.items() if _lives(asked, handle)],
        "u": [{"u": state.user, "c": 2, "m": asked.account.email}],
        "sn": state.place(now_s),
        "noc": 1,
    }


def _lives(asked: Asked, handle: str) -> bool:
    found = asked.state.store.by_id(handle)
    return found is not None and found.deleted_s is None and is_seen(found, asked.now_s)


def _get(asked: Asked, command: _Command) -> Any:
    """Where a file can be read."""
    state, now_s = asked.state, asked.now_s
    node = state.linked(command["p"], now_s) if "p" in command else asked.node(command.get("n"))
    if not isinstance(node, File):
        raise Failure(Code.ENOENT)
    version = node.versions[-1]
    secret = secret_of(node)
    answer = {"s": version.blob.size_bytes, "at": secret.attributes, "msd": 1, "tl": 0}
    if secret.file_attributes:
        answer["fa"] = secret.file_attributes
    if command.get("g"):
        answer["g"] = f"{asked.base_url}/dl/{version.rev}"
    return answer


# ---------------------------------------------------------------- writing


def _upload(asked: Asked, command: _Command) -> Any:
    """Where content can be sent."""
    size_bytes, state = command.get("s"), asked.state
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise Failure(Code.EARGS)
    _require_space(asked, size_bytes)
    version = command.get("v", 0)
    name = state.tokens.next("", 48)
    state.uploads[name] = PendingContent(size_bytes, isinstance(version, int) and version >= 2)
    return {"p": f"{asked.base_url}/ul/{name}"}


def _require_space(asked: Asked, size_bytes: int) -> None:
    try:
        asked.state.store.require_space(size_bytes)
    except StoreError:
        raise Failure(Code.EOVERQUOTA) from None


def _put(asked: Asked, command: _Command) -> Any:
    """New nodes: folders, uploaded content, copies of nodes and of what public links show. All of them or none."""
    state, now_s = asked.state, asked.now_s
    target, wanted = state.folder(command.get("t"), now_s), command.get("n")
    if not isinstance(wanted, list) or not wanted or not all(isinstance(entry, dict) for entry in wanted):
        raise Failure(Code.EARGS)
    sources = [_source(asked, entry) for entry in wanted]
    _require_space(asked, sum(source.size_bytes for source in sources if source is not None))
    made: dict[str, Folder] = {}
    for entry in wanted:
        if "p" in entry and entry["p"] not in {other.get("h") for other in wanted if other.get("t") == 1}:
            raise Failure(Code.ENOENT)
    nodes: list[Node] = []
    for entry, source in zip(wanted, sources, strict=True):
        parent = made.get(entry["p"]) if "p" in entry else target
        if parent is None:
            raise Failure(Code.EARGS)  # a folder comes before what is in it
        node: Node
        if source is None:
            node = made[str(entry.get("h"))] = state.store.add_folder(parent, state.new_name(), now_s)
        else:
            node = state.store.add_file(parent, state.new_name(), source, now_s)
            state.downloads[node.versions[-1].rev] = node.id
            state.finished.pop(str(entry.get("h")), None)
        node.extra = Secret(entry["t"], entry["a"], entry["k"], now_s, str(entry.get("fa", "")))
        nodes.append(node)
    by_handle = {str(entry.get("h")): node for entry, node in zip(wanted, nodes, strict=True)}
    _keep_share_keys(asked, command.get("cr"), by_handle)
    for entry in wanted:
        if "ov" in entry and _lives(asked, str(entry["ov"])):
            _remove(asked, state.own_node(entry["ov"], now_s), command)
    plain = [state.plain(node) for node in nodes]
    visible_s = max((node.versions[-1].visible_s for node in nodes if isinstance(node, File)), default=0.0)
    state.tell(now_s, command.get("i"), {"a": "t", "t": {"f": plain}, "ou": state.user}, visible_s)
    return {"f": plain}


def _source(asked: Asked, entry: _Command) -> Any:
    """Returns the content of a new file; None for a folder. Raises Failure."""
    kind = entry.get("t")
    if kind not in (0, 1) or isinstance(kind, bool):
        raise Failure(Code.EARGS)
    decode(entry.get("a"))
    if len(decode(entry.get("k"))) != (32 if kind == 0 else 16):
        raise Failure(Code.EARGS)
    if kind == 1:
        return None
    handle = entry.get("h")
    if isinstance(handle, str) and handle in asked.state.finished:
        return asked.state.finished[handle]
    node = asked.state.linked(entry["ph"], asked.now_s) if "ph" in entry else asked.state.node(handle, asked.now_s)
    if not isinstance(node, File):
        raise Failure(Code.ENOENT)
    return node.versions[-1].blob


def _attributes(asked: Asked, command: _Command) -> Any:
    """A node's new attributes, such as its name. The key that some clients add cannot differ, and is ignored."""
    node = asked.state.own_node(command.get("n"), asked.now_s)
    attributes = command.get("at", command.get("attr"))
    decode(attributes)
    secret = secret_of(node)
    secret.attributes = str(attributes)
    event = {"a": "u", "n": node.id, "u": asked.state.user, "at": attributes, "ts": int(secret.made_s)}
    asked.state.tell(asked.now_s, command.get("i"), event)
    return 0


def _move(asked: Asked, command: _Command) -> Any:
    state, now_s = asked.state, asked.now_s
    node, target = state.own_node(command.get("n"), now_s), state.folder(command.get("t"), now_s)
    if state.store.holds(node, target):
        raise Failure(Code.ECIRCULAR)
    state.store.move(node, target, node.name, now_s)
    _keep_share_keys(asked, command.get("cr"), {})
    origin = command.get("i")
    state.tell(now_s, origin, {"a": "d", "n": node.id, "m": 1})
    plain = [state.plain(each) for each in state.below(node, now_s)]
    state.tell(now_s, origin, {"a": "t", "t": {"f": plain}, "ou": state.user})
    return 0


def _delete(asked: Asked, command: _Command) -> Any:
    _remove(asked, asked.state.own_node(command.get("n"), asked.now_s), command)
    return 0


def _remove(asked: Asked, node: Node, command: _Command) -> None:
    store = asked.state.store
    store.remove(node, asked.now_s)
    asked.state.tell(asked.now_s, command.get("i"), {"a": "d", "n": node.id}, store.fading_until_s(node))


# ---------------------------------------------------------------- sharing


def _link(asked: Asked, command: _Command) -> Any:
    """A public link: returns the existing one, makes one, or removes it."""
    state = asked.state
    node = state.own_node(command.get("n"), asked.now_s)
    found = next((link for link, handle in state.links.items() if handle == node.id), None)
    if command.get("d"):
        if found is None:
            raise Failure(Code.ENOENT)
        del state.links[found]
        state.tell(asked.now_s, command.get("i"), {"a": "ph", "h": node.id, "ph": found, "d": 1})
        return 0
    if isinstance(node, Folder) and node.id not in state.shares:
        raise Failure(Code.EACCESS)
    if found is None:
        found = state.tokens.next("", 8)
        state.links[found] = node.id
        state.tell(asked.now_s, command.get("i"), {"a": "ph", "h": node.id, "ph": found})
    return found


def _share(asked: Asked, command: _Command) -> Any:
    """Make a folder readable for holders of its link, or stop that. There is nobody else to share with."""
    state = asked.state
    node = state.own_node(command.get("n"), asked.now_s)
    targets = command.get("s")
    if not isinstance(node, Folder) or not isinstance(targets, list) or not targets:
        raise Failure(Code.EARGS)
    for target in targets:
        if not isinstance(target, dict) or target.get("u") != _EXPORTED:
            raise Failure(Code.ENOENT)
        if target.get("r") in (0, "0"):
            for name in ("ok", "ha"):
                decode(command.get(name))
            state.shares[node.id] = {"ok": command["ok"], "ha": command["ha"], "ts": str(asked.now_s)}
            _keep_share_keys(asked, command.get("cr"), {})
        else:
            state.shares.pop(node.id, None)
            for each in state.below(node, asked.now_s):
                secret_of(each).share_keys.pop(node.id, None)
    return {"r": [0] * len(targets)}


def _keep_share_keys(asked: Asked, request: object, new: Mapping[str, Node]) -> None:
    """Keep the keys of nodes for shares: shares, nodes, and triples of two places and a key."""
    if request is None:
        return
    try:
        shares, handles, triples = cast("Any", request)
        for place in range(0, len(triples), 3):
            share, handle, key = shares[triples[place]], handles[triples[place + 1]], triples[place + 2]
            decode(key)
            secret_of(new.get(handle) or asked.state.node(handle, asked.now_s)).share_keys[share] = key
    except (TypeError, ValueError, IndexError, KeyError):
        raise Failure(Code.EARGS) from None


COMMANDS: Mapping[str, Callable[[Asked, _Command], Any]] = {
    "us0": _prelogin,
    "us": _login,
    "sml": _logout,
    "ug": _user,
    "uq": _quota,
    "f": _fetch,
    "g": _get,
    "u": _upload,
    "p": _put,
    "a": _attributes,
    "m": _move,
    "d": _delete,
    "l": _link,
    "s2": _share,
}
OPEN = frozenset({"us0", "us"})
"""Commands for which a client needs no session; ``f`` and ``g`` need none for public links."""
