"""Write the JSON Schema of ``*.bench.toml`` files, for editors, from the tables that their parser uses.

    python tools/make_bench_schema.py            # write src/pytest_cloudbench/plugin/configs/bench.schema.json
    python tools/make_bench_schema.py --check    # exit status 1 if the file differs from the tables

The schema accepts whatever the parser accepts. It is more lenient where a schema cannot express a rule, or only in a
way that editors explain badly: the order of operations, repeated names, bounds that cross, other keys of a grid, files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench.plugin.configs import bench_keys as keys
from pytest_cloudbench.workload.payload.registry import Param

FILE = Path(__file__).resolve().parent.parent / "src" / "pytest_cloudbench" / "plugin" / "configs" / "bench.schema.json"

Schema = dict[str, Any]

NEVER = False
"""The schema that nothing fits: a key with it must not be there."""


def of_key(key: keys.Key) -> Schema:
    """Return a key's schema with its description."""
    return {"description": key.about, **key.schema}


def of_param(name: str, param: Param) -> Schema:
    """Return the schema of a generator's parameter."""
    about = keys.ABOUT.get(name, f"Expected: {param.expected}.")
    default = param.default
    shown_default = {"default": default} if isinstance(default, (int, float, str)) else {}
    return {"description": about, **keys.param_schema(param), **shown_default}


def values_of(schema: Schema) -> Schema:
    """Return the schema of the values that a grid lists in place of one."""
    return {"type": "array", "items": schema, "minItems": 1, "uniqueItems": True}


def is_simple(schema: Schema) -> bool:
    """Return whether a grid can vary the value: numbers and texts, not lists."""
    return "anyOf" not in schema and schema.get("type") != "array"


def holds(table: str, name: str, schema: Any) -> Schema:
    """Return the condition that a table of an experiment has a key with a fitting value."""
    inner = {"properties": {name: schema}, "required": [name]}
    return {"properties": {table: inner}, "required": [table]}


def has(*path: str) -> Schema:
    """Return the condition that an experiment has a key, itself or in its grid."""
    return {"anyOf": [_deep(path), _deep(("grid", *path))]}


def _deep(path: Sequence[str]) -> Schema:
    inner = {} if len(path) == 1 else {"properties": {path[0]: _deep(path[1:])}}
    return {**inner, "required": [path[0]]}


def has_not(*names: str) -> Schema:
    """Return the condition that an experiment has none of these keys, neither itself nor in its grid."""
    absent = dict.fromkeys(names, NEVER)
    return {"properties": {**absent, "grid": {"properties": absent}}}


def when(condition: Schema, *then: Schema) -> Schema:
    """Return a rule of an experiment."""
    return {"if": condition, "then": then[0] if len(then) == 1 else {"allOf": list(then)}}


def keys_after_choice(table: str, name: str, params: Mapping[str, Schema], fixed: Iterable[str]) -> Schema:
    """Return the keys that a table and its grid may have after a choice. ``fixed`` keys are described elsewhere."""
    names = {"enum": [*fixed, *params]}
    lists = {key: values_of(schema) for key, schema in params.items() if is_simple(schema)}
    in_grid = {"properties": lists, "propertyNames": names}
    table_schema = {"properties": dict(params), "propertyNames": names}
    return {"properties": {table: table_schema, "grid": {"properties": {table: in_grid}}}}


# --- the parts of an experiment ---


def payload_rules() -> list[Schema]:
    """Return the rules for the parameters of each generator."""
    rules = []
    is_trace = holds("arrival", "process", {"const": "trace"})
    for name, params in keys.PAYLOADS.items():
        schemas = {key: of_param(key, param) for key, param in params.items()}
        needed = [has("payload", key) for key, param in params.items() if is_required(param) and key != "size_bytes"]
        is_generator = holds("payload", "generator", {"const": name})
        rules.append(when(is_generator, keys_after_choice("payload", "generator", schemas, ["generator"]), *needed))
    sized = {"enum": list(keys.PAYLOADS)}
    of_trace = {"payload": {"properties": {"size_bytes": NEVER, "generator": sized}},
                "grid": {"properties": {"payload": {"properties": {"size_bytes": NEVER}}}}}  # fmt: skip
    otherwise = when(holds("payload", "generator", sized), has("payload", "size_bytes"))
    rules.append({**when(is_trace, {"properties": of_trace}), "else": otherwise})
    is_mixed = holds("payload", "generator", {"const": "mixed"})
    rules.append(when(is_mixed, has("payload", "distribution")))
    for name, params in keys.MIXED.items():
        schemas = {key: of_param(key, param) for key, param in params.items()}
        needed = [has("payload", key) for key, param in params.items() if is_required(param)]
        if "file" in params:
            needed.append({"oneOf": [has("payload", "sizes_bytes"), has("payload", "file")]})
        fixed = ["generator", "distribution", "content"]
        condition = {"allOf": [is_mixed, holds("payload", "distribution", {"const": name})]}
        rules.append(when(condition, keys_after_choice("payload", "distribution", schemas, fixed), *needed))
    return rules


def arrival_rules() -> list[Schema]:
    """Return the rules for the keys of each arrival process."""
    rules = []
    for name, params in keys.ARRIVALS.items():
        schemas = {key: of_key(param) for key, param in params.items()}
        needed = [has("arrival", key) for key, param in params.items() if param.is_required]
        is_process = holds("arrival", "process", {"const": name})
        rules.append(when(is_process, keys_after_choice("arrival", "process", schemas, ["process"]), *needed))
    return rules


