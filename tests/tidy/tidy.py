"""Checks on the source itself, one name each; `tidy.py NAME --source DIR [--build DIR]`.

Prints `file:line: what` for every finding and exits 1 if there is one.
"""
import argparse
import ast
import os
import re
import subprocess
import sys

import gates
import security

# Lowest floor first.  A room may include its own headers and those of the rooms it names.
ROOMS = {
    "proto": set(),
    "config": {"proto"},
    "scheduler": {"proto"},
    "models": {"proto"},
    "kernels": {"proto"},
    "gpu/device": {"proto", "kernels"},
    "gpu/cache": {"proto", "kernels", "gpu/device"},
    "gpu/backend": {"proto", "kernels", "gpu/device", "gpu/cache"},
    "gpu/model": {"proto", "kernels", "models", "gpu/device", "gpu/cache", "gpu/backend"},
    "gpu/draft": {"proto", "kernels", "models", "gpu/device", "gpu/cache", "gpu/backend",
                  "gpu/model"},
    "gpu/sample": {"proto", "kernels", "gpu/device"},
    "gpu/run": {"proto", "kernels", "models", "gpu/device", "gpu/cache", "gpu/backend", "gpu/model",
                "gpu/draft", "gpu/sample"},
    "actors/base": {"proto"},
    "actors/recorder": {"proto", "actors/base"},
    "actors/supervisor": {"proto", "actors/base"},
    "actors/scheduler": {"proto", "actors/base", "scheduler"},
    "actors/executor": {"proto", "actors/base", "gpu/run", "gpu/device"},  # device: groups of ranks
    "actors/drafter": {"proto", "actors/base", "gpu/draft"},
    "actors/kv-transfer": {"proto", "actors/base"},
    "actors/gateway": {"proto", "actors/base", "models"},
    "log": {"proto"},
    "actors/roles": {"proto", "actors/base", "actors/scheduler"},
    "actors/replay": {"proto", "log", "scheduler", "gpu/run", "actors/base", "actors/scheduler",
                      "actors/executor", "actors/drafter", "actors/gateway",
                      "actors/kv-transfer"},
    "actors/simulator": {"proto", "scheduler", "actors/base", "actors/scheduler", "actors/executor",
                         "actors/gateway", "actors/supervisor"},
    "actors/conform": {"proto", "actors/base", "actors/executor"},
    "kit": {"proto", "actors/base"},
    # kernels: `onepath doctor` says which path they take on this machine.
    "cli": {"proto", "config", "models", "kernels", "log", "actors/base", "actors/recorder", "actors/supervisor",
            "actors/scheduler", "actors/roles", "actors/executor", "actors/drafter", "actors/gateway",
            "actors/replay", "actors/simulator", "actors/conform"},
}

# Libraries that a room alone may use.
THIRD_PARTY = {
    r"czmq\.h|zmq\.h": ("actors/",),
    r"msgpack(\.h|/)": ("proto",),
    r"nccl\.h|cuda.*\.h": ("gpu/device", "kernels"),
    r"event2/": ("actors/gateway", "cli"),  # cli: the client of `onepath bench`, many connections at once
    r"http_parser\.h": ("actors/gateway",),
    r"jansson\.h": ("actors/gateway", "models", "cli"),
    r"ncurses\.h": ("cli",),
    r"pcre2\.h": ("models",),
    r"sodium\.h": ("proto", "models", "cli"),
    r"xxhash\.h": ("proto", "models", "gpu/", "actors/kv-transfer"),
    r"yaml\.h": ("config",),
}

BANNED = [
    (r"\bFIXME\b|\bXXX\b|\bTODO\b", "unfinished work", ()),
    (r"\bstrcpy\s*\(|\bstrcat\s*\(|\bsprintf\s*\(|\bgets\s*\(|\balloca\s*\(|\bstrtok\s*\(",
     "an unbounded or unsafe call", ()),
    (r"(?<![_\w])assert\s*\(|#include <assert\.h>", "use require()", ()),
    (r"\bNDEBUG\b", "NDEBUG is never set", ()),
    (r"\bgetenv\s*\(", "the environment is read in cli/ only", ("cli/",)),
    (r"(?<![_\w.>])exit\s*\(", "exit is called in cli/ only", ("cli/",)),
    (r"/wor" + r"k/|/far" + r"m/|\.libra" + r"ry/", "a path of somebody's machine", ()),
    (r"\bdlopen\s*\(|\bsystem\s*\(|\bpopen\s*\(", "no code from outside is run",
     ("gpu/device/device_cuda_load.c",)),
]

