"""An operator looks into a running executor: the shadow check under load, graphs off and on.

Neither changes an answer.  With a fault point armed the check must find a difference, name the buffer
and leave the answers as they were.
"""
import subprocess
import sys
import tempfile
import threading

import system
from system import Failure, System, check, wait_for

FIELDS = {"max_tokens": 120, "ignore_eos": True}
SEEDED = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.8, "seed": 11}
PROMPTS = ["Once upon a time", "The capital of France", "int main(void)", "My favourite colour is"]


def command(run_dir, *words):
    done = subprocess.run([system.binary(), "executor", *words, "--run-dir", run_dir],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


class Load:
    """Streams at once, each begun again when it ends, so that there is load until texts() is called,
    which waits for the last ones."""

    def __init__(self, node, fields):
        self.node, self.results = node, {prompt: [] for prompt in PROMPTS}
        self.counts = {prompt: 0 for prompt in PROMPTS}
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(prompt, fields)) for prompt in PROMPTS]
        for thread in self.threads:
            thread.start()

    def _run(self, prompt, fields):
        def on_event(_):
            self.counts[prompt] += 1
        ended = "done"
        while ended == "done":
            try:
                events, ended = self.node.stream(prompt, on_event, timeout=180, **fields)
            except OSError as error:
                events, ended = [{"error": str(error)}], "broken"
            self.results[prompt].append((events, ended))
            if self.is_over.is_set():
                return

    def wait_progress(self, events):
        """So many more events of each stream, from now on."""
        until = {prompt: count + events for prompt, count in self.counts.items()}
        wait_for(f"{events} events of each stream", 90,
                 lambda: all(self.counts[prompt] >= count for prompt, count in until.items()) or
                 not all(thread.is_alive() for thread in self.threads))
        check(all(thread.is_alive() for thread in self.threads), f"a stream broke: {self.results}")

    def texts(self):
        """The one text of each prompt: all its streams must have given the same."""
        self.is_over.set()
        for thread in self.threads:
            thread.join(240)
        texts = {}
        for prompt, results in self.results.items():
            check(results, f"the stream of '{prompt}' has no result")
            for events, ended in results:
                check(ended == "done", f"the stream of '{prompt}' ended as {ended}: {events[-1:]}")
                text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
                check(texts.setdefault(prompt, text) == text, f"two streams of '{prompt}' differ")
        return texts


def decode_steps(node):
    """Decode steps that /metrics counts, once it has caught up with the end of the requests."""
    wait_for("the step figures", 10, lambda: node.metric("onepath_num_requests_running") == 0)
    return {"graph": node.metric("onepath_decode_steps_total", mode="graph"),
            "eager": node.metric("onepath_decode_steps_total", mode="eager"),
            "above": node.metric("onepath_decode_steps_above_ladder_total")}


def a_check_under_load_finds_no_difference(node, run_dir, fields, expected):
    load = Load(node, fields)
    for events in (8, 20, 20):
        load.wait_progress(events)
        code, text = command(run_dir, "check")
        check(code == 0 and "agree in every bit" in text, f"check gave {code}: {text}")
    check(load.texts() == expected, "a text differs after checks")


def a_planted_difference_is_found_and_named(node, run_dir, fields, expected):
    load = Load(node, fields)
    load.wait_progress(8)
    code, text = command(run_dir, "check")
    check(code == 1 and "first in 'cache layer 1 field 0" in text, f"the planted check gave {code}: {text}")
    code, text = command(run_dir, "check")
    check(code == 0, f"the check after the planted one gave {code}: {text}")
    check(load.texts() == expected, "a text differs after a check that found a difference")


def graphs_go_off_and_on(node, run_dir, fields, expected):
    load = Load(node, fields)
    load.wait_progress(8)
    code, text = command(run_dir, "graphs", "off")
    check(code == 0 and "graphs are off" in text, f"graphs off gave {code}: {text}")
    code, text = command(run_dir, "check")
    check(code == 1 and "nothing to compare" in text, f"a check without graphs gave {code}: {text}")
    load.wait_progress(30)
    code, text = command(run_dir, "graphs", "on")
    check(code == 0 and "graphs are on" in text, f"graphs on gave {code}: {text}")
    check(load.texts() == expected, "a text differs after graphs went off and on")
    code, text = command(run_dir, "show")
    check(code == 0 and "graphs are on" in text, f"show gave {code}: {text}")


