"""The two Python schedulers of examples/ serve the real model, give the tokens that the built-in
scheduler gives, survive what happens to a node, and replay from their own logs."""
import json
import os
import subprocess
import sys
import tempfile
import threading

from system import Failure, System, binary, check, main, model, wait_for

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
EXAMPLES = os.path.join(SOURCE, "examples", "python")
sys.path.insert(0, os.path.join(SOURCE, "tests", "kit"))

from with_packages import python  # noqa: E402

LIMITS = ("--max-model-len", "1024", "--max-num-seqs", "6", "--max-num-batched-tokens", "128")
TEXT = "The lighthouse keeper counts the ships that pass in the night. "


class PythonScheduler:
    """One of the example schedulers as a process."""

    def __init__(self, script, folder, *options):
        self.script, self.options = script, options
        self.endpoint = f"ipc://{folder}/scheduler"
        self.record = os.path.join(folder, "own.alog")
        self.log_path = os.path.join(folder, "scheduler.log")
        self.start()

    def command(self):
        return [python(), os.path.join(EXAMPLES, self.script), *self.options]

    def start(self, *more):
        self.log = open(self.log_path, "a", encoding="utf-8")
        self.process = subprocess.Popen([*self.command(), "--endpoint", self.endpoint, *(more or ("--record", self.record))],
                                        stdin=subprocess.DEVNULL, stderr=self.log)
        wait_for("the scheduler to listen", 20, lambda: "listening" in self.lines())

    def lines(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.log.close()
        if kind is not None:
            sys.stderr.write("---- log of the scheduler\n" + self.lines()[-3000:])

    def stop(self):
        self.process.terminate()
        return self.process.wait(20)

    def check_replay(self):
        command = " ".join(self.command())
        done = subprocess.run([binary(), "log", "replay", self.record, "--actor", "scheduler", "--exec", command],
                              capture_output=True, text=True, timeout=120)
        check(done.returncode == 0, f"{self.script} does not replay: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        print(done.stdout.strip().replace("\n", "; "), flush=True)


def prompts():
    """Of one token up to many chunks."""
    return ["Hi", TEXT, TEXT * 3, TEXT * 9, TEXT * 22] + [f"{n} {TEXT}" for n in range(7)]


def answers(node):
    """Greedy answers to all prompts, asked at once."""
    got = [None] * len(prompts())

    def ask(number, prompt):
        got[number] = node.complete(prompt, max_tokens=12 + 3 * number, ignore_eos=number % 3 == 0,
                                    logprobs=2 if number % 4 == 0 else None, timeout=120)
    threads = [threading.Thread(target=ask, args=one) for one in enumerate(prompts())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(all(got), "an answer is missing")
    return [(a["choices"][0]["text"], a["choices"][0]["finish_reason"], a["usage"]["completion_tokens"],
             json.dumps(a["choices"][0]["logprobs"])) for a in got]


wanted = []


def built_in_answers():
    if not wanted:
        with System(*LIMITS) as node:
            wanted.extend(answers(node.wait_ready()))
            check(node.stop() == 0, "exit code of the node")
    return wanted


def serve_with(script, *options):
    built_in = built_in_answers()
    with tempfile.TemporaryDirectory(prefix="onepath-py-") as folder:
        with PythonScheduler(script, folder, *options) as scheduler:
            with System(*LIMITS, "--scheduler", scheduler.endpoint) as node:
                node.wait_ready()
                check(answers(node) == built_in, f"{script} gives other tokens than the built-in scheduler")
                check(answers(node) == built_in, f"{script} gives other tokens the second time")
                ends = {node.stream(TEXT, max_tokens=20)[1] for _ in range(3)}
                check(ends == {"done"}, f"streams ended {ends}")
                check(node.stop() == 0, "exit code of the node")
            check(scheduler.stop() == 0, "exit code of the scheduler")
            check("refused" not in scheduler.lines(), f"something was refused:\n{scheduler.lines()}")
        scheduler.check_replay()


def fcfs_serves_the_real_model():
    serve_with("fcfs.py")


def fcfs_with_whole_prompts_serves_the_real_model():
    serve_with("fcfs.py", "--whole-prompts", "--max-batch", "3")


def priority_ageing_serves_the_real_model():
    serve_with("priority_ageing.py", "--ageing", "0.5")


def long_answers(node, count=6):
    """Of requests that run side by side for long."""
    got = [None] * count

    def ask(number):
        got[number] = node.complete(f"{number}: {TEXT}", max_tokens=110, ignore_eos=True, timeout=120)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(all(got), "an answer is missing")
    return [a["choices"][0]["text"] for a in got]


def a_small_cache_makes_requests_give_way_and_changes_no_token():
    with System(*LIMITS) as node:
        built_in = long_answers(node.wait_ready())
        check(node.stop() == 0, "exit code of the node")
    small = (*LIMITS, "--memory", "9M", "--block-size", "16")  # half of what six such requests need
    with tempfile.TemporaryDirectory(prefix="onepath-py-") as folder:
        with PythonScheduler("fcfs.py", folder) as scheduler:
            with System(*small, "--scheduler", scheduler.endpoint) as node:
                node.wait_ready()
                check(long_answers(node) == built_in, "other tokens with a small cache")
                check(node.metric("vllm:num_preemptions_total") > 0, "nobody gave way")
                check(node.stop() == 0, "exit code of the node")
            check(scheduler.stop() == 0, "exit code of the scheduler")
        scheduler.check_replay()


def attached_in_mid_stream_and_killed_in_mid_stream():
    with tempfile.TemporaryDirectory(prefix="onepath-py-") as folder:
        run_dir = os.path.join(folder, "node")
        with System(*LIMITS, "--run-dir", run_dir) as node:
            node.wait_ready()
            prompts_of = [f"{number}: {TEXT}" for number in range(4)]
            fields = {"max_tokens": 120, "ignore_eos": True}
            undisturbed = [node.complete(prompt, **fields)["choices"][0]["text"] for prompt in prompts_of]
            with PythonScheduler("fcfs.py", folder) as scheduler:
                counts, results = [0] * 4, [None] * 4

                def stream(number):
                    def count(events):
                        counts[number] = len(events)
                    results[number] = node.stream(prompts_of[number], on_event=count, timeout=120, **fields)
                threads = [threading.Thread(target=stream, args=(number,)) for number in range(4)]
                for thread in threads:
                    thread.start()
                wait_for("progress with the built-in scheduler", 30, lambda: min(counts) > 8)
                done = subprocess.run([binary(), "scheduler", "attach", scheduler.endpoint, "--run-dir", run_dir],
                                      capture_output=True, text=True, timeout=60)
                check(done.returncode == 0, f"attach gave {done.returncode}: {done.stderr}")
                reached = max(counts)
                wait_for("progress with the Python scheduler", 30, lambda: min(counts) > reached + 10)
                check(not any(results), "a stream ended too early for this test")
                scheduler.process.kill()
                for thread in threads:
                    thread.join()
            check([ended for _, ended in results] == ["done"] * 4, f"streams ended {[r[1] for r in results]}")
            texts = ["".join(e["choices"][0]["text"] for e in events if e["choices"]) for events, _ in results]
            check(texts == undisturbed, "a moved request has another text than an undisturbed one")
            check(node.stop() == 0, "exit code of the node")


def clients_that_leave_and_a_full_queue():
    with tempfile.TemporaryDirectory(prefix="onepath-py-") as folder:
        with PythonScheduler("fcfs.py", folder, "--queue-len", "1", "--max-batch", "1") as scheduler:
            with System(*LIMITS, "--scheduler", scheduler.endpoint) as node:
                node.wait_ready()
                statuses = []

                def ask():
                    statuses.append(node.request("POST", "/v1/completions", {
                        "prompt": TEXT, "max_tokens": 150, "ignore_eos": True})[0])
                threads = [threading.Thread(target=ask) for _ in range(6)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                check(set(statuses) == {200, 429}, f"statuses: {statuses}")

                def leave(events):
                    if len(events) == 3:
                        raise Leave
                for _ in range(4):
                    try:
                        node.stream(TEXT, on_event=leave, max_tokens=400, ignore_eos=True)
                    except Leave:
                        pass
                wait_for("the abandoned requests to end", 20,
                         lambda: node.metric("vllm:num_requests_running") == 0)
                node.complete(TEXT)
                check(node.stop() == 0, "exit code of the node")
            check(scheduler.stop() == 0, "exit code of the scheduler")
        scheduler.check_replay()


class Leave(Exception):
    pass


def an_executor_that_dies_is_followed_by_the_next():
    with tempfile.TemporaryDirectory(prefix="onepath-py-") as folder:
        with PythonScheduler("fcfs.py", folder) as scheduler:
            with System(*LIMITS, "--scheduler", scheduler.endpoint) as node:
                before = node.wait_ready().complete(TEXT)["choices"][0]["text"]
                killed = threading.Event()

                def kill_once(events):
                    if len(events) == 4 and not killed.is_set():
                        killed.set()
                        node.kill("executor")
                events, ended = node.stream(TEXT, on_event=kill_once, max_tokens=300, ignore_eos=True)
                check("error" in json.dumps(events[-1]) or ended == "done", f"ended {ended}: {events[-1]}")

                def works_again():
                    try:
                        return node.complete(TEXT, timeout=30)["choices"][0]["text"]
                    except (Failure, OSError):
                        return None
                after = wait_for("the node to work again", 60, works_again)
                check(after == before, "other tokens after the executor was started again")
                check(node.stop() == 0, "exit code of the node")
            check(scheduler.stop() == 0, "exit code of the scheduler")
        scheduler.check_replay()


if __name__ == "__main__":
    model()
    main([fcfs_serves_the_real_model, fcfs_with_whole_prompts_serves_the_real_model,
          priority_ageing_serves_the_real_model, a_small_cache_makes_requests_give_way_and_changes_no_token,
          attached_in_mid_stream_and_killed_in_mid_stream,
          clients_that_leave_and_a_full_queue, an_executor_that_dies_is_followed_by_the_next])
