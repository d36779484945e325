"""`onepath log`: a real run is recorded, and every sub-command is asked about it.

What the tools print is compared with what the test knows by itself: how many requests it made, what
it read from the segments with its own small readers (CRC-32C records, Perfetto's protobuf, MCAP).
"""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

import system
from system import Failure, check, wait_for

REQUESTS = 8
TOKENS = 12
HEADER_SIZE = 4096
ACTORS = ("executor", "gateway", "scheduler")


def tool(*words, code=0, text=True, timeout=120):
    """Runs `onepath log`; stdout, after its exit code was checked (None: any but a crash)."""
    done = subprocess.run([system.binary(), "log", *words], capture_output=True, timeout=timeout,
                          check=False)
    allowed = (0, 1, 75, 78) if code is None else (code,)
    check(done.returncode in allowed,
          f"onepath log {' '.join(words)}: exit code {done.returncode}, wanted {allowed}\n"
          f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout.decode() if text else done.stdout


def shown(path, *options):
    """The records as objects."""
    return [json.loads(line) for line in tool("show", path, "--format", "json", *options).splitlines()]


def record_run(folder, prompts, serial=False, abort=False):
    """A node without a model answers the prompts; all its actors are recorded."""
    with system.System("--null-device", "--record", folder) as node:
        node.wait_ready()

        def ask(prompt):
            status, _, = node.request("POST", "/v1/completions", {
                "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "seed": 7,
                "ignore_eos": True})[:2]
            check(status == 200, f"the node answers {status}")
        if serial:
            for prompt in prompts:
                ask(prompt)
        else:
            threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        if abort:
            # A stop string ends it from the HTTP side: the gateway sends FINISH.
            node.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2000,
                                                     "temperature": 0, "stop": ["a", "e", " "]})
        # LOAD comes at most every 250 ms: a shorter run would have none.
        wait_for("a LOAD", 10, lambda: node.metric("onepath_kv_blocks", state="free") > 0)
        check(node.stop() == 0, "the node did not end well")


class Recorded:
    """One recorded run for all tests; made when it is first asked for."""
    folder = None

    @classmethod
    def get(cls):
        if cls.folder is None:
            cls.base = tempfile.mkdtemp(prefix="onepath-log-tools-")
            cls.folder = os.path.join(cls.base, "log")
            os.mkdir(cls.folder, 0o700)
            cls.prompts = [f"Question {n}: what is the capital of country {n}?"
                           for n in range(REQUESTS)]
            record_run(cls.folder, cls.prompts, abort=True)
        return cls.folder

    @classmethod
    def path(cls, name):
        cls.get()
        return os.path.join(cls.base, name)

    @classmethod
    def segment(cls, actor):
        names = [n for n in os.listdir(cls.get()) if n.startswith(actor) and n.endswith(".alog")]
        check(len(names) == 1, f"{actor} has {len(names)} segments")
        return os.path.join(cls.folder, names[0])

    @classmethod
    def remove(cls):
        if cls.folder is not None:
            shutil.rmtree(cls.base, ignore_errors=True)


def count_by(records, *keys):
    counts = {}
    for record in records:
        key = tuple(record.get(k) for k in keys)
        counts[key] = counts.get(key, 0) + 1
    return counts


# ---- looking -------------------------------------------------------------------------------------

def ls_and_show_count_the_same():
    folder = Recorded.get()
    segments = [json.loads(line) for line in tool("ls", folder, "--json").splitlines()]
    check(sorted(s["actor"] for s in segments) == sorted(ACTORS), "ls lists other actors")
    records = shown(folder)
    kinds = count_by(records, "actor", "kind")
    for segment in segments:
        check(segment["state"] == "whole" and segment["gaps"] == 0, f"ls says {segment}")
        check(segment["records"] == sum(r["actor"] == segment["actor"] for r in records),
              "ls and show count records differently")
        check(segment["kinds"].get("SNAPSHOT", 0) >= 1, f"{segment['actor']} has no snapshot")
        for kind in ("SUBMIT", "PLAN", "TOKENS", "FINISHED", "ADMIT"):
            check(segment["kinds"].get(kind, 0) == kinds.get((segment["actor"], kind), 0),
                  f"ls and show count {kind} of {segment['actor']} differently")
    check(kinds[("scheduler", "SUBMIT")] == REQUESTS + 1, "not every request is in the log")
    text = tool("ls", folder)
    check(text.count("whole") == 3 and "SUBMIT" in text, "the text of ls lacks something")


