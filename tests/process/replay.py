"""Records real nodes and replays each actor alone: nothing differs, up to the moment of a kill -9; and
one changed line in the scheduler is found, at the very message.

The node with the model needs it (system.py); the others have none.
"""
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading

from system import System, binary, check, main, model, wait_for

ACTORS = ("gateway", "scheduler", "executor")
REPORT_SECONDS = 120


def tool(*words, program=None):
    """Runs `onepath log ...`; returns its exit code, stdout and stderr."""
    command = [program or binary(), "log", *words]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         timeout=REPORT_SECONDS, check=False)
    return run.returncode, run.stdout, run.stderr


def replay(path, *options, program=None):
    """The exit code and the report of one replay."""
    code, out, errors = tool("replay", path, "--json", *options, program=program)
    check(out.strip(), f"replay of {path} {options} said nothing but: {errors}")
    return code, json.loads(out)


def mutant():
    path = os.path.join(os.path.dirname(binary()), "onepath_mutant")
    check(os.path.exists(path), f"{path} is missing: build the target onepath_mutant")
    return path


def show(path, *options):
    """Records as dictionaries."""
    _, out, _ = tool("show", path, "--format", "json", *options)
    return [json.loads(line) for line in out.splitlines()]


class Folder:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="onepath-replay-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def abort_in_mid_answer(node, random_source, words):
    """Asks for a long answer, reads a little, goes away."""
    body = json.dumps({"prompt": words, "max_tokens": 150, "stream": True, "ignore_eos": True,
                       "temperature": 0.8, "seed": random_source.randint(1, 99)})
    with socket.create_connection(("127.0.0.1", node.port), timeout=120) as client:
        client.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                        f"{body}").encode())
        client.recv(4096)


def ask(node, index, words_max):
    """One request of a mix: plain, several choices, stop strings, streams, clients that go away."""
    source = random.Random(index)
    words = " ".join(source.choice(("one", "two", "river", "stone", "green"))
                     for _ in range(source.randint(1, words_max)))
    if index % 8 == 0:
        abort_in_mid_answer(node, source, words)
    elif index % 8 == 1:
        node.complete(words, n=3, max_tokens=6, temperature=1, seed=index)
    elif index % 8 == 2:
        node.complete(words, max_tokens=12, stop=["e", "a"], logprobs=2)
    elif index % 8 == 3:
        node.stream(words, max_tokens=8, ignore_eos=True)
    else:
        node.complete(words, max_tokens=source.randint(1, 12), priority=index % 3)


def load(node, count, client_count=12, words_max=60, stop=None):
    """`count` requests from several clients at once; errors count only until `stop` is set."""
    left = list(range(count))
    lock = threading.Lock()
    errors = []

    def work():
        while not (stop and stop.is_set()):
            with lock:
                if not left:
                    return
                index = left.pop()
            try:
                ask(node, index, words_max)
            except Exception as error:  # a killed actor takes requests along
                if not (stop and stop.is_set()):
                    errors.append(repr(error))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(client_count)]
    for thread in threads:
        thread.start()
    return threads, errors


def record(folder, count, *options, model_path=None, words_max=60):
    """A node's log of `count` requests, to its orderly end."""
    with System("--record", folder, "--log-format", "json", *options, model_path=model_path) as node:
        node.wait_ready(120)
        threads, errors = load(node, count, words_max=words_max)
        for thread in threads:
            thread.join(240)
            check(not thread.is_alive(), "a client did not end")
        check(not errors, f"{len(errors)} requests failed, the first: {errors[:1]}")
        check(node.stop(60) == 0, "the node did not end in good order")


def check_exact(folder, actor, *options):
    code, report = replay(folder, "--actor", actor, *options)
    finding = report.get("finding") or report.get("detail")
    check(code == 0, f"{actor}: replay gave {code}: {finding}")
    check(report["outcome"] == "same" and not report["gaps"], f"{actor}: {report}")
    check(report["begin_record"] != 0 and report["digests"] > 0, f"{actor}: no digest was compared")
    return report


