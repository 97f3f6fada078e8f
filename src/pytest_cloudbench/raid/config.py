"""The file of an array: its children, how many may fail, and the places of its key and its metadata.

What may live here: reading the file, and the master key. Whatever the file contains, ``load`` raises only ConfigError::

    k = 4                               # any four children are enough to read
    m = 2                               # any two may fail
    children = [                        # k + m specs, as --provider takes them
        "dropbox",
        { spec = "s3://bucket", name = "s3", store_usd_per_gib_month = 0.023, availability = 0.9999 },
        ...
    ]
    key = "array.key"                   # created at first use, for its owner only; or "keyring:NAME"
    metadata = "array.sqlite"           # default: beside this file, with the same name
    durability = "all"                  # or "k+1": a write is done once any one child that has it may fail
    placement = "equal"                 # or "throughput": more on faster children, while any m may fail
    overhead_at_most = 1.8              # with "throughput": bytes stored per byte; default: no bound
    folder = "/cloudraid"               # on each child
    segment_mib = 8                     # content coded together; each child gets one package of it
    patience_s = 2.0                    # how long a read waits for a child before it always asks one more
    hedge_percentile = 0.95             # ask one more child when one takes longer than usual; 1: never
    hedge_budget = 0.1                  # such extra requests per request
    mends = true                        # rebuild shares that a read finds missing or damaged
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from pytest_cloudbench.model import MIB, ConfigError, CredentialsError, ProviderSpec, did_you_mean
from pytest_cloudbench.raid.coding.reed_solomon import MOST_SHARES
from pytest_cloudbench.raid.coding.sealing import KEY_BYTES, MasterKey
from pytest_cloudbench.raid.tables import StrictTable
from pytest_cloudbench.support import opening, redact

_SHIPPED = Path(__file__).parent / "arrays"
PLACEMENTS = ("equal", "throughput")
"""Names of ways to spread content."""

_KEYS = ("children", "k", "m", "key", "metadata", "durability", "placement", "folder", "segment_mib", "patience_s",
         "mends", "overhead_at_most", "hedge_percentile", "hedge_budget")  # fmt: skip
_NUMBERS = ("store_usd_per_gib_month", "read_usd_per_gib", "write_usd_per_gib", "availability")
_KEYRING = "keyring:"


@dataclass(frozen=True, slots=True)
class Member:
    """One child of an array.

    Attributes:
        spec: the provider.
        name: its name in messages.
        store_usd_per_gib_month: price of storage. None, here and below: not known.
        read_usd_per_gib: price of reading.
        write_usd_per_gib: price of writing.
        availability: the probability that it answers, from 0 to 1.
    """

    spec: str
    name: str
    store_usd_per_gib_month: float | None = None
    read_usd_per_gib: float | None = None
    write_usd_per_gib: float | None = None
    availability: float | None = None


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """The contents of an array's file.

    Attributes:
        source: the file.
        children: k + m of them.
        k: how many children are enough to read.
        m: how many may fail.
        key: the file of the master key, or ``keyring:NAME``; empty if the file names none.
        metadata: the file of the metadata.
        losses: a write is done once this many of the children that have it may fail. None: when all have it.
        placement: one of PLACEMENTS.
        folder: where packages are on each child; ``/`` for its root.
        segment_bytes: the size of content coded together, whole MiB.
        patience_s: how long a read waits for a child before it always asks one more, and a deletion before it leaves
            the child to the background.
        mends: whether to rebuild shares that a read finds missing or damaged.
        overhead_at_most: the most bytes per byte that an uneven placement may store; infinite: no bound.
        hedge_percentile: a child that takes longer than this share of its answers is late, and another is asked.
            1: never.
        hedge_budget: such extra requests per request.
    """

    source: Path
    children: tuple[Member, ...]
    k: int
    m: int
    key: str
    metadata: Path
    losses: int | None
    placement: str
    folder: str
    segment_bytes: int
    patience_s: float
    mends: bool
    overhead_at_most: float = inf
    hedge_percentile: float = 0.95
    hedge_budget: float = 0.1

    @property
    def tolerated_failures(self) -> int:
        """The number of children that may fail without harm to an acknowledged write."""
        return self.m if self.losses is None else self.losses

    def child_containing(self, path: Path) -> str:
        """Return the name of the child in whose folder a path is, or an empty text if it is in none."""
        resolved = path.resolve()
        return next((name for name, folder in _child_folders(self).items() if resolved.is_relative_to(folder)), "")


def shipped_names() -> tuple[str, ...]:
    """Return the names of the arrays that ship with the package, whose children are all emulated."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def load(path: str | Path) -> ArrayFile:
    """Read the file of an array, or a shipped one by its name, with or without ``raid:``. Raises ConfigError."""
    path = str(path).removeprefix("raid:")
    source = Path(path)
    if str(path) in shipped_names():
        source = _SHIPPED / f"{path}.toml"
    elif source.suffix != ".toml":
        names = shipped_names()
        expected = f"expected raid:FILE.toml, or one of {', '.join(names)}{did_you_mean(str(path), names)}"
        raise ConfigError(f"array {str(path)!r}", "", expected)
    reader = StrictTable(str(path), opening.read_toml(source, "the file of an array"), _KEYS)
    children = _parse_members(reader)
    k, m = reader.number("k", None, 1, MOST_SHARES), reader.number("m", None, 0, MOST_SHARES)
    if k + m != len(children):
        reader.fail("children", f"expected k + m = {k + m} of them, found {len(children)}")
    if k + m > MOST_SHARES:
        reader.fail("children", f"expected at most {MOST_SHARES} of them, found {k + m}")
    metadata, key = reader.text("metadata", f"{source.stem}.sqlite"), reader.text("key", "")
    return ArrayFile(
        source=source, children=children, k=k, m=m,
        key=key if key.startswith(_KEYRING) or not key else str(source.absolute().parent / key),
        metadata=source.absolute().parent / metadata, losses=_parse_losses(reader, m),
        placement=reader.one_of("placement", PLACEMENTS), folder=_parse_folder(reader),
        segment_bytes=reader.number("segment_mib", 8, 1, 1024) * MIB,
        patience_s=reader.real("patience_s", 2.0, 0.001, 86400.0), mends=reader.flag("mends", True),
        overhead_at_most=_parse_overhead(reader, k, m),
        hedge_percentile=reader.real("hedge_percentile", 0.95, 0.5, 1.0),
        hedge_budget=reader.real("hedge_budget", 0.1, 0.0, 1.0),
    )  # fmt: skip


