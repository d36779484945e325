"""What an operator sees of a node, and a drain: ps, metrics, alerts, log levels, traces."""
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import exposition
import system
from system import Failure, System, check, wait_for

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
WATCH = os.path.join(SOURCE, "deploy", "observability")
# A step takes 20 ms: what runs stays long enough to be looked at.
SLOW = ("--enable-fault-injection", "--fault", "executor/shell.before_send.STEP_RESULT:delay:0:20")
LONG = {"max_tokens": 400, "ignore_eos": True}
TTFT = [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
ITL = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
E2E = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]


def command(*words, timeout=60):
    done = subprocess.run([system.binary(), *words], capture_output=True, text=True, timeout=timeout,
                          check=False)
    return done.returncode, done.stdout + done.stderr


class Node(System):
    """A node of the null device, its run folder, and streams that run beside the test."""

    def __init__(self, *options, **more):
        self.folder = tempfile.mkdtemp(prefix="onepath-look-")
        self.run_dir = os.path.join(self.folder, "run")
        self.streams = []
        super().__init__("--null-device", "--run-dir", self.run_dir, "--log-format", "json", *options, **more)

    def __exit__(self, *why):
        super().__exit__(*why)
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, name, **fields):
        """Begins a stream; its entry has `events` while it runs and `ended` then."""
        entry = {"name": name, "events": [], "ended": None}

        def run():
            entry["last"], entry["ended"] = self._stream(name, entry, {**LONG, **fields})
        entry["thread"] = threading.Thread(target=run, daemon=True)
        entry["thread"].start()
        self.streams.append(entry)
        return entry

    def _stream(self, name, entry, fields):
        body = json.dumps({"prompt": [1, 2, 3, 4], "stream": True, **fields}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-request-id: {name}\r\nContent-Type: "
                f"application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as client:
            client.sendall(head + body)
            answer = client.makefile("rb")
            try:
                for line in answer:
                    if line.startswith(b"data: "):
                        entry["events"].append(line[6:].strip().decode())
                    elif line.startswith(b"HTTP/1.1 ") and not line.startswith(b"HTTP/1.1 200"):
                        return line.decode(), "refused"
            except ConnectionError:
                pass
        last = entry["events"][-1] if entry["events"] else ""
        return last, "done" if last == "[DONE]" else "broken"

    def ps(self, *words):
        code, text = command("ps", "--run-dir", self.run_dir, *words)
        check(code == 0, f"ps gave {code}: {text}")
        return json.loads(text) if "--json" in words else text


def error_code(event):
    return json.loads(event)["error"]["code"] if event.startswith('{"error"') else None


# ---- metrics --------------------------------------------------------------------------------------


def promtool():
    found = os.environ.get("ONEPATH_PROMTOOL") or shutil.which("promtool")
    return found if found and os.path.exists(found) else None


def bounds_of(families, name):
    return [float(labels["le"]) for sample, labels, _ in families[name]["samples"]
            if sample.endswith("_bucket") and labels["le"] != "+Inf"]


def metrics_are_clean_and_complete():
    with Node("--served-model-name", 'a "quoted\\ name') as node:
        node.wait_ready()
        for fields in ({}, {"stream": True}, {"n": 2}):
            status, text, _ = node.request("POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 8, **fields})
            check(status == 200, f"a completion gave {status}: {text}")
        wait_for("the supervisor's word of the actors", 20,
                 lambda: "onepath_actor_up" in node.request("GET", "/metrics")[1])
        text = node.request("GET", "/metrics")[1]
        families = exposition.read(text)
        own = {name: family for name, family in families.items() if name.startswith("onepath_")}
        wrong = exposition.lint(own)
        check(not wrong, f"lint: {wrong}")
        for name, bounds in (("time_to_first_token_seconds", TTFT), ("inter_token_latency_seconds", ITL),
                             ("e2e_request_latency_seconds", E2E)):
            check(bounds_of(families, "onepath_" + name) == bounds, f"the buckets of {name} are others")
            check(bounds_of(families, "vllm:" + name) == bounds, f"the buckets of vllm:{name} are others")
        check("vllm:iteration_tokens_total" in families and "vllm:gpu_cache_usage_perc" in families, "an alias is missing")
        up = {labels["actor"] for _, labels, _ in own["onepath_actor_up"]["samples"]}
        check(up == {"gateway", "scheduler", "executor", "recorder", "supervisor"}, f"actors: {up}")
        tool = promtool()
        if tool:
            native = "".join(line + "\n" for line in text.split("\n")
                             if line and not re.match(r"(# (HELP|TYPE) )?vllm:", line))
            done = subprocess.run([tool, "check", "metrics"], input=native, capture_output=True, text=True, check=False)
            check(done.returncode == 0 and not done.stderr, f"promtool: {done.stderr}{done.stdout}")
        used_names_exist(set(own))


def used_names_exist(names):
    """What alerts and dashboard ask for is there: by name, histograms by their parts too."""
    for file in ("alerts.yaml", "dashboard.json"):
        with open(os.path.join(WATCH, file), encoding="utf-8") as stream:
            text = stream.read()
        if file.endswith("json"):
            json.loads(text)
        for used in set(re.findall(r"\bonepath_[a-z0-9_]+", text)):
            base = re.sub(r"_(bucket|sum|count)\Z", "", used)
            check(used in names or base in names, f"{file} asks for {used}, which /metrics does not have")


def alerts_fire_when_they_should():
    tool = promtool()
    if not tool:
        print("     (no promtool here: the rules are not tested)")
        return
    done = subprocess.run([tool, "test", "rules", "alerts_test.yaml"], cwd=WATCH, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"promtool test rules: {done.stdout}{done.stderr}")
    with tempfile.TemporaryDirectory() as folder:  # and the tests notice a rule that is wrong
        for name in ("alerts.yaml", "alerts_test.yaml"):
            with open(os.path.join(WATCH, name), encoding="utf-8") as stream:
                text = stream.read().replace("onepath_ready == 0", "onepath_ready == 1")
            with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                stream.write(text)
        done = subprocess.run([tool, "test", "rules", "alerts_test.yaml"], cwd=folder, capture_output=True, text=True, check=False)
        check(done.returncode != 0, "a planted mistake in a rule was not noticed")


def aliases_can_be_left_out():
    with Node("--no-vllm-metrics") as node:
        node.wait_ready()
        check("vllm:" not in node.request("GET", "/metrics")[1], "there are vllm: names")


# ---- ps -------------------------------------------------------------------------------------------


def ps_says_why_each_request_waits():
    with Node("--max-num-seqs", "1", *SLOW) as node:
        node.wait_ready()
        first = node.begin("first")
        wait_for("its first token", 20, lambda: first["events"])
        node.begin("second")
        node.begin("third")

        def waiting():
            seen = {entry["request_id"]: entry for entry in node.ps("--json")["requests"]}
            return seen if len(seen) == 3 and all(seen[n]["waits_for"] == "slot" for n in ("second", "third")) else None
        seen = wait_for("both to wait for the slot", 20, waiting)
        check(seen["first"]["state"] == "decode" and seen["first"]["slot"] == 1 and
              seen["first"]["blocks"] > 0, f"first: {seen['first']}")
        for name in ("second", "third"):
            entry = seen[name]
            check(entry["holder"] == "first" and entry["needed"] == 1 and entry["available"] == 0 and
                  entry["state"] == "queued", f"{name}: {entry}")
        text = node.ps("--waiting")
        check("2 of 3 requests wait" in text and "a slot: all are taken, first has run longest" in text, text)
        look = node.ps("--json")
        actors = {actor["name"]: actor for actor in look["actors"]}
        check(look["state"] == "ready" and set(actors) == {*system.ACTORS, "supervisor"}, f"{look['state']} {actors}")
        for name, actor in actors.items():
            check(actor["state"] == "ready" and actor["pid"] > 0 and actor["resident_bytes"] > 1 << 20 and
                  actor["heartbeat_age_s"] < 10, f"{name}: {actor}")
        wanted = {("gateway", "scheduler"), ("scheduler", "executor")}
        wait_for("the links", 10, lambda: wanted <= {(link["actor"], link["peer"])
                                                     for link in node.ps("--json")["links"]})


def a_request_without_a_scheduler_says_so():
    with Node("--resume-timeout", "60", *SLOW) as node:
        node.wait_ready()
        stream = node.begin("lonely", max_tokens=60)
        wait_for("its first token", 20, lambda: stream["events"])
        pid = node.pids()["scheduler"]
        os.kill(pid, signal.SIGSTOP)  # taken for dead after 1 s, killed after 10
        def waits():
            seen = node.ps("--json")["requests"]
            return seen and seen[0]["waits_for"] == "scheduler" and seen[0]["state"] == "waiting" and seen
        seen = wait_for("it to wait for a scheduler", 20, waits)
        check("none is there to take it" in seen[0]["why"], f"{seen}")
        os.kill(pid, signal.SIGKILL)
        wait_for("its end", 60, lambda: stream["ended"])
        check(stream["ended"] == "done", f"it ended as {stream['ended']}: {stream['events'][-1:]}")
        actor = next(a for a in node.ps("--json")["actors"] if a["name"] == "scheduler")
        check(actor["restarts"]["signal"] + actor["restarts"]["hang"] == 1, f"{actor}")
        wait_for("the restart in /metrics", 10, lambda: sum(
            node.metric("onepath_actor_restarts_total", actor="scheduler", reason=reason)
            for reason in ("exit", "signal", "hang")) == 1)


def a_dead_node_is_told_at_once():
    node = Node()
    with node:
        node.wait_ready()
        node.process.kill()
        node.process.wait(20)
        for words in (("ps",), ("executor", "show"), ("executor", "check"), ("drain",)):
            began = time.monotonic()
            code, text = command(*words, "--run-dir", node.run_dir)
            check(code == 75 and "not alive" in text, f"{words} gave {code}: {text}")
            check(time.monotonic() - began < 10, f"{words} took {time.monotonic() - began:.1f} s")
    code, text = command("ps", "--run-dir", "/nonexistent")
    check(code == 78 and "no node" in text, f"ps without a node gave {code}: {text}")


# ---- top ------------------------------------------------------------------------------------------


class Terminal:
    """A terminal of 80 x 24 in which a command runs: tmux keeps the screen."""

    def __init__(self, *words):
        self.name = f"onepath-{os.getpid()}"
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", " ".join(words) + "; echo code=$?; exec sleep 600")

    def _tmux(self, *words):
        done = subprocess.run(["tmux", "-L", self.name, "-f", "/dev/null", *words], capture_output=True, text=True,
                              timeout=20, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
        return done.stdout

    def screen(self):
        return self._tmux("capture-pane", "-p").split("\n")[:24]

    def press(self, key):
        self._tmux("send-keys", key)

    def close(self):
        self._tmux("kill-server")


def top_shows_a_node_in_80_by_24():
    with Node("--max-num-seqs", "1", *SLOW) as node:
        node.wait_ready()
        node.begin("first")
        wait_for("its first token", 20, lambda: node.streams[0]["events"])
        node.begin("second")
        wait_for("the second to wait", 20, lambda: node.ps("--json")["request_count"] == 2)

        def told():
            """Figures and links come with heartbeats: a node half a second old has not said them all."""
            code, text = command("top", "--once", "--run-dir", node.run_dir)
            check(code == 0, f"top --once gave {code}: {text}")
            return "slot: first" in text and "gateway - scheduler" in text
        wait_for("the waiting request and the links in top --once", 20, told)

        def measured():
            code, text = command("top", "--once", "--json", "--run-dir", node.run_dir)
            check(code == 0, f"top --json gave {code}: {text}")
            look = json.loads(text)
            return (look["load"]["generation_tokens_per_s"] > 0 and
                    all(actor["cpu_percent"] is not None for actor in look["actors"]))
        wait_for("rates in top --once --json", 20, measured)
        for words, expected in (((), "no terminal"), (("--json",), "goes with --once")):
            code, text = command("top", *words, "--run-dir", node.run_dir)
            check(code == 78 and expected in text, f"top {words} gave {code}: {text}")
        if not shutil.which("tmux"):
            print("     (no tmux here: the screen is not looked at)")
            return
        terminal = Terminal(system.binary(), "top", "--run-dir", node.run_dir)
        try:
            def drawn():
                lines = terminal.screen()
                return lines if any("slot: first" in line for line in lines) else None
            lines = wait_for("the picture", 20, drawn)
            check(lines[0].startswith("onepath  ready") and lines[23].startswith("q quit"), f"{lines}")
            for word in ("requests 1 running, 1 waiting", "ACTOR", "supervisor", "gateway - scheduler", "REQUEST"):
                check(any(word in line for line in lines), f"no '{word}' in {lines}")
            terminal.press("w")
            wait_for("what waits alone", 20, lambda: any("only what waits" in line for line in terminal.screen()) and
                     not any(line.startswith("first ") for line in terminal.screen()))
            # A view that nobody services is given up by the supervisor; a picture that stands still is none.
            terminal.press("p")
            wait_for("the pause", 20, lambda: any("PAUSED" in line for line in terminal.screen()))
            time.sleep(12)
            terminal.press("p")
            wait_for("the next picture", 20, lambda: not any("PAUSED" in line for line in terminal.screen()))
            time.sleep(2)
            check(terminal.screen()[0].startswith("onepath  ready"), f"a pause ended it: {terminal.screen()}")
            terminal.press("q")
            wait_for("its end", 20, lambda: any("code=0" in line for line in terminal.screen()))
        finally:
            terminal.close()


# ---- drain ----------------------------------------------------------------------------------------


def a_drain_can_be_taken_back_by_its_owner():
    with Node(*SLOW) as node:
        node.wait_ready()
        stream = node.begin("open", max_tokens=150)
        wait_for("its first token", 20, lambda: stream["events"])
        code, text = command("drain", "--owner", "rollout", "--run-dir", node.run_dir)
        check(code == 0 and "rollout" in text, f"drain gave {code}: {text}")
        status, body, _ = node.request("GET", "/health/ready")
        check(status == 503 and "rollout" in body["detail"], f"ready gave {status}: {body}")
        status, body, head = node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})
        check(status == 503 and body["error"]["code"] == "shutting_down" and head.get("Retry-After") and
              head.get("Connection") == "close", f"a request gave {status}: {body} {head}")
        check(node.request("GET", "/health")[0] == 200, "the node is not alive any more")
        check(node.metric("onepath_drained") == 1 and node.metric("onepath_ready") == 0, "/metrics does not tell")
        check(node.ps("--json")["state"] == "drained", "ps does not tell")
        for words in (("drain", "--owner", "other"), ("undrain", "--owner", "other"), ("undrain",)):
            code, text = command(*words, "--run-dir", node.run_dir)
            check(code == 1 and "rollout" in text, f"{words} gave {code}: {text}")
        code, text = command("drain", "--owner", "rollout", "--wait", "--run-dir", node.run_dir)
        wait_for("the open stream's end", 20, lambda: stream["ended"])
        check(code == 0 and stream["ended"] == "done",
              f"drain --wait gave {code}: {text}; the open stream ended as {stream['ended']}")
        node.kill("gateway")  # the next one is told too
        node.port = None
        wait_for("the next gateway", 30, lambda: node.port and len(node.events("gateway.held")) == 2)
        wait_for("its scheduler", 30, lambda: "rollout" in str(node.request("GET", "/health/ready")[1]))
        code, text = command("undrain", "--owner", "rollout", "--run-dir", node.run_dir)
        check(code == 0, f"undrain gave {code}: {text}")
        node.wait_ready(20)
        check(node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})[0] == 200, "no answer after undrain")
        code, text = command("drain", "--wait", "--timeout", "20", "--run-dir", node.run_dir)
        check(code == 0 and "no request is open" in text, f"drain --wait of an idle node gave {code}: {text}")
        code, text = command("undrain", "--force", "--owner", "x", "--run-dir", node.run_dir)
        check(code == 0 and node.is_ready(), f"undrain --force gave {code}: {text}")


