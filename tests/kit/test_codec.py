"""The Python codec against the golden bytes of the C one, and against hostile bytes."""
import os
import random
import struct
import sys
import unittest
from array import array

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "examples", "python"))

import msgpack  # noqa: E402
from onepath_scheduler import codec, records  # noqa: E402

SEED = int(os.environ.get("ONEPATH_SEED") or random.SystemRandom().randrange(1 << 32))


def golden():
    """(kind, body, blob) of every message in the golden files of all released versions."""
    folder = os.path.join(SOURCE, "tests", "proto", "golden")
    for name in sorted(os.listdir(folder)):
        entry = {}
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            for line in file:
                key, _, value = line.rstrip("\n").partition(" ")
                if key == "message":
                    entry = {"kind": int(value.split()[1])}
                elif key in ("body", "blob"):
                    entry[key] = b"" if value == "-" else bytes.fromhex(value)
                elif key == "json":
                    yield entry["kind"], entry["body"], entry["blob"]


def a_plan():
    return codec.Plan(step=7, base_step=6, width=1, release_slots=array("I", [3]),
                      patch_slots=[1, 2], patch_groups=b"\0\0", patch_columns=[0, 4],
                      patch_counts=[2, 1], patch_blocks=[9, 8, 7], decode_slots=[1, 2, 5])


class Golden(unittest.TestCase):
    def test_every_golden_message_decodes_and_encodes_to_the_same_bytes(self):
        count, kinds = 0, set()
        for kind, body, blob in golden():
            message = codec.decode(kind, body, blob)
            if len(msgpack.unpackb(body, strict_map_key=False)) == len(message.FIELDS):
                self.assertEqual(codec.encode(message), (body, blob), codec.kind_name(kind))
                count += 1
            kinds.add(kind)
        self.assertGreater(count, 80)
        self.assertGreater(len(kinds), 45)


class Columns(unittest.TestCase):
    def test_columns_come_back_as_views(self):
        body, blob = codec.encode(a_plan())
        plan = codec.decode(codec.Plan.KIND, body, blob)
        self.assertEqual(list(plan.patch_blocks), [9, 8, 7])
        self.assertEqual(plan.decode_slots.format, "I")
        self.assertEqual(len(plan.extend_slots), 0)
        self.assertEqual(len(blob) % 4, 0)

    def test_offsets_are_aligned_and_gaps_zero(self):
        body, blob = codec.encode(a_plan())
        columns = [c for c in msgpack.unpackb(body) if isinstance(c, list) and c[1]]
        used = set()
        for (at, count), size in zip(columns, (4, 4, 1, 4, 4, 4, 4)):
            self.assertEqual(at % 64, 0)
            used.update(range(at, at + count * size))
        self.assertTrue(all(blob[at] == 0 for at in range(len(blob)) if at not in used))

    def test_what_is_wrong_with_a_column_is_said(self):
        for value, why in (([1, 2], "aligned"), ([64, 1 << 40], "limit"), ([1 << 62, 1], "aligned"),
                           ([-64, 1], "offset"), ([0, -1], "offset"), ([0], "offset"), (5, "offset"),
                           ([64, 1000], "aligned"), ([True, False], "offset"), ([0.0, 1], "offset")):
            raw = msgpack.packb([7, 6, 1, value])
            with self.assertRaisesRegex(codec.ProtocolError, why):
                codec.decode(codec.Plan.KIND, raw, bytes(128))

    def test_columns_may_not_overlap(self):
        raw = msgpack.packb([7, 6, 1, [0, 20], [64, 1]])
        with self.assertRaises(codec.ProtocolError):
            codec.decode(codec.Plan.KIND, raw, bytes(128))

    def test_floats_must_be_finite(self):
        for bad in (float("inf"), float("nan")):
            tokens = codec.Tokens(step=1, logprob_values=array("f", [0.0, bad]))
            body, blob = codec.encode(tokens)
            with self.assertRaisesRegex(codec.ProtocolError, "finite"):
                codec.decode(codec.Tokens.KIND, body, blob)


