"""Version N works with N-1: the previous version's gateway, scheduler and executor, each mixed with
this version's other two, serve the same answers.

The previous version is built once from the repository's history into the cache folder.  Where there
is no history (an exported source tree, a shallow clone) the test says so and counts as skipped.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

import system
from system import Failure, check, wait_for

SKIPPED = 77
KINDS = ("scheduler", "executor", "gateway")
URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


def source():
    return os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")


def previous_commit():
    with open(os.path.join(os.path.dirname(__file__), "previous.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                return line.split()
    raise Failure("previous.txt names no version")


def build_previous(name, commit):
    """The folder with the previous version's program; None without history."""
    git = ["git", "-C", source()]
    if subprocess.run([*git, "cat-file", "-e", commit + "^{commit}"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        return None
    cache = os.environ.get("ONEPATH_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "onepath")
    folder = os.path.join(cache, f"{name}-{commit[:12]}")
    if os.path.exists(os.path.join(folder, "bin", "onepath")):
        return os.path.join(folder, "bin")
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        tree = subprocess.run([*git, "archive", commit], stdout=subprocess.PIPE, check=True).stdout
        os.mkdir(f"{work}/source")
        subprocess.run(["tar", "x", "-C", f"{work}/source"], input=tree, check=True)
        # -O1: built in a minute, and fast enough for a device that computes nothing.
        for command in (["cmake", "-G", "Ninja", "-S", f"{work}/source", "-B", f"{work}/build",
                         "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DONEPATH_TESTS=OFF", "-DONEPATH_BENCH=OFF"],
                        ["cmake", "--build", f"{work}/build", "--target", "onepath"]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            check(done.returncode == 0, f"{name} does not build:\n{done.stdout[-3000:]}")
        os.makedirs(f"{work}/done/bin")
        os.rename(f"{work}/build/bin/onepath", f"{work}/done/bin/onepath")
        os.rename(f"{work}/done", folder)
    return os.path.join(folder, "bin")


class Mixed:
    """A node whose actors are started one by one, each from the program that is named for it."""

    def __init__(self, programs):
        self.folder = tempfile.mkdtemp(prefix="onepath-versions-", dir="/tmp")
        self.children = []
        self.logs = {}
        for kind in KINDS:
            self.logs[kind] = open(f"{self.folder}/{kind}.log", "w+", encoding="utf-8")
            self.children.append(subprocess.Popen(
                [programs[kind], "actor", kind, system.model(), "--run-dir", self.folder,
                 "--null-device", "--port", "0"], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=self.logs[kind]))
        self.port = wait_for("the gateway's address", 30, self._address)

    def _address(self):
        for kind, child in zip(KINDS, self.children):
            check(child.poll() is None, f"the {kind} ended with {child.returncode}: {self._log(kind)}")
        match = URL.search(self._log("gateway"))
        return int(match.group(1)) if match else None

    def _log(self, kind):
        with open(f"{self.folder}/{kind}.log", encoding="utf-8") as file:
            return file.read()

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def answers(self):
        wait_for("the node to be ready", 30, lambda: self.request("GET", "/health/ready")[0] == 200)
        texts = []
        for fields in ({"max_tokens": 12}, {"max_tokens": 40, "n": 2, "seed": 3},
                       {"max_tokens": 8, "logprobs": 2}):
            status, text = self.request("POST", "/v1/completions", {
                "prompt": "One two three four five six seven eight nine ten", "ignore_eos": True,
                **fields})
            check(status == 200, f"an answer of {status}: {text}")
            choices = json.loads(text)["choices"]
            texts.append([(choice["text"], choice["finish_reason"]) for choice in choices])
        return texts

    def end(self):
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
        for kind, child in reversed(list(zip(KINDS, self.children))):
            try:
                check(child.wait(20) == 0, f"the {kind} ended with {child.returncode}")
            except subprocess.TimeoutExpired:
                child.kill()
                raise Failure(f"the {kind} does not end") from None


def main():
    name, commit = previous_commit()
    old = build_previous(name, commit)
    if old is None:
        print(f"skipped: commit {commit} ({name}) is not in this tree's history; "
              "'git fetch --unshallow' brings it")
        sys.exit(SKIPPED)
    programs = {"old": os.path.join(old, "onepath"), "new": system.binary()}
    expected = None
    for mask in range(8):
        choice = {kind: "old" if mask >> bit & 1 else "new" for bit, kind in enumerate(KINDS)}
        node = Mixed({kind: programs[which] for kind, which in choice.items()})
        try:
            answers = node.answers()
        finally:
            node.end()
        expected = expected or answers
        check(answers == expected, f"{choice}: other answers than this version alone gives")
        print("same answers:", ", ".join(f"{which} {kind}" for kind, which in choice.items()))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