def _parse_members(reader: StrictTable) -> tuple[Member, ...]:
    listed = reader.get(
        "children", None, lambda value: isinstance(value, list) and len(value) > 0, "a list of specs, or of tables"
    )
    members = [_parse_member(reader, number, value) for number, value in enumerate(listed, 1)]
    names = [member.name for member in members]
    if len(set(names)) < len(names):  # equal specs are separate accounts, told apart by their numbers
        members = [
            replace(member, name=f"{number}:{member.name}") if names.count(member.name) > 1 else member
            for number, member in enumerate(members, 1)
        ]  # fmt: skip
    return tuple(members)


def _parse_member(reader: StrictTable, number: int, value: object) -> Member:
    if isinstance(value, str) and value.strip():
        return Member(value, value.partition("?")[0])
    if not isinstance(value, dict):
        reader.fail(f"children[{number}]", f"expected a spec or a table with one, found {ascii(value)[:60]}")
    table = reader.subtable(f"children[{number}].", value, ("spec", "name", *_NUMBERS))
    spec = table.text("spec", None)
    numbers = [table.real_if_any(key, 0.0, 1.0 if key == "availability" else 1e9) for key in _NUMBERS]
    return Member(spec, table.text("name", spec.partition("?")[0]), *numbers)


def _parse_losses(reader: StrictTable, m: int) -> int | None:
    text = reader.text("durability", "all")
    if text == "all":
        return None
    head, plus, losses = text.replace(" ", "").partition("+")
    if head != "k" or not plus or not (losses.isascii() and losses.isdigit()) or not int(losses) <= m:
        reader.fail("durability", f"expected all, or k+0 to k+{m}, found {text!r}")
    return int(losses)


def _parse_overhead(reader: StrictTable, k: int, m: int) -> float:
    overhead = reader.real_if_any("overhead_at_most", 1.0, 256.0)
    if overhead is None:
        return inf
    if overhead < (minimum := (k + m) / k):
        reader.fail("overhead_at_most", f"expected at least {minimum:.4g}, which is k + m over k, found {overhead:g}")
    return overhead


