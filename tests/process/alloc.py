"""No allocation in the decode loop, from the gateway to the executor.

A preloaded shim counts the heap calls that our own code makes in each process (alloc_shim.c).
After a warm-up the same kinds of work are done again: joins, aborts, a batch above the ladder.
Scheduler and executor must not allocate at all; the gateway may while it parses a request, and
must not while streams go on.
"""
import os
import socket
import json
import struct
import subprocess
import tempfile
import threading

from system import System, binary, check, main, wait_for

SHIM = os.environ.get("ALLOC_SHIM")


def burst(node, streams, tokens):
    """`streams` requests at once; joins while others decode."""
    threads = [threading.Thread(target=node.complete, args=(f"Tell me about number {i}. " * (1 + 3 * i),),
                                kwargs={"max_tokens": tokens + i, "ignore_eos": True,
                                        "temperature": 0.8 if i % 2 else 0, "seed": i})
               for i in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def abort(node):
    body = json.dumps({"prompt": "Count for ever:", "max_tokens": 300, "stream": True,
                       "ignore_eos": True})
    with socket.create_connection(("127.0.0.1", node.port)) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
                       f"Content-Type: application/json\r\n\r\n{body}".encode())
        client.recv(300)
    wait_for("the aborted request to end", 10,
             lambda: node.metric("onepath_num_requests_running") == 0)


def work(node):
    burst(node, 6, 12)
    abort(node)
    burst(node, 3, 8)


def count_of(directory, pid):
    with open(os.path.join(directory, str(pid)), "rb") as file:
        return struct.unpack("<Q", file.read(8))[0]


def callers_of(directory, pid, number):
    with open(os.path.join(directory, str(pid)), "rb") as file:
        values = struct.unpack("<61Q", file.read(8 * 61))
    count, ring = values[0], values[1:]
    addresses = {ring[i % 60] for i in range(max(0, count - min(number, 60)), count)}
    done = subprocess.run(["addr2line", "-f", "-p", "-e", binary(), *[hex(a) for a in addresses]],
                          capture_output=True, text=True)
    return done.stdout


def nothing_is_allocated_while_serving():
    check(SHIM and os.path.exists(SHIM), "ALLOC_SHIM must name the preloaded library")
    with tempfile.TemporaryDirectory() as directory:
        environment = {"LD_PRELOAD": SHIM, "ALLOC_SHIM_DIR": directory}
        with System("--max-model-len", "1024", "--max-num-seqs", "8", "--max-capture-size", "4",
                    environment=environment) as node:
            node.wait_ready()
            pids = node.pids()
            for actor in ("scheduler", "executor", "gateway"):
                check(count_of(directory, pids[actor]) > 0, f"the shim saw nothing in {actor}")
            work(node)
            work(node)
            before = {actor: count_of(directory, pid) for actor, pid in pids.items()}
            work(node)
            for actor in ("scheduler", "executor"):
                made = count_of(directory, pids[actor]) - before[actor]
                check(made == 0, f"{actor} allocated {made} times while serving:\n"
                                 + callers_of(directory, pids[actor], made))
            streaming_allocates_nothing_in_the_gateway(node, directory, pids["gateway"])


def streaming_allocates_nothing_in_the_gateway(node, directory, pid):
    marks = {}

    def on_event(events):
        if len(events) in (40, 140):
            marks[len(events)] = count_of(directory, pid)

    events, ended = node.stream("Once upon a time", on_event, max_tokens=180, ignore_eos=True)
    check(ended == "done" and len(marks) == 2, f"the stream ended {ended} after {len(events)} events")
    made = marks[140] - marks[40]
    check(made == 0, f"the gateway allocated {made} times within 100 events of a stream:\n"
                     + callers_of(directory, pid, made))


if __name__ == "__main__":
    main([nothing_is_allocated_while_serving])
