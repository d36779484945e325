"""Kills the scheduler while requests are open: the client must see nothing of it.

The gateway's history is the only truth: what is open goes on with the next scheduler, so each answer
is, token for token, that of an undisturbed run; usage included.  No error event, no hole, no double.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from system import System, binary, check, main, wait_for

SMALL = ("--max-model-len", "512", "--max-num-seqs", "8", "--enable-fault-injection",
         "--restart-intensity", "1000")
PROMPT = "The quick brown fox"

GREEDY = {"max_tokens": 120, "ignore_eos": True}
CASES = {
    "greedy": GREEDY,
    "seeded": {**GREEDY, "temperature": 0.9, "top_p": 0.95, "seed": 7},
    "penalties": {**GREEDY, "temperature": 0.8, "seed": 3, "presence_penalty": 0.6,
                  "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    "min tokens": {"max_tokens": 120, "temperature": 1.3, "seed": 5, "min_tokens": 60},
    "logprobs": {**GREEDY, "max_tokens": 80, "logprobs": 3},
    "n": {**GREEDY, "max_tokens": 80, "n": 2, "temperature": 0.9, "seed": 11},
    "stop": {**GREEDY, "temperature": 0.7, "seed": 2, "stop": ["\n\n", " never matches "]},
}


def whole(events):
    """What a streamed answer amounts to: for each choice text, log-probabilities and reason; usage."""
    choices, usage = {}, None
    for event in events:
        for part in event.get("choices", []):
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": [], "reason": None})
            choice["text"] += part.get("text") or ""
            probs = part.get("logprobs")
            if probs:
                choice["logprobs"] += list(zip(probs["tokens"], probs["token_logprobs"],
                                               probs["text_offset"]))
            choice["reason"] = part.get("finish_reason") or choice["reason"]
        usage = event.get("usage") or usage
    usage = {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {"choices": [choices[at] for at in sorted(choices)], "usage": usage}


def stream(node, fields, on_event=None):
    fields = {"stream_options": {"include_usage": True}, "prompt": PROMPT, **fields}
    prompt = fields.pop("prompt")
    events, ended = node.stream(prompt, on_event, **fields)
    check(ended == "done", f"the stream ended as {ended}: {events[-1:]}")
    check(not any("error" in event for event in events), "an error event came")
    return whole(events)


def kill_and_wait(node, actor):
    """Kills it and waits until its successor is there."""
    before = node.kill(actor)
    wait_for(f"a new {actor}", 20, lambda: node.pids().get(actor) not in (None, before))


def kill_scheduler(node):
    kill_and_wait(node, "scheduler")


def same(what, got, wanted):
    if got != wanted:
        for at, (a, b) in enumerate(zip(got["choices"], wanted["choices"])):
            for key in a:
                check(a[key] == b[key], f"{what}: {key} of choice {at} is {a[key]!r}, "
                                        f"undisturbed {b[key]!r}")
        check(False, f"{what}: {got} instead of {wanted}")


def at_once(work):
    """Runs functions side by side; passes on what fails."""
    failures, threads = [], []

    def run(function):
        try:
            function()
        except Exception as failure:  # told below, in the test's own thread
            failures.append(failure)

    for function in work:
        threads.append(threading.Thread(target=run, args=(function,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def a_killed_scheduler_changes_no_answer():
    a_killed_actor_changes_no_answer("scheduler")


def a_killed_executor_changes_no_answer():
    a_killed_actor_changes_no_answer("executor")


def a_request_that_kills_its_executor_twice_is_poisoned():
    """A second death before the request got on is the request's own: it is not tried a third time."""
    with System(*SMALL) as node:
        node.wait_ready()
        wanted = stream(node, CASES["greedy"])
        kills = []

        def on_event(events):
            texts = sum(1 for event in events for part in event.get("choices", []) if part.get("text"))
            if len(kills) < 2 and texts >= (3 if not kills else kills[-1] + 1):
                kills.append(texts)
                kill_and_wait(node, "executor")

        events, ended = node.stream(PROMPT, on_event, **GREEDY)
        check(ended == "broken", f"the stream ended as {ended}")
        check(events[-1].get("error", {}).get("code") == "request_killed_worker",
              f"the last event: {events[-1]}")
        check(node.metric("onepath_poisoned_requests_total") == 1, "it is not counted")
        node.wait_ready(60)
        same("the next request", stream(node, CASES["greedy"]), wanted)


