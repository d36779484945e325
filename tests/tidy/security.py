"""Checks for docs/hazards.md: code from outside is never run (row 1), and the programs are built and
linked as docs/sbom.md says (rows 26 and 29).
"""
import glob
import os
import re
import subprocess

# Of Python that is shipped or helps a running node; and of C.  `ast.literal_eval` reads no code.
NATIVE_PYTHON = [
    (r"^\s*(?:import|from)\s+(?:pickle|cPickle|_pickle|marshal|shelve|dill|cloudpickle|jsonpickle)\b",
     "objects of a language are never read from bytes"),
    (r"(?<![\w.])(?:eval|exec)\s*\(", "bytes from outside are never code"),
    (r"\byaml\.(?:load|unsafe_load|full_load)\s*\(", "use yaml.safe_load"),
    (r"\btorch\.load\s*\((?![^)\n]*weights_only=True)", "torch.load runs pickles: weights_only=True"),
    (r"shell\s*=\s*True", "no shell gets words from outside"),
]
NATIVE_C = [
    (r"\b(?:dlopen|dlmopen|system|popen|execvp|execlp|execl|wordexp)\s*\(",
     "no code from outside is run",
     # Our own GPU device; the command that an operator gave `onepath log bisect` and `replay`.
     ("gpu/device/device_cuda_load.c", "actors/replay/actor_replay_command.c",
      "actors/replay/actor_replay_program.c")),
]
LIBRARY = re.compile(r"^\s*(\S+)(?: => (\S+))?", re.M)


def native_findings(options, walk, read):
    for relative, path in walk(options.source, (".py",), ("examples", "tools", "deploy", "cli", "kit", "bench",
                                                          "tests/process", "tests/kit")):
        for number, line in enumerate(read(path), 1):
            code = line.split("#", 1)[0]
            for pattern, why in NATIVE_PYTHON:
                if re.search(pattern, code):
                    yield relative, number, f"{why}: {line.strip()[:60]}"
    for relative, path in walk(options.source, (".c", ".h"), ("proto", "log", "actors", "models", "scheduler",
                                                              "config", "gpu", "kit")):
        for number, line in enumerate(read(path), 1):
            for pattern, why, allowed in NATIVE_C:
                if relative not in allowed and re.search(pattern, line.split("/*", 1)[0]):
                    yield relative, number, f"{why}: {line.strip()[:60]}"


def output_of(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def flags_findings(name, path):
    """PIE, full RELRO, no executable stack, stack protector, FORTIFY."""
    header = output_of("readelf", "-hW", path)
    dynamic = output_of("readelf", "-dW", path)
    segments = output_of("readelf", "-lW", path)
    symbols = output_of("nm", "-D", path)
    if "DYN" not in header:
        yield name, 1, "is not position-independent (PIE)"
    if "GNU_RELRO" not in segments or not re.search(r"BIND_NOW|\bNOW\b", dynamic):
        yield name, 1, "has no full RELRO (-z relro -z now)"
    if re.search(r"GNU_STACK.*RWE", segments):
        yield name, 1, "has an executable stack"
    if "__stack_chk_fail" not in symbols:
        yield name, 1, "has no stack protector"
    if not re.search(r"__(?:memcpy|snprintf|vsnprintf|memset)_chk", symbols):
        yield name, 1, "is built without FORTIFY"


def hardening_findings(options, read):
    if not options.build:
        return
    document = os.path.join(options.source, "docs", "sbom.md")
    known = set(re.findall(r"[\w+.-]+\.so\.[\d.]+", "\n".join(read(document)))) if os.path.exists(document) else set()
    programs = [os.path.join(options.build, "bin", "onepath")]
    programs += sorted(glob.glob(os.path.join(options.build, "**", "libonepath_cuda.so"), recursive=True))
    for path in programs:
        name = os.path.relpath(path, options.build)
        if not os.path.exists(path):
            yield name, 1, "is not built, so nothing is known of it"
            continue
        yield from flags_findings(name, path)
        for library, _ in LIBRARY.findall(output_of("ldd", path)):
            library = os.path.basename(library)
            cuda = "cuda" in path and re.match(r"lib(cuda|cublas|nv|nccl|onepath)", library)
            if library not in known and not cuda:
                yield name, 1, f"is linked with {library}, which docs/sbom.md does not list"
