#!/usr/bin/env python3
"""Writes models/file_nfc_compose.c and file_nfc_decompose.c from Python's Unicode database.

    python3 tools/make_nfc_table.py models
"""
import os
import sys
import unicodedata as u

HANGUL = range(0xAC00, 0xAC00 + 11172)
ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(values):
    """[(first, last, value)] of runs with an equal value that is not 0."""
    out = []
    for code, value in values:
        if value and out and out[-1][1] == code - 1 and out[-1][2] == value:
            out[-1][1] = code
        elif value:
            out.append([code, code, value])
    return out


decompositions, compositions, seconds = [], [], set()
for code in ALL:
    if code in HANGUL:
        continue
    full = u.normalize("NFD", chr(code))
    if full != chr(code):
        decompositions.append((code, [ord(c) for c in full]))
    mapping = u.decomposition(chr(code))
    if mapping and not mapping.startswith("<"):
        parts = [int(p, 16) for p in mapping.split()]
        # A pair composes unless the character is excluded, which NFC itself tells.
        if len(parts) == 2 and u.normalize("NFC", chr(code)) == chr(code):
            compositions.append((parts[0], parts[1], code))
            seconds.add(parts[1])
jamo = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))

classes = ranges((c, u.combining(chr(c))) for c in ALL)
changing = ranges(
    (c, int(u.combining(chr(c)) != 0 or c in seconds or c in jamo or u.normalize("NFC", chr(c)) != chr(c)))
    for c in ALL
)

# Texts of decompositions, each stored once in one array.
texts, places = [], []
for code, full in decompositions:
    places.append((code, len(texts), len(full)))
    texts += full
compositions.sort()


def write(name, tables):
    with open(os.path.join(sys.argv[1], name), "w") as f:
        f.write(f"/* Made by tools/make_nfc_table.py from Unicode {u.unidata_version}; do not edit.\n")
        f.write(" * Long because it is a table. */\n/* clang-format off */\n#include \"file_nfc.h\"\n")
        for kind, table, rows, per_line in tables:
            f.write(f"\nconst {kind} {table}[] = {{\n")
            for i in range(0, len(rows), per_line):
                f.write("    " + " ".join(row + "," for row in rows[i : i + per_line]) + "\n")
            f.write("};\n")
            if table != "FILE_NFC_TEXTS":
                f.write(f"const uint32_t {table}_COUNT = sizeof {table} / sizeof {table}[0];\n")
        f.write("/* clang-format on */\n")


write("file_nfc_compose.c", [
    ("file_nfc_range_t", "FILE_NFC_CLASSES", [f"{{0x{a:x}, 0x{b:x}, {v}}}" for a, b, v in classes], 4),
    ("file_nfc_range_t", "FILE_NFC_CHANGING", [f"{{0x{a:x}, 0x{b:x}, 1}}" for a, b, v in changing], 4),
    ("file_nfc_pair_t", "FILE_NFC_PAIRS", [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in compositions], 4),
])
write("file_nfc_decompose.c", [
    ("file_nfc_place_t", "FILE_NFC_PLACES", [f"{{0x{c:x}, {o}, {n}}}" for c, o, n in places], 5),
    ("uint32_t", "FILE_NFC_TEXTS", [f"0x{t:x}" for t in texts], 10),
])
