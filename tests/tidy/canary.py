"""A check that cannot fail is no check: plants one violation of each kind and wants it found."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

PLANTED = [
    ("includes", "proto/proto_x.c", '#include "sched_y.h"\n', {"scheduler/sched_y.h": "\n"}),
    ("includes", "scheduler/sched_x.c", "#include <czmq.h>\n", {}),
    ("includes", "kernels/kern_x.c", "#include <msgpack.h>\n", {}),
    ("words", "scheduler/sched_x.c", "void f(void) { assert" + "(1); }\n", {}),
    ("words", "proto/proto_x.c", "char *e = get" + 'env("X");\n', {}),
    ("words", "proto/proto_x.c", "/* TO" + "DO later */\n", {}),
    ("sizes", "proto/proto_x.c", "\n" * 700, {}),
    ("sizes", "proto/proto_x.c", "void\nf(void)\n{\n" + ";\n" * 90 + "}\n", {}),
    ("headers", "proto/proto_x.h", "uint32_t f(void);\n", {}),
    ("gates", "gpu/run/run_x.c", "int out_cache_loc;\n", {}),
    ("gates", "gpu/run/run_x.c", "int is_all_greedy;\n", {}),
]


def run(check, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return subprocess.run([sys.executable, os.path.join(HERE, "tidy.py"), check,
                               "--source", folder], capture_output=True, text=True).returncode


def main():
    failures = 0
    for check, name, text, others in PLANTED:
        if run(check, {name: text, **others}) != 1:
            print(f"{check} did not find the violation planted in {name}: {text[:60]!r}")
            failures += 1
        if run(check, {name: "\n", **others}) != 0:
            print(f"{check} found something in a clean {name}")
            failures += 1
    print(f"tidy canary: {len(PLANTED)} planted, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
