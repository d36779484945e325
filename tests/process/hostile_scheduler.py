"""Schedulers that break rules are attached to a running node: the executor refuses what they plan,
running requests are unharmed, the built-in scheduler takes over, and every answer is that of an
undisturbed run.

The wrong schedulers are those of tests/conform; what each of them does is in wrong_faults.c.
"""
import os
import signal
import subprocess
import sys
import tempfile

import scheduler_attach
import system
from system import Failure, System, check, wait_for

# Wrong in every plan: the built-in one must take over.  (Silent ones are in resume.py, dead ones in
# scheduler_attach.py.)
REPLACED = ("slot-range", "block-range", "shape")
# Wrong now and then: each bad plan is refused, and the scheduler may stay.
TOLERATED = ("slot-twice", "column-range", "no-blocks", "foreign-block", "budget", "width")
FIELDS = {"max_tokens": 96, "ignore_eos": True, "temperature": 0}


def wrong_scheduler():
    path = os.environ.get("WRONG_SCHEDULER")
    if not path:
        sys.exit("WRONG_SCHEDULER must name the program of tests/conform")
    return path


def known():
    return subprocess.run([wrong_scheduler(), "list"], capture_output=True, text=True, check=True).stdout


class Wrong:
    def __init__(self, folder, fault):
        self.endpoint = f"ipc://{folder}/{fault}"
        self.log = open(f"{folder}/{fault}.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([wrong_scheduler(), fault, self.endpoint], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log)
        wait_for(f"the socket of {fault}", 10, lambda: os.path.exists(f"{folder}/{fault}"))

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


def takes_over_from(node, run_dir, folder, fault, expected):
    wrong = Wrong(folder, fault)
    try:
        streams = scheduler_attach.Streams(node, FIELDS)
        streams.wait_progress(6)
        # The attach itself may succeed or be undone already: it is the requests that count.
        scheduler_attach.command(run_dir, "attach", wrong.endpoint)
        check(streams.texts() == expected, f"{fault}: a text differs from the undisturbed one")
        if fault in REPLACED:
            wait_for(f"the built-in scheduler to take over from {fault}", 30, lambda:
                     "in charge: the built-in one" in scheduler_attach.command(run_dir, "show")[1])
        else:
            code, text = scheduler_attach.command(run_dir, "builtin")
            check(code == 0, f"builtin gave {code}: {text}")
        check(node.complete("Hi", max_tokens=2), f"{fault}: the next request failed")
    finally:
        wrong.end()


def main():
    folder = tempfile.mkdtemp(prefix="onepath-hostile-", dir="/tmp")
    names = known()
    for fault in REPLACED + TOLERATED:
        check(fault in names, f"tests/conform has no '{fault}':\n{names}")
    run_dir = f"{folder}/node"
    with System("--run-dir", run_dir, "--bad-plans", "3", "--answer-timeout", "3") as node:
        node.wait_ready()
        expected = scheduler_attach.Streams(node, FIELDS).texts()
        for fault in REPLACED + TOLERATED:
            takes_over_from(node, run_dir, folder, fault, expected)
            print("no request lost to", fault)
        check(not [line for line in node.lines if "supervisor.ended" in line], "an actor ended")
        check(node.stop() == 0, "the node did not end in order")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
