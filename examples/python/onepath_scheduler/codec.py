"""The three parts of a message (header, body, blob) and the classes that they decode to.

Everything is made from protocol.json (`onepath protocol --json`): one class for each message, with
the fields as attributes.  Nothing here knows a socket.  Bytes from a peer are hostile: what does
not decode raises ProtocolError, whatever it is, and never anything else.

Columns (arrays of numbers in the blob) decode to memoryviews of the right format, without a copy.
To encode, a column is an array.array of the same entry size, such a memoryview, bytes (for u8), or
any list of numbers.
"""
import json
import math
import os
import struct
import sys
from array import array

import msgpack

if sys.byteorder != "little":
    raise ImportError("columns are little endian and read in place; this machine is not")

with open(os.path.join(os.path.dirname(__file__), "protocol.json"), encoding="utf-8") as _file:
    PROTOCOL = json.load(_file)

VERSION, VERSION_MIN = PROTOCOL["schema_version"], PROTOCOL["schema_version_min"]
LIMITS, ENUMS = PROTOCOL["limits"], PROTOCOL["enums"]
ALIGN = LIMITS["column_align"]
U64_MAX = (1 << 64) - 1


class _Names:
    """Numbers of an enum by name: STATUS.ERR_STALE, ROLE.GATEWAY."""

    def __init__(self, values):
        self._names = {}
        for name, value in values.items():
            name = name.upper().replace("-", "_")
            setattr(self, name, value)
            self._names[value] = name

    def name(self, value):
        return self._names.get(value, str(value))


STATUS, ROLE = _Names(ENUMS["status"]), _Names(ENUMS["role"])
FINISH, RULE = _Names(ENUMS["finish_reason"]), _Names(ENUMS["plan_rule"])
MODE, ROW_FLAG = _Names(ENUMS["step_mode"]), _Names(ENUMS["row_flag"])


class ProtocolError(Exception):
    """Bytes or values that break the protocol; `status` is the number to answer with."""

    def __init__(self, detail, status=STATUS.ERR_MALFORMED):
        super().__init__(detail)
        self.status = status


# ---- message classes ------------------------------------------------------------------------------

# Format of a column's entries for array and memoryview, and their size.
_COLUMNS = {"col_u8": ("B", 1), "col_u32": ("I", 4), "col_i32": ("i", 4), "col_u64": ("Q", 8),
            "col_f32": ("f", 4)}
_DEFAULTS = {"u32": 0, "u64": 0, "i64": 0, "f64": 0.0, "bool": False, "str": "", "bin": b""}
for _code, _size in _COLUMNS.values():
    if array(_code).itemsize != _size:
        raise ImportError(f"array entries of type {_code} have {array(_code).itemsize} bytes here")


class Message:
    """Base of all messages.  `request` is the header's (0 = none); `sequence` is the number that
    the message had on its link (0 = a message of our own)."""

    __slots__ = ("request", "sequence")
    NAME, KIND, WIRE, MAP, FIELDS, DEFAULTS = "", 0, False, False, (), ()

    def __init__(self, request=0, **fields):
        self.request = request
        self.sequence = 0
        for name, value in self.DEFAULTS:
            setattr(self, name, fields.pop(name, value))
        if fields:
            raise TypeError(f"{self.NAME} has no field {', '.join(fields)}")

    def __repr__(self):
        def show(value):
            if isinstance(value, (memoryview, array)):
                return f"[{len(value)}]" if len(value) > 16 else str(list(value))
            return f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
        shown = ", ".join(f"{name}={show(getattr(self, name))}" for name, *_ in self.FIELDS)
        return f"{self.NAME}({f'request={self.request}, ' if self.request else ''}{shown})"


def _make_class(table):
    fields = []
    for field in table["fields"]:
        code, size = _COLUMNS.get(field["type"], (None, 0))
        fields.append((field["name"], field["type"], field["limit"], code, size))
    name = "".join(part.capitalize() for part in table["name"].split("_"))
    return type(name, (Message,), {
        "__slots__": tuple(f[0] for f in fields), "__doc__": f"{table['route']}: {table['text']}.",
        "NAME": table["name"], "KIND": table["kind"], "WIRE": table["scope"] == "wire",
        "MAP": table["form"] == "map", "FIELDS": tuple(fields),
        "DEFAULTS": tuple((f[0], _DEFAULTS.get(f[1], b"")) for f in fields)})


