"""A node as a service: what it tells systemd, what a probe says of it, and its settings from a file.

The socket of systemd is a double: this script listens where systemd would.
"""
import json
import os
import signal
import socket
import struct
import subprocess
import tarfile
import tempfile
import time

import system
from system import System, check, wait_for


class Manager:
    """systemd's end of NOTIFY_SOCKET: every line that came."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.setblocking(False)
        self.lines = []

    def read(self):
        while True:
            try:
                self.lines += [(time.monotonic(), line) for line in self.socket.recv(4096).decode().split("\n")]
            except BlockingIOError:
                return [line for _, line in self.lines]


def node(folder, *options, environment=None):
    os.environ.update(environment or {})
    try:
        return System("--null-device", "--run-dir", os.path.join(folder, "run"), *options)
    finally:
        for key in environment or {}:
            del os.environ[key]


def probe(folder, what):
    done = subprocess.run([system.binary(), "probe", what, "--run-dir", os.path.join(folder, "run")],
                          capture_output=True, text=True, timeout=30, check=False)
    return done.returncode


def systemd_hears_ready_watchdog_and_stopping():
    for where in ("{folder}/notify", "@onepath-test-{pid}"):
        with tempfile.TemporaryDirectory() as folder:
            name = where.format(folder=folder, pid=os.getpid())
            manager = Manager(name)
            with node(folder, environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"}) as live:
                live.wait_ready()
                wait_for("READY", 20, lambda: "READY=1" in manager.read())
                check(any(line.startswith("STATUS=http://127.0.0.1:") for line in manager.read()), manager.lines)
                check("STOPPING=1" not in manager.read(), "not yet")
                wait_for("signs of life", 30, lambda: manager.read().count("WATCHDOG=1") >= 3)
                for actor, pid in live.pids().items():
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        names = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
                    check(b"NOTIFY_SOCKET" not in names and b"WATCHDOG_USEC" not in names,
                          f"{actor} could speak for the node")
                check(live.stop() == 0, "an orderly end")
                check(manager.read().count("STOPPING=1") == 1, manager.lines)
            manager.socket.close()


def a_watchdog_of_another_process_is_not_fed():
    with tempfile.TemporaryDirectory() as folder:
        manager = Manager(folder + "/notify")
        with node(folder, environment={"NOTIFY_SOCKET": folder + "/notify", "WATCHDOG_USEC": "200000",
                                       "WATCHDOG_PID": "1"}) as live:
            live.wait_ready()
            wait_for("READY", 20, lambda: "READY=1" in manager.read())
            check(live.stop() == 0, "an orderly end")
            check("WATCHDOG=1" not in manager.read(), manager.lines)


def a_probe_tells_alive_started_and_ready_apart():
    with tempfile.TemporaryDirectory() as folder:
        check(probe(folder, "alive") == 78, "there is no such node")
        with node(folder) as live:
            wait_for("a node that is alive", 30, lambda: probe(folder, "alive") == 0)
            live.wait_ready()
            wait_for("a node that is ready", 30, lambda: probe(folder, "ready") == 0)
            check(probe(folder, "started") == 0, "it started")
            drain = [system.binary(), "drain", "--run-dir", os.path.join(folder, "run")]
            check(subprocess.run(drain, capture_output=True, timeout=30, check=False).returncode == 0, "drained")
            check(probe(folder, "ready") == 1, "a drained node is not ready")
            check(probe(folder, "alive") == 0 and probe(folder, "started") == 0, "but it lives")
            os.kill(live.process.pid, signal.SIGSTOP)
            check(probe(folder, "alive") == 75, "a supervisor that stands still is not alive")
            os.kill(live.process.pid, signal.SIGCONT)
            wait_for("an answer", 30, lambda: probe(folder, "alive") == 0)
            check(live.stop() == 0, "an orderly end")
        check(probe(folder, "alive") in (75, 78), "it is gone")


def check_refused(command, environment, wanted):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False,
                          env={**clean, **environment})
    check(done.returncode == 78 and wanted in done.stderr, f"{wanted}: {done.returncode} {done.stderr}")


def settings_come_from_a_file_below_environment_and_options():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "node.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("model: x\nnull_device: true\ngateway: {served_model_name: from-file, strict_params: true}\n"
                       "limits: {queue_len: 7}\n")
        command = [system.binary(), "serve", "--config", path, "--port", "0", "--run-dir", folder + "/run"]
        with System("--null-device", "--run-dir", folder + "/run", "--config", path) as live:
            live.wait_ready()
            names = [m["id"] for m in live.request("GET", "/v1/models")[1]["data"]]
            check(names == ["from-file"], f"{names}")
            status, answer, _ = live.request("POST", "/v1/completions", {"prompt": [1], "nonsense": 1})
            check(status == 400, f"strict_params of the file: {status} {answer}")
            check(live.stop() == 0, "an orderly end")
        plain = [system.binary(), "serve", "x", "--null-device", "--run-dir", folder + "/run"]
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"model: {system.model()}\nnull_device: true\nnodes:\n  - name: a\n  - name: b\n"
                       "    limits: {max_num_seqs: 3}\n")
        up = [system.binary(), "up", path]
        check_refused(up, {}, f"--node is missing; the nodes of {path} are a, b")
        check_refused(up + ["--node", "c"], {}, f"--node is 'c'; the nodes of {path} are a, b")
        check_refused(up[:2] + ["--node", "a"], {}, "usage: onepath up FILE")
        for words, environment in ((["up", path, "--node", "b"], {}), (["up", path], {"ONEPATH_NODE": "b"})):
            with System(words=[*words, "--run-dir", folder + "/run", "--port", "0"], environment=environment) as live:
                live.wait_ready()
                with open(f"/proc/{live.pids()['executor']}/cmdline", encoding="utf-8") as file:
                    check("--max-num-seqs=3" in file.read().split("\0"), "the setting of node b")
                check(live.stop() == 0, "an orderly end")
        for environment, words, wanted in (
                ({}, ["--queue-len", "0"], "--queue-len is '0'; it takes a number from 1 to"),
                ({"ONEPATH_QUEUE_LEN": "x"}, [], "--queue-len is 'x' (from ONEPATH_QUEUE_LEN); it takes a number"),
                ({"ONEPATH_CAPTURE_SIZES": "4,2"}, [],
                 "--capture-sizes is '4,2' (from ONEPATH_CAPTURE_SIZES); it takes ascending"),
                ({"ONEPATH_RESUME_MEMORY": "1K"}, [], "--resume-memory is '1K' (from ONEPATH_RESUME_MEMORY); it takes "
                 "a size of at least 64K and at most 4G"),
                ({"ONEPATH_CACHE_DTYPE": "f23"}, [], "--cache-dtype is 'f23' (from ONEPATH_CACHE_DTYPE); it takes one "
                 "of: auto f16 f32; did you mean f32?"),
                ({}, ["--log-level", "warning"], "--log-level is 'warning'; it takes one of: debug info warn error"),
                ({}, ["--capture-sizes", "128"], "up to --max-num-seqs (32)"),
                ({"ONEPATH_CONFIG": folder + "/none.yaml"}, [], folder + "/none.yaml cannot be opened")):
            check_refused(plain + words, environment, wanted)
        check_refused(command, {"ONEPATH_QUEUE_LEN": "x"}, "environment variable ONEPATH_QUEUE_LEN is 'x'; it takes")
        with open(path, "w", encoding="utf-8") as file:
            file.write("model: x\nlimits: {max_num_seqs: 64}\ngraphs: {capture_sizes: [8, 32]}\n")
        check_refused(command + ["--max-num-seqs", "16"], {}, f"--capture-sizes is '8,32' (from {path}:3:25)")


def a_model_by_its_name_on_a_hub_is_told_how_to_fetch():
    for name in ("Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"):
        check_refused([system.binary(), "serve", name], {}, "hf download Qwen/Qwen3-0.6B --local-dir ./Qwen3-0.6B")
    for name in ("models/x.gguf", "./a/b", "/nowhere/x", "x"):
        check_refused([system.binary(), "serve", name], {}, f"the model '{name}' cannot be opened: No such file")


def a_report_has_everything_but_prompts():
    prompt = "The zyzzyva of Quetzalcoatl whispers 31415926"
    with tempfile.TemporaryDirectory() as folder:
        log, out = folder + "/log", folder + "/report.tar"
        with node(folder, "--record", log) as live:
            live.wait_ready()
            live.complete(prompt)
            tokens = live.request("POST", "/tokenize", {"prompt": prompt})[1]["tokens"]
            command = [system.binary(), "report", log, "--out", out, "--crashes", "0", "--run-dir", folder + "/run"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            check(done.returncode == 0, f"{done.returncode} {done.stdout}{done.stderr}")
            check(live.stop() == 0, "an orderly end")
        check(subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 78, "written over")
        check(os.stat(out).st_mode & 0o777 == 0o600, "for its owner alone")
        secret = struct.pack(f"<{len(tokens)}i", *tokens)
        recorded = b"".join(open(os.path.join(log, name), "rb").read() for name in os.listdir(log))
        check(secret in recorded, "the log itself has the prompt")
        with open(out, "rb") as file:
            packed = file.read()
        check(secret not in packed and b"zyzzyva" not in packed, "the prompt is in the report")
        with tarfile.open(out) as file:
            top = {m.name.split("/")[0] for m in file}
            check(len(top) == 1, f"{top}")
            file.extractall(folder)
        root = os.path.join(folder, top.pop())
        for name in ("machine.txt", "settings.yaml", "node.json", "digests.txt"):
            check(os.path.getsize(os.path.join(root, name)) > 0, name)
        done = subprocess.run(["sha256sum", "--check", "--strict", "digests.txt"], cwd=root, capture_output=True,
                              text=True, check=False)
        check(done.returncode == 0 and done.stdout.count(": OK") >= 6, done.stdout + done.stderr)
        with open(os.path.join(root, "node.json"), encoding="utf-8") as file:
            check({a["name"] for a in json.load(file)["actors"]} >= {"gateway", "scheduler", "executor"}, "its actors")
        done = subprocess.run([system.binary(), "log", "replay", root + "/log0", "--actor", "scheduler"],
                              capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 0, f"the redacted log replays: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    system.main([systemd_hears_ready_watchdog_and_stopping, a_watchdog_of_another_process_is_not_fed,
                 a_probe_tells_alive_started_and_ready_apart,
                 settings_come_from_a_file_below_environment_and_options,
                 a_model_by_its_name_on_a_hub_is_told_how_to_fetch, a_report_has_everything_but_prompts])