def a_killed_actor_changes_no_answer(actor):
    """All kinds of requests side by side, all of them in mid-stream when it dies."""
    with System(*SMALL) as node:
        node.wait_ready()
        wanted = {name: stream(node, fields) for name, fields in CASES.items()}
        begun, killed, got = {}, threading.Event(), {}

        def follow(name):
            def on_event(events):
                begun[name] = len(events)
                if len(begun) == len(CASES) and not killed.is_set():
                    killed.set()
                    kill_and_wait(node, actor)
            got[name] = stream(node, CASES[name], on_event)

        at_once([lambda n=name: follow(n) for name in CASES])
        check(killed.is_set(), "they were never all in mid-stream")
        for name in CASES:
            same(name, got[name], wanted[name])
        resumed = node.metric("onepath_resumed_requests_total")
        check(resumed >= len(CASES) - 1, f"only {resumed} choices were resumed")
        check(node.metric("onepath_choices_open") == 0, "a choice is left open")
        check(node.metric("onepath_history_used_bytes") == 0, "history is left behind")
        check(node.stop() == 0, "exit code after an asked stop")


def three_kills_in_a_row():
    """The second and third while the answer of the one before has only just begun, or not even."""
    with System(*SMALL) as node:
        node.wait_ready()
        for name in ("penalties", "n"):
            wanted = stream(node, CASES[name])
            left = [4, 5, 40]

            def on_event(events):
                if left and len(events) >= left[0]:
                    left.pop(0)
                    kill_scheduler(node)

            same(name, stream(node, CASES[name], on_event), wanted)
            check(not left, f"{name}: the answer was over before the last kill")
        check(node.stop() == 0, "exit code after an asked stop")


def hit_at_a_point(point, fields, options=(), actor="scheduler"):
    """A node with one named fault on the way of its first request; the same request afterwards is
    the undisturbed run.  Returns how often something was submitted again."""
    with System(*SMALL, *options, "--fault", f"{actor}/{point}") as node:
        node.wait_ready()
        first = node.pids()[actor]
        got = stream(node, fields)
        check((node.pids().get(actor) != first) == (":kill:" in point), f"{point}: never reached")
        node.wait_ready()
        resumed = node.metric("onepath_resumed_requests_total")
        same(point, got, stream(node, fields))
        return resumed


def killed_during_the_prefill():
    words = " ".join(f"word{at}" for at in range(110))
    fields = {**CASES["seeded"], "prompt": words, "max_tokens": 20}
    for point in ("shell.after_receive.SUBMIT:kill:1", "shell.before_send.PLAN:kill:3"):
        resumed = hit_at_a_point(point, fields, ("--max-num-batched-tokens", "64"))
        check(resumed == 1, f"{point}: {resumed} requests were resumed")


def killed_between_the_last_token_and_its_end():
    """The tokens came, the word that they were the last did not: nothing may be added."""
    with System(*SMALL) as node:
        node.wait_ready()
        answer = node.complete(PROMPT, max_tokens=24, ignore_eos=True, logprobs=0,
                               return_tokens_as_token_ids=True)
    ids = [int(name.split(":")[1]) for name in answer["choices"][0]["logprobs"]["tokens"]]
    last = next(at for at in range(6, 24) if ids[at] not in ids[:at])
    for name, fields in (("length", {"max_tokens": 12, "ignore_eos": True}),
                         ("stop token", {"max_tokens": 40, "stop_token_ids": [ids[last]]})):
        hit_at_a_point("shell.before_send.FINISHED:kill:1", fields)
        resumed = hit_at_a_point("shell.before_send.FINISHED:drop:1", fields)
        check(resumed == 0, f"{name}: it was whole, and was submitted again")