def two_hundred_requests_of_a_model_replay_exactly():
    """The real model, 200 requests, every eighth client goes away; then its steps once more."""
    with Folder() as folder:
        record(folder, 200, "--max-model-len", "256", "--max-num-seqs", "8", words_max=40)
        aborted = [m for m in show(folder, "--actor", "gateway", "--type", "HTTP_STOP")
                   if m.get("dir") == "in" and m["body"]["reason"] == 3]
        check(len(aborted) >= 15, f"only {len(aborted)} requests were aborted in the log")
        for actor in ACTORS:
            report = check_exact(folder, actor)
            check(report["inputs"] > 400, f"{actor}: only {report['inputs']} inputs")
        report = check_exact(folder, "executor", "--device", model())
        check(report["device_steps"] > 100, f"only {report['device_steps']} steps were compared")


def many_requests_without_a_model_replay_exactly():
    with Folder() as folder:
        record(folder, 1000, "--null-device", words_max=400)
        for actor in ACTORS:
            check_exact(folder, actor)
        # A redacted log still replays the scheduler, and only that.
        with Folder() as redacted:
            code, _, errors = tool("redact", folder, redacted)
            check(code == 0, f"redact: {code}: {errors}")
            check_exact(redacted, "scheduler")
            code, report = replay(redacted, "--actor", "executor")
            check(code == 78 and "redacted" in report["detail"], f"executor, redacted: {report}")


def kill_in_work(victim, folder, tokens):
    """kill -9 in the middle of the load; the ring is all there is."""
    with System("--null-device", "--log-format", "json", "--restart-intensity", "9") as node:
        node.wait_ready()
        stop = threading.Event()
        threads, errors = load(node, 100000, stop=stop, words_max=200)
        wait_for("some work", 30,
                 lambda: node.metric("vllm:generation_tokens_total") > tokens)
        stop.set()  # errors from now on are the kill's
        # The clients that are at work go on until their request ends.
        node.kill(victim)
        path = wait_for("the crash record", 20, lambda: next(
            (e["path"] for e in node.events("supervisor.crash_record") if e.get("child") == victim),
            None))
        for thread in threads:
            thread.join(60)
        check(not errors, f"before the kill: {errors[:1]}")
    kept = os.path.join(folder, os.path.basename(path))
    shutil.copy(path, kept)
    return kept


def check_moment_of_death(victim, path):
    code, report = replay(path)
    check(code == 0, f"{victim}: {report.get('finding') or report.get('detail')}")
    inputs = [r for r in show(path) if r.get("dir") == "in" or r.get("record") == "TIMER"]
    check(inputs, f"{victim}: the crash record holds no input")
    last = report["last_input"]["record"]
    check(last == inputs[-1]["seq"],
          f"{victim}: replayed to record {last}, the last input is record {inputs[-1]['seq']}")
    check(report["inputs"] > 50, f"{victim}: only {report['inputs']} inputs were replayed")
    return report


def a_killed_actor_replays_to_its_death():
    for victim in ACTORS:
        with Folder() as folder:
            path = kill_in_work(victim, folder, 2000)
            report = check_moment_of_death(victim, path)
            check(report["begin_record"] < 10, f"{victim}: it began at {report['begin_record']}")


def a_log_replays_through_a_death():
    """The successor goes on in the same segment; what the dead one could not write is no difference."""
    with Folder() as folder, Folder() as run_dir:
        with System("--null-device", "--record", folder, "--log-format", "json",
                    "--run-dir", run_dir, "--enable-fault-injection", "--fault",
                    "scheduler/shell.before_send.PLAN:kill:9") as node:
            node.wait_ready(120)
            node.complete("one two three", max_tokens=24, ignore_eos=True)
            check(node.stop(60) == 0, "the node did not end in good order")
        code, report = replay(folder, "--actor", "scheduler")
        check(code == 0, f"replay gave {code}: {report.get('finding') or report.get('detail')}")
        check(len(report["gaps"]) == 1 and "successor" in report["gaps"][0]["why"], str(report["gaps"]))
        left = os.path.join(run_dir, "armed-scheduler")
        check(not os.path.exists(left), f"{left} stays, and disarms the next node")


