"""A drafter beside the executor: it changes no answer, and nothing of it is missed when it dies.

Prompt lookup in a process of its own, and in the executor's, on a small model that a bias confines to
two tokens, so that many of its candidates are right, and not all.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from resume import CASES, at_once, stream
from system import System, binary, check, fixture, main, wait_for

SMALL = ("--max-model-len", "512", "--max-num-seqs", "8", "--threads", "1")
DRAFT = ("--drafter", "ngram", *SMALL)
PROMPT = "The quick brown fox jumps over the lazy dog and then the quick brown fox jumps over"
LOOP = {"ignore_eos": True, "logit_bias": {"70": 100, "71": 100}}
STALL_MAX_S = 1.0 + 0.5  # one heartbeat window, and what a loaded machine may add to any answer


def tiny(*options, **fields):
    return System(*options, model_path=fixture("tiny-llama"), **fields)


def accepted(node):
    return node.metric("onepath_draft_accepted_tokens_total")


def use(node):
    """Streams until a candidate was accepted."""
    def more():
        before = accepted(node)
        node.complete(PROMPT, max_tokens=200, **LOOP)
        return accepted(node) > before
    wait_for("accepted candidates", 60, more)


class Load:
    """Requests one after the other until it is stopped: the texts, and the longest silence."""

    def __init__(self, node, wanted):
        self.node, self.wanted = node, wanted
        self.count, self.silence, self.failure = 0, 0.0, None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ends.is_set() and self.failure is None:
            last = [time.monotonic()]

            def heard(_, last=last):
                self.silence = max(self.silence, time.monotonic() - last[0])
                last[0] = time.monotonic()

            try:
                events, ended = self.node.stream(PROMPT, heard, max_tokens=400, **LOOP)
            except OSError as error:
                self.failure = f"a request failed: {error}"
                return
            text = "".join(c["text"] for e in events for c in e.get("choices", []))
            if ended != "done" or text != self.wanted:
                self.failure = f"a request ended '{ended}' with {text!r} instead of {self.wanted!r}"
            self.count += 1

    def stop(self):
        self.ends.set()
        self.thread.join(60)
        check(self.failure is None, self.failure)
        check(self.count > 0, "no request was made")
        check(self.silence < STALL_MAX_S, f"a stream was silent for {self.silence:.2f} s")


def undisturbed():
    with tiny(*SMALL) as node:
        node.wait_ready()
        text = node.complete(PROMPT, max_tokens=400, **LOOP)["choices"][0]["text"]
        check(node.stop() == 0, "exit code after an asked stop")
        return text


def a_drafter_changes_no_answer():
    wanted = {}
    bias = LOOP["logit_bias"]
    cases = {**CASES, **{f"{name}, confined": {**fields, "logit_bias": bias}
                         for name, fields in CASES.items()}}
    for options in (SMALL, DRAFT, (*DRAFT, "--drafter-shared"),
                    (*DRAFT, "--decode-width", "7", "--no-overlap", "--graph-debug")):
        with tiny(*options) as node:
            node.wait_ready()
            got = {}

            def ask(name, node=node, got=got):
                got[name] = stream(node, cases[name])

            at_once([lambda n=name: ask(n) for name in cases])
            for name in cases:
                check(name not in wanted or got[name] == wanted[name],
                      f"{name} beside others with {options}: {got[name]} instead of {wanted.get(name)}")
                ask(name)
                check(got[name] == wanted.setdefault(name, got[name]),
                      f"{name} with {options}: {got[name]} instead of {wanted[name]}")
            if options != SMALL:
                use(node)
                check("drafter" in node.pids() or "--drafter-shared" in options, "no drafter runs")
                check(node.metric("onepath_draft_ignored_total") == 0, "candidates were ignored")
            check(node.stop() == 0, "exit code after an asked stop")


def a_killed_drafter_is_not_missed():
    wanted = undisturbed()
    with tiny(*DRAFT, "--restart-intensity", "20") as node:
        node.wait_ready()
        use(node)
        for _ in range(3):
            load = Load(node, wanted)
            wait_for("a request", 30, lambda: load.count > 0)
            killed = node.kill("drafter")
            wait_for("a new drafter", 20, lambda: node.pids().get("drafter") not in (None, killed))
            before = accepted(node)
            wait_for("candidates of the new drafter", 30, lambda: accepted(node) > before)
            load.stop()
        check(node.stop() == 0, "exit code after an asked stop")


def a_new_executor_finds_the_drafter_that_is_there():
    with tiny(*DRAFT, "--restart-intensity", "20") as node:
        node.wait_ready()
        use(node)
        drafter, killed = node.pids()["drafter"], node.kill("executor")
        wait_for("a new executor", 20, lambda: node.pids().get("executor") not in (None, killed))
        node.wait_ready()
        use(node)
        check(node.pids().get("drafter") == drafter, "the drafter was started anew")
        check(node.stop() == 0, "exit code after an asked stop")


def a_frozen_drafter_is_left_behind():
    wanted = undisturbed()
    with tiny(*DRAFT) as node:
        node.wait_ready()
        use(node)
        load = Load(node, wanted)
        wait_for("a request", 30, lambda: load.count > 0)
        frozen = node.kill("drafter", signal.SIGSTOP)
        count = load.count
        wait_for("requests without it", 30, lambda: load.count > count + 3)
        os.kill(frozen, signal.SIGCONT)
        before = accepted(node)
        wait_for("candidates again", 30, lambda: accepted(node) > before)
        load.stop()
        check(node.stop() == 0, "exit code after an asked stop")


def answers_that_never_come_cost_candidates_only():
    wanted = undisturbed()
    with tiny(*DRAFT, "--enable-fault-injection", "--fault", "drafter/drafter.answer:drop:0") as node:
        node.wait_ready()
        load = Load(node, wanted)
        wait_for("a request", 30, lambda: load.count > 2)
        load.stop()
        check(accepted(node) == 0, "a candidate came from nowhere")
        check(node.stop() == 0, "exit code after an asked stop")


def tool(*words):
    done = subprocess.run([binary(), "log", *words], capture_output=True, text=True, timeout=120,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def a_recorded_run_replays_actor_by_actor():
    with tempfile.TemporaryDirectory() as folder:
        with tiny(*DRAFT, "--record", folder) as node:
            node.wait_ready()
            use(node)
            at_once([lambda at=at: node.complete(PROMPT, max_tokens=60, seed=at, **{**LOOP, "temperature": 0.7})
                     for at in range(6)])
            check(node.stop() == 0, "exit code after an asked stop")
        for actor in ("scheduler", "executor", "drafter"):
            code, text = tool("replay", folder, "--actor", actor)
            check(code == 0, f"{actor}: {text}")


POINTS = ("shell.before_send.DRAFTER_INFO", "shell.after_receive.DRAFTER_ACCEPT",
          "shell.after_receive.DRAFT_PROPOSE", "drafter.before_round", "drafter.before_answer",
          "drafter.after_answer", "shell.before_send.DRAFT_PROPOSED")


def each_fault_point():
    """Killed at its first, its second and its thirtieth hit."""
    wanted = undisturbed()
    for point in POINTS:
        for hit in (1, 2, 30) if "ACCEPT" not in point and "INFO" not in point else (1,):
            with tiny(*DRAFT, "--restart-intensity", "20", "--enable-fault-injection",
                      "--fault", f"drafter/{point}:kill:{hit}") as node:
                node.wait_ready()
                load = Load(node, wanted)
                wait_for(f"{point}: the end of the first drafter", 60, lambda: any(
                    "drafter ended" in line and "signal" in line for line in node.lines))
                wait_for("a new drafter", 20, lambda: node.pids().get("drafter"))
                before = accepted(node)
                wait_for("candidates of the new drafter", 60, lambda: accepted(node) > before)
                load.stop()
                print(f"     {point} at hit {hit}: silent for {load.silence:.2f} s at most", flush=True)
                check(node.stop() == 0, "exit code after an asked stop")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    main([a_drafter_changes_no_answer, a_killed_drafter_is_not_missed,
          a_new_executor_finds_the_drafter_that_is_there, a_frozen_drafter_is_left_behind, answers_that_never_come_cost_candidates_only,
          a_recorded_run_replays_actor_by_actor, each_fault_point])