class Limits(unittest.TestCase):
    def test_a_value_beyond_its_limit_is_not_encoded(self):
        for message in (codec.Plan(width=17), codec.Plan(step=-1), codec.Plan(step=1 << 64),
                        codec.Finished(code="x" * 65), codec.Submit(priority=1000001),
                        codec.Plan(decode_slots=array("I", bytes(4 * 4097))),
                        codec.Plan(decode_slots=[-1]), codec.Plan(decode_slots=array("Q", [1])),
                        codec.Plan(decode_slots=array("f", [1])), codec.Bye(detail=b"bytes"),
                        codec.HttpState(ready=1), codec.Plan(step="7")):
            with self.assertRaises(codec.ProtocolError, msg=repr(message)):
                codec.encode(message)

    def test_a_field_that_does_not_exist_is_refused(self):
        with self.assertRaises(TypeError):
            codec.Plan(stepp=1)

    def test_a_newer_sender_is_understood_and_an_older_one_too(self):
        body, blob = codec.encode(a_plan())
        values = msgpack.unpackb(body)
        plan = codec.decode(codec.Plan.KIND, msgpack.packb(values + [1, "new", [2]]), blob)
        self.assertEqual(plan.step, 7)
        plan = codec.decode(codec.Plan.KIND, msgpack.packb(values[:2]), b"")
        self.assertEqual((plan.step, plan.width, len(plan.decode_slots)), (7, 0, 0))
        hello = codec.decode(codec.Hello.KIND, msgpack.packb({"role": 1, "later": [1]}), b"")
        self.assertEqual((hello.role, hello.name), (1, ""))


class Hostile(unittest.TestCase):
    """Never anything but a message or a ProtocolError."""

    def check(self, kind, body, blob):
        try:
            return codec.decode(kind, body, blob)
        except codec.ProtocolError:
            return None

    def test_every_truncation(self):
        for kind, body, blob in golden():
            for size in range(len(body)):
                self.assertIsNone(self.check(kind, body[:size], blob))
            for size in range(0, len(blob), 13):
                self.check(kind, body, blob[:size])

    def test_random_flips(self):
        random.seed(SEED)
        cases = list(golden())
        for _ in range(20000):
            kind, body, blob = random.choice(cases)
            raw = bytearray(body)
            for _ in range(random.randrange(1, 4)):
                if raw:
                    raw[random.randrange(len(raw))] = random.randrange(256)
            self.check(kind, bytes(raw), blob)
            try:
                codec.decode_header(bytes(raw[:random.randrange(40)]))
            except codec.ProtocolError:
                pass

    def test_msgpack_that_asks_for_too_much(self):
        deep = b"\x91" * 100000 + b"\x00"
        for raw in (b"\xdd\x04\x00\x00\x00", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", deep,
                    b"\xc7\x01\x05\x00", b"\xd4\x05\x00", b"\xc1", b"", b"\x93\x01",
                    b"\x91\x01\x01", msgpack.packb({"name": "a"}) + b"\x00",
                    b"\x82\xa1a\x01\xa1a\x02", b"\x81\x01\x02", b"\x91\xa1\xff"):
            for kind in (codec.Plan.KIND, codec.Hello.KIND):
                self.assertIsNone(self.check(kind, raw, b""), raw[:20])

    def test_headers(self):
        good = codec.encode_header(codec.Plan.KIND, 5, 6, 7, 8)
        self.assertEqual(codec.decode_header(good), (codec.VERSION, codec.Plan.KIND, 5, 6, 7, 8))
        for bad in (b"", good[:-1], good + b"\0", msgpack.packb([1, 2, 3, 4, 5]), msgpack.packb(1),
                    msgpack.packb([1, 70000, 3, 4, 5, 6]), msgpack.packb([1, -2, 3, 4, 5, 6]),
                    msgpack.packb([1, True, 3, 4, 5, 6]), msgpack.packb([1, 2, 3, 4, 5, 6] + [0] * 200)):
            with self.assertRaises(codec.ProtocolError):
                codec.decode_header(bad)


class Records(unittest.TestCase):
    def test_crc32c(self):
        self.assertEqual(records.crc32c(b"123456789"), 0xe3069283)

    def test_a_record_comes_back(self):
        import io
        record = records.Record(records.IN, 3, 9, 77, [b"head", b"body", b""], 5)
        raw = record.encode()
        self.assertEqual(len(raw) % 8, 0)
        back = records.read_record(io.BytesIO(raw))
        self.assertEqual((back.kind, back.channel, back.sequence, back.time_ns, back.link_sequence,
                          back.parts), (records.IN, 3, 9, 77, 5, [b"head", b"body", b""]))
        for size in range(1, len(raw)):
            with self.assertRaises(codec.ProtocolError):
                records.read_record(io.BytesIO(raw[:size]))
        for at in range(len(raw)):
            bad = bytearray(raw)
            bad[at] ^= 4
            with self.assertRaises(codec.ProtocolError):
                records.read_record(io.BytesIO(bytes(bad)))
        huge = struct.pack("<II", 0xfffffff8, 0)
        with self.assertRaises(codec.ProtocolError):
            records.read_record(io.BytesIO(huge))


if __name__ == "__main__":
    print(f"seed {SEED}")
    unittest.main()
