"""What a node does for its safety, seen from outside: keys, addresses, files, the kernel's list, and
clients who mean it ill.  Every node here runs on the null device, which needs no model's weights.
"""
import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile

import system
from system import System, check, model, wait_for

NULL = ("--null-device", "--max-model-len", "512", "--max-num-seqs", "8", "--log-format", "json")
KEYS = ("first-key-123456", "second-key-abcdef")
SANITIZED = os.environ.get("ONEPATH_SANITIZE", "") != ""

# Every route of docs/http-api.md: method, path, body, the status with a key.
ROUTES = (
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, 200),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, 200),
    ("POST", "/tokenize", {"prompt": "a"}, 200),
    ("POST", "/detokenize", {"tokens": [1]}, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/models/NAME", None, 200),
    ("GET", "/version", None, 200),
    ("GET", "/ping", None, 200),
    ("GET", "/metrics", None, 200),
    ("POST", "/v1/embeddings", {"input": "a"}, 501),
    ("GET", "/nothing-here", None, 404),
    ("GET", "/healthy", None, 404),
    ("GET", "/health/../metrics", None, 404),
    ("OPTIONS", "/v1/completions", None, 204),
    ("HEAD", "/metrics", None, 200),
    ("DELETE", "/v1/models", None, 405),
)
OPEN = ("/health", "/health/ready", "/health/startup")


def scratch(name):
    return tempfile.mkdtemp(prefix=f"onepath-{name}-", dir="/tmp")


def write(path, text, mode=0o600):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def run_to_its_end(*words, seconds=30):
    done = subprocess.run([system.binary(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False)
    return done.returncode, done.stdout


def every_route_asks_for_a_key():
    folder = scratch("api-keys")
    keys = write(f"{folder}/keys", "# clients\n" + "\n".join(KEYS) + "\n")
    with System(*NULL, "--api-key-file", keys) as node:
        wait_for("the node to be ready", 60, lambda: node.port and node.is_ready())
        name = node.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEYS[0]}"})[1]
        name = name["data"][0]["id"]
        wrong = (None, "", "Bearer", "Bearer ", "Bearer wrong-key-000000", f"Bearer {KEYS[0]}x",
                 f"Bearer {KEYS[0][:-1]}", f"Basic {KEYS[0]}", KEYS[0], f"Bearer {KEYS[0]} {KEYS[1]}")
        for method, path, body, status in ROUTES:
            path = path.replace("NAME", name)
            for value in wrong:
                headers = {} if value is None else {"Authorization": value}
                got, answer, sent = node.request(method, path, body, headers=headers)
                check(got == 401, f"{method} {path} with {value!r} gave {got}: {answer}")
                check(sent.get("WWW-Authenticate") == "Bearer", f"{method} {path}: {sent}")
                check(method == "HEAD" or answer["error"]["code"] == "invalid_api_key", f"{path}: {answer}")
            for key in KEYS:
                got, answer, _ = node.request(method, path, body, headers={"authorization": f"bearer {key}"})
                check(got == status, f"{method} {path} with a key gave {got}: {answer}")
        for path in OPEN:
            check(node.request("GET", path)[0] == 200, f"{path} asks for a key")
        documented = read_routes()
        for path in documented:
            check(path in OPEN or any(path.rstrip("/{id}") in route[1] for route in ROUTES),
                  f"docs/http-api.md has {path}, which this table lacks")
        two = node.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEYS[0]}"})
        check(two[0] == 200, "the key that was good is not any more")
        for pid in [node.process.pid, *node.pids().values()]:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                check(not any(key.encode() in file.read() for key in KEYS), "a key is in a command line")
        check(not any(key in line for key in KEYS for line in node.lines), "a key is in the log")
        check(node.stop() == 0, "exit code")
    for mode in (0o644, 0o666, 0o604):
        write(keys, KEYS[0] + "\n", mode)
        code, text = run_to_its_end("serve", model(), *NULL, "--port", "0", "--api-key-file", keys)
        check(code == 78 and "others" in text, f"a file of keys with mode {mode:o}: {code} {text[-500:]}")
    for text in ("", "# nothing\n", "short\n", "has a space in it\n"):
        write(keys, text)
        code, said = run_to_its_end("serve", model(), *NULL, "--port", "0", "--api-key-file", keys)
        check(code == 78, f"a file with {text!r}: {code} {said[-500:]}")
    os.symlink(write(f"{folder}/target", KEYS[0] + "\n"), f"{folder}/link")
    code, text = run_to_its_end("serve", model(), *NULL, "--port", "0", "--api-key-file", f"{folder}/link")
    check(code == 78 and "symbolic" in text, f"a link to keys: {code} {text[-500:]}")
    shutil.rmtree(folder)


