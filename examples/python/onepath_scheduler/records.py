"""The .alog format: one record as bytes, and a writer of a scheduler's own log.

The format is that of docs/protocol.md, Log segments; `onepath log` reads what is written here.
"""
import os
import struct
import time

from . import codec

IN, OUT = codec.ENUMS["log_kind"]["IN"], codec.ENUMS["log_kind"]["OUT"]
TIMER, STATE_DIGEST = codec.ENUMS["log_kind"]["TIMER"], codec.ENUMS["log_kind"]["STATE_DIGEST"]
CHANNEL_DEF, CLOCK = codec.ENUMS["log_kind"]["CHANNEL_DEF"], codec.ENUMS["log_kind"]["CLOCK"]

_HEAD = struct.Struct("<IIBBHQQQB")  # size, check, kind, flags, channel, sequence, time, link sequence
_PREFIX = 8
_SIZE = struct.Struct("<I")


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data, crc=0):
    crc ^= 0xffffffff
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


class Record:
    __slots__ = ("kind", "channel", "sequence", "time_ns", "link_sequence", "parts")

    def __init__(self, kind, channel, sequence, time_ns, parts, link_sequence=0):
        self.kind, self.channel, self.sequence, self.time_ns = kind, channel, sequence, time_ns
        self.parts, self.link_sequence = parts, link_sequence

    def encode(self):
        tail = b"".join(_SIZE.pack(len(part)) + bytes(part) for part in self.parts)
        size = _HEAD.size + len(tail)
        pad = -size % 8
        head = _HEAD.pack(size + pad - _PREFIX, 0, self.kind, 0, self.channel, self.sequence,
                          self.time_ns, self.link_sequence, len(self.parts))
        rest = head[_PREFIX:] + tail + bytes(pad)
        return head[:4] + _SIZE.pack(crc32c(rest)) + rest


def read_record(file):
    """The next record of a stream; None at its end; ProtocolError if it is cut or damaged."""
    prefix = file.read(_PREFIX)
    if not prefix:
        return None
    if len(prefix) < _PREFIX:
        raise codec.ProtocolError("the stream ends within a record")
    size, check = struct.unpack("<II", prefix)
    if size < _HEAD.size - _PREFIX or size % 8 or size > codec.LIMITS["log_record_size_max"]:
        raise codec.ProtocolError(f"a record of {size} bytes")
    rest = file.read(size)
    if len(rest) < size:
        raise codec.ProtocolError("the stream ends within a record")
    if crc32c(rest) != check:
        raise codec.ProtocolError("the check of a record is wrong")
    _, _, kind, _, channel, sequence, time_ns, link_sequence, count = _HEAD.unpack(
        prefix + rest[:_HEAD.size - _PREFIX])
    at, parts = _HEAD.size - _PREFIX, []
    if count > 4:
        raise codec.ProtocolError(f"a record of {count} parts")
    for _ in range(count):
        if size - at < 4:
            raise codec.ProtocolError("a part lies outside its record")
        part_size = _SIZE.unpack_from(rest, at)[0]
        at += 4
        if part_size > size - at:
            raise codec.ProtocolError("a part lies outside its record")
        parts.append(rest[at:at + part_size])
        at += part_size
    return Record(kind, channel, sequence, time_ns, parts, link_sequence)


def _line(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.readline().strip()
    except OSError:
        return ""


class LogWriter:
    """One segment.  Numbers its records; `write` buffers, `flush` when there is time."""

    def __init__(self, path, name, epoch):
        self.sequence = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.file = os.fdopen(descriptor, "wb", buffering=1 << 16)
        page = bytearray(codec.LIMITS["log_header_size"])
        page[:8] = b"ALOG\r\n\x1a\n"
        struct.pack_into("<II16sQQQIIQQQI", page, 8, codec.LIMITS["log_version"], len(page),
                         os.urandom(16), time.monotonic_ns(), time.time_ns(), epoch, codec.VERSION,
                         0, codec.PROTOCOL["schema_hash"], 0, 1, codec.ROLE.SCHEDULER)
        for at, size, value in ((96, 32, name), (128, 64, _line("/proc/sys/kernel/hostname")),
                                (192, 64, _line("/proc/sys/kernel/random/boot_id")),
                                (256, 64, "python")):
            raw = value.encode()[:size - 1]
            page[at:at + len(raw)] = raw
        struct.pack_into("<I", page, len(page) - 4, crc32c(page[:-4]))
        self.file.write(page)
        self.append(CLOCK, 0, time.monotonic_ns(),
                    [struct.pack("<QQ", time.monotonic_ns(), time.time_ns())])

    def append(self, kind, channel, time_ns, parts, link_sequence=0):
        self.sequence += 1
        self.file.write(Record(kind, channel, self.sequence, time_ns, parts, link_sequence).encode())

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()
