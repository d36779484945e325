"""Decode rows that give several tokens at once: a client must see nothing of it.

With --decode-width the null device accepts one to that many made-up tokens in a row, each a hash of all
tokens before it, so one that is lost, doubled or swapped changes all that follow.  The real executor has
nobody who proposes tokens yet: its rows compute a window of which the first counts.
"""
import random

from resume import CASES, at_once, stream
from system import System, check, fixture, main, wait_for

NULL = ("--null-device", "--max-model-len", "512", "--max-num-seqs", "16", "--queue-len", "400",
        "--restart-intensity", "1000")


SHORT = (1, 2, 3, 4, 5, 50, 90)
LONG = (150, 200, 300)


def requests(lengths):
    rng = random.Random(4)
    return [{"prompt": "The quick brown fox " + str(at) + " and on" * rng.randrange(40), "seed": at,
             "ignore_eos": True, "max_tokens": rng.choice(lengths), "temperature": 1,
             "n": rng.choice((1, 1, 2, 5)), **({"stop": ["qz", "e th"]} if at % 3 == 0 else {})}
            for at in range(40)]


def answers(node, lengths):
    """What all requests give when they are asked at once."""
    wanted, into = requests(lengths), {}

    def ask(at):
        status, answer, _ = node.request("POST", "/v1/completions", wanted[at])
        check(status == 200, f"{wanted[at]} gave {status}: {answer}")
        into[at] = ([(choice["text"], choice["finish_reason"]) for choice in answer["choices"]],
                    answer["usage"]["completion_tokens"])

    at_once([lambda a=at: ask(a) for at in range(len(wanted))])
    return [into[at] for at in range(len(wanted))]


def same(what, lengths, got, wanted):
    for at, fields in enumerate(requests(lengths)):
        check(got[at] == wanted[at], f"{what}, {fields}: {got[at]} instead of {wanted[at]}")


def steps_of_one(node):
    """The steps of a node's first request, from the scheduler's report after it."""
    stream(node, {"max_tokens": 400, "ignore_eos": True})
    return wait_for("a report", 20, lambda: node.metric("onepath_num_requests_running") == 0
                    and node.metric("onepath_steps_total"))


def made_up_answers_are_those_of_width_one():
    wanted, steps = None, {}
    for width in (1, 4, 16):
        for options in ((), ("--no-overlap", "--max-num-batched-tokens", "64")):
            with System(*NULL, "--decode-width", str(width), *options,
                        model_path=fixture("tiny-llama")) as node:
                node.wait_ready()
                if not options:
                    steps[width] = steps_of_one(node)
                got = answers(node, SHORT)
                wanted = wanted or got
                same(f"width {width} {options}", SHORT, got, wanted)
                check(node.stop() == 0, "exit code after an asked stop")
    check(steps[16] < steps[4] < steps[1], f"wide rows took as many steps: {steps}")


def a_killed_scheduler_changes_no_wide_answer():
    """It dies when it has sent so many TOKENS: the null device is done at once, and a kill from here
    could come when all answers are there."""
    with System(*NULL, "--decode-width", "4", model_path=fixture("tiny-llama")) as node:
        node.wait_ready()
        wanted = answers(node, LONG)
        check(node.stop() == 0, "exit code after an asked stop")
    for count in (20, 100, 300):
        with System(*NULL, "--decode-width", "4", "--enable-fault-injection", "--fault",
                    f"scheduler/shell.before_send.TOKENS:kill:{count}",
                    model_path=fixture("tiny-llama")) as node:
            node.wait_ready()
            first = node.pids()["scheduler"]
            same(f"killed after {count} messages", LONG, answers(node, LONG), wanted)
            check(node.pids().get("scheduler") != first, f"{count} messages were never sent")
            check(node.metric("onepath_resumed_requests_total") > 0, "nothing was resumed")
            check(node.stop() == 0, "exit code after an asked stop")


def a_models_answers_are_those_of_width_one():
    wanted = {}
    for width in (1, 3):
        with System("--decode-width", str(width), "--max-model-len", "256", "--max-num-seqs", "8",
                    "--graph-debug", model_path=fixture("tiny-llama")) as node:
            node.wait_ready()
            for name, fields in CASES.items():
                got = stream(node, fields)
                check(got == wanted.setdefault(name, got),
                      f"{name} at width {width}: {got}, width 1 gives {wanted[name]}")
            check(node.stop() == 0, "exit code after an asked stop")


if __name__ == "__main__":
    main([made_up_answers_are_those_of_width_one, a_killed_scheduler_changes_no_wide_answer,
          a_models_answers_are_those_of_width_one])