def read_routes():
    root = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
    with open(os.path.join(root, "docs", "http-api.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| ((?:`/[^`]*`(?:, )?)+) \| (?:GET|POST)", file.read(), re.M)
    paths = [path for row in rows for path in re.findall(r"`(/[^`]*)`", row)]
    check(len(paths) >= 12, f"docs/http-api.md has {len(paths)} routes")
    return paths


def open_addresses_want_keys_or_words():
    folder = scratch("binds")
    keys = write(f"{folder}/keys", KEYS[0] + "\n")
    for host in ("0.0.0.0", "::"):
        code, text = run_to_its_end("serve", model(), *NULL, "--port", "0", "--host", host)
        check(code == 78 and "--insecure-bind" in text and host in text, f"{host}: {code} {text[-600:]}")
    code, text = run_to_its_end("actor", "scheduler", model(), *NULL, "--run-dir", folder,
                                "--scheduler", "tcp://*:0")
    check(code == 78 and "--curve-keys" in text, f"a wildcard: {code} {text[-600:]}")
    code, text = run_to_its_end("actor", "gateway", model(), *NULL, "--run-dir", folder, "--port", "0",
                                "--scheduler", "tcp://192.0.2.1:5000")
    check(code == 78 and "--curve-keys" in text, f"a scheduler elsewhere: {code} {text[-600:]}")
    for words, event in ((("--api-key-file", keys), None), (("--insecure-bind",), "http.insecure")):
        with System(*NULL, "--host", "0.0.0.0", *words) as node:
            found = wait_for("the address", 60, lambda: [e for e in node.events("gateway.listening")])
            node.port = int(found[0]["url"].rsplit(":", 1)[1])
            wait_for("the node to be ready", 60, node.is_ready)
            if event:
                wait_for("the warning", 10, lambda: node.events(event))
            check(len(node.events("http.insecure")) == (1 if event else 0), f"{words}: the warnings")
            check(node.stop() == 0, "exit code")
    shutil.rmtree(folder)


def listeners(pids):
    """(address, port) of every TCP socket in state LISTEN of these processes."""
    inodes = set()
    for pid in pids:
        for entry in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                match = re.match(r"socket:\[(\d+)\]", os.readlink(entry))
            except OSError:
                continue
            if match:
                inodes.add(match.group(1))
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            for line in list(file)[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    address, port = words[1].split(":")
                    found.append((address, int(port, 16)))
    return found


def a_node_listens_on_one_local_port_and_is_confined():
    with System(*NULL, "--sandbox", "off" if SANITIZED else "kill") as node:
        node.wait_ready()
        pids = node.pids()
        found = listeners([node.process.pid, *pids.values()])
        check(found == [("0100007F", node.port)], f"it listens at {found}")
        check(node.complete("hello", max_tokens=4)["choices"][0]["text"], "no text")
        node.stream("hello", max_tokens=4)
        node.request("GET", "/metrics")
        for name, pid in pids.items():
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            confined = name in ("gateway", "scheduler") and not SANITIZED
            check((status["Seccomp"] == "2") == confined, f"{name}: Seccomp is {status['Seccomp']}")
            if confined:
                check(status["NoNewPrivs"] == "1", f"{name} may gain privileges")
                check(all(int(status[key], 16) == 0 for key in ("CapEff", "CapPrm", "CapBnd")),
                      f"{name} has capabilities")
        run_dir = [word.split("=", 1)[1] for word in
                   open(f"/proc/{pids['gateway']}/cmdline", encoding="utf-8").read().split("\0")
                   if word.startswith("--run-dir=")][0]
        check(stat.S_IMODE(os.stat(run_dir).st_mode) == 0o700, "the run folder is open to others")
        check(node.stop() == 0, "exit code")
    check(not [e for e in node.events("supervisor.ended") if e.get("signal")], "an actor was killed")


class Cluster:
    """Scheduler, executor and gateway that meet over TCP, each with its own key."""

    def __init__(self, folder, keys, sandbox="kill"):
        self.folder, self.children = folder, {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        for kind in ("scheduler", "executor", "gateway"):
            self.start(kind, kind, keys[kind], sandbox)

    def start(self, label, kind, keys, sandbox="kill", *words):
        log = open(f"{self.folder}/{label}.log", "w", encoding="utf-8")
        self.children[label] = subprocess.Popen(
            [system.binary(), "actor", kind, model(), *NULL, "--run-dir", self.folder, "--port", "0",
             "--scheduler", self.endpoint, "--curve-keys", keys, "--name", label,
             "--sandbox", "off" if SANITIZED else sandbox, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    def log(self, label):
        with open(f"{self.folder}/{label}.log", encoding="utf-8") as file:
            return file.read()

    def port(self, label="gateway"):
        match = wait_for(f"the address of {label}", 30,
                         lambda: re.search(r"listening on http://127.0.0.1:(\d+)", self.log(label)))
        return int(match.group(1))

    def ask(self, port, path="/v1/completions"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            if path == "/v1/completions":
                connection.request("POST", path, json.dumps({"prompt": "hello", "max_tokens": 8}),
                                   {"Content-Type": "application/json"})
            else:
                connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def end(self):
        for child in self.children.values():
            child.send_signal(signal.SIGTERM)
        codes = {label: child.wait(20) for label, child in self.children.items()}
        check(set(codes.values()) == {0}, f"exit codes {codes}")


def keys_open_links_over_tcp_and_nothing_else_does():
    folder = scratch("curve")
    keys = f"{folder}/keys"
    code, text = run_to_its_end("keygen", keys, "scheduler", "executor", "gateway")
    check(code == 0, f"keygen gave {code}: {text}")
    modes = {name: stat.S_IMODE(os.stat(f"{keys}/{name}").st_mode) for name in os.listdir(keys)}
    check(set(modes.values()) == {0o600}, f"modes of the files: {modes}")
    code, text = run_to_its_end("keygen", keys, "gateway")
    check(code == 78 and "already" in text, f"keygen again: {code} {text}")
    code, text = run_to_its_end("keygen", keys, "king")
    check(code == 78 and "no role" in text, f"a role that is none: {code} {text}")
    # A stranger knows the public keys, and has a key pair of his own that nobody lists.
    stranger = f"{folder}/stranger"
    run_to_its_end("keygen", stranger, "gateway=stranger")
    shutil.copy(f"{keys}/peers", f"{stranger}/peers")
    os.chmod(f"{stranger}/peers", 0o600)
    cluster = Cluster(folder, dict.fromkeys(("scheduler", "executor", "gateway"), keys))
    try:
        port = cluster.port()
        wait_for("the node to be ready", 30, lambda: cluster.ask(port, "/health/ready") == 200)
        check(cluster.ask(port) == 200, "no answer over TCP with keys")
        cluster.start("stranger", "gateway", stranger)
        # The executor's key, held by somebody who says that he is a gateway.
        thief = f"{folder}/thief"
        os.mkdir(thief, 0o700)
        shutil.copy(f"{keys}/executor.key", f"{thief}/thief.key")
        shutil.copy(f"{keys}/peers", f"{thief}/peers")
        cluster.start("thief", "gateway", thief)
        wait_for("the refusals", 20, lambda: "link.key_refused" in cluster.log("scheduler") and
                 "another role or name" in cluster.log("scheduler"))
        for label in ("stranger", "thief"):
            check(cluster.ask(cluster.port(label), "/health/ready") == 503, f"{label} is served")
        check(cluster.ask(port) == 200, "the others are not served any more")
    finally:
        cluster.end()
    check("link to gateway is up" in cluster.log("scheduler"), "the log names no link")
    check("link to stranger" not in cluster.log("scheduler"), "a stranger was linked")
    os.chmod(f"{keys}/gateway.key", 0o644)
    code, text = run_to_its_end("actor", "gateway", model(), *NULL, "--run-dir", folder, "--port", "0",
                                "--scheduler", cluster.endpoint, "--curve-keys", keys)
    check(code == 78 and "others" in text, f"a secret that all can read: {code} {text[-500:]}")
    shutil.rmtree(folder)


def resident_kib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def slow_clients_hold_nobody_up():
    """slowhttptest in its three modes at once, each with 100 connections; a fourth client beside
    them is served all the time, and memory stays where it was."""
    program = shutil.which("slowhttptest")
    check(program, "slowhttptest is missing; './run test' installs it")
    with System(*NULL) as node:
        node.wait_ready()
        before = resident_kib(node.pids()["gateway"])
        url = f"http://127.0.0.1:{node.port}"
        modes = (("-H", "-u", f"{url}/v1/models"),
                 ("-B", "-u", f"{url}/v1/completions", "-t", "POST", "-f", "application/json"),
                 ("-X", "-u", f"{url}/metrics", "-w", "8", "-y", "16", "-n", "1", "-z", "4", "-k", "3"))
        attacks = [subprocess.Popen([program, mode, *words, "-c", "100", "-r", "100", "-i", "1", "-l", "20",
                                     "-p", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for mode, *words in modes]
        served = 0
        while any(attack.poll() is None for attack in attacks):
            check(node.complete("hello", max_tokens=2), "a request beside the slow ones failed")
            served += 1
        outputs = [attack.communicate()[0] for attack in attacks]
        check(served > 20, f"only {served} requests were served beside the slow ones")
        for (mode, *_), output in zip(modes, outputs):
            check("service available" in output or "Exit status" in output,
                  f"slowhttptest {mode} did not run: {output[-800:]}")
        # The header deadline is 5 s: every connection of that mode is closed long before the 20 s are over.
        check("No open connections left" in outputs[0], f"slow headers were held: {outputs[0][-800:]}")
        grown = resident_kib(node.pids()["gateway"]) - before
        check(SANITIZED or grown < 32 * 1024, f"the gateway grew by {grown} KiB")
        check(node.stop() == 0, "exit code")


def hostile_bytes_stay_out_of_headers_and_lines():
    with System(*NULL) as node:
        node.wait_ready()
        for value in ("a b", "a;b", "x" * 65, "<script>", "ünicode"):
            _, _, headers = node.request("GET", "/health", headers={"x-request-id": value.encode("latin1")})
            check(re.fullmatch(r"req-[0-9a-f]{16}", headers["x-request-id"]), f"{value!r} came back: {headers}")
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nx-request-id: a\rx: b\r\n\r\n")
            check(client.recv(64).startswith(b"HTTP/1.1 400"), "a bare CR in a header was taken")
        lines = len(node.lines)
        forged = 'm"\n{"event":"forged","level":"error"}\n'
        status, answer, _ = node.request("POST", "/v1/completions", {"model": forged, "prompt": "secret-prompt"})
        check(status == 404 and answer["error"]["code"] == "model_not_found", f"{status}: {answer}")
        node.request("GET", "/forged%0a%7b%22event%22%3a%22forged%22%7d")
        node.complete("secret-prompt", max_tokens=2, user=forged)
        wait_for("the lines", 10, lambda: len(node.events("http.request")) >= 8)
        check(not node.events("forged"), "a client wrote a line of the log")
        for line in node.lines[lines:]:
            json.loads(line)
            check("secret-prompt" not in line, f"a prompt is in the log: {line}")
        check(node.stop() == 0, "exit code")


def bombs_end_in_a_refusal_under_a_small_limit():
    """Five bytes that announce gigabytes, sent to a scheduler that may have 512 MiB of addresses."""
    try:
        import zmq
    except ImportError:
        python = os.environ.get("ONEPATH_PYTHON")
        check(python, "ONEPATH_PYTHON must name a Python with pyzmq; './run test' makes one")
        done = subprocess.run([python, __file__, "bombs_end_in_a_refusal_under_a_small_limit"],
                              capture_output=True, text=True, timeout=100, check=False)
        check(done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:])
        return
    folder = scratch("bombs")
    endpoint = f"ipc://{folder}/scheduler"
    log = open(f"{folder}/log", "w", encoding="utf-8")
    limit = () if SANITIZED else ("prlimit", f"--as={512 << 20}")
    child = subprocess.Popen([*limit, system.binary(), "actor", "scheduler", model(), *NULL, "--run-dir", folder,
                              "--scheduler", endpoint], stdin=subprocess.DEVNULL, stderr=log)
    try:
        wait_for("its socket", 20, lambda: os.path.exists(f"{folder}/scheduler"))
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, b"gateway.9.1")
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        header = bytes([0x96, 1, 1, 9, 0, 0, 0])
        bombs = [b"\xdd\x04\x00\x00\x00", b"\xdd\xff\xff\xff\xff", b"\xdf\x04\x00\x00\x00", b"\xdf\xff\xff\xff\xff",
                 b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 100000,
                 b"\x81\xa1a" * 50000, b"\xc1", b"\x92\x01"]
        bombs += [bytes([0xc1, 1, 0, 0]) + size * 3 for size in (b"\xff\xff\xff\xff", b"\x80\x00\x00\x00")]
        for bomb in bombs:
            frames = [bomb] if bomb[:2] == b"\xc1\x01" else [header, bomb]
            dealer.send_multipart(frames)
            check(dealer.poll(5000), f"no answer to {bomb[:8]!r}")
            answer = dealer.recv_multipart()
            check(answer[0][2] in (7, 4), f"{bomb[:8]!r} was answered with kind {answer[0][2]}")
            check(child.poll() is None, f"{bomb[:8]!r} ended the scheduler with {child.returncode}")
        dealer.close()
        context.term()
        child.send_signal(signal.SIGTERM)
        check(child.wait(20) == 0, f"exit code {child.returncode}")
    finally:
        if child.poll() is None:
            child.kill()
    shutil.rmtree(folder)


TESTS = [every_route_asks_for_a_key, open_addresses_want_keys_or_words,
         a_node_listens_on_one_local_port_and_is_confined, keys_open_links_over_tcp_and_nothing_else_does,
         hostile_bytes_stay_out_of_headers_and_lines, slow_clients_hold_nobody_up,
         bombs_end_in_a_refusal_under_a_small_limit]

if __name__ == "__main__":
    system.main(TESTS)
