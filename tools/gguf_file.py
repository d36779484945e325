"""Reads a GGUF file with nothing but numpy, for the scripts that make references and drafters."""
import struct

import numpy as np

ARRAY, STRING = 9, 8
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path):
    """Returns (keys, {name: float32 array}); F32, Q8_0 and Q4_1 tensors."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    at = 4

    def number(kind):
        nonlocal at
        value = struct.unpack_from("<" + kind, data, at)[0]
        at += struct.calcsize("<" + kind)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return bytes(data[at - size : at]).decode("utf-8")

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number(NUMBERS[kind])

    number("I")
    tensor_count, key_count = number("Q"), number("Q")
    keys = {text(): value(number("I")) for _ in range(key_count)}
    table = []
    for _ in range(tensor_count):
        name = text()
        shape = [number("Q") for _ in range(number("I"))][::-1]
        table.append((name, shape, number("I"), number("Q")))
    start = (at + 31) // 32 * 32
    return keys, {name: dequantise(data[start + at_ :], shape, kind) for name, shape, kind, at_ in table}


def dequantise(data, shape, kind):
    count = int(np.prod(shape))
    if kind == 0:
        return np.frombuffer(data[: 4 * count].tobytes(), "<f4").reshape(shape)
    blocks = count // 32
    if kind == 8:  # Q8_0
        raw = data[: 34 * blocks].reshape(blocks, 34)
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        return (scale * raw[:, 2:].copy().view(np.int8)).reshape(shape)
    if kind != 3:
        raise SystemExit(f"tensor type {kind} of the GGUF is not read here: F32, Q8_0 and Q4_1 are")
    raw = data[: 20 * blocks].reshape(blocks, 20)
    scale = raw[:, :2].copy().view("<f2").astype(np.float32)
    least = raw[:, 2:4].copy().view("<f2").astype(np.float32)
    values = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1).astype(np.float32)
    return (scale * values + least).reshape(shape)


def halves(weight, heads):
    """GGUF llama keeps the rows of q and k in pairs; here the halves of a head rotate."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)
