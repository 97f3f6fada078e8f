"""Parts of drivers of object stores: keys for paths, and a content that a library reads as a file.

What may live here: values and functions that know no provider. A key is a path without its first slash; there are no
folders, only keys with a common beginning.
"""

from __future__ import annotations

import io

from pytest_cloudbench.model import MIB, CloudError, Content, ErrorKind, ProviderSpec, SpecError

_BLOCK_BYTES = MIB
_HEX_DIGITS = frozenset("0123456789abcdef")


def key_of(verb: str, path: str) -> str:
    """Return the key of one object.

    Raises CloudError for a path that HTTP libraries or servers may turn into another object's: one with an empty part,
    ``.`` or ``..``; and for one that is not absolute or cannot be sent as text.
    """
    if not path.startswith("/"):
        raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /KEY")
    key = path[1:]
    # Strings' own methods here and below: with cold caches, as between two requests, ``re`` takes twice as long.
    if "//" in path or "/./" in path or "/../" in path or path.endswith(("/", "/.", "/..")):
        raise CloudError(ErrorKind.INVALID, verb, path, detail="no part of a key may be empty, . or ..")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise CloudError(ErrorKind.INVALID, verb, path, detail="not Unicode text") from error
    return key


def prefix_of(verb: str, folder: str) -> str:
    """Return the beginning of all keys below a folder. Empty for the root. Raises CloudError."""
    return "" if folder == "/" else key_of(verb, folder) + "/"


def bucket_of(spec: ProviderSpec, form: str) -> str:
    """Return the bucket that a spec names. Raises SpecError, which shows the ``form`` of specs, if it names none."""
    if not spec.target or "/" in spec.target:
        raise SpecError(f"provider {spec.text!r}: expected {form}")
    return spec.target


def path_of(key: str) -> str:
    """Return the path of a key."""
    return f"/{key}"


def md5_of(text: str | None) -> str | None:
    """Return an entity tag or a header as an MD5 in hex. None if it is not one, as for an object in several parts."""
    bare = (text or "").strip('"').lower()
    return bare if len(bare) == 32 and _HEX_DIGITS.issuperset(bare) else None


class ContentFile(io.RawIOBase):
    """A part of a content, by default all of it, as a file to read, with constant memory."""

    def __init__(self, content: Content, begin: int = 0, size_bytes: int | None = None) -> None:
        super().__init__()
        self._content, self._begin = content, begin
        self._size_bytes = content.size_bytes - begin if size_bytes is None else size_bytes
        self._at, self._block, self._block_at = 0, b"", 0

    def __len__(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes. They are fewer than asked for only at the end."""
        unread_bytes = max(0, self._size_bytes - self._at)
        length = unread_bytes if size is None or size < 0 else min(size, unread_bytes)
        is_large = length >= _BLOCK_BYTES
        data = self._content.read(self._begin + self._at, length) if is_large else self._read_small(length)
        self._at += len(data)
        return data

    def _read_small(self, length: int) -> bytes:
        """Return a few KiB from a kept block, because the content is made in larger blocks than libraries read."""
        begin = self._at - self._block_at
        if not (begin >= 0 and begin + length <= len(self._block)):
            self._block_at, begin = self._at, 0
            block_bytes = min(_BLOCK_BYTES, self._size_bytes - self._at)
            self._block = self._content.read(self._begin + self._at, block_bytes)
        return self._block[begin : begin + length]

    def readinto(self, buffer: object) -> int:
        """Fill a buffer, and return how many bytes it got."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # anything with the buffer protocol
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def as_file(content: Content) -> io.BytesIO | ContentFile:
    """Return a content as a file to read. A small one is in memory, where reading costs least."""
    size_bytes = content.size_bytes
    return io.BytesIO(content.read(0, size_bytes)) if size_bytes <= _BLOCK_BYTES else ContentFile(content)
