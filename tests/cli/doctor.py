"""`onepath doctor` on this machine, and on machines that are made of files below --root."""
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
from system import binary, check, fixture, main  # noqa: E402

PLAIN = {
    "proc/cpuinfo": "".join(f"processor\t: {i}\nmodel name\t: Made CPU\nflags\t\t: fpu avx2 fma f16c\n\n"
                            for i in range(64)),
    "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nHugePages_Total: 5\n",
    "proc/self/cgroup": "0::/\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    "dev/shm/.keep": "",
}


def doctor(*arguments, program=None, code=None, before=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
    done = subprocess.run([program or binary(), "doctor", "--json", "--port", "0", *arguments], capture_output=True,
                          text=True, timeout=60, env=clean, check=False, preexec_fn=before)
    check(code is None or done.returncode == code,
          f"doctor {arguments} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    checks = {line["name"]: line for line in report["checks"]}
    worst = max(("ok", "warning", "failure").index(line["level"]) for line in checks.values())
    check(done.returncode == worst and report["verdict"] == ("ok", "warning", "failure")[worst], f"{report}")
    check(all(line["advice"] for line in checks.values() if line["level"] != "ok"), f"no advice in {report}")
    return checks, report


def machine(folder, **changed):
    for path, text in {**PLAIN, **{k: v for k, v in changed.items() if v is not None}}.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
    return ("--root", folder)


def on(changed, *arguments, **keywords):
    with tempfile.TemporaryDirectory() as folder:
        return doctor(*machine(folder, **changed), *arguments, **keywords)


def this_machine_is_described():
    checks, report = doctor()
    check(set(checks) == {"cpu", "kernels", "cores", "memory", "huge-pages", "dev-shm", "open-files", "gpu", "libzmq",
                          "port", "run-dir"}, f"{set(checks)}")
    check(report["available_bytes"] > 0 and "failure" not in {c["level"] for c in checks.values()}, f"{report}")
    done = subprocess.run([binary(), "doctor", "--port", "0"], capture_output=True, text=True, check=False)
    check(all(name in done.stdout for name in checks) and "onepath" in done.stdout, done.stdout)


def a_plain_machine():
    checks, report = on({})
    check("Made CPU" in checks["cpu"]["value"] and "avx2 fma f16c" in checks["cpu"]["value"], f"{checks['cpu']}")
    check(checks["cores"]["value"].startswith("64, ") and checks["cores"]["level"] == "ok", f"{checks['cores']}")
    check(report["available_bytes"] == 33554432 << 10 and checks["memory"]["level"] == "ok", f"{checks['memory']}")
    check(checks["huge-pages"]["value"] == "transparent: never; reserved: 5", f"{checks['huge-pages']}")


def limits_of_the_second_version():
    """The least of the group and all above it counts; cache that can be given back is room."""
    checks, report = on({"proc/self/cgroup": "0::/pod/box\n",
                         "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
                         "sys/fs/cgroup/pod/box/memory.max": "8589934592\n",
                         "sys/fs/cgroup/pod/box/memory.current": "1073741824\n",
                         "sys/fs/cgroup/pod/box/memory.stat": "anon 1\ninactive_file 536870912\n",
                         "sys/fs/cgroup/pod/memory.max": "max\n"})
    check("a quota of 0.50" in checks["cores"]["value"], f"{checks['cores']}")
    check(checks["cores"]["level"] == "warning" and "--threads 1" in checks["cores"]["advice"], f"{checks['cores']}")
    check(report["available_bytes"] == (8 << 30) - (512 << 20), f"{report['available_bytes']}")
    check("a limit of 8.0 GiB leaves 7.5 GiB" in checks["memory"]["value"], f"{checks['memory']}")


def limits_of_the_first_version():
    checks, report = on({"proc/self/cgroup": "3:memory:/m\n2:cpu,cpuacct:/c\n0::/\n",
                         "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
                         "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "536870912\n",
                         "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "268435456\n",
                         "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    check(checks["cores"]["level"] == "ok" and "no quota" in checks["cores"]["value"], f"{checks['cores']}")
    check(report["available_bytes"] == 256 << 20 and checks["memory"]["level"] == "warning", f"{checks['memory']}")


def a_model_is_weighed():
    checks, _ = on({}, fixture("tiny-llama"))
    check(checks["model"]["level"] == "ok" and checks["model-fit"]["level"] == "ok", f"{checks}")
    small = {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 4 kB\n"}
    checks, _ = on(small, fixture("tiny-llama"), code=2)
    check(checks["model-fit"]["level"] == "failure" and "weights" in checks["model-fit"]["advice"], f"{checks}")
    checks, _ = on({}, "/nowhere/model.gguf", code=2)
    check("/nowhere/model.gguf" in checks["model"]["value"] and "model-fit" not in checks, f"{checks['model']}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(fixture("tiny-llama"), folder, dirs_exist_ok=True)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["architectures"] = ["MambaForCausalLM"]
        os.chmod(path, 0o644)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        checks, _ = on({}, folder, code=2)
        check("Mamba" in checks["model"]["value"] and "Llama" in checks["model"]["value"], f"{checks['model']}")


def a_port_in_use_is_a_failure():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        checks, _ = doctor("--port", str(port), code=2)
        check(checks["port"]["level"] == "failure" and str(port) in checks["port"]["advice"], f"{checks['port']}")
    check(doctor("--port", str(port))[0]["port"]["level"] == "ok", "free again")
    checks, _ = doctor("--host", "nonsense", code=2)
    check("--host" in checks["port"]["advice"], f"{checks['port']}")


def few_open_files_are_a_warning():
    checks, _ = on({}, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)))
    check(checks["open-files"]["level"] == "warning" and "ulimit -n 2048" in checks["open-files"]["advice"], f"{checks}")


def gpus_and_builds():
    card = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1  Mon\nGCC version: x\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA Made\nIRQ: 1\n"}
    with tempfile.TemporaryDirectory() as folder:
        cpu, cuda = os.path.join(folder, "cpu"), os.path.join(folder, "cuda")
        for place in (cpu, cuda):
            os.mkdir(place)
            shutil.copy(binary(), place)
        open(os.path.join(cuda, "libonepath_cuda.so"), "w", encoding="utf-8").close()
        for place, changed, level, value, advice in (
                (cpu, {}, "ok", "no NVIDIA driver; this build is for the CPU", ""),
                (cuda, {}, "warning", "no NVIDIA driver; this build has CUDA", "--gpus all"),
                (cpu, card, "warning", "1 (NVIDIA Made); driver NVIDIA UNIX", "/dev/nvidiactl"),
                (cpu, {**card, "dev/nvidiactl": ""}, "warning", "is for the CPU", "-DONEPATH_CUDA=ON"),
                (cuda, {**card, "dev/nvidiactl": ""}, "ok", "1 (NVIDIA Made)", ""),
                (cuda, {"dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia1": ""}, "ok", "2 (models not told)", ""),
                (cpu, {"dev/nvidiactl": "", "dev/nvidia0": ""}, "warning", "1 (models not told)", "-DONEPATH_CUDA=ON")):
            gpu = on(changed, program=os.path.join(place, "onepath"))[0]["gpu"]
            check(gpu["level"] == level and value in gpu["value"] and advice in gpu["advice"], f"{gpu}")


def nothing_there_is_no_crash():
    with tempfile.TemporaryDirectory() as folder:
        checks, report = doctor("--root", folder)
        check(report["available_bytes"] == 0 and checks["memory"]["level"] == "warning", f"{checks['memory']}")


if __name__ == "__main__":
    main([this_machine_is_described, a_plain_machine, limits_of_the_second_version, limits_of_the_first_version,
          a_model_is_weighed, a_port_in_use_is_a_failure, few_open_files_are_a_warning, gpus_and_builds,
          nothing_there_is_no_crash])