BY_KIND = {table["kind"]: _make_class(table) for table in PROTOCOL["messages"]}
# Hello, Init, Plan, StepResult, ...
globals().update({cls.__name__: cls for cls in BY_KIND.values()})


def kind_name(kind):
    return BY_KIND[kind].NAME if kind in BY_KIND else "UNKNOWN"


def text(value, size_max=1024):
    """A string cut to what a text field holds."""
    raw = value.encode("utf-8", "replace")
    return value if len(raw) <= size_max else raw[:size_max].decode("utf-8", "ignore")


# ---- header ---------------------------------------------------------------------------------------

_pack = msgpack.Packer(use_bin_type=True).pack


def encode_header(kind, epoch, sequence, request=0, cause=0):
    return _pack([VERSION, kind, epoch, sequence, request, cause])


def decode_header(raw):
    """(version, kind, epoch, sequence, request, cause)"""
    if len(raw) > LIMITS["header_size_max"]:
        raise ProtocolError("the header does not decode")
    header = _unpack(raw)
    if type(header) is not list or len(header) < 6:
        raise ProtocolError("the header does not decode")
    for number in header[:6]:
        if type(number) is not int or number < 0:
            raise ProtocolError("the header does not decode")
    if header[0] > 0xffffffff or header[1] > 0xffff:
        raise ProtocolError("the header does not decode")
    return tuple(header[:6])


# ---- body and blob --------------------------------------------------------------------------------

# ---- one frame for all parts (docs/protocol.md, Packed messages) -------------------------------------

_FRAME = struct.Struct("<BBHIII")
_FRAME_MARK, _FRAME_VERSION = 0xc1, 1


def parts(header, body, blob):
    return [header, body, blob] if blob else [header, body]


def pack_frame(header, body, blob):
    packed = _FRAME.pack(_FRAME_MARK, _FRAME_VERSION, 0, len(header), len(body), len(blob)) + header + body
    return packed + bytes(-len(packed) % ALIGN) + blob if blob else packed


def unpack_frame(frames):
    """The parts of a packed message; any other frames as they are."""
    if len(frames) != 1 or len(frames[0]) < _FRAME.size or frames[0][0] != _FRAME_MARK:
        return frames
    raw = frames[0]
    _, version, zero, header_size, body_size, blob_size = _FRAME.unpack_from(raw)
    body_at = _FRAME.size + header_size
    end = body_at + body_size
    blob_at = end + (-end % ALIGN if blob_size else 0)
    if version != _FRAME_VERSION or zero != 0 or len(raw) != blob_at + blob_size or any(raw[end:blob_at]):
        return frames  # no header: refused as such
    return parts(raw[_FRAME.size:body_at], raw[body_at:end], raw[blob_at:])


def _refuse_ext(_code, _data):
    raise ProtocolError("ext types are refused")


def _pairs(pairs):
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ProtocolError("a key comes twice in a map")
    return made


def _unpack(raw):
    try:
        return msgpack.unpackb(raw, raw=False, strict_map_key=True, object_pairs_hook=_pairs,
                               ext_hook=_refuse_ext, max_array_len=65536, max_map_len=256)
    except ProtocolError:
        raise
    except Exception as error:  # msgpack has many; all of them mean the same here
        raise ProtocolError(f"not msgpack: {type(error).__name__} {error}"[:160]) from None