PREFIXES = {
    "proto": ("proto_",), "scheduler": ("sched_",), "models": ("file_",), "kernels": ("kern_",),
    "actors": ("actor_",), "log": ("log_",), "config": ("config_",), "kit": ("kit_",), "gpu_device": ("device_",),
    "gpu_cache": ("cache_",), "gpu_backend": ("backend_", "router_"), "gpu_model": ("model_",), "gpu_sample": ("sample_",),
    "gpu_run": ("run_",), "gpu_draft": ("draft_",),
}

SIZE_C_MAX, SIZE_C_HARD, SIZE_H_MAX, FUNCTION_MAX = 600, 1000, 200, 70
# Bodies that a .c file includes once for each instruction set: code, not headers.
BODY = re.compile(r"kernels/kern_(\w+_body|vec_\w+)\.h$")
REASON = re.compile(r"Long because", re.I)


def walk(source, endings, folders):
    for folder in folders:
        for base, dirs, names in os.walk(os.path.join(source, folder)):
            dirs[:] = sorted(d for d in dirs if d not in ("build", ".git", "__pycache__"))
            for name in sorted(names):
                if name.endswith(endings):
                    path = os.path.join(base, name)
                    yield os.path.relpath(path, source), path


def room_of(path):
    best = None
    for room in ROOMS:
        if path.startswith(room + "/") and (best is None or len(room) > len(best)):
            best = room
    return best


CODE = ("proto", "config", "scheduler", "models", "kernels", "gpu", "log", "actors", "kit", "cli")


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read().split("\n")


