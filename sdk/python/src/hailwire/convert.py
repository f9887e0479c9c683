"""Values as bodies, and bodies as values, by type hints.

Bytes and text stand for themselves (text in UTF-8). Every other value travels as JSON: numbers, booleans, None, lists,
dicts with text keys, dataclasses, enumerations by their value, and unions of these. `schema_of` says the same as JSON
Schema.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .bodies import CHUNK_TYPES, Body, as_bytes

T = TypeVar("T")


def to_body(value: object) -> Body:
    """What is sent for a value: chunks as they are, everything else as `to_bytes` has it."""
    if value is None or isinstance(value, CHUNK_TYPES):
        return value
    if isinstance(value, AsyncIterable):
        return cast("AsyncIterable[bytes]", value)
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, Sequence)):
        return cast("Iterable[bytes]", value)
    return to_bytes(value)


def to_bytes(value: object) -> bytes:
    """A value as a body. Raises TypeError for one that JSON has no form for."""
    if value is None:
        return b""
    if isinstance(value, CHUNK_TYPES):
        return as_bytes(value)
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def is_json(value: object) -> bool:
    """Whether a value travels as JSON."""
    return not (value is None or isinstance(value, CHUNK_TYPES))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")


def value_of(kind: type[T], body: bytes) -> T:
    """A body as a value of a type. Raises TypeError or ValueError, which say what does not fit."""
    hint: Any = kind
    if hint in (bytes, Any, object) or hint is None:
        return cast("T", body)
    if hint is str:
        return cast("T", body.decode())
    if hint is bytearray:
        return cast("T", bytearray(body))
    return cast("T", shaped(hint, json.loads(body), "the body"))


def shaped(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as one of a type; `where` names it in errors."""
    if hint is Any or hint is object:
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(args, value, where)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} is one of {', '.join(map(repr, args))}, not {value!r}")
        return value
    if origin is typing.Annotated:
        return shaped(args[0], value, where)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    base = origin or hint
    if typing.is_typeddict(hint) or base in (dict, Mapping) or (isinstance(base, type) and issubclass(base, Mapping)):
        _expect(isinstance(value, dict), where, "an object", value)
        inner = args[1] if len(args) == 2 else Any
        return {key: shaped(inner, one, f"{where}.{key}") for key, one in value.items()}
    if base in (list, tuple, set, frozenset) or (
        isinstance(base, type) and base not in (str, bytes) and issubclass(base, Sequence)
    ):
        _expect(isinstance(value, list), where, "a list", value)
        return _sequence(base, args, value, where)
    return _scalar(base, value, where)


def _scalar(base: Any, value: Any, where: str) -> Any:
    if base is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if base in (None, type(None)):
        _expect(value is None, where, "null", value)
        return None
    if base in (bool, int, float, str):
        fits = isinstance(value, base) and not (base is int and isinstance(value, bool))
        _expect(fits, where, _JSON_NAMES[base], value)
        return value
    raise TypeError(f"{where} cannot be of type {base!r}, which JSON has no form for")


_JSON_NAMES: dict[Any, str] = {bool: "a boolean", int: "an integer", float: "a number", str: "a text"}


def _expect(fits: bool, where: str, what: str, value: Any) -> None:
    if not fits:
        raise TypeError(f"{where} is {what}, not {type(value).__name__}")


def _one_of(args: tuple[Any, ...], value: Any, where: str) -> Any:
    failures: list[str] = []
    for one in args:
        try:
            return shaped(one, value, where)
        except (TypeError, ValueError) as error:
            failures.append(str(error))
    raise TypeError("; or ".join(failures))


def _sequence(base: Any, args: tuple[Any, ...], value: list[Any], where: str) -> Any:
    if base is tuple and args and args[-1] is not Ellipsis:
        _expect(len(value) == len(args), where, f"a list of {len(args)}", value)
        return tuple(
            shaped(one, item, f"{where}[{at}]") for at, (one, item) in enumerate(zip(args, value, strict=True))
        )
    inner = args[0] if args else Any
    items = [shaped(inner, item, f"{where}[{at}]") for at, item in enumerate(value)]
    return base(items) if base in (tuple, set, frozenset) else items


def _dataclass(hint: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = get_type_hints(hint)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(hint):
        if field.name in value:
            given[field.name] = shaped(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} lacks `{field.name}`")
    return hint(**given)


def schema_of(hint: Any) -> dict[str, Any] | None:
    """JSON Schema of the values of a type; None where nothing is known of them."""
    if hint is None or hint in (Any, object, bytes, bytearray):
        return None
    if hint is str:
        return {"type": "string", "contentMediaType": "text/plain"}
    return _schema(hint)


def _schema(hint: Any) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is typing.Annotated:
        return _schema(args[0])
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        needed = [
            field.name
            for field in dataclasses.fields(hint)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        properties = {field.name: _schema(hints[field.name]) for field in dataclasses.fields(hint)}
        return {"type": "object", "properties": properties, "required": needed}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [one.value for one in hint]}
    base = origin or hint
    if base in _JSON_TYPES:
        return {"type": _JSON_TYPES[base]}
    if base in (list, tuple, set, frozenset, Sequence):
        return {"type": "array", "items": _schema(args[0])} if args else {"type": "array"}
    if base in (dict, Mapping) or typing.is_typeddict(hint):
        return {"type": "object", "additionalProperties": _schema(args[1])} if len(args) == 2 else {"type": "object"}
    return {}


_JSON_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    None: "null",
}
