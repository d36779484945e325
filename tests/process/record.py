"""How a node records: off, ring, a folder, a folder that loses nothing; and what kills cost."""
import glob
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import system
from system import System, check, wait_for

NULL = ("--null-device", "--served-model-name", "m", "--max-num-seqs", "64")


def ask(port, number, tokens=32):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(
        {"model": "m", "prompt": f"number {number}", "max_tokens": tokens, "ignore_eos": True}),
        {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    check(answer.status == 200, f"status {answer.status}: {text[:200]!r}")


def ask_many(port, count, tokens=32):
    threads = [threading.Thread(target=ask, args=(port, number, tokens)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def log(*words):
    return subprocess.run([system.binary(), "log", *words], capture_output=True, text=True,
                          check=False, timeout=120)


FOLDERS = []


def folder():
    """A new folder, 0700; kept where a test fails, for a look."""
    FOLDERS.append(tempfile.mkdtemp(prefix="onepath-record-"))
    return FOLDERS[-1]


def records(path, actor):
    """Numbers and kinds of an actor's records in a folder, in order."""
    files = sorted(glob.glob(f"{path}/{actor}.*.alog"))
    check(files, f"no segment of {actor} in {path}")
    found = []
    for file in files:
        shown = log("show", file, "--format", "json")
        check(shown.returncode == 0, f"log show {file}: {shown.returncode}: {shown.stderr[-300:]}")
        found += [json.loads(line) for line in shown.stdout.splitlines()]
    return found


def check_complete(path, actor):
    """Numbers from 1 on without a gap, none twice, a snapshot before the first input."""
    found = records(path, actor)
    numbers = [entry["seq"] for entry in found]
    check(numbers == list(range(1, len(numbers) + 1)),
          f"{actor}: numbers are not 1..{len(numbers)}: gap or repetition")
    names = [entry.get("record") or entry.get("dir") for entry in found]
    first_input = next(index for index, name in enumerate(names) if name in ("in", "TIMER"))
    check("SNAPSHOT" in names[:first_input], f"{actor}: no snapshot before the first input")
    verified = log("verify", path)
    check(verified.returncode == 0, f"verify: {verified.stdout[-500:]} {verified.stderr[-300:]}")
    return found


def off_keeps_nothing():
    with System(*NULL, "--record", "off") as node:
        node.wait_ready()
        check("recorder" not in node.pids(), "a recorder runs although nothing is recorded")
        ask_many(node.port, 4)
        pid = node.pids()["scheduler"]
        with open(f"/proc/{pid}/maps", encoding="ascii") as file:
            check("onepath-ring" not in file.read(), "the scheduler has a ring")
        check(node.stop() == 0, "exit code")


def a_folder_holds_everything():
    path = folder()
    with System(*NULL, "--record", path) as node:
        node.wait_ready()
        ask_many(node.port, 20)
        check(node.stop() == 0, "exit code")
    for actor in ("gateway", "scheduler", "executor"):
        found = check_complete(path, actor)
        check(sum(1 for entry in found if entry.get("dir") == "in") > 20, f"{actor}: few inputs")
        replayed = log("replay", *glob.glob(f"{path}/{actor}.*.alog"), "--actor", actor)
        check(replayed.returncode == 0, f"replay {actor}: {replayed.stdout}{replayed.stderr}")
    for file in glob.glob(f"{path}/*"):
        check(os.stat(file).st_mode & 0o777 == 0o600, f"{file} can be read by others")
    check(len(glob.glob(f"{path}/*.aidx")) == 3, "each segment has its sidecar")


def a_killed_recorder_costs_nothing():
    path = folder()
    with System(*NULL, "--record", path, "--restart-intensity", "10") as node:
        node.wait_ready()
        for _ in range(3):
            ask_many(node.port, 8)
            killed = node.kill("recorder")
            ask_many(node.port, 8)
            wait_for("another recorder", 20,
                     lambda old=killed: node.pids().get("recorder", old) != old)
        ask_many(node.port, 8)
        check(node.stop() == 0, "exit code")
    for actor in ("gateway", "scheduler", "executor"):
        check_complete(path, actor)


def strict_waits_for_a_recorder_that_pauses():
    path = folder()
    with System(*NULL, "--record", path, "--record-strict") as node:
        node.wait_ready()
        recorder = node.pids()["recorder"]
        stop = threading.Event()

        def pause():
            while not stop.is_set():
                os.kill(recorder, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(recorder, signal.SIGCONT)
                time.sleep(0.02)
        pauser = threading.Thread(target=pause)
        pauser.start()
        ask_many(node.port, 32, 64)
        stop.set()
        pauser.join()
        check(node.stop() == 0, "exit code")
    for actor in ("gateway", "scheduler", "executor"):
        check_complete(path, actor)


def strict_needs_a_folder():
    for mode in ("ring", "off"):
        done = subprocess.run([system.binary(), "serve", "x", "--null-device", "--record", mode,
                               "--record-strict"], capture_output=True, text=True, check=False,
                              timeout=20)
        check(done.returncode == 78, f"--record {mode} --record-strict: {done.returncode}")
        check("--record-strict needs --record FOLDER" in done.stderr, done.stderr)


def actors_alone_record_themselves():
    path = folder()
    run_dir = folder()
    command = [system.binary(), "actor"]
    common = [system.model(), "--run-dir", run_dir, "--record", path, *NULL]
    processes = {}
    try:
        for actor in ("scheduler", "executor", "gateway"):
            extra = ["--port", "0"] if actor == "gateway" else []
            processes[actor] = subprocess.Popen([*command, actor, *common, *extra],
                                                stderr=subprocess.PIPE, text=True)

        def port():
            for line in processes["gateway"].stderr:
                match = system.READY.search(line)
                if match:
                    return int(match.group(1))
            return None

        where = port()
        check(where is not None, "the gateway ended")

        def is_ready():
            connection = http.client.HTTPConnection("127.0.0.1", where, timeout=5)
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        wait_for("the actors to meet", 30, is_ready)
        ask_many(where, 8)
        # It writes every 10 ms, later on a busy machine; what it wrote must survive its death.
        wait_for("the executor to write what it did", 10,
                 lambda: len(records(path, "executor")) > 30)
        processes["executor"].kill()
        processes["executor"].wait(20)
        for actor in ("gateway", "scheduler"):
            processes[actor].send_signal(signal.SIGTERM)
            check(processes[actor].wait(40) == 0, f"{actor} ended badly")
    finally:
        for process in processes.values():
            process.kill()
            process.stderr.close()
    for actor in ("gateway", "scheduler"):
        check_complete(path, actor)
    found = records(path, "executor")
    check(len(found) > 30, f"only {len(found)} records of the killed executor")


TESTS = (off_keeps_nothing, a_folder_holds_everything, a_killed_recorder_costs_nothing,
         strict_waits_for_a_recorder_that_pauses, strict_needs_a_folder,
         actors_alone_record_themselves)


def main():
    for test in TESTS:
        if not sys.argv[1:] or test.__name__ in sys.argv[1:]:
            test()
            print(f"ok {test.__name__}", flush=True)
    for path in FOLDERS:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
