"""Runs `onepath conform scheduler` against good and bad schedulers.

  rules    names, texts and the document that lists them agree
  builtin  the built-in scheduler conforms, with one endpoint and with two
  wrong    each deliberately wrong scheduler breaks the rule that it is made to break, and first
  python   the schedulers in examples/python conform, and so does one that serves the newest first
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

BIN = os.path.join(os.environ["ONEPATH_BIN"], "onepath")
SOURCE = os.environ["ONEPATH_SOURCE"]
WRONG = os.environ.get("WRONG_SCHEDULER", "")

# A fault of wrong_scheduler, and the rule that must be named first.
FAULTS = {
    "skip-admit": "plan.slot-empty",
    "admit-taken": "admit.slot",
    "reuse-early": "admit.reuse",
    "admit-tokens": "admit.content",
    "admit-length": "admit.length",
    "no-reset": "attach.reset",
    "stale-base": "plan.stale",
    "first-patch": "plan.first-full",
    "step-again": "plan.step",
    "depth": "plan.in-flight",
    "slot-range": "plan.slot-range",
    "slot-twice": "plan.slot-twice",
    "group-range": "plan.group-range",
    "column-range": "plan.column-range",
    "block-range": "plan.block-range",
    "no-blocks": "plan.column-missing",
    "foreign-block": "plan.write-shared",
    "wrong-state": "block.state",
    "begin": "plan.token-range",
    "budget": "plan.budget",
    "shape": "plan.shape",
    "width": "plan.width",
    "overrun-hidden": "plan.length-limit",
    "overrun": "admit.length",
    "samples": "extend.samples",
    "no-clear": "block.clear",
    "prefix": "block.content",
    "keep-slot": "slot.release",
    "finished-twice": "end.once",
    "finished-early": "end.after-tokens",
    "after-end": "tokens.after-end",
    "counts": "end.counts",
    "nan-is-length": "end.nan",
    "no-retry": "end.overloaded",
    "no-lost": "end.executor-lost",
    "lost-row": "tokens.complete",
    "index": "tokens.index",
    "value": "tokens.value",
    "no-logprobs": "tokens.value",
    "tokens-shape": "tokens.shape",
    "gateway": "tokens.owner",
    "no-model-info": "attach.model-info",
    "stays-ready": "attach.lost",
    "queue-len": "end.overloaded",
    "no-nak": "attach.refusal",
    "never-answers": "progress.idle",
    "ignores-cancel": "end.cancel",
    "cancel-index": "end.index",
    "ignores-refusal": "refusal.full-plan",
    "no-heartbeats": "link.heartbeat",
    "starves": "progress.starve",
    "no-stop": "tokens.length",
    "no-emitted": "tokens.index",
    "no-timeout": "end.queue-timeout",
    "answers-again": "end.duplicate",
    "admit-again": "admit.request",
    "extends-early": "extend.in-flight",
    "borrows-block": "block.owner",
    "good-status": "end.status",
    "stop-is-length": "end.stop-token",
    "never-is-invalid": "end.never-fits",
    "no-executor-is-length": "end.no-executor",
    "short": "end.length",
    "invalid-is-never": "end.invalid",
    "resume-count": "end.resume",
    "ends-elsewhere": "end.owner",
    "answers-finish": "end.cancel-twice",
    "computes-on": "row.ended",
    "keeps-gateway": "end.gateway-gone",
    "gives-up": "refusal.recovers",
    "blames-waiting": "refusal.unharmed",
    "hates-repeats": "result.late",
    "no-reset-after-fault": "result.fault",
    "no-reset-after-loss": "restart.reset",
    "serves-no-more": "restart.serves",
    "spins": "progress.end",
    "full-behind": "plan.full-alone",
    "remembers-ids": "end.resubmit",
}
# The same for wrong_link.py: rules of the link.
LINK_FAULTS = {
    "role": "link.handshake",
    "version": "link.version",
    "silent": "link.not-open",
    "no-epochs": "link.old-epoch",
    "grudge": "link.bye",
    "no-bye": "link.stop",
    "no-beats": "link.heartbeat",
    "patient": "link.silence",
    "skips": "link.sequence",
    "takes-twice": "link.duplicate",
    "skips-gaps": "link.gap",
    "no-nak": "link.nak",
    "wrong-nak": "link.nak",
    "fragile": "link.goes-on",
    "unreadable": "link.readable",
    "confused": "link.kind",
}
# Scenes that show a fault of the link, where the first one does not.
LINK_SCENES = {"no-bye": "stop", "patient": "silence", "takes-twice": "numbers",
               "skips-gaps": "numbers", "confused": "serve"}
# They break nothing that is checked first: they only die.
DEATHS = {"dies": "the scheduler"}
# They are wrong in so many ways that any rule may be the first; the command must survive them.
NOISE = {"noise", "more-noise"}


def conform(folder, *arguments, seconds=100):
    """The report of one run, and its exit code."""
    done = subprocess.run([BIN, "conform", "scheduler", *arguments, "--json"], cwd=folder,
                          capture_output=True, text=True, timeout=seconds)
    try:
        return json.loads(done.stdout), done.returncode
    except json.JSONDecodeError:
        sys.exit(f"no report: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


def summary(report):
    lines = [f"  {rule['rule']}: {rule['found']} (expected: {rule['expected']}; scene "
             f"{rule['scene']}, {rule.get('message', '-')} {rule.get('sequence', '')})"
             for rule in sorted((r for r in report["rules"] if r["verdict"] == "fail"),
                                key=lambda r: r["order"])]
    if report["ended_early"]:
        lines.append("  ended early: " + report["ended_early"])
    return "\n".join(lines)


def expect_pass(folder, name, *arguments):
    report, code = conform(folder, *arguments)
    not_tried = [r["rule"] for r in report["rules"] if r["verdict"] == "not tried"]
    print(f"{name}: exit {code}, {report['pass']} pass, {report['fail']} fail, not tried "
          f"{not_tried}, {report['seconds']:.1f} s, {report['plans']} plans")
    if code != 0 or not report["conforms"]:
        sys.exit(f"{name} does not conform:\n{summary(report)}")
    return report


def test_builtin(folder):
    single = f"ipc://{folder}/one"
    report = expect_pass(folder, "built-in, one endpoint", "--endpoint", single, "--exec",
                         f"{WRONG} none {single}")
    if report["not_tried"] > 0:
        sys.exit("some rules were not tried")
    run = os.path.join(folder, "run")
    os.mkdir(run, 0o700)
    log = os.path.join(folder, "log")
    report = expect_pass(folder, "built-in actor, two endpoints", "--gateway-endpoint",
                         f"ipc://{run}/scheduler-gateway", "--executor-endpoint",
                         f"ipc://{run}/scheduler-executor", "--seed", "7", "--log", log, "--exec",
                         f"{BIN} actor scheduler none --run-dir {run} --log-level error")
    if report["seconds"] > 30:
        sys.exit(f"it took {report['seconds']} s; 30 are promised")
    shown = subprocess.run([BIN, "log", "show", log, "--type", "PLAN", "--limit", "3"],
                           capture_output=True, text=True, timeout=60)
    if shown.returncode != 0 or "PLAN" not in shown.stdout:
        sys.exit(f"the record cannot be shown: {shown.returncode}\n{shown.stdout}{shown.stderr}")


def one_fault(folder, name, hurry=True):
    endpoint = f"ipc://{folder}/{name}"
    return conform(folder, "--endpoint", endpoint, "--exec", f"{WRONG} {name} {endpoint}",
                   "--patience", "1000", *(["--fail-fast"] if hurry else []))


def test_wrong(folder):
    listed = subprocess.run([WRONG, "list"], capture_output=True, text=True,
                            check=True).stdout.split()
    known = set(FAULTS) | set(DEATHS) | NOISE | {"none"}
    if set(listed) != known:
        sys.exit(f"faults and table differ: {set(listed) ^ known}")
    check_faults([n for n in listed if n not in NOISE | {"none"}], FAULTS,
                 lambda n: one_fault(folder, n))
    for name in sorted(NOISE):
        report, code = one_fault(folder, name, hurry=False)
        print(f"{name}: {report['fail']} rules broken, first {report['first_broken']}, exit {code}")
        if code != 1 or report["fail"] == 0:
            sys.exit(f"{name}: exit {code}\n{summary(report)}")


def check_faults(names, table, run):
    """Runs each wrong scheduler, two at a time; the rule of the table must be the first."""
    bad = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, (report, code) in zip(names, pool.map(run, names)):
            wanted = table.get(name, "")
            fits = code == 1 and report["first_broken"] == wanted
            if name in DEATHS:
                fits = fits and DEATHS[name] in report["ended_early"]
            print(f"{'ok ' if fits else 'BAD'} {name}: {report['first_broken'] or '-'}, exit "
                  f"{code}, {report['seconds']:.1f} s")
            if not fits:
                bad.append(f"{name}: expected {wanted or 'a death'}\n{summary(report)}")
    if bad:
        sys.exit("\n".join(bad))


def test_links(folder):
    def one(name):
        endpoint = f"ipc://{folder}/{name}"
        script = os.path.join(SOURCE, "tests", "conform", "wrong", "wrong_link.py")
        return conform(folder, "--endpoint", endpoint, "--fail-fast", "--scene",
                       LINK_SCENES.get(name, "link"), "--exec",
                       f"{python()} {script} {name} {endpoint}")
    check_faults(LINK_FAULTS, LINK_FAULTS, one)


def test_rules(_folder):
    text = subprocess.run([BIN, "conform", "scheduler", "--list-rules"], capture_output=True,
                          text=True, check=True).stdout
    rules = re.findall(r"^(\S+) +(\S.*)\n +\((docs/\S+), (.+)\)$", text, re.M)
    if len(rules) < 60:
        sys.exit(f"only {len(rules)} rules are listed:\n{text}")
    with open(os.path.join(SOURCE, "docs", "conformance.md"), encoding="utf-8") as file:
        document = file.read()
    headings = {}
    for name, sentence, file_name, heading in rules:
        if file_name not in headings:
            with open(os.path.join(SOURCE, file_name), encoding="utf-8") as file:
                headings[file_name] = re.findall(r"^#+ (.+)$", file.read(), re.M)
        if heading not in headings[file_name]:
            sys.exit(f"{name}: {file_name} has no section '{heading}'")
        if f"| `{name}` | {sentence} | " not in document:
            sys.exit(f"docs/conformance.md lacks the line | `{name}` | {sentence} |")
    for arguments in (["conform"], ["conform", "scheduler"], ["conform", "executor"],
                      ["conform", "scheduler", "--endpoint", "ipc:///x", "--scene", "nothing"]):
        code = subprocess.run([BIN, *arguments], capture_output=True).returncode
        if code != 78:
            sys.exit(f"{arguments} ended with {code}, not 78")


def test_nobody(folder):
    report, code = conform(folder, "--endpoint", f"ipc://{folder}/nobody", "--patience", "300")
    if code != 1 or "nothing answers" not in report["ended_early"]:
        sys.exit(f"an endpoint without a scheduler: exit {code}, {report['ended_early']}")


def python():
    venv = os.path.expanduser("~/.cache/onepath/venv/bin/python3")
    return venv if os.path.exists(venv) else sys.executable


# The order is the scheduler's choice: no scene may wait for what came first.
NEWEST_FIRST = """
from onepath_scheduler import runner
from onepath_scheduler.books import Scheduler

class Newest(Scheduler):
    def key(self, request):
        return -request.arrived_ns

runner.main(runner.parser(""), lambda options: Newest())
"""


def test_python(folder):
    examples = os.path.join(SOURCE, "examples", "python")
    for name in ("fcfs.py", "priority_ageing.py"):
        endpoint = f"ipc://{folder}/{name}"
        expect_pass(folder, name, "--endpoint", endpoint, "--exec",
                    f"{python()} {os.path.join(examples, name)} --endpoint {endpoint} --quiet")
    path, endpoint = os.path.join(folder, "newest.py"), f"ipc://{folder}/newest"
    with open(path, "w", encoding="ascii") as file:
        file.write(NEWEST_FIRST)
    expect_pass(folder, "newest first", "--endpoint", endpoint, "--exec",
                f"env PYTHONPATH={examples} {python()} {path} --endpoint {endpoint} --quiet")


def main():
    test = globals()["test_" + sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="conform-") as folder:
        test(folder)
        if sys.argv[1] == "builtin":
            test_nobody(folder)


if __name__ == "__main__":
    main()