def lost_messages_are_made_good():
    """A message that never arrives ends the link; the scheduler lives, and takes its request again."""
    for actor, point in (("scheduler", "shell.before_send.TOKENS:drop:5"),
                         ("gateway", "shell.before_send.SUBMIT:drop:1")):
        resumed = hit_at_a_point(point, {**CASES["logprobs"], "max_tokens": 24}, (), actor)
        check(resumed == 1, f"{point}: {resumed} requests were resumed")


def killed_while_others_wait():
    """One slot: what waits in the scheduler's queue, and what comes while there is none, is served."""
    with System("--max-model-len", "512", "--max-num-seqs", "1", "--restart-intensity", "1000") as node:
        node.wait_ready()
        prompts = [f"{PROMPT} number {at} ran" for at in range(4)]
        ask = lambda prompt: node.complete(prompt, max_tokens=20, ignore_eos=True)
        wanted = [ask(prompt)["choices"][0]["text"] for prompt in prompts]
        long = stream(node, GREEDY)
        got, begun, killed = [None] * len(prompts), threading.Event(), threading.Event()

        def queued(at):
            check(begun.wait(30), "nothing ran")
            got[at] = ask(prompts[at])

        def late(at):
            check(killed.wait(30), "nothing was killed")
            got[at] = ask(prompts[at])

        def running():
            def on_event(events):
                begun.set()
                if not killed.is_set() \
                        and node.metric("onepath_num_requests_waiting") >= 2:
                    node.kill("scheduler")
                    killed.set()
            same("the running one", stream(node, GREEDY, on_event), long)

        at_once([running, lambda: queued(0), lambda: queued(1), lambda: late(2), lambda: late(3)])
        for at, answer in enumerate(got):
            check(answer["choices"][0]["text"] == wanted[at], f"{prompts[at]}: {answer}, {wanted[at]}")
            check(answer["usage"]["completion_tokens"] == 20, f"usage is {answer['usage']}")
        check(node.stop() == 0, "exit code after an asked stop")


def stopped_at(node, actor, count):
    """An on_event that freezes an actor after `count` events; and the process ids it froze."""
    frozen = []

    def on_event(events):
        if len(events) >= count and not frozen:
            frozen.append(node.kill(actor, signal.SIGSTOP))
    return on_event, frozen


def a_frozen_scheduler_that_wakes_changes_no_answer():
    """It counts as lost after a second.  Awake again it knows old requests: nothing that it still says
    about them may be taken, and it gets them again under new names."""
    with System(*SMALL) as node:
        node.wait_ready()
        for name in ("seeded", "logprobs"):
            wanted = stream(node, CASES[name])
            on_event, frozen = stopped_at(node, "scheduler", 6)
            waker = threading.Thread(target=lambda: (
                wait_for("the freeze", 20, lambda: frozen),
                wait_for("the loss", 20, lambda: node.metric("onepath_choices_waiting") == 1),
                os.kill(frozen[0], signal.SIGCONT)))
            waker.start()
            same(name, stream(node, CASES[name], on_event), wanted)
            waker.join()
        check(node.metric("onepath_resumed_requests_total") >= 2, "nothing was resumed")
        check(node.stop() == 0, "exit code after an asked stop")


def a_scheduler_that_stays_away_is_an_error():
    """Nothing takes over within --resume-timeout: one error event, and the body breaks off."""
    with System(*SMALL, "--resume-timeout", "1") as node:
        node.wait_ready()
        wanted = stream(node, CASES["seeded"])
        on_event, frozen = stopped_at(node, "scheduler", 6)
        events, ended = node.stream(PROMPT, on_event, **CASES["seeded"])
        check(ended == "broken", f"the stream ended as {ended}")
        check(events[-1].get("error", {}).get("code") == "worker_lost", f"the last event: {events[-1]}")
        status, answer, headers = node.request("POST", "/v1/completions", {"prompt": PROMPT})
        check(status == 503 and "Retry-After" in headers, f"a request now gave {status}: {answer}")
        os.kill(frozen[0], signal.SIGCONT)
        node.wait_ready()
        same("the next request", stream(node, CASES["seeded"]), wanted)


