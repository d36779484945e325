"""Another scheduler is attached to a running node, and the built-in one comes back, while requests
run: none is lost, and their text is that of an undisturbed run.

The "other" scheduler is the built-in actor, started alone at an endpoint of its own: what is tested
is the move.  Schedulers that misbehave are in tests/conform, Python ones in python_scheduler.py.
"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import system
from system import Failure, System, check, wait_for

FIELDS = {"max_tokens": 160, "ignore_eos": True}
PROMPTS = ["Once upon a time", "The capital of France", "def main():", "My favourite colour is"]


class External:
    """A scheduler of its own process, listening at one endpoint."""

    def __init__(self, folder, name, *options):
        self.endpoint = f"ipc://{folder}/{name}"
        self.log = open(f"{folder}/{name}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [system.binary(), "actor", "scheduler", system.model(), "--run-dir", folder, "--name", name,
             "--scheduler", self.endpoint, *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log)
        wait_for(f"the socket of {name}", 10, lambda: os.path.exists(f"{folder}/{name}"))

    def end(self, how=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(10)


def command(run_dir, *words):
    done = subprocess.run([system.binary(), "scheduler", *words, "--run-dir", run_dir],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


class Streams:
    """Some streams at once, whose progress can be waited for."""

    def __init__(self, node, fields):
        self.node, self.results = node, {}
        self.counts = {prompt: 0 for prompt in PROMPTS}
        self.threads = [threading.Thread(target=self._run, args=(prompt, fields)) for prompt in PROMPTS]
        for thread in self.threads:
            thread.start()

    def _run(self, prompt, fields):
        def on_event(events):
            self.counts[prompt] = len(events)
        try:
            self.results[prompt] = self.node.stream(prompt, on_event, timeout=120, **fields)
        except OSError as error:
            self.results[prompt] = ([{"error": str(error)}], "broken")

    def wait_progress(self, events):
        wait_for(f"{events} events of each stream", 60,
                 lambda: all(count >= events for count in self.counts.values()) or self.results)
        ended = {prompt: (end, events[-1:]) for prompt, (events, end) in self.results.items()}
        check(not ended, f"a stream ended early: {ended}")

    def texts(self):
        for thread in self.threads:
            thread.join(180)
        texts = {}
        for prompt, (events, ended) in self.results.items():
            check(ended == "done", f"the stream of '{prompt}' ended as {ended}: {events[-1:]}")
            texts[prompt] = "".join(event["choices"][0]["text"] for event in events if event["choices"])
        return texts


def moves_take_running_requests_along(node, run_dir, folder, fields, expected):
    first, second = External(folder, "first"), External(folder, "second")
    try:
        streams = Streams(node, fields)
        streams.wait_progress(8)
        code, text = command(run_dir, "attach", first.endpoint)
        check(code == 0 and "first" in text, f"attach gave {code}: {text}")
        streams.wait_progress(24)
        code, text = command(run_dir, "attach", second.endpoint)
        check(code == 0 and "second" in text, f"attach gave {code}: {text}")
        streams.wait_progress(40)
        code, text = command(run_dir, "show")
        check(code == 0 and text.count("second") >= 3, f"show gave {code}: {text}")
        code, text = command(run_dir, "builtin")
        check(code == 0, f"builtin gave {code}: {text}")
        check(streams.texts() == expected, "a moved request's text differs from the undisturbed one")
    finally:
        first.end()
        second.end()


def a_dead_scheduler_is_replaced(node, run_dir, folder, fields, expected):
    external = External(folder, "mortal")
    try:
        streams = Streams(node, fields)
        streams.wait_progress(8)
        code, text = command(run_dir, "attach", external.endpoint)
        check(code == 0, f"attach gave {code}: {text}")
        streams.wait_progress(24)
        external.end()
        check(streams.texts() == expected, "a rescued request's text differs from the undisturbed one")
        wait_for("the built-in scheduler to be in charge", 20,
                 lambda: "in charge: the built-in one" in command(run_dir, "show")[1])
    finally:
        external.end()


def an_endpoint_without_a_scheduler_changes_nothing(node, run_dir, folder, fields, expected):
    streams = Streams(node, fields)
    streams.wait_progress(8)
    begin = time.monotonic()
    code, text = command(run_dir, "attach", f"ipc://{folder}/nobody")
    check(code == 1 and "nobody answers" in text, f"attach to nobody gave {code}: {text}")
    check(time.monotonic() - begin < 20, "attach to nobody took too long to say so")
    check(streams.texts() == expected, "a text differs after a move that failed")
    code, text = command(run_dir, "show")
    check("in charge: the built-in one" in text, text)


def two_dead_schedulers_leave_the_built_in_one(node, run_dir, folder, fields, expected):
    """The one in charge dies while a move to nobody is under way: there is no way back."""
    external = External(folder, "doomed")
    try:
        code, text = command(run_dir, "attach", external.endpoint)
        check(code == 0, f"attach gave {code}: {text}")
        streams = Streams(node, fields)
        streams.wait_progress(8)
        mover = threading.Thread(target=command, args=(run_dir, "attach", f"ipc://{folder}/nobody"))
        mover.start()
        time.sleep(0.5)  # of the 5 s that it takes; no other command is answered meanwhile
        external.end()
        mover.join()
        check(streams.texts() == expected, "a rescued request's text differs from the undisturbed one")
        code, text = command(run_dir, "show")
        check("in charge: the built-in one" in text, text)
    finally:
        external.end()


def sockets_of_a_node_are_no_schedulers(node, run_dir, folder, fields, expected):
    streams = Streams(node, fields)
    streams.wait_progress(8)
    for name in ("supervisor", "scheduler-gateway", "scheduler-executor"):
        code, text = command(run_dir, "attach", f"ipc://{run_dir}/{name}")
        check(code == 78 and "builtin" in text, f"attach to {name} gave {code}: {text}")
    check(streams.texts() == expected, "a text differs after a move that was refused")


def bad_words_are_refused(run_dir, folder):
    for words, wanted in ((["attach"], 78), (["frobnicate"], 78), (["builtin", "x"], 78),
                          (["attach", "tcp://10.0.0.1:5"], 78), (["attach", "nonsense"], 78)):
        code, text = command(run_dir, *words)
        check(code == wanted and text.strip(), f"{words} gave {code}: {text}")
    code, text = command(folder, "show")
    check(code == 78 and "no node" in text, f"a folder without a node gave {code}: {text}")


def starts_with_an_external_one(folder):
    """serve --scheduler waits for it, uses it, and goes on without it."""
    with System("--run-dir", f"{folder}/other", "--scheduler", f"ipc://{folder}/late") as node:
        wait_for("the gateway to listen", 30, lambda: node.port)
        status, answer, _ = node.request("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        check(status == 503, f"without a scheduler the node answered {status}: {answer}")
        late = External(folder, "late")
        try:
            node.wait_ready()
            node.complete("Hi", max_tokens=2)
            check("late" in command(f"{folder}/other", "show")[1], "the external one is not in charge")
            late.end()
            wait_for("the built-in scheduler to serve", 30, node.is_ready)
            node.complete("Hi", max_tokens=2)
        finally:
            late.end()
        check(node.stop() == 0, "the node did not end in order")


def a_dead_node_is_not_found(folder):
    """Its folder was left behind, and its number is that of another process (this one) by now."""
    left = f"{folder}/onepath-{os.getuid()}-{os.getpid()}"
    os.mkdir(left, 0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{left}/supervisor")
    done = subprocess.run([system.binary(), "scheduler", "show"], capture_output=True, text=True, timeout=60,
                          check=False, env={**os.environ, "XDG_RUNTIME_DIR": folder})
    check(done.returncode == 78 and "no node" in done.stderr, f"a dead node was found: {done.stderr}")


def main():
    folder = tempfile.mkdtemp(prefix="onepath-attach-", dir="/tmp")
    run_dir = f"{folder}/node"
    with System("--run-dir", run_dir) as node:
        node.wait_ready()
        for extra in ({"temperature": 0}, {"temperature": 0.9, "seed": 7, "presence_penalty": 0.5}):
            fields = {**FIELDS, **extra}
            expected = Streams(node, fields).texts()
            moves_take_running_requests_along(node, run_dir, folder, fields, expected)
            a_dead_scheduler_is_replaced(node, run_dir, folder, fields, expected)
        an_endpoint_without_a_scheduler_changes_nothing(node, run_dir, folder, fields, expected)
        two_dead_schedulers_leave_the_built_in_one(node, run_dir, folder, fields, expected)
        sockets_of_a_node_are_no_schedulers(node, run_dir, folder, fields, expected)
        bad_words_are_refused(run_dir, folder)
        check(node.stop() == 0, "the node did not end in order")
    starts_with_an_external_one(folder)
    a_dead_node_is_not_found(folder)
    print("attach, replace, come back: no request lost")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