def show_filters_and_orders():
    folder = Recorded.get()
    records = shown(folder)
    times = [r["t_ns"] for r in records]
    check(times == sorted(times), "actors are not merged by time")
    one = next(r["request"] for r in records if r.get("kind") == "FINISHED")
    for record in shown(folder, "--request", str(one)):
        named = record["request"] == one or one in record["body"].get("requests", [])
        check(named, f"--request lets through {record}")
    part = shown(folder, "--actor", "scheduler", "--from", "20", "--to", "29")
    check([r["seq"] for r in part] == list(range(20, 30)), "--from and --to do not hold")
    middle = times[len(times) // 2] / 1e9
    late = shown(folder, "--from", f"{middle:.6f}")
    check(0 < len(late) < len(records) and late[0]["t_ns"] >= middle * 1e9 - 1000,
          "--from with a time does not hold")
    check(len(shown(folder, "--type", "plan", "--limit", "3")) == 3, "--limit does not hold")
    check("SNAPSHOT" in tool("show", folder, "--type", "SNAPSHOT"), "--type takes no record's name")
    submit = shown(folder, "--type", "SUBMIT", "--limit", "1")[0]
    check("count" in submit["body"]["tokens"], "tokens are shown without --private")
    submit = shown(folder, "--type", "SUBMIT", "--limit", "1", "--private")[0]
    check(len(submit["body"]["tokens"]) == submit["body"]["prompt_length"], "tokens are not shown")
    hexed = tool("show", folder, "--type", "PLAN", "--limit", "1", "--format", "hex")
    check("part 1," in hexed and "000000 " in hexed, "no bytes in hexadecimal")
    tool("show", folder, "--type", "NOTHING", code=78)
    tool("show", folder, "--from", "x", code=78)
    tool("show", folder, "--request", "x", code=78)
    tool("show", folder, "--actor", "drafter", code=78)
    tool("show", "/nowhere", code=78)
    check("ls" in tool("--help") and "examples" in tool("slice", "--help"), "no help")


def show_follows_a_running_node():
    folder = Recorded.path("followed")
    os.mkdir(folder, 0o700)
    follower = subprocess.Popen([system.binary(), "log", "show", folder, "-f", "--format", "json"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(follower.stdout), daemon=True)
    reader.start()
    try:
        record_run(folder, ["One.", "Two."])
        wanted = len(shown(folder))  # the node has ended: this is all
        wait_for("the follower to show what was written last", 20, lambda: len(lines) >= wanted)
    finally:
        follower.send_signal(signal.SIGINT)
        code = follower.wait(20)
    check(code == 0, f"the follower ends with {code}")
    reader.join(5)
    check(len(lines) == wanted, "the follower shows other records than show")


def stats_measure_every_request():
    folder = Recorded.get()
    stats = json.loads(tool("stats", folder, "--json"))
    kinds = count_by(shown(folder), "actor", "dir", "kind")
    for entry in stats["kinds"]:
        if entry["direction"] != "record":
            key = (entry["actor"], entry["direction"], entry["kind"])
            check(kinds.get(key) == entry["count"], f"stats count {key} as {entry['count']}")
    requests = stats["requests"]
    check(len(requests) == REQUESTS + 1 and stats["observer"] == "gateway", "stats lack a request")
    for request in requests:
        check(0 < request["submit_ns"] <= request["first_tokens_ns"] <= request["finished_ns"],
              f"times out of order: {request}")
        check(request["admit_ms"] <= request["first_tokens_ms"] <= request["finished_ms"],
              f"spans out of order: {request}")
    whole = [r for r in requests if r["reason"] == "length" and r["generated_tokens"] == TOKENS]
    check(len(whole) == REQUESTS, "the ends of requests are wrong")
    latency = stats["latency_ms"]["submit_to_finished"]
    values = sorted(r["finished_ms"] for r in requests)
    check(latency["count"] == len(values) and abs(latency["max"] - values[-1]) < 1e-3
          and abs(latency["p50"] - values[(len(values) + 1) // 2 - 1]) < 1e-3, "the spread is wrong")
    check("submit_to_first_tokens" in tool("stats", folder, "--requests"), "no text of stats")


# ---- timelines -----------------------------------------------------------------------------------

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of one protobuf message: varints, fixed64, bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value = struct.unpack_from("<Q", data, at)[0]
            at += 8
        elif key & 7 == 2:
            size, at = varint(data, at)
            check(at + size <= len(data), "a length goes beyond its message")
            value = data[at:at + size]
            at += size
        else:
            raise Failure(f"a wire type that is not used here: {key & 7}")
        yield key >> 3, value


def perfetto_has_tracks_slices_flows_and_counters():
    folder = Recorded.get()
    path = Recorded.path("run.pftrace")
    tool("timeline", folder, "--perfetto", path)
    with open(path, "rb") as file:
        data = file.read()
    tracks, events = {}, []
    for number, packet in fields(data):
        check(number == 1, "a trace is packets only")
        packet = list(fields(packet))
        parts = dict(packet)
        check(parts[10] == 1, "a packet belongs to no sequence")
        if 60 in parts:
            track = dict(fields(parts[60]))
            process = dict(fields(track[3])) if 3 in track else {}
            tracks[track[1]] = {"name": (process.get(6) or track.get(2)).decode(),
                                "parent": track.get(5), "counter": 8 in track, "process": 3 in track}
        if 11 in parts:
            event = list(fields(parts[11]))
            names = dict(event)
            events.append({"t": parts[8], "type": names[9], "track": names[11],
                           "name": names.get(23, b"").decode(), "value": names.get(30),
                           "flows": [v for n, v in event if n in (47, 48)]})
    check(all(e["track"] in tracks for e in events), "an event on a track that is not described")
    check(all(t["parent"] in tracks for t in tracks.values() if not t["process"]), "a lost track")
    actors = {t["name"].split()[0] for t in tracks.values() if t["process"]}
    check(actors == {*ACTORS, "requests"}, f"processes are {actors}")
    # Slices close what they open, in the order in which a reader sorts them: by time, then as written.
    stacks, slices = {}, []
    for event in sorted(events, key=lambda e: e["t"]):
        if event["type"] == 1:
            stacks.setdefault(event["track"], []).append(event)
        elif event["type"] == 2:
            begin = stacks[event["track"]].pop()
            slices.append((begin["name"], tracks[event["track"]]["name"], event["t"] - begin["t"]))
    check(not any(stacks.values()), "a slice is never closed")
    records = shown(folder)
    finished = [r for r in records if r.get("kind") == "FINISHED" and r["actor"] == "gateway"]
    requests = [s for s in slices if s[0].startswith("request ")]
    check(len(requests) == len(finished) == REQUESTS + 1, "a request is not drawn")
    for name in ("waiting", "prompt", "generating"):
        check(sum(s[0] == name for s in slices) >= REQUESTS, f"the phase {name} is not drawn")
    steps = [s for s in slices if s[0].startswith("step ") and s[1] == "device"]
    check(len(steps) == sum(r.get("kind") == "STEP_DONE" for r in records), "a step is not drawn")
    # Each message that was sent shares a flow with its arrival.
    sent = {}
    for event in events:
        for flow in event["flows"]:
            sent.setdefault(flow, []).append(event["name"])
    submits = [names for names in sent.values() if sorted(names) == ["SUBMIT", "send SUBMIT"]]
    check(len(submits) == REQUESTS + 1, f"{len(submits)} SUBMITs are joined to their arrival")
    counters = {tracks[e["track"]]["name"] for e in events if e["type"] == 4}
    check(counters == {"batch size", "KV blocks in use"}, f"counters are {counters}")
    check(max(e["value"] for e in events if e["type"] == 4) >= 1, "no batch was ever larger than 0")
    tool("timeline", folder, "--perfetto", path, code=78)  # nothing is written over


def chrome_is_json_with_the_same_slices():
    folder = Recorded.get()
    trace = json.loads(tool("timeline", folder, "--chrome", "-"))["traceEvents"]
    slices = [e for e in trace if e["ph"] == "X" and e["name"].startswith("request ")]
    check(len(slices) == REQUESTS + 1, "a request is not drawn")
    check({e["ph"] for e in trace} >= {"M", "X", "C", "s", "t", "f"}, "a kind of event is missing")
    tool("timeline", folder, code=78)


# ---- comparing -----------------------------------------------------------------------------------

def diff_finds_the_first_difference():
    folder = Recorded.get()
    check("the same" in tool("diff", folder, folder), "a log differs from itself")
    one, two, three = (Recorded.path(name) for name in ("one", "two", "three"))
    for path in (one, two, three):
        os.mkdir(path, 0o700)
    record_run(one, ["Alpha beta.", "Gamma delta.", "Epsilon."], serial=True)
    record_run(two, ["Epsilon.", "Alpha beta.", "Gamma delta."], serial=True)
    record_run(three, ["Alpha beta.", "Gamma other.", "Epsilon."], serial=True)
    # Other epochs, other ids, other order: each request went the same way.  The key of the page
    # identity is the same for every node without a model.
    out = tool("diff", one, two, "--align", "request", "--actor", "scheduler")
    check("the same" in out, out)
    out = tool("diff", one, three, "--align", "request", "--actor", "scheduler", "--private", code=1)
    check("request 2 of scheduler in A, 2 in B" in out and "differs: submit." in out
          and "\nA " in out and "\nB " in out, out)
    found = json.loads(tool("diff", one, three, "--align", "request", "--actor", "scheduler", "--json",
                            code=1).splitlines()[0])
    check(found["path"].startswith("submit."), f"another field: {found}")
    check("tokens[" not in found["path"] or found["a"] == found["b"] == "(private)",
          f"private values are shown: {found}")
    tool("diff", one, code=78)
    tool("diff", one, two, "--align", "step", code=78)
    tool("diff", one, two, "--tolerance", "2", code=78)


# ---- parts of a log ------------------------------------------------------------------------------

def slice_is_one_request_and_all_of_it():
    folder = Recorded.get()
    records = shown(folder, "--columns", "100000")
    request = [r["request"] for r in records if r.get("kind") == "SUBMIT" and r["dir"] == "in"][3]
    slot = next(r["body"]["slot"] for r in records
                if r.get("kind") == "ADMIT" and r["request"] == request)
    # By hand: the steps between ADMIT and release whose rows hold the slot.
    steps, plans, holds = set(), 0, False
    for record in records:
        if record["actor"] != "scheduler" or record.get("dir") != "out":
            continue
        body = record["body"]
        if record["kind"] == "ADMIT" and body["slot"] == slot:
            holds = record["request"] == request
        if record["kind"] == "PLAN" and holds:
            row = slot in body["extend_slots"] + body["decode_slots"]
            plans += row or slot in body["release_slots"] or slot in body["patch_slots"]
            if row:
                steps.add(body["step"])
            holds = slot not in body["release_slots"]
    path = Recorded.path("slice")
    said = tool("slice", folder, path, "--request", str(request))
    check("name the request" in said, said)
    check(tool("verify", path).count(": whole") == 3, "a slice is no valid log")
    kept = shown(path, "--columns", "100000")
    kinds = count_by(kept, "actor", "dir", "kind")
    for key in (("gateway", "in", "HTTP_REQUEST"), ("gateway", "out", "SUBMIT"),
                ("scheduler", "in", "SUBMIT"), ("scheduler", "out", "ADMIT"),
                ("executor", "in", "ADMIT"), ("executor", "out", "SLOT_SETUP"),
                ("scheduler", "out", "FINISHED"), ("gateway", "in", "FINISHED"),
                ("gateway", "out", "HTTP_END")):
        check(kinds.get(key) == 1, f"{kinds.get(key)} of {key} in the slice")
    check(kinds.get(("scheduler", "out", "PLAN")) == plans, "other plans than those of its slot")
    check({r["body"]["step"] for r in kept if r.get("kind") == "STEP_DONE"} == steps,
          "other steps than those of its slot")
    named = {r["request"] for r in kept if r.get("request")}
    check(named == {request}, f"the slice names {named}")
    numbers = {(r["actor"], r["seq"]) for r in records}
    check(all((r["actor"], r["seq"]) in numbers for r in kept), "records were numbered anew")
    tool("slice", folder, Recorded.path("nobody"), "--request", "12345", code=78)
    check(not os.path.exists(Recorded.path("nobody")), "a refused slice leaves a folder")
    tool("slice", folder, path, "--request", str(request), code=78)


def cut_and_merge():
    folder = Recorded.get()
    path = Recorded.path("cut.alog")
    tool("cut", folder, path, "--actor", "scheduler", "--from", "30", "--to", "59")
    body = [r["seq"] for r in shown(path) if r.get("record") not in ("CHANNEL_DEF", "CLOCK", "ENV")]
    check(body == [s for s in range(30, 60)], f"cut kept {body}")
    tool("cut", folder, Recorded.path("two.alog"), code=78)  # three actors in one file
    whole = Recorded.path("merged")
    tool("cut", Recorded.segment("gateway"), Recorded.segment("scheduler"),
         Recorded.segment("executor"), whole)
    check(shown(whole) == shown(folder), "a copy of all is not the same")


def cuts_of_one_log_merge_without_doubles():
    """Cuts carry the definitions along, wherever they were: every pair has records in common."""
    Recorded.get()
    segment = Recorded.segment("scheduler")
    wanted = shown(segment)
    last = wanted[-1]["seq"]
    for number, (to, begin) in enumerate(((40, 61), (60, 40), (last, 1), (1, last))):
        a, b = Recorded.path(f"early{number}.alog"), Recorded.path(f"late{number}.alog")
        tool("cut", segment, a, "--to", str(to))
        tool("cut", segment, b, "--from", str(begin))
        frames = ("CHANNEL_DEF", "CLOCK", "ENV")
        kept = [r for r in wanted if r["seq"] <= to or r["seq"] >= begin or r.get("record") in frames]
        for order in ((a, b), (b, a)):
            both = Recorded.path(f"both{number}{order[0] == a}.alog")
            tool("merge", *order, both)
            check(": whole" in tool("verify", both), f"{order} give no valid log")
            check(shown(both) == kept, f"{order}: records are lost or there twice")
            check([json.loads(line) for line in tool("show", *order, "--format", "json").splitlines()] == kept, f"{order} read as one show something else")


def redacted_log_holds_nothing_private_and_replays():
    folder = Recorded.get()
    path = Recorded.path("redacted")
    tool("redact", folder, path)
    needles = set()
    keys = set()
    for record in shown(folder, "--private", "--columns", "100000"):
        body = record.get("body", {})
        tokens = body.get("tokens") or body.get("extend_tokens") or []
        if len(tokens) >= 4:
            needles.add(struct.pack(f"<{len(tokens)}i", *tokens))
            needles.add(struct.pack("<4i", *tokens[:4]))
        if record.get("kind") in ("EXECUTOR_INFO", "MODEL_INFO"):
            key = bytes.fromhex(body["page_hash_key"])
            check(not key or any(key), "the key of page hashes is zeros")
            keys.update({key} if key else ())
    check(len(needles) >= REQUESTS and keys, "the test knows no tokens or no key to look for")
    needles |= keys

    def holds(where):
        found = 0
        for name in os.listdir(where):
            with open(os.path.join(where, name), "rb") as file:
                data = file.read()
            found += sum(needle in data for needle in needles)
        return found
    check(holds(folder) >= len(needles), "the tokens are not in the log itself: a blind test")
    check(holds(path) == 0, "tokens are left in the redacted log")
    for record in shown(path, "--private", "--columns", "100000"):
        check(not any(record.get("body", {}).get("tokens", []) or []), f"tokens in {record}")
    check("the same" in tool("diff", folder, path, "--ignore-private", "--exact"), "more was changed")
    check("nothing differs" in tool("replay", path, "--actor", "scheduler"), "it does not replay")


def minimize_keeps_what_fails():
    folder = Recorded.get()
    records = shown(folder, "--actor", "scheduler")
    request = [r["request"] for r in records if r.get("kind") == "SUBMIT"][2]
    path = Recorded.path("small.alog")
    command = (f"{system.binary()} log show {{log}} --type SUBMIT --format json | "
               f"grep -q '\"request\":{request},' && exit 3; exit 0")
    said = tool("minimize", folder, path, "--actor", "scheduler", "--cmd", command, "--max-runs",
                "300", timeout=200)
    check("exit code 3 kept" in said and " 1 of " in said, said)
    kept = shown(path)
    check([r["request"] for r in kept if r.get("request")] == [request], f"kept {kept}")
    check(sum(r.get("dir") == "in" for r in kept) == 1, "more than one input is left")
    check(": whole" in tool("verify", path), "the result is no valid log")
    check(len(records) > len(kept), "nothing was taken out")
    # It begins as the log did, so an actor's core takes it; what it says is another matter.
    done = subprocess.run([system.binary(), "log", "replay", path], capture_output=True, text=True,
                          check=False, timeout=60)
    check(done.returncode in (0, 1), f"replay of the result: {done.returncode} {done.stderr}")
    tool("minimize", folder, Recorded.path("x.alog"), "--actor", "scheduler", "--cmd", "true", code=78)
    tool("minimize", folder, Recorded.path("x.alog"), code=78)
    check(not os.path.exists(Recorded.path("x.alog")), "a refused search leaves a file")


# ---- export --------------------------------------------------------------------------------------

def read_mcap(path):
    """Schemas, channels and messages, by the specification alone."""
    with open(path, "rb") as file:
        data = file.read()
    magic = b"\x89MCAP0\r\n"
    check(data.startswith(magic) and data.endswith(magic), "no magic")
    at, end = len(magic), len(data) - len(magic)
    schemas, channels, messages, order = {}, {}, [], []

    def text(body, place):
        size = struct.unpack_from("<I", body, place)[0]
        return body[place + 4:place + 4 + size], place + 4 + size
    while at < end:
        opcode, size = data[at], struct.unpack_from("<Q", data, at + 1)[0]
        body = data[at + 9:at + 9 + size]
        check(len(body) == size, "a record goes beyond the file")
        order.append(opcode)
        if opcode == 3:
            name, place = text(body, 2)
            encoding, place = text(body, place)
            schema, place = text(body, place)
            check(encoding == b"jsonschema" and place == size, "a schema of another shape")
            schemas[struct.unpack_from("<H", body)[0]] = (name.decode(), json.loads(schema))
        elif opcode == 4:
            number, schema = struct.unpack_from("<HH", body)
            topic, place = text(body, 4)
            encoding, place = text(body, place)
            check(encoding == b"json" and schema in schemas, "a channel without a schema")
            channels[number] = topic.decode()
        elif opcode == 5:
            channel, sequence, log_time = struct.unpack_from("<HIQ", body)
            messages.append((channels[channel], sequence, log_time, json.loads(body[22:])))
        at += 9 + size
    check(order[0] == 1 and order[-2:] == [15, 2] and at == end, "the frame of the file is wrong")
    return schemas, channels, messages


def export_writes_jsonl_and_mcap():
    folder = Recorded.get()
    records = shown(folder)
    path = Recorded.path("run.mcap")
    tool("export", folder, "--mcap", path)
    schemas, channels, messages = read_mcap(path)
    check(len(messages) == len(records), "MCAP holds another number of records")
    check("/scheduler/out/PLAN" in channels.values(), f"topics are {sorted(channels.values())}")
    for (topic, sequence, log_time, body), record in zip(messages, records):
        check(body["seq"] == record["seq"] == sequence and body["actor"] in topic, "out of order")
        check(abs(log_time / 1e9 - time.time()) < 86400, "log_time is no date")
    plan = next(schema for name, schema in schemas.values() if name == "PLAN")
    check(plan["properties"]["body"]["properties"]["decode_slots"] == {"type": "array"}, "no schema")
    try:
        from mcap.reader import NonSeekingReader  # not needed; the reader above is the test
        with open(path, "rb") as file:
            count = sum(1 for _ in NonSeekingReader(file).iter_messages(log_time_order=False))
        check(count == len(records), f"the mcap package reads {count} messages")
    except ImportError:
        pass
    lines = tool("export", folder, "--jsonl", "-").splitlines()
    check(len(lines) == len(records), "JSON lines hold another number of records")
    check([json.loads(line)["seq"] for line in lines] == [r["seq"] for r in records], "out of order")
    plans = tool("export", folder, "--jsonl", "-", "--type", "PLAN").splitlines()
    check(all(json.loads(line)["kind"] == "PLAN" for line in plans) and plans, "--type does not hold")
    tool("export", folder, code=78)


# ---- damage --------------------------------------------------------------------------------------

def record_offsets(path):
    """Where each record of a segment begins, by its length alone."""
    with open(path, "rb") as file:
        data = file.read()
    at, offsets = HEADER_SIZE, []
    while at < len(data):
        offsets.append(at)
        at += 8 + struct.unpack_from("<I", data, at)[0]
    return data, offsets


def damage_is_named_and_recovered():
    Recorded.get()
    folder = Recorded.path("damaged")
    shutil.copytree(Recorded.folder, folder)
    path = os.path.join(folder, os.path.basename(Recorded.segment("scheduler")))
    data, offsets = record_offsets(path)
    broken = bytearray(data[:-3])
    broken[offsets[40] + 20] ^= 1
    with open(path, "wb") as file:
        file.write(broken)
    said = tool("verify", folder, code=1)
    check(f"DAMAGED at byte {offsets[40]} to {offsets[41]}" in said and "before record 42" in said
          and f"torn at byte {offsets[-1]}" in said, said)
    # Every tool stops at the damage and says so with its code.
    check(len(shown_damaged(folder)) == 40, "show goes on behind the damage, or stops before")
    tool("ls", folder, code=1)
    tool("stats", folder, code=1)
    saved = Recorded.path("saved")
    tool("recover", folder, saved, code=1)
    check(tool("verify", saved).count(": whole") == 3, "what was recovered is not whole")
    recovered = [r for r in shown(saved, "--actor", "scheduler") if r.get("record") != "DROP"]
    wanted = [r for r in shown(Recorded.folder, "--actor", "scheduler")]
    del wanted[-1], wanted[40]
    check(recovered == wanted, "good records were lost")
    drop = shown(saved, "--type", "DROP")
    check(len(drop) == 1 and drop[0]["count"] == 1, f"the lost record is not announced: {drop}")
    tool("recover", folder, "--in-place", code=1)
    check(tool("verify", folder).count(": whole") == 3, "recovery in place did not help")
    tool("recover", folder, "--in-place")
    tool("recover", folder, code=78)
    index = path[:-5] + ".aidx"
    with open(index, "r+b") as file:
        file.write(b"\xff\xff\xff")
    check("index wrong" in tool("verify", path, code=1), "a wrong sidecar is not seen")
    os.remove(index)
    check("index missing" in tool("verify", path), "a missing sidecar is not seen")
    tool("reindex", folder)
    check("index good" in tool("verify", path), "the sidecar was not made anew")


def shown_damaged(folder):
    out = tool("show", folder, "--format", "json", "--actor", "scheduler", code=1)
    return out.splitlines()


def hostile_files_end_in_an_exit_code():
    """A sample of what tests/log/test_hostile.c does by thousands, through the program."""
    seed = int(os.environ.get("ONEPATH_SEED") or time.time_ns() % 10**9)
    print(f"ONEPATH_SEED={seed}", flush=True)
    random.seed(seed)
    folder = Recorded.path("hostile")
    os.mkdir(folder)
    path = os.path.join(folder, "hostile.alog")
    with open(Recorded.segment("scheduler"), "rb") as file:
        data = file.read()[:HEADER_SIZE + 20000]
    request = str(shown(Recorded.folder, "--type", "SUBMIT", "--limit", "1")[0]["request"])
    commands = (("ls", path), ("show", path), ("show", path, "--format", "hex"),
                ("stats", path, "--json"), ("timeline", path, "--chrome", "-"),
                ("diff", path, path), ("verify", path), ("slice", path, "OUT", "--request", request),
                ("redact", path, "OUT"), ("cut", path, "OUT"), ("recover", path, "OUT"),
                ("export", path, "--mcap", "OUT"), ("reindex", path),
                ("minimize", path, "OUT", "--cmd", "false", "--max-runs", "3"))
    for round_number in range(40):
        hostile = bytearray(data)
        if round_number % 2 == 0:
            hostile = hostile[:random.randrange(len(data))]
        else:
            for _ in range(random.randrange(1, 6)):
                hostile[random.randrange(len(hostile))] ^= 1 << random.randrange(8)
        with open(path, "wb") as file:
            file.write(hostile)
        for command in random.sample(commands, 4):
            out = os.path.join(folder, f"out{round_number}")
            tool(*(out if word == "OUT" else word for word in command), code=None, text=False)


TESTS = [ls_and_show_count_the_same, show_filters_and_orders, show_follows_a_running_node,
         stats_measure_every_request, perfetto_has_tracks_slices_flows_and_counters,
         chrome_is_json_with_the_same_slices, diff_finds_the_first_difference,
         slice_is_one_request_and_all_of_it, cut_and_merge,
         cuts_of_one_log_merge_without_doubles,
         redacted_log_holds_nothing_private_and_replays, minimize_keeps_what_fails,
         export_writes_jsonl_and_mcap, damage_is_named_and_recovered,
         hostile_files_end_in_an_exit_code]

if __name__ == "__main__":
    try:
        system.main(TESTS)
    finally:
        Recorded.remove()
