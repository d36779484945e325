"""Compares our validator with python-msgpack on random and damaged messages; run by hand.

    pip install msgpack
    python3 tests/proto/compare_msgpack.py BUILD/tests/proto/proto_check_lines [COUNT [SEED]]

python-msgpack takes more than we do, so what we refuse on purpose is checked here in Python: ext
types, map keys that are no text, come twice or are too long, nesting beyond 16, too many elements.
Exits with 1 at the first difference.
"""
import random
import struct
import subprocess
import sys
import time

import msgpack


class Refused(Exception):
    pass


def refuse_ext(code, data):
    raise Refused("ext type")


def check_pairs(pairs):
    keys = []
    for key, _ in pairs:
        if not isinstance(key, str):
            raise Refused("a key that is no text")
        if len(key.encode()) > 255:
            raise Refused("a long key")
        keys.append(key)
    if len(set(keys)) != len(keys):
        raise Refused("a key twice")
    return dict(pairs)


def measure(value, depth=0):
    """(elements, deepest nesting)"""
    if isinstance(value, msgpack.Timestamp):
        raise Refused("ext type")
    if isinstance(value, list):
        children = value
    elif isinstance(value, dict):
        children = list(value.values())
    else:
        return 1, depth
    elements = 1 + (len(value) if isinstance(value, dict) else 0)
    deepest = depth + 1
    for child in children:
        more, deep = measure(child, depth + 1)
        elements += more
        deepest = max(deepest, deep)
    return elements, deepest


def theirs(data):
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=refuse_ext,
                                object_pairs_hook=check_pairs, use_list=True, timestamp=0)
        elements, deepest = measure(value)
        return elements <= 65536 and deepest <= 16
    except Exception:
        return False


def random_value(rng, depth):
    choice = rng.randrange(14 if depth < 18 else 9)
    if choice < 3:
        return rng.choice([0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1])
    if choice == 3:
        return -rng.choice([1, 32, 33, 128, 129, 32768, 32769, 2**31, 2**63])
    if choice == 4:
        return rng.choice([None, True, False])
    if choice == 5:
        return struct.unpack("<f", rng.randbytes(4))[0]
    if choice == 6:
        return "".join(rng.choice("aZ\u00e9\u20ac\U0001d11e\x00") for _ in range(rng.randrange(40)))
    if choice == 7:
        return rng.randbytes(rng.choice([0, 1, 20, 300]))
    if choice == 8:
        return rng.choice(["", "x" * 31, "x" * 32, "x" * 255, "x" * 256])
    if choice < 12:
        return [random_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 3, 16]))]
    return {rng.choice(["a", "b", "cd", "\u00e9", "k" * 255, "k" * 256]): random_value(rng, depth + 1)
            for _ in range(rng.choice([0, 1, 2, 3]))}


def deep_value(rng):
    value = rng.choice([1, [], {}, "x"])
    for _ in range(rng.randrange(12, 20)):
        value = [value] if rng.random() < 0.7 else {"k": value}
    return value


def make(rng):
    kind = rng.randrange(10)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 24))
    value = deep_value(rng) if kind == 1 else random_value(rng, 0)
    data = bytearray(msgpack.packb(value, use_bin_type=True, use_single_float=rng.random() < 0.3))
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        if not data:
            break
        at = rng.randrange(len(data))
        action = rng.randrange(4)
        if action == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[at] = rng.choice([0x81, 0x91, 0xa1, 0xc1, 0xc4, 0xc7, 0xd4, 0xd9, 0xdc, 0xdd, 0xde,
                                   0xdf, 0xff])
        elif action == 2:
            del data[at]
        else:
            data.insert(at, rng.randrange(256))
    return bytes(data)


def main():
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()
    rng = random.Random(seed)
    print(f"seed {seed}, {count} messages")
    messages = [make(rng) for _ in range(count)]
    lines = "\n".join(message.hex() for message in messages) + "\n"
    verdicts = subprocess.run([program], input=lines, text=True, capture_output=True,
                              check=True).stdout.split()
    accepted = 0
    for message, verdict in zip(messages, verdicts, strict=True):
        wanted = theirs(message)
        accepted += wanted
        if (verdict == "1") != wanted:
            print(f"differs: ours {verdict}, theirs {int(wanted)}: {message.hex()}")
            return 1
    print(f"all agree; {accepted} are good, {count - accepted} are refused")
    return 0


sys.exit(main())
