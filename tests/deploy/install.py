"""Installation, tarball, the way back; the unit of systemd; the lists of the container files."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
from system import System, binary, check, main, model  # noqa: E402

SOURCE, BUILD = os.environ["ONEPATH_SOURCE"], os.environ["ONEPATH_BUILD"]


def run(*words, env=None, code=0):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})
    check(code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def files_below(folder):
    return {os.path.relpath(os.path.join(base, name), folder) for base, _, names in os.walk(folder) for name in names}


def source(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def what_was_installed_is_removed_again():
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "usr")
        run("cmake", "--install", BUILD, "--prefix", prefix, "--component", "program")
        found = files_below(prefix)
        for path in ("bin/onepath", "lib/systemd/system/onepath.service", "share/doc/onepath/LICENSE",
                     "share/doc/onepath/docs/operations.md", "share/man/man1/onepath-up.1",
                     "share/bash-completion/completions/onepath",
                     "share/onepath/deploy/kubernetes/overlays/cpu-dev/kustomization.yaml"):
            check(path in found, f"{path} was not installed")
        own = os.path.join(prefix, "share", "onepath", "mine.yaml")
        with open(own, "w", encoding="utf-8") as file:
            file.write("model: x\n")
        run("cmake", f"-DMANIFEST={BUILD}/install_manifest_program.txt", "-P",
            os.path.join(SOURCE, "cmake", "OnepathUninstall.cmake"))
        check(files_below(prefix) == {"share/onepath/mine.yaml"}, f"left: {files_below(prefix)}")
        check(not os.path.exists(os.path.join(prefix, "share", "doc", "onepath")), "folders of ours go too")


def the_tarball_runs_and_is_the_same_twice():
    packed = []
    for _ in range(2):
        run("cmake", f"-DBUILD={BUILD}", "-DVERSION=0.0.0", "-DMACHINE=test", "-P",
            os.path.join(SOURCE, "cmake", "OnepathTarball.cmake"))
        path = os.path.join(BUILD, "onepath-0.0.0-linux-test.tar.gz")
        with open(path, "rb") as file:
            packed.append(file.read())
        os.chdir(BUILD)
        run("sha256sum", "--check", path + ".sha256")
    check(packed[0] == packed[1], "two tarballs of one build differ")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as file:
            check(all(m.uid == 0 and m.gid == 0 and not m.name.startswith("/") for m in file), "whose files these are")
            file.extractall(folder)
        program = os.path.join(folder, "onepath-0.0.0-linux-test", "bin", "onepath")
        check(run(program, "version").startswith("onepath "), "it runs from where it was unpacked")
        before = os.environ["ONEPATH_BIN"]
        os.environ["ONEPATH_BIN"] = os.path.dirname(program)
        try:
            with System("--null-device", "--run-dir", folder + "/run") as node:
                node.wait_ready()
                check(node.stop() == 0, "an orderly end")
        finally:
            os.environ["ONEPATH_BIN"] = before
    for leftover in glob.glob(path + "*"):
        os.remove(leftover)


def unit():
    with open(os.path.join(BUILD, "deploy", "onepath.service"), encoding="utf-8") as file:
        lines = [line.strip() for line in file if "=" in line and not line.startswith("#")]
    found = {}
    for line in lines:
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)
    return found


def the_unit_runs_what_the_program_has():
    found = unit()
    check(found["Type"] == ["notify"], "READY is told")
    check(found["RestartPreventExitStatus"] == ["78"], "a wrong configuration is not tried again")
    drain = 60
    check(int(found["TimeoutStopSec"][0]) > drain, "a drain is not cut off")
    check(found["KillMode"] == ["mixed"], "SIGTERM is the supervisor's; what is left is killed")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cluster.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"model: {model()}\nnull_device: true\ngateway:\n  port: 0\n")
        environment = dict(e.split("=", 1) for e in found["Environment"][0].split())
        environment["ONEPATH_RUN_DIR"] = folder + "/run"
        before, start = (w[0].split() for w in (found["ExecStartPre"], found["ExecStart"]))
        check(os.path.basename(before[0]) == os.path.basename(start[0]) == "onepath", "our program")
        check(before[-1] == start[-1] and before[-1].endswith("/etc/onepath/cluster.yaml"), f"{before} {start}")
        run(binary(), *before[1:-1], path)
        with System(words=[*start[1:-1], path], environment=environment) as node:
            node.wait_ready()
            check(node.stop() == 0, "an orderly end")
    if shutil.which("systemd-analyze"):
        text = run("systemd-analyze", "verify", os.path.join(BUILD, "deploy", "onepath.service"), code=None)
        check("Unknown" not in text, text)


def packages_of(text, stage):
    """The packages that the first apt-get install of a stage names."""
    part = re.split(r"^FROM ", text, flags=re.M)[stage]
    words = part.partition("--no-install-recommends")[2].partition("&&")[0].replace("\\", " ").split()
    return set(words)


def the_images_have_what_the_program_needs():
    text = source("deploy", "container", "Dockerfile")
    cuda = source("deploy", "container", "Dockerfile.cuda")
    runtime = packages_of(text, 2)
    check(runtime == packages_of(cuda, 2) and packages_of(text, 1) == packages_of(cuda, 1), "both have the same lists")
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", run("readelf", "-d", binary()))
    system_libraries = re.compile(r"lib(c|m|rt|pthread|dl|asan|ubsan|tsan|gcc_s|stdc\+\+)\.so|ld-linux")
    provided = set()
    for package in sorted(runtime):
        listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False).stdout
        provided |= {os.path.basename(path) for path in listed.split()}
    for library in needed:
        check(system_libraries.match(library) or library in provided,
              f"the program needs {library}; no package of the runtime stage of deploy/container/Dockerfile has it")
    wanted = set(re.search(r'^packages="([^"]*)"', source("run"), re.M).group(1).split())
    missing = {p for p in wanted if p.endswith("-dev")} - packages_of(text, 1)
    check(not missing, f"the build stage of deploy/container/Dockerfile lacks {missing}")
    for file in (text, cuda):
        last = re.split(r"^FROM ", file, flags=re.M)[-1]
        check(re.search(r"^USER 10001:10001$", last, re.M), "a user without rights")
        check("ENTRYPOINT [\"/usr/bin/onepath\"]" in last and ":latest" not in file, "the program, and no moving image")
        check(not re.search(r"^ADD |curl|wget|--allow-unauthenticated", file, re.M), "nothing from elsewhere")


def the_changelog_has_this_version():
    version = re.search(r"project\(onepath VERSION ([0-9.]+)", source("CMakeLists.txt")).group(1)
    check(re.search(rf"^## {re.escape(version)}\b", source("CHANGELOG.md"), re.M), f"nothing about {version}")


if __name__ == "__main__":
    main([what_was_installed_is_removed_again, the_tarball_runs_and_is_the_same_twice,
          the_unit_runs_what_the_program_has, the_images_have_what_the_program_needs, the_changelog_has_this_version])