def at_once(node):
    del node


def after_its_start(node):
    wait_for("the supervisor's first words", 20, lambda: node.events("supervisor.started"))


def while_it_loads(node):
    wait_for("the executor's process", 20,
             lambda: any(e["child"] == "executor" for e in node.events("supervisor.started")))


def when_it_is_ready(node):
    node.wait_ready()


def a_signal_at_every_phase_ends_in_good_order():
    """SIGTERM from the first moment on: code 0, no actor is left, none had to be killed."""
    for phase in (at_once, after_its_start, while_it_loads, when_it_is_ready):
        for loads in (False, True) if phase is while_it_loads else (False,):
            with (System("--log-format", "json") if loads else Node()) as node:
                phase(node)
                began = time.monotonic()
                code = node.stop(60)
                seconds = time.monotonic() - began
                node.reader.join(5)
                # Before the program could say that it wants to end in good order, it simply ends.
                fine = code == 0 or (phase is at_once and code == -signal.SIGTERM)
                check(fine and seconds < 30, f"{phase.__name__}: code {code} after {seconds:.1f} s")
                check(not node.events("supervisor.killed"), f"{phase.__name__}: {node.events('supervisor.killed')}")
                for entry in node.events("supervisor.ended"):
                    check(entry["exit_code"] == 0, f"{phase.__name__}: {entry['msg']}")