def _parse_folder(reader: StrictTable) -> str:
    folder = reader.text("folder", "/cloudraid")
    parts = folder.split("/")[1:]
    if not folder.startswith("/") or (folder != "/" and any(part in {"", ".", ".."} for part in parts)):
        reader.fail("folder", f"expected a path such as /cloudraid, found {folder!r}")
    return folder


def _child_folders(file: ArrayFile) -> dict[str, Path]:
    """Return the children that are folders of this machine: name to resolved path. Raises ConfigError."""
    folders = {}
    for member in file.children:
        spec = ProviderSpec.parse(member.spec)
        if spec.scheme == "folder":
            try:
                folders[member.name] = Path(spec.target).expanduser().resolve()
            except (OSError, RuntimeError, ValueError) as error:  # of a user that does not exist, for instance
                reason = f"cannot use the folder of the child {member.name}: {error}"
                raise ConfigError(str(file.source), "children", reason) from error
    return folders


def check_places(file: ArrayFile) -> None:
    """Raise ConfigError if a child holds what it must not: the key, the metadata, or another child."""
    for key, path in (("key", file.key), ("metadata", str(file.metadata))):
        if path and not path.startswith(_KEYRING) and (child := file.child_containing(Path(path))):
            reason = f"its provider could read {'everything' if key == 'key' else 'the names of all objects'}"
            raise ConfigError(str(file.source), key, f"{path} is in the folder of the child {child}: {reason}")
    folders = _child_folders(file)
    for name, folder in folders.items():
        for other, outer in folders.items():
            if folder != outer and folder.is_relative_to(outer):
                raise ConfigError(str(file.source), "children", f"{name} is inside {other}: they would fail together")


# --- the master key -----------------------------------------------------------------------------------


def missing_key_error(file: ArrayFile) -> ConfigError:
    """Return the error for a file without a key, of an array that outlives the run."""
    name = f"{file.source.stem}.key"
    expected = f'missing; expected a file, such as key = "{name}" (created at first use), or "{_KEYRING}NAME"'
    return ConfigError(str(file.source), "key", expected)


def is_key_missing(key: str) -> bool:
    """Return whether the file of a key does not exist. A key in the keyring never counts as missing."""
    return not key.startswith(_KEYRING) and not Path(key).exists()


def load_master_key(key: str) -> MasterKey:
    """Return the key from a file or from the keyring (``keyring:NAME``).

    A missing file is created, readable by its owner only. Raises CredentialsError, in one line.
    """
    if key.startswith(_KEYRING):
        return _parse_key(key, _read_from_keyring(key.removeprefix(_KEYRING)))
    path = Path(key)
    try:
        if is_key_missing(key):
            _create_key_file(path)
        with opening.open_regular_file(path, 4096) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read().decode("ascii", "replace")
    except OSError as error:
        raise CredentialsError(f"{path}: the master key cannot be read: {error.strerror or error}") from error
    if os.name == "posix" and mode & 0o077:
        raise CredentialsError(f"{path}: other users may read this key (mode {mode:04o}): run 'chmod 600 {path}'")
    return _parse_key(key, text)


def _create_key_file(path: Path) -> None:
    """Create a key file atomically: of several processes that try, one creates the key that all use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: use its key
            os.link(new, path)
        opening.sync_names(path.parent)  # before anything is sealed with it
    finally:
        new.unlink(missing_ok=True)


def _read_from_keyring(name: str) -> str:
    from pytest_cloudbench.providers import credentials
    from pytest_cloudbench.support import extras

    if reason := extras.missing_extra("keyring"):
        raise CredentialsError(f"{_KEYRING}{name}: {reason}")
    user = f"raid.{name}"
    answers, key = credentials.ask_keyring(user)
    if not answers:
        raise CredentialsError(f"{_KEYRING}{name}: the keyring does not answer")
    if not key:
        store = f"keyring set {credentials.KEYRING_SERVICE} {user}"
        command = f'python -c "import secrets; print(secrets.token_hex(32))" | {store}'
        raise CredentialsError(f"{_KEYRING}{name}: the keyring has no such key: run {command}")
    return key


def _parse_key(key: str, text: str) -> MasterKey:
    redact.learn([text.strip()])
    try:
        return MasterKey(bytes.fromhex(text.strip()))
    except ValueError:
        raise CredentialsError(f"{key}: expected {2 * KEY_BYTES} hexadecimal digits, the master key") from None
