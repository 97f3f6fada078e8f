"""One function for each command of the API, which answers it.

Clients send lists of commands to one address. Names and keys are encrypted by the client: the server cannot read them,
and passes them on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from pytest_cloudbench.emulators.mega.errors import Code, Failure
from pytest_cloudbench.emulators.mega.login import User, decode
from pytest_cloudbench.emulators.mega.state import AccountState, ClientFields, PendingUpload, client_fields
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError

_UNLIMITED_BYTES = 2**50
_EXPORTED = "EXP"
_NEARLY_FULL = 9000  # hundredths of a percent of the space: the service warns above this

_Command = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The account, client and time that a list of commands applies to.

    Attributes:
        state: the content of the account.
        account: the user.
        now_s: when the request arrived.
        base_url: the scheme and host with which addresses in answers begin.
        public: the link of the public folder that handles refer to. If empty, they refer to the account's own nodes.
        session: the session of the client, empty without a login.
    """

    state: AccountState
    account: User
    now_s: float
    base_url: str
    public: str = ""
    session: str = ""

    def find_node(self, handle: object) -> Node:
        """Return the node with this handle in the account, or in the public folder. Raises Failure if there is none."""
        node = self.state.find_readable_node(handle, self.now_s)
        if self.public:
            top = self.state.find_linked_node(self.public, self.now_s)
            folder = node if isinstance(node, Folder) else node.parent
            if node is not top and (folder is None or not self.state.store.holds(top, folder)):
                raise Failure(Code.ENOENT)
        return node


# ---------------------------------------------------------------- the user


def _prelogin(context: CommandContext, command: _Command) -> Any:
    return context.account.prelogin(command.get("user"))


def _login(context: CommandContext, command: _Command) -> Any:
    return context.account.login(command.get("user"), command.get("uh"), command.get("sek"))


def _logout(context: CommandContext, command: _Command) -> Any:
    context.account.end_session(context.session)
    return 0


def _describe_user(context: CommandContext, command: _Command) -> Any:
    account = context.account
    return {
        "u": account.user, "s": 1, "since": 1_577_836_800, "ipcc": "NZ", "email": account.email,
        "emails": [account.email], "pemails": [], "name": "Emulated User", "c": 1, "ts": "", "aav": account.version,
        "pubk": account.public_key(), **account.encrypted_keys(),
    }  # fmt: skip


def _describe_quota(context: CommandContext, command: _Command) -> Any:
    state = context.state
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


def _list_nodes(context: CommandContext, command: _Command) -> Any:
    """List the nodes of the account or of a public folder, or the one node of a public link."""
    state, now_s = context.state, context.now_s
    if "p" in command:
        return {"f": [state.describe_node(state.find_linked_node(command["p"], now_s))]}
    if context.public:
        top = state.find_linked_node(context.public, now_s)
        if not isinstance(top, Folder):
            raise Failure(Code.ENOENT)
        nodes = [state.describe_node(node, top.id) for node in state.walk_visible(top, now_s)]
        nodes[0]["p"] = ""
        return {"f": nodes, "ok": [], "s": [], "noc": 1, "sn": state.current_cursor(now_s)}
    tops = [state.root, state.inbox, state.trash]
    if command.get("part"):
        tops = [state.find_folder(command.get("n"), now_s)]
    visible = [node for top in tops for node in state.walk_visible(top, now_s)]
    fading = state.store.fading(tops[0] if command.get("part") else None, now_s)
    visible += [file for file in fading if file.is_seen(now_s)]
    shares = {handle: share for handle, share in state.shares.items() if _is_live(context, handle)}
    return {
        "f": [state.describe_node(node) for node in visible],
        "ok": [{"h": handle, "ha": share["ha"], "k": share["ok"]} for handle, share in shares.items()],
        "s": [{"h": handle, "u": _EXPORTED, "r": 0, "ts": int(float(share["ts"]))} for handle, share in shares.items()],
        "ph": [{"h": handle, "ph": link} for link, handle in state.links.items() if _is_live(context, handle)],
        "u": [{"u": state.user, "c": 2, "m": context.account.email}],
        "sn": state.current_cursor(now_s),
        "noc": 1,
    }