def what_is_open_is_finished_at_sigterm():
    with Node(*SLOW) as node:
        node.wait_ready()
        stream = node.begin("open", max_tokens=100, stream_options={"include_usage": True})
        wait_for("its first token", 20, lambda: stream["events"])
        node.process.send_signal(signal.SIGTERM)

        def refused():
            status, body, _ = node.request("GET", "/health/ready")
            return status == 503 and "shutting down" in body["detail"]
        wait_for("503 at /health/ready", 10, refused)
        status, body, _ = node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})
        check(status == 503 and body["error"]["code"] == "shutting_down", f"a request gave {status}: {body}")
        code = node.process.wait(60)
        wait_for("the stream's end", 20, lambda: stream["ended"])
        check(code == 0 and stream["ended"] == "done", f"code {code}, the stream ended as {stream['ended']}")
        usage = json.loads(stream["events"][-2])["usage"]
        check(usage["completion_tokens"] == 100, f"tokens are missing: {usage}")


def what_is_left_gets_an_error_event():
    """When the drain's time is over, and when a second signal comes."""
    for options, again in ((("--drain-timeout", "1"), False), ((), True)):
        with Node(*SLOW, *options) as node:
            node.wait_ready()
            stream = node.begin("open", max_tokens=1500)
            wait_for("its first token", 20, lambda: stream["events"])
            began = time.monotonic()
            node.process.send_signal(signal.SIGTERM)
            if again:
                wait_for("the first one's effect", 20, lambda: node.events("actor.drain"))
                node.process.send_signal(signal.SIGTERM)
            code = node.process.wait(60)
            seconds = time.monotonic() - began
            wait_for("the stream's end", 20, lambda: stream["ended"])
            check(code == 0 and seconds < 20, f"code {code} after {seconds:.1f} s")
            check(stream["ended"] == "broken" and error_code(stream["events"][-1]) is not None,
                  f"the stream ended as {stream['ended']}: {stream['events'][-1:]}")