def check_includes(options):
    homes = {}
    for relative, _ in walk(options.source, (".h",), CODE):
        homes[os.path.basename(relative)] = room_of(relative)
    for relative, path in walk(options.source, (".c", ".h", ".cu", ".cuh"), CODE):
        room = room_of(relative)
        if room is None:
            yield relative, 1, "belongs to no room; name it in tests/tidy/tidy.py"
            continue
        for number, line in enumerate(lines_of(path), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if not match:
                continue
            header = match.group(2)
            if match.group(1) == '"':
                home = homes.get(os.path.basename(header))
                if "/" in header:
                    yield relative, number, f"include {header} by its name alone"
                if home is not None and home != room and home not in ROOMS[room]:
                    yield relative, number, f"{room} may not include {header} of {home}"
            for pattern, allowed in THIRD_PARTY.items():
                if re.match(pattern, header) and not any(
                        (room + "/").startswith(a if a.endswith("/") else a + "/") for a in allowed):
                    yield relative, number, f"{room} may not use <{header}>"


def check_words(options):
    for relative, path in walk(options.source, (".c", ".h", ".cu", ".cuh"),
                               CODE + ("tests", "bench")):
        text = "\n".join(lines_of(path))
        code = gates.strip_comments(text)
        for pattern, why, allowed in BANNED:
            if any(relative.startswith(a) for a in allowed):
                continue
            if relative.startswith(("tests/", "bench/")) and ("cli/ only" in why or "outside" in why):
                continue
            body = text if "unfinished" in why or "machine" in why else code
            for match in re.finditer(pattern, body):
                yield relative, body.count("\n", 0, match.start()) + 1, f"{why}: {match.group(0)}"
    for relative, path in walk(options.source, (".md", ".sh", ".py", ".txt", ".cmake", ".yaml", ".json"),
                               CODE + ("tests", "bench", "docs", "deploy", "tools", "examples", "cmake")):
        if relative.startswith("tests/tidy/"):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if re.search(BANNED[6][0], line):
                    yield relative, number, "a path of somebody's machine"


def functions_of(lines):
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number
            start = None


def check_sizes(options):
    for relative, path in walk(options.source, (".c", ".h", ".cu"), CODE):
        lines = lines_of(path)
        excused = any(REASON.search(line) for line in lines[:25])
        is_header = relative.endswith(".h") and not BODY.search(relative)
        limit = SIZE_H_MAX if is_header else SIZE_C_MAX
        if len(lines) > limit and not excused:
            yield relative, 1, f"{len(lines)} lines; over {limit} say 'Long because ...' at the top"
        if len(lines) > SIZE_C_HARD:
            yield relative, 1, f"{len(lines)} lines; over {SIZE_C_HARD} is split"
        if relative.endswith(".h"):
            continue
        for first, last in functions_of(lines):
            window = lines[max(0, first - 12):first + 3]
            if last - first > FUNCTION_MAX and not any(REASON.search(line) for line in window):
                yield relative, first, f"a function of {last - first} lines; say why above it"


def check_headers(options):
    paths = []
    for room in ROOMS:
        paths += ["-I", os.path.join(options.source, room)]
    for relative, path in walk(options.source, (".h",), CODE):
        if BODY.search(relative):
            continue
        command = [options.compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
                   "-fsyntax-only", *paths, "-x", "c", "-include", path, os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            yield relative, 1, "does not compile alone: " + done.stderr.strip().split("\n")[0]


def check_symbols(options):
    for base, _, names in os.walk(options.build):
        for name in names:
            match = re.fullmatch(r"libonepath_(\w+)\.a", name)
            if not match:
                continue
            library = match.group(1)
            allowed = next((p for key, p in PREFIXES.items() if library.startswith(key)), None)
            if allowed is None:
                if library != "cli":
                    yield name, 1, "no prefix is known for this library"
                continue
            done = subprocess.run(["nm", "-g", "--defined-only", os.path.join(base, name)],
                                  capture_output=True, text=True, check=True)
            for line in done.stdout.split("\n"):
                parts = line.split()
                if len(parts) == 3 and not parts[2].lower().startswith(allowed + ("__asan", "__odr_asan",
                                                                          "__sanitizer", "_")):
                    yield name, 1, f"global symbol {parts[2]} lacks the prefix {allowed[0]}"


def check_gates(options):
    yield from gates.findings(options.source, walk, lines_of)


def names_in_main(tree):
    """Names of functions that a process script hands to main(), directly or in a list."""
    lists = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    lists[target.id] = node.value
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else \
            getattr(node.func, "id", "")
        if called != "main" or not node.args:
            continue
        tests = node.args[0]
        tests = lists.get(tests.id) if isinstance(tests, ast.Name) else tests
        if isinstance(tests, ast.List):
            return {e.id for e in tests.elts if isinstance(e, ast.Name)}
    return None


def check_native(options):
    yield from security.native_findings(options, walk, lines_of)


def check_hardening(options):
    yield from security.hardening_findings(options, lines_of)


def names_in_document(source, name):
    """docs/gates.md and hazards.md name tests and planted violations: they must be there."""
    document = os.path.join(source, "docs", name)
    if not os.path.exists(document):
        return
    known = set()
    for _, path in walk(source, (".c", ".py"), ("tests",)):
        known.update(re.findall(r"START_TEST\((\w+)\)|^    \"(\w+)\": \($|^def (\w+)\(",
                                "\n".join(lines_of(path)), re.M))
    known = {found for some in known for found in some}
    for number, line in enumerate(lines_of(document), 1):
        for test in re.findall(r"(?<![`/\w.])[a-z]+(?:_[a-z0-9]+){3,}(?![`(\w])", line):
            if test not in known:
                yield f"docs/{name}", number, f"there is no test {test}"


def check_registered(options):
    """A test that nobody runs holds nothing."""
    for relative, path in walk(options.source, (".c",), ("tests",)):
        text = gates.strip_comments("\n".join(lines_of(path)))
        for match in re.finditer(r"START_TEST\((\w+)\)", text):
            if len(re.findall(r"\b" + match.group(1) + r"\b", text)) < 2:
                yield (relative, text.count("\n", 0, match.start()) + 1,
                       f"the test {match.group(1)} is in no case")
    for document in ("gates.md", "hazards.md"):
        yield from names_in_document(options.source, document)
    folder = os.path.join(options.source, "tests", "process")
    lists = os.path.join(folder, "CMakeLists.txt")
    if not os.path.exists(lists):
        return
    wanted = {}
    for match in re.finditer(r"onepath_process_test\(\w+ (\w+\.py) \"[^\"]*\" \d+([^)]*)\)",
                             "\n".join(lines_of(lists))):
        wanted.setdefault(match.group(1), []).append(match.group(2).split())
    for script, runs in sorted(wanted.items()):
        relative = f"tests/process/{script}"
        tree = ast.parse("\n".join(lines_of(os.path.join(folder, script))))
        known = names_in_main(tree)
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name not in used:
                yield relative, node.lineno, f"{node.name} is neither run nor called"
        if known is not None and all(runs):
            for name in sorted(known.symmetric_difference(n for run in runs for n in run)):
                yield relative, 1, f"{name} is in only one of main() and tests/process/CMakeLists.txt"


CHECKS = {name[6:]: value for name, value in list(globals().items()) if name.startswith("check_")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", default="")
    parser.add_argument("--compiler", default="cc")
    options = parser.parse_args()
    findings = list(CHECKS[options.check](options))
    for path, line, what in findings:
        print(f"{path}:{line}: {what}")
    print(f"tidy {options.check}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
