"""Starts a whole node as separate processes and watches it, for the end-to-end tests.

A test is a script: it makes a System, talks HTTP to it, and exits non-zero with a message.
Nothing sleeps for a fixed time: waits poll with a deadline.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

READY = re.compile(r"http://127\.0\.0\.1:(\d+)")
ACTORS = ("gateway", "scheduler", "executor", "recorder")


def binary():
    folder = os.environ.get("ONEPATH_BIN")
    if not folder:
        sys.exit("ONEPATH_BIN must name the folder of the onepath program")
    return os.path.join(folder, "onepath")


def model():
    path = os.environ.get("ONEPATH_MODEL") or os.path.expanduser(
        "~/.cache/onepath/SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        sys.exit(f"the model {path} is missing; './run test' fetches it")
    return path


def fixture(name):
    root = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
    return os.path.join(root, "tests", "models", "fixtures", name)


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def wait_for(what, seconds, probe):
    """Polls `probe` until it gives something true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"waited {seconds} s for {what}")
        time.sleep(0.01)


class System:
    def __init__(self, *options, model_path=None, environment=None, words=None):
        self.log_path = tempfile.mkstemp(prefix="onepath-test-", suffix=".log")[1]
        self.lines = []
        self.port = None
        command = [binary(), *words] if words else \
            [binary(), "serve", model_path or model(), "--port", "0", *options]
        env = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
        env.update(environment or {})
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, errors="replace", env=env)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with open(self.log_path, "w", encoding="utf-8") as file:
            for line in self.process.stderr:
                file.write(line)
                file.flush()
                self.lines.append(line)
                match = READY.search(line)
                if match:  # a restarted gateway may listen elsewhere
                    self.port = int(match.group(1))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
        self.reader.join(5)
        if kind is not None:
            sys.stderr.write("---- log of the node (last 60 lines)\n" + "".join(self.lines[-60:]))

    def wait_ready(self, seconds=60):
        def probe():
            if self.process.poll() is not None:
                raise Failure(f"the node ended with code {self.process.returncode} before it was ready")
            return self.port is not None and self.is_ready()
        wait_for("the node to be ready", seconds, probe)
        return self

    def is_ready(self):
        try:
            return self.request("GET", "/health/ready", timeout=5)[0] == 200
        except OSError:
            return False

    def pids(self):
        """Process ids of the live actors by name, from the process table."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    rest = file.read().rpartition(")")[2].split()
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if int(rest[1]) == self.process.pid and rest[0] != "Z" and len(words) > 2 \
                    and words[1] == b"actor":
                found[words[2].decode()] = int(entry)
        return found

    def kill(self, actor, how=signal.SIGKILL):
        pid = wait_for(f"the {actor} process", 10, lambda: self.pids().get(actor))
        os.kill(pid, how)
        return pid

    def stop(self, seconds=30):
        """Asks for an orderly end; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"the node did not end within {seconds} s of SIGTERM") from None

    def request(self, method, path, body=None, timeout=60, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None
            headers = dict(headers or {})
            if body is not None:
                data = body if isinstance(body, (bytes, str)) else json.dumps(body)
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            kind = answer.getheader("Content-Type", "")
            return answer.status, json.loads(text) if text and "json" in kind else text, dict(answer.getheaders())
        finally:
            connection.close()

    def complete(self, prompt, **fields):
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, **fields}
        status, answer, _ = self.request("POST", "/v1/completions", body)
        check(status == 200, f"a completion gave {status}: {answer}")
        return answer

    def stream(self, prompt, on_event=None, timeout=60, **fields):
        """Reads a streamed completion.  Returns (events, ended) where `ended` is 'done' after
        [DONE] and a proper last chunk, 'clean' when the body ended properly without [DONE],
        'broken' when the connection broke off inside the body."""
        body = json.dumps({"prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": True,
                           **fields})
        events, done, tail = [], False, b""
        # By hand: http.client hides whether the last chunk of a body ever came.
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as client:
            client.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                            f"Connection: close\r\n\r\n{body}").encode())
            with client.makefile("rb") as answer:
                try:
                    status = int(answer.readline().split()[1])
                    if status != 200:
                        text = answer.read().partition(b"\r\n\r\n")[2]
                        return [{"status": status, **json.loads(text)}], "refused"
                    for line in answer:
                        tail = (tail + line)[-8:]
                        line = line.decode().strip()
                        if line == "data: [DONE]":
                            done = True
                        elif line.startswith("data: "):
                            events.append(json.loads(line[6:]))
                            if on_event:
                                on_event(events)
                except (ConnectionError, IndexError):
                    return events, "broken"
        if not tail.endswith(b"\r\n0\r\n\r\n"):
            return events, "broken"
        return events, "done" if done else "clean"

    def metric(self, name, **labels):
        """One figure of /metrics by name and some of its labels."""
        for line in self.request("GET", "/metrics")[1].split("\n"):
            if line.startswith((name + "{", name + " ")) and all(
                    f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        raise Failure(f"/metrics has no {name} with {labels}")

    def events(self, name):
        """Log lines of one event, decoded when they are JSON."""
        found = []
        for line in list(self.lines):
            line = line.strip()
            if line.startswith("{"):
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if entry.get("event") == name:
                    found.append(entry)
        return found


def main(tests):
    """Runs the given functions (or those named on the command line) and reports each."""
    wanted = sys.argv[1:]
    failed = 0
    run = [t for t in tests if not wanted or t.__name__ in wanted]
    for test in run:
        began = time.monotonic()
        try:
            test()
            print(f"ok   {test.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except Failure as failure:
            failed += 1
            print(f"FAIL {test.__name__}: {failure}", flush=True)
    print(f"{len(run) - failed} passed, {failed} failed")
    sys.exit(1 if failed or not run else 0)
