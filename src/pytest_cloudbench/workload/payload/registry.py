"""Tables of generators, edits and update streams by their names in configuration files, with parameter checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pytest_cloudbench.model import KIB, MIB, Content, UsageError
from pytest_cloudbench.workload.payload import edits, generators, jpeg
from pytest_cloudbench.workload.payload.base import Generator, IdenticalPayload, RandomContent, RandomPayload
from pytest_cloudbench.workload.payload.contents import Text
from pytest_cloudbench.workload.payload.sizes import EmpiricalSizes, FixedSize, LognormalSizes, Sizes, UniformSizes

_T = TypeVar("_T")
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Param:
    """The rule for one key: ``accepts`` checks a value, and ``expected`` describes valid ones in messages."""

    expected: str
    accepts: Callable[[Any], bool]
    default: Any = _REQUIRED

    def read(self, context: str, key: str, params: Mapping[str, Any]) -> Any:
        """Return the value of ``key`` or its default. Raises UsageError if it is missing or wrong."""
        value = params.get(key, self.default)
        if value is _REQUIRED:
            raise UsageError(f"{context}: {key} is missing; expected {self.expected}")
        if key in params and not self.accepts(value):
            raise UsageError(f"{context}: {key} is {value!r}; expected {self.expected}")
        return value


def _whole_number(minimum: int, default: Any = _REQUIRED) -> Param:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= minimum

    return Param(f"{minimum} or more (a whole number)", accepts, default)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _positive_number(default: Any = _REQUIRED) -> Param:
    return Param("a number above 0", lambda value: _is_number(value) and value > 0, default)


def _spread_value() -> Param:
    return Param("a number from 0 to 10", lambda value: _is_number(value) and 0 <= value <= 10, _REQUIRED)


def _share_value(default: Any = _REQUIRED) -> Param:
    return Param("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1, default)


def _one_of(*names: str, default: Any = _REQUIRED) -> Param:
    return Param("one of " + ", ".join(names), lambda value: isinstance(value, str) and value in names, default)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_whole_number(0).accepts(size) for size in value)


_SIZE = {"size_bytes": _whole_number(0)}
_WHERE = ("front", "middle", "back", "random")
_NEW = {"size_bytes": _whole_number(1), "content": _one_of("random", "text", default="random")}


GENERATORS: Mapping[str, tuple[Callable[..., Generator], Mapping[str, Param]]] = {
    "random": (RandomPayload, _SIZE),
    "identical": (IdenticalPayload, _SIZE),
    "sparse": (generators.SparsePayload, {
        **_SIZE, "text": Param("a text that is not empty", _is_text, "0123456789abcdef"),
    }),
    "delta": (generators.DeltaPayload, {
        **_SIZE, "percent": _share_value(), "where": _one_of("front", "middle", "back", "spread", default="front"),
    }),
    "text": (generators.TextPayload, _SIZE),
    "compressible": (generators.CompressiblePayload, {
        **_SIZE, "ratio": _share_value(), "chunk_bytes": _whole_number(1, default=4 * KIB),
    }),
    "duplicated": (generators.DuplicatedPayload, {
        **_SIZE, "ratio": _share_value(), "block_bytes": _whole_number(1, default=4 * KIB),
    }),
    "jpeg": (generators.JpegPayload, {"size_bytes": _whole_number(jpeg.MIN_BYTES)}),
    "fake_jpeg": (generators.FakeJpegPayload, _SIZE),
}  # fmt: skip
"""Constructors and parameters by name. ``mixed`` combines these."""

SIZES: Mapping[str, tuple[Callable[..., Sizes], Mapping[str, Param]]] = {
    "fixed": (FixedSize, _SIZE),
    "uniform": (UniformSizes, {"min_bytes": _whole_number(0), "max_bytes": _whole_number(0)}),
    "lognormal": (LognormalSizes, {
        "median_bytes": _whole_number(1), "sigma": _spread_value(),
        "min_bytes": _whole_number(0, default=0), "max_bytes": _whole_number(0, default=2**40),
    }),
    "empirical": (EmpiricalSizes, {
        "sizes_bytes": Param("a list of sizes", _are_sizes, None), "file": Param("a file name", _is_text, None),
    }),
}  # fmt: skip
"""Size distributions of ``mixed`` by name."""

EDITS: Mapping[str, Mapping[str, Param]] = {
    "append": _NEW,
    "prepend": _NEW,
    "insert": {**_NEW, "where": _one_of(*_WHERE, default="random")},
    "overwrite": {**_NEW, "where": _one_of(*_WHERE, default="random")},
    "truncate": {"keep_bytes": _whole_number(0)},
}
"""Edits by name."""

UPDATES: Mapping[str, tuple[Callable[..., Iterator[tuple[float, edits.Edit]]], Mapping[str, Param]]] = {
    "byte_appends": (edits.appends, {
        "interval_s": _positive_number(1.0), "block_bytes": _whole_number(1, default=1),
        "until_bytes": _whole_number(0, default=KIB),
    }),
    "block_appends": (edits.appends, {
        "interval_s": _positive_number(1.0), "block_bytes": _whole_number(1, default=50 * KIB),
        "until_bytes": _whole_number(0, default=5 * MIB),
    }),
    "http_download": (edits.http_download, {
        "size_bytes": _whole_number(0, default=5 * MIB), "rate_bytes_per_s": _positive_number(10_000.0),
        "write_bytes": _whole_number(1, default=4 * KIB),
    }),
    "two_users": (edits.two_users, {
        "duration_s": _positive_number(3600.0), "max_interval_s": _positive_number(10.0),
        "max_edit_bytes": _whole_number(1, default=10), "users": _whole_number(1, default=2),
    }),
}  # fmt: skip
"""Update streams by name."""


def make_generator(
    name: str, params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None = None
) -> Generator:
    """Return the generator with a name and parameters. See ``payload.generator``."""
    if name == "mixed":
        return _make_mixed(params, seed, read_text)
    build, keys = _look_up("payload", name, GENERATORS, "mixed")
    return build(seed, **_read_params(f"payload {name}", params, keys))


def make_edit(name: str, params: Mapping[str, Any], seed: str) -> edits.Edit:
    """Return an edit of an existing file. Raises UsageError with the wrong key."""
    values = _read_params(f"edit {name}", params, _look_up("edit", name, EDITS))
    if name == "truncate":
        return edits.Truncate(**values)
    new: Content = (Text if values["content"] == "text" else RandomContent)(seed, values["size_bytes"])
    if name == "overwrite":
        return edits.Overwrite(new, values["where"], seed)
    return edits.Insert(new, {"append": "back", "prepend": "front"}.get(name) or values["where"], seed)


def make_updates(name: str, params: Mapping[str, Any], seed: str) -> Iterator[tuple[float, edits.Edit]]:
    """Return an iterator of (due_s, edit). Raises UsageError with the wrong key at once, not at the first item."""
    build, keys = _look_up("updates", name, UPDATES)
    return build(seed, **_read_params(f"updates {name}", params, keys))


def _make_mixed(params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None) -> Generator:
    """Return files of different sizes. Raises UsageError for a distribution that cannot be drawn from."""
    context = "payload mixed"
    remaining = dict(params)
    make = _make_by_size(remaining.pop("content", "random"))
    distribution = remaining.pop("distribution", None)
    if isinstance(distribution, str):
        build, keys = _look_up(f"{context}: distribution", distribution, SIZES)
        values = _read_params(f"{context}, distribution {distribution}", remaining, keys)
        if distribution == "empirical":
            sizes: Sizes = _make_empirical(context, values, read_text)
        else:
            try:
                sizes = build(**values)
            except UsageError as error:
                raise UsageError(f"{context}, distribution {distribution}: {error}") from None
    elif hasattr(distribution, "draw"):
        _read_params(context, remaining, {})
        sizes = distribution
    else:
        raise UsageError(f"{context}: distribution is {distribution!r}; expected one of {', '.join(SIZES)}")
    make(sizes.least_bytes, seed)  # report a size that is too small for the content now, not in the middle of a run
    return generators.MixedPayload(seed, sizes, make)


def _make_by_size(content: Any) -> Callable[[int, str], Generator]:
    """Return a function from size and seed to a generator.

    ``content`` is a generator's name, or a table of its name and all its parameters except the size.
    """
    params = dict(content) if isinstance(content, Mapping) else {"generator": content}
    name = params.pop("generator", None)
    if not isinstance(name, str) or name not in GENERATORS:
        raise UsageError(f"payload mixed: content is {content!r}; expected one of {', '.join(GENERATORS)}, "
                         "or a table with generator and its parameters")  # fmt: skip
    if "size_bytes" in params:
        raise UsageError("payload mixed: content: size_bytes comes from the distribution; leave it out")
    return partial(_make_of_size, name, tuple(params.items()))


def _make_of_size(name: str, params: tuple[tuple[str, Any], ...], size_bytes: int, seed: str) -> Generator:
    return make_generator(name, {**dict(params), "size_bytes": size_bytes}, seed)


def _make_empirical(context: str, values: Mapping[str, Any], read_text: Callable[[str], str] | None) -> Sizes:
    sizes_bytes, file = values["sizes_bytes"], values["file"]
    if (sizes_bytes is None) == (file is None):
        raise UsageError(f"{context}, distribution empirical: expected either sizes_bytes or file")
    if sizes_bytes is not None:
        return EmpiricalSizes(tuple(sizes_bytes))
    if read_text is None:
        raise UsageError(f"{context}, distribution empirical: file cannot be read here; use EmpiricalSizes.parse")
    try:
        text = read_text(file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{context}, distribution empirical: file is {file!r}; cannot be read: {why}") from error
    return EmpiricalSizes.parse(text, file)


def _look_up(kind: str, name: object, table: Mapping[str, _T], *more: str) -> _T:
    if not isinstance(name, str) or name not in table:
        raise UsageError(f"{kind} {name!r} is not known; known are {', '.join([*table, *more])}")
    return table[name]


def _read_params(context: str, params: Mapping[str, Any], keys: Mapping[str, Param]) -> dict[str, Any]:
    for key in params:
        if key not in keys:
            raise UsageError(f"{context}: {key} is not a parameter of it; known are {', '.join(keys) or 'none'}")
    return {key: param.read(context, key, params) for key, param in keys.items()}
