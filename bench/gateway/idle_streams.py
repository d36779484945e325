"""What 1,000 idle SSE connections cost 64 active ones, and what /metrics costs with 500 requests open.

    ONEPATH_BIN=build/release/bin python3 bench/gateway/idle_streams.py [--json FILE]

A node of the null device: made-up tokens, the real gateway, scheduler and links. The 64 active streams hold every slot
and get a token with every step; the idle ones wait in the queue behind them, their connections open. A step takes
10 ms (a delay at the executor's answer), so that the machine is not simply full. Measured is the time between two
arrivals at an active stream, on the same streams in turn without and with the idle ones; the medians of all rounds
are compared. On a machine that others use, look at the processor time of gateway and scheduler for a step instead.
"""
import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "process"))
from system import System, binary, wait_for  # noqa: E402

IDLE, ACTIVE, OPEN = 1000, 64, 500


def ask(port, tokens, priority):
    body = json.dumps({"prompt": [1, 2, 3, 4], "max_tokens": tokens, "ignore_eos": True, "stream": True,
                       "priority": priority}).encode()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
                   + str(len(body)).encode() + b"\r\n\r\n" + body)
    return client


class Active:
    """The streams that generate, read all the time."""

    def __init__(self, port, count):
        self.streams = [ask(port, 2000, -1) for _ in range(count)]
        self.watch = selectors.DefaultSelector()
        for stream in self.streams:
            stream.setblocking(False)
            self.watch.register(stream, selectors.EVENT_READ)

    def gaps(self, seconds):
        """Times between two events, ms; those that arrived together share what passed since the one before."""
        last, gaps, end = {}, [], time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in self.watch.select(0.1):
                data, now = key.fileobj.recv(1 << 16), time.perf_counter()
                if not data:
                    raise SystemExit("an active stream ended: too few tokens for this many rounds")
                events = max(1, data.count(b"data: "))
                if key.fd in last:
                    gaps += [(now - last[key.fd]) * 1e3 / events] * events
                last[key.fd] = now
        return gaps


def costs(run_dir):
    """Processor time so far of gateway and scheduler, us, and the steps."""
    look = json.loads(subprocess.run([binary(), "ps", "--json", "--run-dir", run_dir], check=True, capture_output=True,
                                     text=True).stdout)
    return sum(a["cpu_ns"] for a in look["actors"] if a["name"] in ("gateway", "scheduler")) / 1e3, look["load"]["steps"]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def idle_streams(node, run_dir, rounds, seconds):
    active = Active(node.port, ACTIVE)
    active.gaps(1)
    if node.metric("onepath_num_requests_running") != ACTIVE:
        raise SystemExit("not all active streams have a slot")
    results = {"without": [], "beside": []}
    spent = {"without": [0, 0], "beside": [0, 0]}

    def measure(name):
        before = costs(run_dir)
        results[name] += active.gaps(seconds)
        after = costs(run_dir)
        spent[name] = [spent[name][0] + after[0] - before[0], spent[name][1] + after[1] - before[1]]
    for _ in range(rounds):
        measure("without")
        idle = [ask(node.port, 4, 9) for _ in range(IDLE)]
        active.gaps(1)
        if node.metric("onepath_num_requests_waiting") < IDLE:
            raise SystemExit("the idle ones do not wait")
        measure("beside")
        for stream in idle:
            stream.close()
        active.gaps(1)
    for stream in active.streams:
        stream.close()
    figures = {name: {"p50_ms": round(statistics.median(gaps), 3), "p99_ms": round(percentile(gaps, .99), 3),
                      "arrivals": len(gaps),
                      "cpu_us_per_step": round(spent[name][0] / max(1, spent[name][1]))} for name, gaps in results.items()}
    figures["added_p50_percent"] = round(100 * (figures["beside"]["p50_ms"] / figures["without"]["p50_ms"] - 1), 2)
    return figures


def metrics(node, repeats):
    """GET /metrics over one connection, as a scraper does, with OPEN requests in the queue."""
    wait_for("the node to be idle", 60, lambda: node.metric("onepath_choices_open") == 0)
    open_ones = [ask(node.port, 2000, 0) for _ in range(OPEN)]
    wait_for("the requests", 60, lambda: node.metric("onepath_choices_open") >= OPEN)
    client = socket.create_connection(("127.0.0.1", node.port))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(1 << 18)
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")))
        while len(body) < size:
            body += client.recv(1 << 18)
        times.append((time.perf_counter() - begin) * 1e3)
        time.sleep(0.05)
    for stream in open_ones:
        stream.close()
    return {"open_requests": OPEN, "bytes": size, "p50_ms": round(statistics.median(times), 3),
            "p99_ms": round(percentile(times, .99), 3), "max_ms": round(max(times), 3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    run_dir = tempfile.mkdtemp(prefix="onepath-bench-")
    with System("--null-device", "--run-dir", os.path.join(run_dir, "run"), "--max-num-seqs", str(ACTIVE), "--queue-len", "2000", "--log-level", "warn",
                "--enable-fault-injection", "--fault", "executor/shell.before_send.STEP_RESULT:delay:0:10") as node:
        node.wait_ready()
        figures = {"idle_streams": idle_streams(node, os.path.join(run_dir, "run"), options.rounds, options.seconds), "metrics": metrics(node, 40)}
    print(json.dumps(figures, indent=2))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
            file.write("\n")
    good = figures["idle_streams"]["added_p50_percent"] <= 5 and figures["metrics"]["p50_ms"] <= 5
    sys.exit(0 if good else 1)


main()