def a_ring_that_wrapped_replays_to_the_death():
    """The first snapshot is long gone; there is always a later one."""
    for victim in ACTORS:
        with Folder() as folder:
            path = kill_in_work(victim, folder, 300000)
            report = check_moment_of_death(victim, path)
            check(report["begin_record"] > 1000, f"{victim}: it began at {report['begin_record']}")
            check(report["snapshots"] > 0, f"{victim}: no later snapshot was compared")


def first_cut_prompt(path, step_tokens_max):
    """The input that led to the first plan that is full with a prompt's piece at its end."""
    last_input = None
    for line in show(path, "--columns", "1000"):
        if line.get("dir") == "in" or line.get("record") == "TIMER":
            last_input = line
        elif line.get("kind") == "PLAN":
            body = line["body"]
            tokens = sum(body["extend_lengths"]) + len(body["decode_slots"])
            if body["extend_lengths"] and tokens == step_tokens_max:
                return last_input, line
    return None, None


def the_changed_line_is_located():
    """replay and bisect with a scheduler of which one line is another: the very message."""
    with Folder() as folder:
        record(folder, 120, "--null-device", "--max-num-batched-tokens", "256", words_max=300)
        path = next(os.path.join(folder, n) for n in os.listdir(folder)
                    if n.startswith("scheduler.") and n.endswith(".alog"))
        wanted, plan = first_cut_prompt(path, 256)
        check(wanted, "no prompt was cut in this log: the change cannot show")
        code, report = replay(path, program=mutant())
        check(code == 1, f"the changed scheduler replays with {code}: {report}")
        finding = report["finding"]
        check(report["last_input"]["record"] == wanted["seq"],
              f"found at record {report['last_input']['record']}, it is record {wanted['seq']}")
        check(finding["record"] == plan["seq"] and finding["kind"] == "PLAN", f"found: {finding}")
        code, out, _ = tool("replay", path, "--until", str(wanted["seq"] - 1), program=mutant())
        check(code == 0, f"up to just before it, it differs: {out}")

        where = f"record {wanted['seq']}"
        code, out, errors = tool("bisect", path, program=mutant())
        check(code == 1 and where in out, f"bisect: {code}: {out}{errors}")
        good = f"'{binary()}' log replay {{log}} --digests"
        code, out, errors = tool("bisect", path, "--good", good, program=mutant())
        check(code == 1 and where in out and "good build" in out, f"--good: {code}: {out}{errors}")
        judge = f"'{mutant()}' log replay {{log}}"
        code, out, errors = tool("bisect", path, "--cmd", judge)
        check(code == 1 and where in out, f"--cmd: {code}: {out}{errors}")
        code, out, errors = tool("bisect", path)
        check(code == 0, f"bisect with the build that recorded it: {code}: {out}{errors}")


def what_cannot_be_replayed_is_said():
    with Folder() as folder:
        record(folder, 3, "--null-device")
        for actor in ("kv-transfer", "role"):
            code, _, errors = tool("replay", folder, "--actor", actor)
            check(code == 78 and actor in errors, f"--actor {actor}: {code}: {errors}")
        code, report = replay(folder)
        check(code == 78 and "--actor" in report["detail"], f"a folder of three: {report}")
        code, report = replay(folder, "--actor", "scheduler", "--exec", "exec yes")
        check(code == 2 and "no record" in report["detail"], f"--exec yes: {report}")
        code, _, errors = tool("replay", folder, "--actor", "scheduler", "--until", "soon")
        check(code == 78 and "soon" in errors, f"--until soon: {code}: {errors}")
        code, out, _ = tool("replay", folder, "--actor", "scheduler", "--break", "SUBMIT", "--dump")
        check(code == 0 and "SUBMIT" in out and "waiting: " in out, f"--break: {code}: {out}")