def _is_live(context: CommandContext, handle: str) -> bool:
    node = context.state.store.by_id(handle)
    return node is not None and node.deleted_s is None and node.is_seen(context.now_s)


def _locate_content(context: CommandContext, command: _Command) -> Any:
    """Answer with the address from which the content of a file can be read."""
    state, now_s = context.state, context.now_s
    node = state.find_linked_node(command["p"], now_s) if "p" in command else context.find_node(command.get("n"))
    if not isinstance(node, File):
        raise Failure(Code.ENOENT)
    version = node.versions[-1]
    client_data = client_fields(node)
    answer = {"s": version.blob.size_bytes, "at": client_data.attributes, "msd": 1, "tl": 0}
    if client_data.file_attributes:
        answer["fa"] = client_data.file_attributes
    if command.get("g"):
        answer["g"] = f"{context.base_url}/dl/{version.rev}"
    return answer


# ---------------------------------------------------------------- writing


def _start_upload(context: CommandContext, command: _Command) -> Any:
    """Start an upload, and answer with the address for its content."""
    size_bytes, state = command.get("s"), context.state
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise Failure(Code.EARGS)
    _require_space(context, size_bytes)
    version = command.get("v", 0)
    name = state.tokens.next("", 48)
    state.uploads[name] = PendingUpload(size_bytes, isinstance(version, int) and version >= 2)
    return {"p": f"{context.base_url}/ul/{name}"}


def _require_space(context: CommandContext, size_bytes: int) -> None:
    try:
        context.state.store.require_space(size_bytes)
    except StoreError:
        raise Failure(Code.EOVERQUOTA) from None


def _add_nodes(context: CommandContext, command: _Command) -> Any:
    """Add nodes: folders, uploaded content, and copies of own or publicly linked nodes. Add all or none."""
    state, now_s = context.state, context.now_s
    target, entries = state.find_folder(command.get("t"), now_s), command.get("n")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise Failure(Code.EARGS)
    # Everything is checked before the first node is added.
    sources = [_resolve_source(context, entry) for entry in entries]
    _require_space(context, sum(source.size_bytes for source in sources if source is not None))
    _check_order(entries)
    share_keys = _read_share_keys(context, command.get("cr"), {str(entry.get("h")) for entry in entries})
    replaced = [_find_replaced(context, entry, target) for entry in entries]
    folders: dict[str, Folder] = {}
    nodes: list[Node] = []
    for entry, source in zip(entries, sources, strict=True):
        parent = folders[str(entry["p"])] if "p" in entry else target
        node: Node
        if source is None:
            node = folders[str(entry.get("h"))] = state.store.add_folder(parent, state.new_name(), now_s)
        else:
            node = state.store.add_file(parent, state.new_name(), source, now_s)
            state.downloads[node.versions[-1].rev] = node.id
            state.finished.pop(str(entry.get("h")), None)
        node.extra = ClientFields(entry["t"], entry["a"], entry["k"], now_s, str(entry.get("fa", "")))
        nodes.append(node)
    by_handle = {str(entry.get("h")): node for entry, node in zip(entries, nodes, strict=True)}
    _store_share_keys(context, share_keys, by_handle)
    for former in replaced:
        if former is not None and former.deleted_s is None:  # two entries may replace the same node
            _remove_node(context, former, command)
    descriptions = [state.describe_node(node) for node in nodes]
    visible_s = max((node.versions[-1].visible_s for node in nodes if isinstance(node, File)), default=0.0)
    for node in nodes:
        client_fields(node).announced_s = visible_s
    state.log_event(now_s, command.get("i"), {"a": "t", "t": {"f": descriptions}, "ou": state.user}, visible_s)
    return {"f": descriptions}


