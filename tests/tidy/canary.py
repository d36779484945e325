"""A check that cannot fail is no check: plants one violation of each kind and wants it found."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

BUNDLES = {"gpu/backend/backend_base.h":
           "typedef struct {\n    uint32_t bs;\n    bool extend_with_prefix;\n} backend_extend_t;\n"
           "typedef struct {\n    uint32_t bs;\n    uint32_t actual_bs;\n} backend_refresh_t;\n"}

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
    ("registered", "tests/gpu/test_x.c", "START_TEST(a_test)\n{\n}\nEND_TEST\n", {}),
    ("registered", "tests/process/x.py",
     "def a():\n    pass\n\n\ndef b():\n    pass\n\n\nmain([a])\n",
     {"tests/process/CMakeLists.txt": 'onepath_process_test(x x.py "process" 9)\n'}),
    ("registered", "tests/process/CMakeLists.txt",
     'onepath_process_test(x x.py "process" 9 a)\n',
     {"tests/process/x.py": "def a():\n    pass\n\n\ndef b():\n    pass\n\n\nmain([a, b])\n"}),
    ("registered", "docs/gates.md", "| a gate | a_test_that_is_gone |\n", {}),
    ("registered", "docs/hazards.md", "| 1 | a hazard | a_test_that_is_gone |\n", {}),
    ("native", "examples/x.py", "import pic" + "kle\n", {}),
    ("native", "tools/x.py", "value = ev" + "al(text)\n", {}),
    ("native", "examples/x.py", "subprocess.run(words, shell=" + "True)\n", {}),
    ("native", "log/log_x.c", "void *f = dlop" + "en(name, 0);\n", {}),
    # One for each gate of tests/tidy/gates.py.
    ("gates", "gpu/run/run_x.c", "void init_forward_metadata_replay(void);\n", {}),
    ("gates", "gpu/sample/sample_x.c", "int is_all_greedy;\n", {}),
    ("gates", "gpu/model/model_x.c", "const int32_t *accept_lengths;\n", {}),
    ("gates", "gpu/model/model_x.h", "const int32_t *draft_seq_lens;\n", {}),
    ("gates", "gpu/model/model_base.h", "int32_t *dsa_swa_slot_mapping;\n", {}),
    ("gates", "gpu/backend/backend_x.h", "bool uses_cache_groups;\n", {}),
    ("gates", "gpu/backend/state/backend_x.c", "if (!self->cache_groups_bound) { return; }\n", {}),
    ("gates", "gpu/run/run_x.c", "int out_cache_loc;\n", {}),
    ("gates", "gpu/run/run_x.c", "router_stacks_decode(a, b, c, d);\n", {}),
    ("gates", "gpu/model/model_x.c", "int32_t slot = page_table[0];\n", {}),
    ("gates", "gpu/model/model_x.c", "const backend_tables_t *tables;\n", {}),
    ("gates", "gpu/backend/paged/backend_x.c", "const backend_table_t *table;\n", {}),
    ("gates", "gpu/run/run_x.c", "if (config->arch == FILE_ARCH_LLAMA) { eager(); }\n", {}),
    ("gates", "gpu/backend/paged/backend_x.c",
     "static const v_t v = {\n    .capture_forward_metadata = x_capture,\n};\n", {}),
    ("gates", "gpu/run/run_x.c", "backend_extend_t extend = {.bs = 1};\n", BUNDLES),
    ("gates", "gpu/run/run_x.c", "f((backend_refresh_t){.bs = 1});\n", BUNDLES),
    ("gates", "gpu/model/model_x.c", "rows->write_locations = locations;\n", {}),
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


def program_failures():
    """A program without hardening and with a library that nobody lists."""
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/bin")
        with open(f"{folder}/x.c", "w", encoding="utf-8") as file:
            file.write("#include <math.h>\nint main(int n, char **v) { (void)v; return (int)cos(n); }\n")
        done = subprocess.run(["cc", "-no-pie", "-fno-stack-protector", "-Wl,-z,norelro,-z,execstack", "-o",
                               f"{folder}/bin/onepath", f"{folder}/x.c", "-lm"], check=False)
        text = subprocess.run([sys.executable, os.path.join(HERE, "tidy.py"), "hardening", "--source", folder,
                               "--build", folder], capture_output=True, text=True, check=False).stdout
    missed = [word for word in ("PIE", "RELRO", "executable stack", "stack protector", "FORTIFY", "libm.so")
              if word not in text]
    if done.returncode != 0 or missed:
        print(f"hardening did not find {missed} in a program without any: {text}")
        return 1
    return 0


def main():
    failures = 0
    for check, name, text, others in PLANTED:
        if run(check, {name: text, **others}) != 1:
            print(f"{check} did not find the violation planted in {name}: {text[:60]!r}")
            failures += 1
        if run(check, {name: "\n", **others}) != 0:
            print(f"{check} found something in a clean {name}")
            failures += 1
    failures += program_failures()
    print(f"tidy canary: {len(PLANTED)} planted, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