def what_the_simulator_recorded_replays():
    """Crashes, losses, partitions and stale messages in every mix: a core repeats its answers to all of
    them."""
    seeds = int(os.environ.get("ONEPATH_SEED", random.randrange(1 << 20)))
    print(f"ONEPATH_SEED={seeds}", flush=True)
    count = 0
    for seed in range(seeds, seeds + 8):
        with Folder() as folder:
            # A full disk would leave out what replay begins with.
            run = subprocess.run([binary(), "sim", "--seed", str(seed), "--log", folder, "--faults",
                                  "all,-disk"], capture_output=True, text=True, timeout=120, check=False)
            check(run.returncode == 0, f"sim --seed {seed}: {run.stdout}{run.stderr}")
            for name in sorted(os.listdir(folder)):
                if name.endswith(".alog"):
                    code, report = replay(os.path.join(folder, name))
                    check(code == 0 and not report["gaps"],
                          f"seed {seed}, {name}: {report.get('finding') or report['detail']}")
                    count += 1
    check(count >= 8 * 3, f"only {count} logs")


def the_simulator_makes_its_folder_and_a_seed_may_be_negative():
    with Folder() as folder:
        def sim(*words):
            done = subprocess.run([binary(), "sim", "--steps", "200", *words], capture_output=True, text=True,
                                  timeout=120, check=False)
            return done.returncode, done.stdout + done.stderr
        code, said = sim("--log", os.path.join(folder, "new"))
        check(code == 0 and os.listdir(os.path.join(folder, "new")), f"sim --log NEW: {code} {said}")
        for path, words in (("/dev/null", "Not a directory"), (f"{folder}/no/where", "No such file")):
            code, said = sim("--log", path)
            check(code == 75 and words in said, f"sim --log {path}: {code} {said}")
        check(sim("--seed", "-3")[0] == 0, "a negative seed")


CRC = []


def crc32c(data):
    """CRC-32C, as a record's check."""
    if not CRC:
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
            CRC.append(value)
    value = 0xffffffff
    for byte in data:
        value = CRC[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xffffffff


def flipped(log, source):
    """The log with some bits of one record changed, and its check made right again."""
    places, at = [], 4096
    while at + 8 <= len(log):
        size = int.from_bytes(log[at:at + 4], "little")
        places.append((at, size))
        at += 8 + size
    begin, size = source.choice(places)
    changed = bytearray(log)
    for _ in range(source.randint(1, 4)):
        changed[begin + 8 + source.randrange(size)] ^= 1 << source.randrange(8)
    changed[begin + 4:begin + 8] = crc32c(changed[begin + 8:begin + 8 + size]).to_bytes(4, "little")
    return bytes(changed)


def hostile_logs_of_real_actors_end_in_a_report():
    """Records that were forged meet real cores: whatever these do, the command says how it ended."""
    seed = int(os.environ.get("ONEPATH_SEED", random.randrange(1 << 30)))
    print(f"ONEPATH_SEED={seed}", flush=True)
    source = random.Random(seed)
    with Folder() as folder:
        record(folder, 6, "--null-device", words_max=100)
        for actor in ACTORS:
            name = next(n for n in os.listdir(folder)
                        if n.startswith(actor + ".") and n.endswith(".alog"))
            with open(os.path.join(folder, name), "rb") as file:
                log = file.read()
            seen = {}
            for _ in range(60):
                with Folder() as place:
                    path = os.path.join(place, name)
                    with open(path, "wb") as file:
                        file.write(flipped(log, source))
                    code, report = replay(path, "--answer-timeout", "20")
                check(code in (0, 1, 2, 78), f"{actor}: exit code {code}: {report}")
                check(code == ("same", "diverged", "died").index(report["outcome"])
                      if code != 78 else report["detail"], f"{actor}: {code}: {report}")
                seen[report["outcome"]] = seen.get(report["outcome"], 0) + 1
                if report["outcome"] == "died":
                    print(f"{actor}: {report['detail']}: {report['last_words'][-200:]}")
            print(f"{actor}: {seen}", flush=True)
            check(seen.get("diverged", 0) + seen.get("refused", 0) > 0, "no change was noticed")


if __name__ == "__main__":
    main([two_hundred_requests_of_a_model_replay_exactly,
          many_requests_without_a_model_replay_exactly,
          a_killed_actor_replays_to_its_death,
          a_log_replays_through_a_death,
          a_ring_that_wrapped_replays_to_the_death,
          the_changed_line_is_located,
          what_the_simulator_recorded_replays,
          the_simulator_makes_its_folder_and_a_seed_may_be_negative,
          hostile_logs_of_real_actors_end_in_a_report,
          what_cannot_be_replayed_is_said])