def graphs_stay_off_over_a_restart(node, run_dir):
    code, text = command(run_dir, "graphs", "off")
    check(code == 0, f"graphs off gave {code}: {text}")
    pid = node.kill("executor")
    wait_for("the next executor", 60, lambda: node.pids().get("executor", pid) != pid)
    wait_for("graphs to be off again", 60, lambda: "graphs are off" in command(run_dir, "show")[1])
    code, text = command(run_dir, "graphs", "on")
    check(code == 0 and "graphs are on" in text, f"graphs on gave {code}: {text}")
    node.wait_ready()


def graphs_off_ends_a_pending_check(run_dir):
    """On an idle node: of two checks one waits, and the other says so."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(command(run_dir, "check"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for("the answer of the second check", 15, lambda: answers)
    check(answers[0][0] == 75 and "another check" in answers[0][1], f"the second check gave {answers}")
    code, text = command(run_dir, "graphs", "off")
    check(code == 0 and "graphs are off" in text, f"graphs off gave {code}: {text}")
    for thread in threads:
        thread.join(15)
    check(len(answers) == 2 and answers[1][0] == 1 and "switched off" in answers[1][1],
          f"the pending check gave {answers[1:]}")
    code, text = command(run_dir, "graphs", "on")
    check(code == 0 and "graphs are on" in text, f"graphs on gave {code}: {text}")


def the_null_device_takes_no_command(run_dir):
    for words in (("check",), ("graphs", "off"), ("show",)):
        code, text = command(run_dir, *words)
        check(code == 78 and "null device" in text, f"{words} of the null device gave {code}: {text}")


def wrong_words_are_refused(run_dir):
    for words in (("graphs",), ("graphs", "maybe"), ("check", "twice"), ("dance",)):
        code, text = command(run_dir, *words)
        check(code == 78 and text, f"{words} gave {code}: {text}")


def the_memory_sum_is_logged(node):
    lines = wait_for("the line that says where the memory goes", 10,
                     lambda: [line for line in node.lines if "bytes available = " in line])
    total, terms = lines[0].split("memory: ")[1].split(" bytes available = ")
    terms = [term.split(" ", 1) for term in terms.split(";")[0].split(" + ")]
    check({name for _, name in terms} >= {"decode metadata", "sampling", "workspaces", "graphs", "reserve",
                                          "cache", "rest"}, f"terms: {terms}")
    check(sum(int(value) for value, _ in terms) == int(total), f"the sum is wrong: {lines[0]}")


def run(folder):
    run_dir = f"{folder}/run-1"
    with System("--run-dir", run_dir) as node:
        node.wait_ready()
        the_memory_sum_is_logged(node)
        for fields in (FIELDS, SEEDED):
            expected = Load(node, fields).texts()
            before = decode_steps(node)
            check(before["graph"] > 0 and before["eager"] == 0, f"before anything: {before}")
            a_check_under_load_finds_no_difference(node, run_dir, fields, expected)
            check(decode_steps(node)["eager"] == 0, "a check counts as an eager step")
        wrong_words_are_refused(run_dir)
        code, text = command(run_dir, "check")
        check(code == 75 and "no step came" in text, f"a check of an idle node gave {code}: {text}")
        graphs_off_ends_a_pending_check(run_dir)
        expected = Load(node, FIELDS).texts()
        graphs_go_off_and_on(node, run_dir, FIELDS, expected)
        check(decode_steps(node)["eager"] > 10, "no eager steps while graphs were off")
        check(decode_steps(node)["above"] == 0, "no step was above the ladder")
        graphs_stay_off_over_a_restart(node, run_dir)
    run_dir = f"{folder}/run-2"
    with System("--run-dir", run_dir, "--enable-fault-injection", "--fault",
                "executor/executor.check_differs:drop") as node:
        node.wait_ready()
        a_planted_difference_is_found_and_named(node, run_dir, FIELDS, expected)
    run_dir = f"{folder}/run-3"
    with System("--run-dir", run_dir, "--max-capture-size", "2") as node:
        node.wait_ready()
        check(Load(node, FIELDS).texts() == expected, "a text differs above the ladder")
        counts = decode_steps(node)
        check(counts["above"] > 10 and counts["eager"] == counts["above"], f"above the ladder: {counts}")
    run_dir = f"{folder}/run-4"
    with System("--run-dir", run_dir, "--null-device") as node:
        node.wait_ready()
        the_null_device_takes_no_command(run_dir)


def main():
    with tempfile.TemporaryDirectory(prefix="onepath-executor-", dir="/tmp") as folder:
        run(folder)
    print("checks find what differs and change nothing; graphs go off and on")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