# ---- logs and traces ------------------------------------------------------------------------------


def levels_change_at_run_time():
    with Node() as node:
        node.wait_ready()
        ask = lambda: node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})
        before = len(node.events("http.request"))
        code, text = command("level", "gateway", "warn", "--run-dir", node.run_dir)
        check(code == 0, f"level gave {code}: {text}")
        ask()
        code, text = command("level", "all", "info", "--run-dir", node.run_dir)
        check(code == 0 and text.count("info") == 5, f"level all gave {code}: {text}")
        ask()
        wait_for("the line of the second request", 10, lambda: len(
            [e for e in node.events("http.request")[before:] if e["route"] == "/v1/completions"]) == 1)
        for words, expected in ((("nobody", "info"), 78), (("gateway", "loud"), 78), (("supervisor", "debug"), 0)):
            code, text = command("level", *words, "--run-dir", node.run_dir)
            check(code == expected, f"level {words} gave {code}: {text}")


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes traces and keeps them."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def collector(status=200):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.seen, server.status = [], status
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def spans_of(server):
    return [span for _, _, body in server.seen for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"] for span in scope["spans"]]


def traces_go_to_the_collector():
    server = collector()
    with Node("--otlp-endpoint", f"http://localhost:{server.server_port}") as node:
        node.wait_ready()
        trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        ask = lambda value, name: node.request(
            "POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True},
            headers={"x-request-id": name, **({"traceparent": value} if value else {})})
        ask(f"00-{trace}-{parent}-01", "given")
        ask(f"00-{trace}-{parent}-00", "unsampled")
        ask(None, "own")
        for wrong in (f"ff-{trace}-{parent}-01", f"00-{'0' * 32}-{parent}-01", f"00-{trace.upper()}-{parent}-01",
                      f"00-{trace}-{parent}-01-more", "rubbish"):
            ask(wrong, "wrong")
        # four spans each: of the one that was given, our own, and five with a traceparent that is none
        wait_for("the spans", 20, lambda: len(spans_of(server)) == 7 * 4)
        path, kind, body = server.seen[0]
        check(path == "/v1/traces" and kind == "application/json", f"{path} {kind}")
        names = {a["key"]: a["value"] for a in body["resourceSpans"][0]["resource"]["attributes"]}
        check(names["service.name"] == {"stringValue": "onepath"}, f"{names}")
        by_trace = {}
        for span in spans_of(server):
            by_trace.setdefault(span["traceId"], []).append(span)
            check(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]), f"{span}")
            check(abs(int(span["startTimeUnixNano"]) / 1e9 - time.time()) < 600, "not the time of day")
        check(len(by_trace) == 7, f"{len(by_trace)} traces")
        given = by_trace[trace]
        root = next(span for span in given if span["kind"] == 2)
        check(root["parentSpanId"] == parent and root["name"] == "POST /v1/completions", f"{root}")
        check({s["name"] for s in given} == {root["name"], "queue", "prefill", "decode"}, f"{given}")
        check(all(s["parentSpanId"] == root["spanId"] for s in given if s is not root), "a phase has another parent")
        attributes = {a["key"]: a["value"] for a in root["attributes"]}
        check(attributes["gen_ai.usage.output_tokens"] == {"intValue": "4"} and
              attributes["onepath.request_id"] == {"stringValue": "given"}, f"{attributes}")
        check(sum("parentSpanId" not in s for s in spans_of(server)) == 6, "roots")
        wait_for("the count", 10, lambda: node.metric("onepath_traced_requests_total", result="sent") == 7)
        logged = [e for e in node.events("http.request") if e.get("request_id") == "given"]
        check(logged and logged[0]["trace_id"] == trace, f"{logged}")
    server.shutdown()


