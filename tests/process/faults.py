"""Kills each actor in turn during a stream, at named fault points and at plain moments.

Wanted each time: the client gets a complete answer or an error event, never a clean end that lacks
one; the supervisor starts what died; the next request works and its text is right.  When the
scheduler is the one that died, the answer is complete (resume.py looks at its text).
"""
import os
import random
import sys
import threading
import time

from system import System, check, main, wait_for

SMALL = ("--max-model-len", "512", "--max-num-seqs", "8", "--enable-fault-injection")
PROMPT = "The quick brown fox"
ROWS = []


def ended_truthfully(events, ended, tokens):
    """A complete answer, or an error that a client notices."""
    reasons = [c.get("finish_reason") for e in events for c in e.get("choices", [])]
    errors = [e for e in events if "error" in e]
    if ended == "done":
        return not errors and any(reasons), "complete"
    if ended == "broken":
        return bool(errors), "error event" if errors else "broken off without an error event"
    if ended == "refused":
        return events[0]["status"] in (500, 503) and "error" in events[0], "refused"
    return False, "a clean end without [DONE]"


def clean_text(node):
    return node.complete(PROMPT, max_tokens=12)["choices"][0]["text"]


def stream_and(node, act, tokens=200):
    """Streams, calls `act` once text has come, returns how it ended."""
    fired = threading.Event()

    def on_event(events):
        if len(events) >= 3 and not fired.is_set():
            fired.set()
            act()

    began = time.monotonic()
    events, ended = node.stream(PROMPT, on_event, max_tokens=tokens, ignore_eos=True)
    return events, ended, time.monotonic() - began


def after_fault(node, name, victim, text, events, ended, seconds, tokens):
    good, seen = ended_truthfully(events, ended, tokens)
    ROWS.append((name, victim, seen, f"{seconds:.2f}"))
    if victim == "gateway" and ended == "broken":
        good = True  # the process that would have written the event is gone: the body breaks off
    check(good, f"{name}: the client saw {seen} after {len(events)} events")
    check(victim == "gateway" or seen == "complete", f"{name}: the client saw {seen}")
    node.wait_ready(60)
    check(clean_text(node) == text, f"{name}: the next request's text differs")


def each_actor_killed_in_mid_stream():
    with System(*SMALL) as node:
        node.wait_ready()
        text = clean_text(node)
        for victim in ("executor", "scheduler", "gateway", "recorder"):
            before = node.kill  # keeps the line below short
            events, ended, seconds = stream_and(node, lambda v=victim: before(v))
            after_fault(node, f"kill -9 {victim}", victim, text, events, ended, seconds, 200)
            wait_for(f"a new {victim}", 10, lambda v=victim: node.pids().get(v))
        check(node.stop() == 0, "exit code after an asked stop")


POINTS = [
    ("executor", "shell.after_receive.ADMIT"), ("executor", "shell.after_receive.PLAN"),
    ("executor", "shell.before_send.STEP_RESULT"), ("scheduler", "shell.after_receive.SUBMIT"),
    ("scheduler", "shell.before_send.ADMIT"), ("scheduler", "shell.before_send.PLAN"),
    ("scheduler", "shell.after_receive.STEP_RESULT"), ("scheduler", "shell.before_send.TOKENS"),
    ("scheduler", "shell.before_send.FINISHED"), ("gateway", "shell.before_send.SUBMIT"),
    ("gateway", "shell.after_receive.TOKENS"), ("gateway", "shell.after_receive.FINISHED"),
]


def each_fault_point():
    """One node for each point: the point is armed for its third hit, in the first incarnation."""
    for victim, point in POINTS:
        with System(*SMALL, "--fault", f"{victim}/{point}:kill:3") as node:
            node.wait_ready()
            first = node.pids()[victim]
            seen = []
            for _ in range(8):
                try:
                    began = time.monotonic()
                    events, ended = node.stream(PROMPT, max_tokens=24, ignore_eos=True)
                except OSError:
                    events, ended = [], "broken"
                good, what = ended_truthfully(events, ended, 24)
                seen.append(what)
                check(good or victim == "gateway", f"{point}: the client saw {what}")
                check(what == "complete" or victim == "gateway", f"{point}: the client saw {what}")
                if node.pids().get(victim) != first:
                    ROWS.append((f"{point} kill", victim, what, f"{time.monotonic() - began:.2f}"))
                    break
            check(node.pids().get(victim) != first, f"{point}: never reached ({seen})")
            node.wait_ready(60)
            check(node.complete(PROMPT, max_tokens=4)["choices"], f"{point}: the next request failed")


def a_frozen_executor_is_noticed():
    import signal
    with System(*SMALL) as node:
        node.wait_ready()
        text = clean_text(node)
        frozen = []
        events, ended, seconds = stream_and(
            node, lambda: frozen.append(node.kill("executor", signal.SIGSTOP)))
        check(seconds < 60, f"it took {seconds:.1f} s")
        after_fault(node, "SIGSTOP executor", "executor", text, events, ended, seconds, 200)


def restart_intensity_ends_with_70():
    with System("--max-model-len", "512", "--max-num-seqs", "2") as node:
        node.wait_ready()
        for _ in range(12):
            if node.process.poll() is not None:
                break
            pid = node.pids().get("scheduler")
            if pid:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            time.sleep(0.2)
        code = node.process.wait(60)
        check(code == 70, f"too many restarts must end with 70, not {code}")
        check(any("scheduler" in line for line in node.lines[-40:]), "the last lines name no culprit")


def random_kills():
    seed = int(os.environ.get("ONEPATH_SEED", str(random.randrange(1 << 30))))
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    with System(*SMALL, "--restart-intensity", "1000") as node:
        node.wait_ready()
        text = clean_text(node)
        for _ in range(10):
            victim = rng.choice(["executor", "scheduler", "gateway"])
            delay = rng.random() * 0.8
            killer = threading.Timer(delay, lambda v=victim: node.kill(v))
            killer.start()
            try:
                events, ended = node.stream(PROMPT, max_tokens=100, ignore_eos=True)
            except OSError:
                events, ended = [], "broken"
            killer.join()
            good, what = ended_truthfully(events, ended, 100)
            check(good or victim == "gateway", f"{victim} after {delay:.2f} s: the client saw {what}")
            check(what == "complete" or victim == "gateway",
                  f"{victim} after {delay:.2f} s: the client saw {what}")
            wait_for(f"a new {victim}", 20, lambda v=victim: node.pids().get(v))
            node.wait_ready(60)
            check(clean_text(node) == text, f"{victim}: the next request's text differs")


if __name__ == "__main__":
    try:
        main([each_actor_killed_in_mid_stream, a_frozen_executor_is_noticed,
              restart_intensity_ends_with_70, each_fault_point, random_kills])
    finally:
        for row in ROWS:
            sys.stderr.write("%-45s %-10s %-14s %s s\n" % row)
