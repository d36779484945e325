"""How fast the log of a scheduler replays: records a node for a while, replays each actor, prints the
ratio of the log's time to the replay's.

    ONEPATH_BIN=build/release/bin python3 bench/replay/replay_speed.py [--seconds 60] [--clients 64]
                                                                [--rate 6] [--model model.gguf]

Without a model the node has the null device, whose steps take no time: without --rate the log holds
as many steps a second as the actors can carry, which no device gives, so its ratio is the least.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests",
                                "process"))
from system import System, binary  # noqa: E402


def client(node, index, rate, stop, counts):
    source = random.Random(index)
    while not stop.is_set():
        if rate and stop.wait(source.expovariate(rate)):
            break
        prompt = "word " * source.randint(10, 400)
        if source.random() < 0.05:
            node.stream(prompt, max_tokens=64, ignore_eos=True)
        else:
            node.complete(prompt, max_tokens=source.randint(16, 128), ignore_eos=True)
        counts[index] += 1


def record(folder, arguments):
    options = ["--record", folder, "--max-num-seqs", str(arguments.clients), "--max-model-len", "2048"]
    if not arguments.model:
        options.append("--null-device")
    with System(*options, model_path=arguments.model) as node:
        node.wait_ready(120)
        stop = threading.Event()
        counts = [0] * arguments.clients
        rate = arguments.rate / arguments.clients
        threads = [threading.Thread(target=client, args=(node, i, rate, stop, counts), daemon=True)
                   for i in range(arguments.clients)]
        for thread in threads:
            thread.start()
        time.sleep(arguments.seconds)
        stop.set()
        for thread in threads:
            thread.join(120)
        node.stop(120)
    return sum(counts)


def replay(folder, actor):
    run = subprocess.run([binary(), "log", "replay", folder, "--actor", actor, "--json"],
                         capture_output=True, text=True, check=False)
    return run.returncode, json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0, help="requests/s in all; 0 = as many as go")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="onepath-replay-speed-")
    try:
        requests = record(folder, arguments)
        print(f"{requests} requests of {arguments.clients} clients, "
              f"{'the null device' if not arguments.model else arguments.model}")
        print(f"{'actor':10} {'log s':>8} {'MB':>7} {'inputs':>9} {'messages':>9} {'inputs/s':>9} "
              f"{'replay s':>9} {'ratio':>7}  result")
        worst = 0
        for actor in ("scheduler", "gateway", "executor"):
            code, report = replay(folder, actor)
            size = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder)
                       if n.startswith(actor) and n.endswith(".alog"))
            log_s, wall_s = report["log_ns"] / 1e9, report["wall_ns"] / 1e9
            print(f"{actor:10} {log_s:8.1f} {size / 1e6:7.1f} {report['inputs']:9} "
                  f"{report['messages']:9} {report['inputs'] / max(wall_s, 1e-9):9.0f} {wall_s:9.3f} "
                  f"{log_s / max(wall_s, 1e-9):7.0f}  {report['outcome']}")
            worst = max(worst, code)
        return worst
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
