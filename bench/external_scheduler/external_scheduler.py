#!/usr/bin/env python3
"""What an external Python scheduler adds to a step, against the built-in one.

    python3 bench/external_scheduler/external_scheduler.py --bin build/release/bin

Real executor on the null device (a step takes no time there), real schedulers, both as processes of
their own; this script plays the gateway, so that no HTTP is in the figures.  A step's time is the
distance of two TOKENS messages with all rows.  Rounds of the two are interleaved; medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
EXAMPLES = os.path.join(SOURCE, "examples", "python")
sys.path.insert(0, EXAMPLES)

from onepath_scheduler import codec, testing  # noqa: E402


class Node:
    """Scheduler and executor in a folder of their own."""

    def __init__(self, options, scheduler, batch):
        self.folder = tempfile.TemporaryDirectory(prefix="onepath-bench-")
        run_dir = self.folder.name
        binary = os.path.join(options.bin, "onepath")
        self.log = open(os.path.join(run_dir, "log"), "w", encoding="utf-8")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": self.log}
        endpoint = f"ipc://{run_dir}/scheduler-executor"
        if scheduler == "built-in":
            command = [binary, "actor", "scheduler", "null", "--run-dir", run_dir]
            self.endpoint = f"ipc://{run_dir}/scheduler-gateway"
        else:
            command = [options.python, os.path.join(EXAMPLES, scheduler), "--endpoint", endpoint, "--quiet"]
            self.endpoint = endpoint
        self.processes = [subprocess.Popen(command, **quiet)]
        self.processes.append(subprocess.Popen(
            [binary, "actor", "executor", "null", "--null-device", "--run-dir", run_dir,
             "--max-num-seqs", str(batch), "--max-num-batched-tokens", str(max(512, 4 * batch))],
            **quiet))

    def cpu_seconds(self):
        """Of the scheduler's process so far."""
        with open(f"/proc/{self.processes[0].pid}/stat", encoding="ascii") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
        self.folder.cleanup()


def measure(options, scheduler, batch, steps):
    node = Node(options, scheduler, batch)
    gateway = testing.Connector(node.endpoint)
    try:
        gateway.open()
        end = time.monotonic() + 20
        info = gateway.receive(10, codec.ModelInfo)
        while info is None or info.slot_count < batch:
            if time.monotonic() > end:
                sys.exit(f"{scheduler}: no executor attached; {open(node.log.name).read()[-2000:]}")
            info = gateway.receive(1, codec.ModelInfo) or info
        sampling = testing.sampling()
        for request in range(1, batch + 1):
            tokens = [(request * 31 + at) % 40000 for at in range(32)]
            gateway.send(codec.Submit(request=request, prompt_length=32, generation_max=steps + 100,
                                      tokens=tokens, sampling=sampling))
        times, cpu, done = [], None, 0
        while done < batch:
            message = gateway.receive(20, (codec.Tokens, codec.Finished))
            if message is None:
                sys.exit(f"{scheduler}: no tokens for 20 s; {open(node.log.name).read()[-2000:]}")
            if isinstance(message, codec.Finished):
                if message.reason != codec.FINISH.LENGTH:
                    sys.exit(f"{scheduler}: {message}")
                done += 1
            elif len(message.requests) == batch:
                if len(times) == 50:
                    cpu = node.cpu_seconds()
                times.append(time.perf_counter_ns())
                if len(times) == steps:
                    cpu = node.cpu_seconds() - cpu
        gaps = [b - a for a, b in zip(times[50:steps], times[51:steps])]
        # Two plans are in flight, so results come in pairs: the mean of a window, not single gaps.
        windows = [sum(gaps[at:at + 50]) / 50 for at in range(0, len(gaps) - 50, 50)]
        return {"step_ns": statistics.median(windows), "cpu_ns": cpu * 1e9 / (steps - 50)}
    finally:
        gateway.close()
        node.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(SOURCE, "build", "release", "bin"),
                        help="folder of the onepath program (build/release/bin)")
    parser.add_argument("--python", default=sys.executable, help="with pyzmq and msgpack")
    parser.add_argument("--scheduler", default="fcfs.py", help="of examples/python (fcfs.py)")
    parser.add_argument("--batch", type=int, action="append", help="rows; may be repeated (64)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-ms", type=float, default=0.0,
                        help="exit 1 if more is added at batch 64")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    results, missed = {}, False
    for batch in options.batch or [64]:
        rounds = {"built-in": [], options.scheduler: []}
        for _ in range(options.rounds):
            for scheduler, taken in rounds.items():
                taken.append(measure(options, scheduler, batch, options.steps))
        figures = {scheduler: {key: statistics.median(one[key] for one in taken) for key in taken[0]}
                   for scheduler, taken in rounds.items()}
        added = figures[options.scheduler]["step_ns"] - figures["built-in"]["step_ns"]
        results[batch] = {**figures, "added_ns": added}
        missed |= bool(options.limit_ms and batch == 64 and added > options.limit_ms * 1e6)
        if not options.json:
            print(f"batch {batch}, {options.steps} steps, {options.rounds} rounds, null device")
            for scheduler, one in figures.items():
                print(f"  {scheduler:<20} {one['step_ns'] / 1e6:7.3f} ms a step, of which the scheduler's "
                      f"processor time {one['cpu_ns'] / 1e6:6.3f} ms")
            print(f"  added                {added / 1e6:7.3f} ms a step", flush=True)
    if options.json:
        print(json.dumps(results, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