def many_requests_survive_a_kill():
    """Hundreds of choices on the device that makes tokens of the whole sequence before them: one that is
    lost, doubled or swapped changes all that follow."""
    seed = int(os.environ.get("ONEPATH_SEED", str(random.randrange(1 << 30))))
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    wanted = [{"prompt": f"{PROMPT} {at} " + "and on " * rng.randrange(60), "ignore_eos": True,
               "max_tokens": rng.randrange(20, 120), "n": rng.choice((1, 2, 8)), "seed": at,
               "temperature": 1} for at in range(48)]
    options = ("--null-device", "--max-model-len", "512", "--max-num-seqs", "16", "--queue-len", "400",
               "--restart-intensity", "1000")

    def texts(node, into):
        def ask(at):
            status, answer, _ = node.request("POST", "/v1/completions", wanted[at])
            check(status == 200, f"{wanted[at]} gave {status}: {answer}")
            into[at] = ([choice["text"] for choice in answer["choices"]],
                        answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"])
        return [lambda a=at: ask(a) for at in range(len(wanted))]

    with System(*options) as node:
        node.wait_ready()
        alone = {}
        at_once(texts(node, alone))
        for _ in range(3):
            disturbed, delay = {}, rng.random() * 0.1

            def killer(delay=delay):
                wait_for("work", 20, lambda: node.metric("onepath_choices_open") > 0)
                time.sleep(delay)  # the moment is what varies
                kill_scheduler(node)

            at_once([killer, *texts(node, disturbed)])
            for at, fields in enumerate(wanted):
                check(disturbed[at] == alone[at], f"{fields}: {disturbed[at]}, alone {alone[at]}")
        resumed = node.metric("onepath_resumed_requests_total")
        check(resumed > 0, "nothing was resumed")
        check(node.metric("onepath_choices_open") == 0, "a choice is left open")
        check(node.stop() == 0, "exit code after an asked stop")


def a_silent_scheduler_is_replaced():
    """It lives, it took the request, and nothing comes of it: the gateway complains, the built-in one takes
    over, and the client has waited a little, no more."""
    with tempfile.TemporaryDirectory(prefix="onepath-silent-") as folder:
        endpoint, run_dir = f"ipc://{folder}/silent", f"{folder}/run"
        silent = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__),
                                                                "silent_scheduler.py"),
                                   "--endpoint", endpoint])
        try:
            with System(*SMALL, "--run-dir", run_dir, "--answer-timeout", "2") as node:
                node.wait_ready()
                wanted = stream(node, CASES["seeded"])
                moved = []

                def on_event(events):
                    if len(events) >= 6 and not moved:
                        moved.append(subprocess.run([binary(), "scheduler", "attach", endpoint,
                                                     "--run-dir", run_dir],
                                                    capture_output=True, text=True, check=False))

                same("the answer", stream(node, CASES["seeded"], on_event), wanted)
                check(moved and moved[0].returncode == 0, f"it was not attached: {moved}")
                check(node.metric("onepath_resumed_requests_total") == 2, "it was not resumed twice")
                check(any("did nothing for any of them" in line for line in node.lines),
                      "nobody complained")
                check(node.stop() == 0, "exit code after an asked stop")
        finally:
            silent.kill()
            silent.wait(10)


if __name__ == "__main__":
    main([a_silent_scheduler_is_replaced,
          many_requests_survive_a_kill,
          a_frozen_scheduler_that_wakes_changes_no_answer, a_scheduler_that_stays_away_is_an_error,
          a_killed_scheduler_changes_no_answer, a_killed_executor_changes_no_answer,
          a_request_that_kills_its_executor_twice_is_poisoned, three_kills_in_a_row, killed_during_the_prefill,
          killed_between_the_last_token_and_its_end, lost_messages_are_made_good,
          killed_while_others_wait])
