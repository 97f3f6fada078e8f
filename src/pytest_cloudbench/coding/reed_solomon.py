"""Reed-Solomon codes: data in k equal shares, m more that are made of them, and all of them again from any k.

What may live here: arithmetic in GF(2^8) and the two ways to do it for whole shares: ISA-L by pyeclib where that is
installed, and ``bytes.translate`` with NumPy everywhere. Both give the same bytes, so whoever reads need not have what
the writer had.

The code is systematic: the first k shares are the data itself. Parity share j is the sum of all data shares i, each
times 1 / (i xor j), in the field of polynomial 0x11d: a Cauchy matrix, any k rows of which can be solved. Source: J.
Bloemer et al., "An XOR-based erasure-resilient coding scheme", 1995; the same matrix is ISA-L's gf_gen_cauchy1_matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias

__all__ = ["CODECS", "MOST_SHARES", "Buffer", "Codec", "Isal", "Portable", "codec", "parts", "share_bytes"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are only read."""

MOST_SHARES = 256
"""Elements of the field, and so the most shares that there can be."""

_POLYNOMIAL = 0x11D
_BLOCK_BYTES = 1 << 16
"""What is worked on at a time: the blocks of all shares fit into a core's cache."""
_HEADER_BYTES = 80
"""What pyeclib puts in front of each share."""
_MOST_ISAL = 32
"""Shares that liberasurecode, which pyeclib is a shell of, can have."""


