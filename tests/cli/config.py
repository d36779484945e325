"""`onepath config`: cluster files checked and shown, with places and origins; its document is its table."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
from system import binary, check, main  # noqa: E402


def config(*arguments, code=0, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
    done = subprocess.run([binary(), "config", *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**clean, **(env or {})}, stdin=subprocess.DEVNULL)
    check(done.returncode == code, f"config {arguments}: {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done


def cluster(folder, text):
    path = os.path.join(folder, "cluster.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


GOOD = """model: /m.gguf
gateway: {port: 8080}
nodes:
  - name: p
    role: prefill
  - name: d
    role: decode
    cache: {memory: 1G}
"""


def a_file_is_checked_and_every_problem_is_on_stderr():
    with tempfile.TemporaryDirectory() as folder:
        path = cluster(folder, GOOD)
        check(config("check", path).stdout == f"{path}: 2 nodes, no problems\n", "the good one")
        path = cluster(folder, GOOD.replace("port", "prot").replace("decode", "decoed"))
        done = config("check", path, code=78)
        check(done.stdout == "", done.stdout)
        check(f"{path}:2:11: unknown key 'gateway.prot'; did you mean gateway.port?\n" in done.stderr, done.stderr)
        check(f"{path}:7:11: role is 'decoed'; it takes one of: fused prefill decode; did you mean decode?" in
              done.stderr, done.stderr)
    done = config("check", "/nowhere/f.yaml", code=78)
    check("/nowhere/f.yaml cannot be opened" in done.stderr, done.stderr)


def every_value_has_its_origin():
    with tempfile.TemporaryDirectory() as folder:
        path = cluster(folder, GOOD)
        done = config("show", path, "--effective", "--origin", "--node", "d", "--set", "logging.level=warn",
                      env={"ONEPATH_MAX_NUM_SEQS": "8", "ONEPATH_PORT": "tcp://10.0.0.1:80"})
        lines = {" ".join(line.split()) for line in done.stdout.splitlines()}
        for line in (f"port: 8080 # {path}:2:17", f"memory: 1G # {path}:8:21", "level: warn # --set",
                     "max_num_seqs: 8 # environment variable ONEPATH_MAX_NUM_SEQS", "device: auto # default",
                     f"role: decode # {path}:7:11"):
            check(line in lines, f"{line} is not in\n{done.stdout}")
        done = config("show", path, "--node", "x", code=78)
        check("--node is 'x'; the nodes are p, d" in done.stderr, done.stderr)
        shown = config("show", path, "--effective").stdout
        again = cluster(folder, shown)
        check(config("show", again, "--effective").stdout == shown, "what is shown reads back")
    done = config("show", env={"ONEPATH_PORT": "65536"}, code=78)
    check("environment variable ONEPATH_PORT is '65536'; it takes a number from 0 to 65535" in done.stderr, done.stderr)


def a_misspelt_variable_is_told():
    done = config("show", env={"ONEPATH_MAX_NUM_SEQ": "8", "ONEPATH_SIM_SEED": "1", "ONEPATH_NODE": "x",
                               "ONEPATH_PORT": "1", "ONEPATH_API_KEY": "x", "ONEPATH_FAULT": "x"})
    check(done.stderr == "onepath config: nothing reads ONEPATH_MAX_NUM_SEQ; did you mean ONEPATH_MAX_NUM_SEQS?\n",
          done.stderr)


def the_examples_are_right():
    folder = os.path.join(os.environ["ONEPATH_SOURCE"], "deploy", "examples")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".yaml"))
    check(len(names) >= 5, f"{names}")
    for name in names:
        config("check", os.path.join(folder, name))
    with open(os.path.join(os.environ["ONEPATH_SOURCE"], "docs", "configuration.md"), encoding="utf-8") as file:
        example = file.read().partition("```yaml\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as scratch:
        config("check", cluster(scratch, example))


def the_document_has_the_keys():
    table = config("keys", "--markdown").stdout
    path = os.path.join(os.environ["ONEPATH_SOURCE"], "docs", "configuration.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    check(table in text, "docs/configuration.md is old: put in what `onepath config keys --markdown` prints")
    for word in ("verify", "check"):
        config(word, code=78)


if __name__ == "__main__":
    main([a_file_is_checked_and_every_problem_is_on_stderr, every_value_has_its_origin, a_misspelt_variable_is_told,
          the_examples_are_right, the_document_has_the_keys])