def _check_order(entries: Sequence[_Command]) -> None:
    """Raise Failure unless each folder for new nodes is listed before its content."""
    folders = [str(entry.get("h")) for entry in entries if entry["t"] == 1]
    listed: set[str] = set()
    for entry in entries:
        if "p" in entry and str(entry["p"]) not in listed:
            raise Failure(Code.EARGS if str(entry["p"]) in folders else Code.ENOENT)
        if entry["t"] == 1:
            listed.add(str(entry.get("h")))


def _find_replaced(context: CommandContext, entry: _Command, target: Folder) -> Node | None:
    """Return the node that a new one in the target replaces, or None. Raises Failure if it cannot be removed."""
    store = context.state.store
    node = store.by_id(str(entry["ov"])) if "ov" in entry else None
    if node is None or node.deleted_s is not None:
        return None
    replaced = context.state.find_own_node(node.id)
    if store.holds(replaced, target):
        raise Failure(Code.ECIRCULAR)
    return replaced


def _resolve_source(context: CommandContext, entry: _Command) -> Any:
    """Return the content of a new file, or None for a new folder. Raises Failure if the entry is invalid."""
    kind = entry.get("t")
    if kind not in (0, 1) or isinstance(kind, bool):
        raise Failure(Code.EARGS)
    decode(entry.get("a"))
    if len(decode(entry.get("k"))) != (32 if kind == 0 else 16):
        raise Failure(Code.EARGS)
    if kind == 1:
        return None
    handle = entry.get("h")
    if isinstance(handle, str) and handle in context.state.finished:
        return context.state.finished[handle]
    state, now_s = context.state, context.now_s
    node = state.find_linked_node(entry["ph"], now_s) if "ph" in entry else state.find_existing_node(handle)
    if not isinstance(node, File):
        raise Failure(Code.ENOENT)
    return node.versions[-1].blob


def _set_attributes(context: CommandContext, command: _Command) -> Any:
    """Replace the attributes of a node, such as its name.

    Some clients send the key of the node too. It cannot have changed, and is ignored.
    """
    node = context.state.find_own_node(command.get("n"))
    attributes = command.get("at", command.get("attr"))
    decode(attributes)
    client_data = client_fields(node)
    client_data.attributes = str(attributes)
    event = {"a": "u", "n": node.id, "u": context.state.user, "at": attributes, "ts": int(client_data.made_s)}
    context.state.log_event(context.now_s, command.get("i"), event, client_data.announced_s)
    return 0


def _move_node(context: CommandContext, command: _Command) -> Any:
    state, now_s = context.state, context.now_s
    node, target = state.find_own_node(command.get("n")), state.find_folder(command.get("t"), now_s)
    announced_s = client_fields(node).announced_s
    if state.store.holds(node, target):
        raise Failure(Code.ECIRCULAR)
    share_keys = _read_share_keys(context, command.get("cr"))
    state.store.move(node, target, node.name, now_s)
    _store_share_keys(context, share_keys)
    origin = command.get("i")
    state.log_event(now_s, origin, {"a": "d", "n": node.id, "m": 1}, announced_s)
    descriptions = [state.describe_node(entry) for entry in state.walk_visible(node, now_s)]
    state.log_event(now_s, origin, {"a": "t", "t": {"f": descriptions}, "ou": state.user}, announced_s)
    return 0


def _delete_node(context: CommandContext, command: _Command) -> Any:
    _remove_node(context, context.state.find_own_node(command.get("n")), command)
    return 0


def _remove_node(context: CommandContext, node: Node, command: _Command) -> None:
    store = context.state.store
    entries = [node, *(node.below() if isinstance(node, Folder) else ())]
    announced_s = max(client_fields(entry).announced_s for entry in entries)  # or the files below would come back
    store.remove(node, context.now_s)
    visible_s = max(announced_s, store.fading_until_s(node))
    context.state.log_event(context.now_s, command.get("i"), {"a": "d", "n": node.id}, visible_s)


# ---------------------------------------------------------------- sharing