def decode(kind, body, blob=b""):
    """The message that the parts hold.  Views into `blob` live as long as the message."""
    cls = BY_KIND.get(kind)
    if cls is None:
        raise ProtocolError(f"message number {kind} is not known", STATUS.ERR_UNSUPPORTED)
    if len(body) > LIMITS["body_size_max"] or len(blob) > LIMITS["blob_size_max"]:
        raise ProtocolError(f"{cls.NAME}: too many bytes", STATUS.ERR_TOO_LARGE)
    values = _unpack(body)
    message = cls.__new__(cls)
    message.request = message.sequence = 0
    if cls.MAP:
        if type(values) is not dict:
            raise ProtocolError(f"{cls.NAME}: the body is not a map")
        values = [values.get(name, default) for name, default in cls.DEFAULTS]
    elif type(values) is not list:
        raise ProtocolError(f"{cls.NAME}: the body is not an array")
    blob = memoryview(blob)
    end = 0  # of the last column: the next one begins at or after it
    for field, value in zip(cls.FIELDS, values):
        name, kind_of, limit, code, size = field
        if code is not None:
            if type(value) is not list or len(value) != 2:
                raise _wrong(cls, name, "[offset, count]")
            at, count = value
            if count == 0 and type(at) is int and type(count) is int and at >= 0:
                setattr(message, name, memoryview(b"").cast(code))
                continue
            if type(at) is not int or type(count) is not int or at < 0 or count < 0:
                raise _wrong(cls, name, "[offset, count]")
            if count > limit:
                raise _beyond(cls, name, count, limit)
            if at % ALIGN or at < end or at + count * size > len(blob):
                raise ProtocolError(f"{cls.NAME}.{name}: {count * size} bytes at offset {at} do not "
                                    f"lie aligned and free in a blob of {len(blob)}")
            end = at + count * size
            value = blob[at:end].cast(code)
            if code == "f" and not all(map(math.isfinite, value)):
                raise _wrong(cls, name, "finite")
        elif kind_of in ("u32", "u64"):
            if type(value) is not int or value < 0:
                raise _wrong(cls, name, "an unsigned integer")
            if value > limit:
                raise _beyond(cls, name, value, limit)
        else:
            value = _check_plain(cls, name, kind_of, limit, value)
        setattr(message, name, value)
    for name, default in cls.DEFAULTS[len(values):]:  # an older sender
        setattr(message, name, default)
    return message


def _wrong(cls, name, wanted):
    return ProtocolError(f"{cls.NAME}.{name}: not {wanted}")


def _beyond(cls, name, value, limit):
    return ProtocolError(f"{cls.NAME}.{name}: {value} is beyond the limit {limit}")


def _check_plain(cls, name, kind, limit, value):
    if kind == "i64":
        if type(value) is not int:
            raise _wrong(cls, name, "an integer")
        if abs(value) > limit:
            raise _beyond(cls, name, abs(value), limit)
    elif kind == "f64":
        if type(value) is int and abs(value) <= 1 << 53:
            return float(value)
        if type(value) is not float or not math.isfinite(value):
            raise _wrong(cls, name, "a finite number")
    elif kind == "bool":
        if type(value) is not bool:
            raise _wrong(cls, name, "true or false")
    elif kind == "str":
        if type(value) is not str:
            raise _wrong(cls, name, "text")
        if len(value) > limit or len(value.encode()) > limit:
            raise _beyond(cls, name, len(value.encode()), limit)
    else:
        if type(value) is not bytes:
            raise _wrong(cls, name, "bytes")
        if len(value) > limit:
            raise _beyond(cls, name, len(value), limit)
    return value


_EMPTY = [0, 0]
_PADS = [bytes(n) for n in range(ALIGN)]


def encode(message):
    """(body, blob); ProtocolError if a value is beyond its limit: such a message is never sent."""
    cls = type(message)
    values, parts, at = [], [], 0
    for name, kind, limit, code, size in cls.FIELDS:
        value = getattr(message, name)
        if code is not None:
            count = len(value)
            if count == 0:
                values.append(_EMPTY)
                continue
            if count > limit:
                raise _beyond(cls, name, count, limit)
            raw = _column(cls, name, value, code, size)
            pad = -at % ALIGN
            if pad:
                parts.append(_PADS[pad])
                at += pad
            values.append([at, count])
            parts.append(raw)
            at += count * size
        elif kind in ("u32", "u64"):
            if type(value) is not int or value < 0 or value > limit:
                raise _beyond(cls, name, value, limit)
            values.append(value)
        else:
            if kind == "bin" and type(value) is not bytes:
                value = bytes(value)
            values.append(_check_plain(cls, name, kind, limit, value))
    if cls.MAP:
        values = {field[0]: value for field, value in zip(cls.FIELDS, values)}
    return _pack(values), b"".join(parts)


def _column(cls, name, value, code, size):
    kind = type(value)
    if kind is array or kind is memoryview:
        if value.itemsize != size or (code == "f") != ((value.typecode if kind is array
                                                        else value.format) == "f"):
            raise ProtocolError(f"{cls.NAME}.{name}: entries of another type than {code}")
        return value
    if kind is bytes or kind is bytearray:
        if size != 1:
            raise ProtocolError(f"{cls.NAME}.{name}: bytes, where entries have {size} bytes")
        return value
    try:
        return array(code, value)
    except (TypeError, OverflowError, ValueError) as error:
        raise ProtocolError(f"{cls.NAME}.{name}: {error}") from None
