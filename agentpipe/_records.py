"""JSON in and out for the frozen records that agentpipe is made of.

Making and writing a record needs no pydantic, so that a streamed chunk stays cheap and ``import agentpipe`` stays
light. Reading one does: what comes from outside is validated field by field.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import date, datetime
from enum import Enum
from typing import Any, ClassVar, Self, cast

_MISSING = object()
_TOO_DEEP = "the JSON is nested too deeply"


def new_id(prefix: str) -> str:
    """A new identifier, unique without any coordination (80 random bits)."""
    return f"{prefix}_{os.urandom(10).hex()}"


class Record:
    """A dataclass that can be written as JSON and read back.

    ``type`` is the tag that tells kinds of one family apart (None where there is but one kind). Unknown fields are
    kept in ``extra``, so that a newer version's data survives a visit to an older one.
    """

    __slots__ = ()
    type: ClassVar[str | None] = None
    #: Fields that live in the process only and are never written.
    in_process: ClassVar[frozenset[str]] = frozenset()

    def model_dump(self) -> dict[str, Any]:
        """This record as JSON values; fields that hold their default are left out."""
        dumped: dict[str, Any] = {} if self.type is None else {"type": self.type}
        for name, default in _written_fields(type(self)):
            value = getattr(self, name)
            if value is not default and (default is None or default is _MISSING or value != default):
                dumped[name] = to_json(value)
        extra = getattr(self, "extra", None)
        return {**to_json(extra), **dumped} if extra else dumped

    def model_dump_json(self) -> str:
        """This record as a JSON text."""
        return json_text(self.model_dump())

    @classmethod
    def model_validate(cls, data: object) -> Self:
        """The record that ``data`` (a record, or JSON values) describes; ValueError that says what is wrong if none."""
        try:
            return cast("Self", cls._read(data))
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """The record that the JSON ``text`` describes; ValueError that says what is wrong if none."""
        try:
            return cast("Self", _adapter(cls).validate_json(text))
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except ValueError as error:
            if "Invalid JSON" not in str(error):
                raise
            try:  # half a surrogate pair is no JSON for the strict reader
                data = json.loads(text)
            except (ValueError, RecursionError):
                raise error from None
        return cls.model_validate(data)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        if getattr(_building, "record", None) is not cls:
            # A field of something else: pydantic would share one schema between fields, but not what stands around it.
            return core_schema.no_info_plain_validator_function(
                cls._read, serialization=core_schema.plain_serializer_function_ser_schema(Record.model_dump)
            )
        _building.record = None
        if cls._is_family():
            inner: Any = _dispatch_schema(cls)
        else:
            inner = _record_schema(cls, handler(source))

        def keep_records(data: object, read: Any) -> object:
            return data if isinstance(data, cls) else read(data)

        return core_schema.no_info_wrap_validator_function(
            keep_records, inner, serialization=core_schema.plain_serializer_function_ser_schema(Record.model_dump)
        )

    @classmethod
    def _read(cls, data: object) -> Record:
        """`model_validate` inside of another record: nesting that is too deep is told of by the outermost."""
        return cast("Record", _adapter(cls).validate_python(data))

    @classmethod
    def _is_family(cls) -> bool:
        """Whether this is the common base of several kinds, told apart by their tag."""
        return False

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The fields as they stand in JSON, made ready for validation."""
        return data

    @classmethod
    def _kind_of(cls, data: Mapping[str, Any]) -> RecordType:
        """Of a family: the kind that ``data`` describes."""
        raise NotImplementedError


#: A kind of record; an alias, since in the body of a Record ``type`` is its tag.
RecordType = type[Record]


def json_text(value: object) -> str:
    """The JSON text of JSON values, such that it can be encoded: a lone surrogate is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def to_json(value: object) -> Any:
    """``value`` as JSON values: records, models, dataclasses, dates, bytes and containers of them."""
    if value is None or (isinstance(value, (str, bool, int, float)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Record):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    import pydantic_core

    return pydantic_core.to_jsonable_python(value)


def _written_fields(cls: type[Record]) -> tuple[tuple[str, object], ...]:
    found = _WRITTEN.get(cls)
    if found is None:
        found = _WRITTEN[cls] = tuple(_find_written(cls))
    return found


def _find_written(cls: type[Record]) -> Iterator[tuple[str, object]]:
    for field in fields(cast("Any", cls)):
        if field.name == "extra" or field.name in cls.in_process:
            continue
        # A default factory means an empty container or an id: those are always written.
        yield field.name, field.default if _is_plain(field.default) else _MISSING


def _is_plain(default: object) -> bool:
    return default is None or isinstance(default, (str, int, bool, tuple))


_WRITTEN: dict[type[Record], tuple[tuple[str, object], ...]] = {}
_ADAPTERS: dict[type[Record], Any] = {}
#: ``record`` is the one whose own schema this thread is making, rather than that of a field somewhere.
_building = threading.local()
_LOCK = threading.RLock()


def _adapter(cls: type[Record]) -> Any:
    adapter = _ADAPTERS.get(cls)
    if adapter is None:
        from pydantic import TypeAdapter

        with _LOCK:
            _building.record = cls
            adapter = _ADAPTERS[cls] = TypeAdapter(cls)
    return adapter


def _dispatch_schema(family: type[Record]) -> Any:
    from pydantic_core import core_schema

    def pick(data: object) -> Record:
        if not isinstance(data, Mapping):
            raise ValueError(f"expected an object with a 'type', not {type(data).__name__}")
        return family._kind_of(data)._read(data)

    return core_schema.no_info_plain_validator_function(pick)


def _record_schema(cls: type[Record], schema: Any) -> Any:
    from pydantic_core import core_schema

    names = {field.name for field in fields(cast("Any", cls))}
    keeps_extra = "extra" in names
    tag = () if cls.type is None else ("type",)
    names -= {"extra", *cls.in_process}

    def sort_out(data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if cls.type is not None and data.get("type", cls.type) != cls.type:
            raise ValueError(f"the 'type' of a {cls.__name__} is {cls.type!r}, not {data['type']!r:.80}")
        known: dict[str, Any] = {key: value for key, value in data.items() if key in names}
        unknown = {key: value for key, value in data.items() if key not in names and key not in tag}
        if unknown and keeps_extra:
            known["extra"] = unknown
        return cls._from_json(known)

    return core_schema.no_info_before_validator_function(sort_out, schema)