def _change_link(context: CommandContext, command: _Command) -> Any:
    """Answer with the public link of a node, after making one if there is none. Or remove the link."""
    state = context.state
    node = state.find_own_node(command.get("n"))
    link = next((candidate for candidate, handle in state.links.items() if handle == node.id), None)
    announced_s = client_fields(node).announced_s
    if command.get("d"):
        if link is None:
            raise Failure(Code.ENOENT)
        del state.links[link]
        event = {"a": "ph", "h": node.id, "ph": link, "d": 1}
        state.log_event(context.now_s, command.get("i"), event, announced_s)
        return 0
    if isinstance(node, Folder) and node.id not in state.shares:
        raise Failure(Code.EACCESS)
    if link is None:
        link = state.tokens.next("", 8)
        state.links[link] = node.id
        event = {"a": "ph", "h": node.id, "ph": link}
        state.log_event(context.now_s, command.get("i"), event, announced_s)
    return link


def _change_share(context: CommandContext, command: _Command) -> Any:
    """Share a folder with the holders of its link, or stop that. The account has nobody else to share with."""
    state = context.state
    node = state.find_own_node(command.get("n"))
    targets = command.get("s")
    if not isinstance(node, Folder) or not isinstance(targets, list) or not targets:
        raise Failure(Code.EARGS)
    if any(not isinstance(target, dict) or target.get("u") != _EXPORTED for target in targets):
        raise Failure(Code.ENOENT)
    begins = [target.get("r") in (0, "0") for target in targets]
    for name in ("ok", "ha") if any(begins) else ():
        decode(command.get(name))
    share_keys = _read_share_keys(context, command.get("cr"))
    for is_shared in begins:
        if is_shared:
            state.shares[node.id] = {"ok": command["ok"], "ha": command["ha"], "ts": str(context.now_s)}
            _store_share_keys(context, share_keys)
        else:
            state.shares.pop(node.id, None)
            for entry in state.walk_visible(node, context.now_s):
                client_fields(entry).share_keys.pop(node.id, None)
    return {"r": [0] * len(targets)}


class _ShareKey(NamedTuple):
    """The key of a node in a share, each named by its handle. A new node has the handle of its entry."""

    share: str
    node: str
    key: str


def _read_share_keys(
    context: CommandContext, request: object, new_handles: Collection[str] = ()
) -> Sequence[_ShareKey]:
    """Return the keys of nodes in shares. Raises Failure if one is wrong or for an unknown node.

    ``request`` holds shares, handles of nodes, and a flat list of triples: index of a share, index of a handle, key.
    """
    if request is None:
        return ()
    keys = []
    try:
        shares, handles, triples = cast("Any", request)
        for offset in range(0, len(triples), 3):
            share, handle, key = shares[triples[offset]], handles[triples[offset + 1]], triples[offset + 2]
            decode(key)
            if not isinstance(share, str):
                raise TypeError(share)
            if handle not in new_handles:
                context.state.find_existing_node(handle)
            keys.append(_ShareKey(share, handle, key))
    except (TypeError, ValueError, IndexError, KeyError):
        raise Failure(Code.EARGS) from None
    return keys


def _store_share_keys(
    context: CommandContext, keys: Sequence[_ShareKey], new_nodes: Mapping[str, Node] = MappingProxyType({})
) -> None:
    """Store the keys of nodes in shares. ``new_nodes`` are those of the same command, by the handles of its entries."""
    for share, handle, key in keys:
        node = new_nodes.get(handle) or context.state.find_existing_node(handle)
        client_fields(node).share_keys[share] = key


COMMANDS: Mapping[str, Callable[[CommandContext, _Command], Any]] = {
    "us0": _prelogin,
    "us": _login,
    "sml": _logout,
    "ug": _describe_user,
    "uq": _describe_quota,
    "f": _list_nodes,
    "g": _locate_content,
    "u": _start_upload,
    "p": _add_nodes,
    "a": _set_attributes,
    "m": _move_node,
    "d": _delete_node,
    "l": _change_link,
    "s2": _change_share,
}
SESSIONLESS = ("us0", "us")
"""Commands that need no session. Neither do ``f`` and ``g`` for public links."""