def until_rule() -> Schema:
    """Return the rule that every operation must support the metric that is to be steady."""
    metric, about = "throughput", list(keys.ONLY_OF["throughput"])
    return when(holds("until", "metric", {"const": metric}), {"properties": {"operations": {"items": {"enum": about}}}})


def is_required(param: Param) -> bool:
    """Return whether a generator needs the parameter."""
    return param.default is Param("", bool).default


def load_rules() -> list[Schema]:
    """Return the rules that an experiment has either sensors or threads, and the keys that belong to them."""
    is_trace = holds("arrival", "process", {"const": "trace"})
    of_sensors = [has("sensors"), has("ops_per_sensor")]
    return [
        {**when({"anyOf": [has(key) for key in keys.THREAD_KEYS]}, has("threads"), has("files"),
                has_not(*keys.SENSOR_KEYS)), "else": has("arrival", "process")},
        {**when(is_trace, {"properties": {"operations": NEVER}}),
         "else": when({"not": has("threads")}, *of_sensors)},
    ]  # fmt: skip


def content() -> Schema:
    """Return the schema of mixed's ``content``: a generator's name, or a table."""
    names = {"enum": list(keys.PAYLOADS)}
    tables = []
    for name, params in keys.PAYLOADS.items():
        schemas = {key: of_param(key, param) for key, param in params.items() if key != "size_bytes"}
        needed = [key for key, param in params.items() if key != "size_bytes" and is_required(param)]
        tables.append({"type": "object", "properties": {"generator": {"const": name}, **schemas},
                       "required": ["generator", *needed], "additionalProperties": False})  # fmt: skip
    return {"description": keys.ABOUT["content"], "anyOf": [names, *tables]}


def tables() -> Schema:
    """Return the tables of an experiment with all keys that editors can offer."""
    payload: Schema = {"generator": {"description": keys.ABOUT["generator"], "enum": [*keys.PAYLOADS, "mixed"]}}
    for params in (*keys.PAYLOADS.values(), *keys.MIXED.values()):
        payload |= {key: {"description": keys.ABOUT.get(key, "")} for key in params if key not in payload}
    payload |= {"distribution": {"description": keys.ABOUT["distribution"], "enum": list(keys.MIXED)},
                "content": content()}  # fmt: skip
    arrival: Schema = {"process": {"description": keys.ABOUT["process"], "enum": list(keys.ARRIVALS)}}
    for process_keys in keys.ARRIVALS.values():
        arrival |= {key: {"description": value.about} for key, value in process_keys.items() if key not in arrival}
    lists = ("content", "sizes_bytes", "curve")
    scalars = {"type": ["string", "number", "boolean"]}
    grids: Schema = {key: values_of(of_key(keys.EXPERIMENT[key])) for key in keys.GRID}
    for name, table in (("payload", payload), ("arrival", arrival)):
        varied = {
            key: value if "enum" in value else value | scalars for key, value in table.items() if key not in lists
        }
        varied = {key: values_of(value) for key, value in varied.items()}
        grids[name] = {"type": "object", "properties": varied, "additionalProperties": False}
    return {
        "payload": _closed_table(payload, keys.EXPERIMENT["payload"].about),
        "arrival": _closed_table(arrival, keys.EXPERIMENT["arrival"].about),
        "until": _closed_table({name: of_key(key) for name, key in keys.UNTIL.items()}, keys.EXPERIMENT["until"].about)
        | {"required": [name for name, key in keys.UNTIL.items() if key.is_required]},
        "gate": _closed_table({name: of_key(key) for name, key in keys.GATE.items()}, keys.EXPERIMENT["gate"].about),
        "grid": _closed_table(grids, keys.EXPERIMENT["grid"].about),
        "expect": {"type": "array", "description": keys.EXPERIMENT["expect"].about, "items": expectation()},
    }


def _closed_table(properties: Schema, about: str) -> Schema:
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def expectation() -> Schema:
    """Return the schema of one claim."""
    rates = [name for name, metric in keys.METRICS.items() if metric.unit == "fraction"]
    share = {"maximum": 1}
    return {
        "type": "object",
        "properties": {name: of_key(key) for name, key in keys.EXPECT.items()},
        "required": [name for name, key in keys.EXPECT.items() if key.is_required],
        "additionalProperties": False,
        "anyOf": [{"required": ["at_least"]}, {"required": ["at_most"]}],
        "if": {"properties": {"metric": {"enum": rates}}},
        "then": {"properties": {"at_least": share, "at_most": share}},
    }


def schema() -> Schema:
    """Return the whole schema."""
    experiment = {
        "type": "object",
        "properties": {name: of_key(key) for name, key in keys.EXPERIMENT.items()} | tables(),
        "required": [name for name, key in keys.EXPERIMENT.items() if key.is_required],
        "additionalProperties": False,
        "allOf": [has("payload", "generator"), *load_rules(), *payload_rules(), *arrival_rules(), until_rule()],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pytest-cloudbench experiments (*.bench.toml)",
        "description": "Made by tools/make_bench_schema.py; docs/reference/bench-files.md explains it.",
        "type": "object",
        "properties": {
            "experiment": {"type": "array", "description": "Each becomes a test.", "minItems": 1, "items": experiment}
        },
        "required": ["experiment"],
        "additionalProperties": False,
    }


def text() -> str:
    """Return the text of the file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the file, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the file differs")
    if not parser.parse_args(argv).check:
        FILE.write_text(text(), encoding="utf-8", newline="\n")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != text():
        print(f"{FILE.name} is not what the tables say; run: python tools/{Path(__file__).name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