def share_bytes(size_bytes: int, data: int) -> int:
    """Returns the size of each share of some content in ``data`` shares; the last one is filled up with zeros."""
    return -(-size_bytes // data)


def parts(whole: Buffer, data: int) -> list[memoryview]:
    """Returns the data shares: equal parts, which are not copied. Raises ValueError for another size."""
    size_bytes = len(whole) // data
    if len(whole) != size_bytes * data:
        raise ValueError(f"{len(whole)} bytes are no {data} equal shares")
    view = memoryview(whole)
    return [view[number * size_bytes : (number + 1) * size_bytes] for number in range(data)]


class Codec(Protocol):
    """A way to compute one code. All codecs give the same bytes."""

    def encode(self, whole: Buffer) -> list[Buffer]:
        """Returns the parity shares of data whose size is a multiple of k: the data shares are its k equal parts."""
        ...

    def version(self) -> str:
        """Returns the library that does the work, and its version."""
        ...

    def rebuild(self, shares: Mapping[int, Buffer], wanted: Collection[int]) -> dict[int, Buffer]:
        """Returns wanted shares, data or parity, from any k others; by number, from 0.

        Raises ValueError if there are fewer than k, or of several sizes.
        """
        ...


def codec(data: int, parity: int) -> Codec:
    """Returns the fastest codec for a code that is installed. Raises ValueError for a code that cannot be."""
    if data < 1 or parity < 0 or data + parity > MOST_SHARES:
        raise ValueError(f"a code of {data} data and {parity} parity shares: expected 1 or more, at most 256 in all")
    return next(each(data, parity) for each in CODECS if each.serves(data, parity))


# --- the field ----------------------------------------------------------------------------------------


@cache
def _logarithms() -> tuple[list[int], list[int]]:
    """Returns powers of the generator 2 (twice around), and logarithms to it; that of 0 is not defined."""
    powers, logarithms, value = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value <<= 1
        value ^= _POLYNOMIAL if value & 0x100 else 0
    return powers, logarithms


def _times(one: int, other: int) -> int:
    powers, logarithms = _logarithms()
    return powers[logarithms[one] + logarithms[other]] if one and other else 0


def _inverse(value: int) -> int:
    powers, logarithms = _logarithms()
    return powers[255 - logarithms[value]]


@cache
def _table(factor: int) -> bytes:
    """Returns what each byte becomes times ``factor``, for ``bytes.translate``."""
    return bytes(_times(factor, value) for value in range(256))


def _row(share: int, data: int) -> list[int]:
    """Returns what a share is made of: a factor for each data share."""
    if share < data:
        return [int(each == share) for each in range(data)]
    return [_inverse(each ^ share) for each in range(data)]


@cache
def _recipe(data: int, given: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Returns the factors by which ``data`` given shares make the wanted one."""
    inverse, row = _inverted([_row(share, data) for share in given]), _row(wanted, data)
    factors = [0] * data
    for factor, line in zip(row, inverse, strict=True):
        factors = [old ^ _times(factor, value) for old, value in zip(factors, line, strict=True)]
    return tuple(factors)


def _inverted(rows: list[list[int]]) -> list[list[int]]:
    """Returns the inverse of a square matrix, by Gauss and Jordan; any rows of this code have one."""
    size = len(rows)
    work = [[*row, *(int(each == number) for each in range(size))] for number, row in enumerate(rows)]
    for column in range(size):
        pivot = next(number for number in range(column, size) if work[number][column])
        work[column], work[pivot] = work[pivot], work[column]
        scale = _inverse(work[column][column])
        work[column] = [_times(scale, value) for value in work[column]]
        for number, line in enumerate(work):
            if number != column and (factor := line[column]):
                work[number] = [a ^ _times(factor, b) for a, b in zip(line, work[column], strict=True)]
    return [line[size:] for line in work]


# --- codecs ------------------------------------------------------------------------------------------


class Portable:
    """``bytes.translate`` multiplies, NumPy adds: on every system, 250 to 600 MB of data a second with 4 + 2."""

    name = "portable"

    def __init__(self, data: int, parity: int) -> None:
        self._data, self._parity = data, parity

    @staticmethod
    def serves(data: int, parity: int) -> bool:
        """Every code."""
        del data, parity
        return True

    def version(self) -> str:
        """Returns the library that does the work, and its version."""
        import numpy as np

        return f"numpy {np.__version__}"

    def encode(self, whole: Buffer) -> list[Buffer]:
        """Returns the parity shares, see ``Codec``."""
        rows = [_row(number, self._data) for number in range(self._data, self._data + self._parity)]
        return _combined(parts(whole, self._data), rows)

    def rebuild(self, shares: Mapping[int, Buffer], wanted: Collection[int]) -> dict[int, Buffer]:
        """Returns wanted shares, see ``Codec``."""
        given = _chosen(shares, self._data)
        found: dict[int, Buffer] = {number: shares[number] for number in wanted if number in given}
        left = [number for number in wanted if number not in found]
        rows = [_recipe(self._data, given, number) for number in left]
        return found | dict(zip(left, _combined([shares[number] for number in given], rows), strict=True))


class Isal:
    """Intel's ISA-L, by pyeclib: 2 to 3 GB of data a second with 4 + 2. Its wheels are for Linux."""

    name = "isa-l"

    def __init__(self, data: int, parity: int) -> None:
        self._data, self._parity = data, parity
        self._driver = _isal(data, parity)

    @staticmethod
    def serves(data: int, parity: int) -> bool:
        """Codes with parity, of at most 32 shares, where pyeclib and its ISA-L are installed."""
        return bool(parity) and data + parity <= _MOST_ISAL and _isal(data, parity) is not None

    def version(self) -> str:
        """Returns the library that does the work, and its version."""
        from pyeclib.ec_iface import PYECLIB_VERSION

        return f"pyeclib {PYECLIB_VERSION >> 16}.{PYECLIB_VERSION >> 8 & 255}.{PYECLIB_VERSION & 255}"

    def encode(self, whole: Buffer) -> list[Buffer]:
        """Returns the parity shares, see ``Codec``."""
        if not parts(whole, self._data)[0]:
            return [b""] * self._parity
        made = self._driver.encode(bytes(whole))
        return [memoryview(each)[_HEADER_BYTES:] for each in made[self._data :]]

    def rebuild(self, shares: Mapping[int, Buffer], wanted: Collection[int]) -> dict[int, Buffer]:
        """Returns wanted shares, see ``Codec``."""
        given = _chosen(shares, self._data)
        found: dict[int, Buffer] = {number: shares[number] for number in wanted if number in given}
        left = [number for number in wanted if number not in found]
        size_bytes = len(shares[given[0]])
        if not left or not size_bytes:
            return found | dict.fromkeys(left, b"")
        headers = _headers(self._data, self._parity, size_bytes)
        whole = [headers[number] + bytes(shares[number]) for number in given]
        made = self._driver.reconstruct(whole, left)
        return found | {number: memoryview(each)[_HEADER_BYTES:] for number, each in zip(left, made, strict=True)}


CODECS: tuple[type[Isal] | type[Portable], ...] = (Isal, Portable)
"""The fastest first."""


@cache
def _isal(data: int, parity: int) -> Any:
    """Returns pyeclib's driver of a code; None if it cannot be had here."""
    try:
        from pyeclib.ec_iface import ECDriver, ECDriverError
    except ImportError:
        return None
    try:
        return ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy")
    except ECDriverError:
        return None


@cache
def _headers(data: int, parity: int, size_bytes: int) -> tuple[bytes, ...]:
    """Returns what pyeclib puts in front of each share of a size: it depends on nothing else."""
    return tuple(bytes(each[:_HEADER_BYTES]) for each in _isal(data, parity).encode(bytes(data * size_bytes)))


def _one_size(shares: Collection[Buffer], data: int) -> int:
    sizes = {len(share) for share in shares}
    if len(shares) != data or len(sizes) != 1:
        raise ValueError(f"{len(shares)} shares of {len(sizes)} sizes: expected {data} of one size")
    return sizes.pop()


def _chosen(shares: Mapping[int, Buffer], data: int) -> tuple[int, ...]:
    """Returns the numbers of the shares to work with: data shares first, since they need no arithmetic."""
    given = tuple(sorted(shares))[:data]
    _one_size([shares[number] for number in given], data)
    return given


def _combined(shares: Sequence[Buffer], rows: Sequence[Sequence[int]]) -> list[Buffer]:
    """Returns, for each row, the sum of all shares times the row's factors."""
    import numpy as np

    size_bytes = len(shares[0])
    made = [np.zeros(size_bytes, np.uint8) for _ in rows]
    for begin in range(0, size_bytes, _BLOCK_BYTES) if rows else ():
        for place, block in enumerate(_blocks(shares, begin)):
            for row, whole in zip(rows, made, strict=True):
                if factor := row[place]:
                    part = whole[begin : begin + _BLOCK_BYTES]
                    product = block if factor == 1 else block.translate(_table(factor))
                    np.bitwise_xor(part, np.frombuffer(product, np.uint8), out=part)
    return [whole.data for whole in made]


def _blocks(shares: Sequence[Buffer], begin: int) -> Iterator[bytes]:
    for share in shares:
        yield bytes(memoryview(share)[begin : begin + _BLOCK_BYTES])