def a_collector_that_is_gone_costs_nothing():
    refusing = collector(status=500)
    for endpoint in ("http://localhost:9", f"http://localhost:{refusing.server_port}/x"):
        with Node("--otlp-endpoint", endpoint) as node:
            node.wait_ready()
            for _ in range(5):
                check(node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})[0] == 200, "an answer is missing")
            wait_for("the losses to be counted", 20,
                     lambda: node.metric("onepath_traced_requests_total", result="failed") == 5)
            wait_for("the line about it", 10, lambda: node.events("trace.export"))
            check(node.stop() == 0, "the end")
    check(refusing.seen and refusing.seen[0][0] == "/x", "the path was not used")
    refusing.shutdown()
    code, text = command("serve", system.model(), "--null-device", "--port", "0", "--log-format", "json",
                         "--otlp-endpoint", "https://x")
    check(code == 78 and "it takes http://" in text, f"an https endpoint gave {code}: {text[-300:]}")


def without_an_endpoint_nothing_is_sent():
    with Node() as node:
        node.wait_ready()
        node.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})
        check(node.metric("onepath_traced_requests_total", result="sent") == 0 and
              node.metric("onepath_traced_requests_total", result="failed") == 0, "traces without an endpoint")


if __name__ == "__main__":
    system.main([metrics_are_clean_and_complete, alerts_fire_when_they_should, aliases_can_be_left_out,
                 ps_says_why_each_request_waits, top_shows_a_node_in_80_by_24, a_request_without_a_scheduler_says_so,
                 a_dead_node_is_told_at_once, a_drain_can_be_taken_back_by_its_owner,
                 a_signal_at_every_phase_ends_in_good_order, what_is_open_is_finished_at_sigterm,
                 what_is_left_gets_an_error_event, levels_change_at_run_time, traces_go_to_the_collector,
                 a_collector_that_is_gone_costs_nothing, without_an_endpoint_nothing_is_sent])
