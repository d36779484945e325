"""What recording costs in a real node: python3 bench/record/record_cost.py [--json FILE]

Serves SmolLM2 with --record FOLDER at batch 1 and 64, takes the recorder's CPU time during the
answers from the kernel's accounts, then lets bench_record run the three cores through the log with
and without a ring.  ONEPATH_BIN names the folder with onepath and bench_record, ONEPATH_MODEL the
model.  Exits with 1 if an actor's thread or the recorder costs more than 1 % of a step.
"""
import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests",
                                "process"))
import system  # noqa: E402

CASES = ((1, 200), (64, 64))  # requests at once, tokens of each


def cpu_ns(pid):
    """CPU time of all threads of a process."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def ask(node, number, tokens, failures):
    body = {"model": "m", "prompt": f"Story number {number}: once upon a time", "stream": True,
            "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200 or not text.rstrip().endswith(b"[DONE]"):
        failures.append(f"{response.status}: {text[-200:]!r}")
    connection.close()


def run_case(batch, tokens):
    """The figures of one case, as bench_record gives them."""
    with tempfile.TemporaryDirectory(prefix="onepath-record-") as folder:
        os.chmod(folder, 0o700)
        failures = []
        with system.System("--record", folder, "--max-num-seqs", "64", "--served-model-name",
                           "m") as node:
            node.wait_ready()
            recorder = node.pids()["recorder"]
            before = cpu_ns(recorder)
            threads = [threading.Thread(target=ask, args=(node, number, tokens, failures))
                       for number in range(batch)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            spent = cpu_ns(recorder) - before
            if node.stop() != 0 or failures:
                sys.exit(f"the node failed: {failures[:3]}")
        figures = os.path.join(folder, "figures.json")
        command = [os.path.join(os.environ["ONEPATH_BIN"], "bench_record"), folder,
                   "--recorder-ns", str(spent), "--json", figures]
        print(f"batch {batch}", flush=True)
        code = subprocess.run(command, check=False).returncode
        with open(figures, encoding="utf-8") as file:
            return code, json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    results = {}
    worst = 0
    for batch, tokens in CASES:
        code, results[f"batch_{batch}"] = run_case(batch, tokens)
        worst = max(worst, code)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
    sys.exit(worst)


if __name__ == "__main__":
    main()
