"""The C library as somebody else would use it: install, build the example with pkg-config, run it
as the scheduler of a real node, replay its log."""
import glob
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path[:0] = [os.path.join(SOURCE, "tests", "process"), os.path.join(SOURCE, "examples", "python")]

from onepath_scheduler import records  # noqa: E402
from system import Failure, System, binary, check, main, wait_for  # noqa: E402

SMALL = ("--null-device", "--max-model-len", "1024", "--max-num-seqs", "8")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} gave {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def build_example(folder):
    """Installs, copies the example elsewhere, and builds it with the installed files alone."""
    prefix = os.path.join(folder, "prefix")
    run("cmake", "--install", os.environ["ONEPATH_BUILD"], "--prefix", prefix, "--component", "kit")
    example = shutil.copytree(os.path.join(SOURCE, "examples", "c-scheduler"), os.path.join(folder, "example"),
                              ignore=shutil.ignore_patterns("fcfs", "*.o"))
    sanitize = os.environ.get("ONEPATH_SANITIZE")
    flags = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}.get(sanitize, "")
    run("make", "-C", example, f"CC={os.environ.get('ONEPATH_CC', 'cc')}", f"LDFLAGS={flags}",
        "CFLAGS=-O2 -Wall -Wextra -Wpedantic -Werror",
        env={**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "lib", "pkgconfig")})
    return os.path.join(example, "fcfs")


class Scheduler:
    """The example as a process."""

    def __init__(self, program, folder, *options):
        self.endpoint = f"ipc://{folder}/scheduler"
        self.log_path = os.path.join(folder, "scheduler.log")
        self.log = open(self.log_path, "w", encoding="utf-8")
        self.process = subprocess.Popen([program, "--endpoint", self.endpoint, *options],
                                        stdin=subprocess.DEVNULL, stderr=self.log)

    def __enter__(self):
        wait_for("the scheduler to listen", 20, lambda: os.path.exists(self.endpoint[6:]))
        return self

    def __exit__(self, kind, _value, _trace):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.log.close()
        if kind is not None:
            with open(self.log_path, encoding="utf-8") as file:
                sys.stderr.write("---- log of the scheduler\n" + file.read()[-3000:])

    def stop(self):
        self.process.terminate()
        return self.process.wait(20)


def prompts():
    return [[(31 * n + at) % 40000 for at in range(3 + 40 * n)] for n in range(12)]


def answers(node):
    return [node.complete(prompt, max_tokens=20 + n, ignore_eos=True)["choices"][0]["text"]
            for n, prompt in enumerate(prompts())]


def the_installed_library_runs_a_scheduler_of_ones_own():
    with tempfile.TemporaryDirectory(prefix="onepath-kit-") as folder:
        program = build_example(folder)
        wrong = subprocess.run([program, "--queue-len", "none"], capture_output=True, text=True, timeout=20)
        check(wrong.returncode == 78 and "none" in wrong.stderr, f"a bad option: {wrong}")
        wrong = subprocess.run([program, "--endpoint", "tcp://0.0.0.0:1"], capture_output=True, text=True, timeout=20)
        check(wrong.returncode == 78 and "0.0.0.0" in wrong.stderr, f"a remote endpoint: {wrong}")
        endpoint = f"ipc://{folder}/conform"
        said = run(binary(), "conform", "scheduler", "--endpoint", endpoint, "--exec",
                   f"{program} --endpoint {endpoint} --quiet")
        check(said.endswith("conforms\n"), f"it does not conform: {said[-2000:]}")
        with System(*SMALL) as node:
            wanted = answers(node.wait_ready())
            check(node.stop() == 0, "exit code of the node with the built-in scheduler")
        logs = os.path.join(folder, "log")
        os.mkdir(logs)
        with Scheduler(program, folder, "--record", logs) as scheduler:
            with System(*SMALL, "--scheduler", scheduler.endpoint) as node:
                node.wait_ready()
                check(answers(node) == wanted, "other answers than with the built-in scheduler")
                check(node.stop() == 0, "exit code of the node")
            check(scheduler.stop() == 0, "exit code of the scheduler")
        (segment,) = glob.glob(os.path.join(logs, "*.alog"))
        text = run(binary(), "log", "show", segment, "--type", "PLAN")
        check(text.count("PLAN") > 100, "its log holds no plans")
        done = subprocess.run([binary(), "log", "replay", logs, "--actor", "scheduler", "--exec", program],
                              capture_output=True, text=True, timeout=120)
        sys.stdout.write(done.stdout[-1500:])
        check(done.returncode == 0, f"its own log does not replay: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        with open(segment, "rb") as file:
            survives_hostile_records(program, file.read()[4096:])


def survives_hostile_records(program, stream):
    """Cut and damaged streams, and damaged messages in whole records: refused with a sentence or
    answered, never a crash."""
    seed = int(os.environ.get("ONEPATH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"ONEPATH_SEED={seed}", flush=True)
    rng = random.Random(seed)
    streams = [b"", bytes(64), rng.randbytes(4096), stream[:1], stream[1:]]
    for _ in range(30):
        streams.append(stream[:rng.randrange(len(stream))])
        streams.append(damaged(rng, stream[:rng.randrange(200, 20000)]))
    file, parsed = io.BytesIO(stream), []
    while (record := records.read_record(file)) is not None:
        parsed.append(record)
    inputs = [r for r in parsed if r.kind in (records.IN, records.TIMER)]
    for _ in range(150):
        chosen = [(r, list(r.parts)) for r in inputs[:rng.randrange(4, len(inputs))]]
        raw = b""
        for record, parts in chosen:
            if rng.random() < 0.02:
                at = len(parts) - 1 if rng.random() < 0.8 else 0  # mostly the columns
                record = records.Record(record.kind, record.channel, record.sequence, record.time_ns, list(parts))
                record.parts[at] = damaged(rng, parts[at])
            raw += record.encode() * (2 if rng.random() < 0.05 else 1)
        streams.append(raw)
    answered = 0
    for raw in streams:
        done = subprocess.run([program], input=raw, capture_output=True, timeout=60,
                              env={**os.environ, "ONEPATH_REPLAY": "1"})
        check(done.returncode in (0, 78), f"{len(raw)} bytes gave {done.returncode}: {done.stderr[-2000:]}")
        check(done.returncode == 0 or b"replay: record" in done.stderr, f"no sentence: {done.stderr[-500:]}")
        answered += done.returncode == 0
    check(answered > 10, f"only {answered} of {len(streams)} streams were answered to their end")


def damaged(rng, raw):
    raw = bytearray(raw)
    for _ in range(rng.randrange(1, 4) if raw else 0):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


if __name__ == "__main__":
    main([the_installed_library_runs_a_scheduler_of_ones_own])
