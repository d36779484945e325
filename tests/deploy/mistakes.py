"""Mistakes planted in a rendered overlay, one each: (name, rule that must find it, overlay, what is done).

A mistake changes the parsed documents; `at(documents, "Kind/name")` is one of them.  Rule "schema" is the
validation against the types of Kubernetes.
"""


def at(documents, wanted):
    kind, _, name = wanted.partition("/")
    for document in documents:
        if document["kind"] == kind and document["metadata"]["name"] == name:
            return document
    raise KeyError(wanted)


def pod(documents, wanted="StatefulSet/decode"):
    return at(documents, wanted)["spec"]["template"]["spec"]


def main(documents, wanted="StatefulSet/decode"):
    return pod(documents, wanted)["containers"][0]


def cluster(documents, old, new):
    for document in documents:
        if document["kind"] == "ConfigMap":
            text = document["data"]["cluster.yaml"]
            if old not in text:
                raise KeyError(old)
            document["data"]["cluster.yaml"] = text.replace(old, new, 1)


def remove(documents, wanted):
    documents.remove(at(documents, wanted))


PAIR, SINGLE = "gpu-1p1d", "gpu-single-pod"
GATEWAY = "Deployment/gateway"

MISTAKES = [
    # Types and unknown fields.
    ("a field misspelt", "schema", PAIR, lambda d: pod(d).update(terminationGracePeriodsSeconds=90)),
    ("a number as text", "schema", PAIR, lambda d: at(d, "StatefulSet/decode")["spec"].update(replicas="1")),
    # Hazards.
    ("runs as root", "non_root", PAIR, lambda d: pod(d)["securityContext"].update(runAsUser=0)),
    ("the image can be written", "read_only_root", PAIR,
     lambda d: main(d)["securityContext"].update(readOnlyRootFilesystem=False)),
    ("nowhere to write crash records", "read_only_root", SINGLE, lambda d: (
        main(d, "StatefulSet/single").update(volumeMounts=[
            m for m in main(d, "StatefulSet/single")["volumeMounts"] if m["mountPath"] != "/tmp"]),
        pod(d, "StatefulSet/single").update(volumes=[
            v for v in pod(d, "StatefulSet/single")["volumes"] if v["name"] != "tmp"]))),
    ("capabilities kept", "capabilities", PAIR, lambda d: main(d)["securityContext"].pop("capabilities")),
    ("IPC_LOCK without a device for it", "capabilities", PAIR,
     lambda d: main(d)["securityContext"]["capabilities"].update(add=["IPC_LOCK"])),
    ("privileged", "capabilities", PAIR, lambda d: main(d)["securityContext"].update(privileged=True)),
    ("no seccomp", "seccomp", PAIR, lambda d: pod(d)["securityContext"].pop("seccompProfile")),
    ("a token in the pod", "no_token", PAIR, lambda d: pod(d, GATEWAY).pop("automountServiceAccountToken")),
    ("the host's network", "no_host", PAIR, lambda d: pod(d).update(hostNetwork=True)),
    ("an image by tag", "image", PAIR, lambda d: main(d).update(image="registry.invalid/onepath:0.2.0")),
    ("the latest image", "image", "cpu-dev",
     lambda d: main(d, "StatefulSet/single").update(image="onepath:latest")),
    ("no memory limit", "resources", PAIR, lambda d: main(d, GATEWAY)["resources"]["limits"].pop("memory")),
    ("a GPU pod that is not guaranteed", "resources", PAIR,
     lambda d: main(d)["resources"]["requests"].update(cpu="1")),
    ("a folder in memory without a bound", "memory_volumes", PAIR, lambda d: next(
        v for v in pod(d)["volumes"] if v["name"] == "shm")["emptyDir"].pop("sizeLimit")),
    ("a secret in the environment", "secrets", PAIR, lambda d: main(d, GATEWAY)["env"].append(
        {"name": "API", "valueFrom": {"secretKeyRef": {"name": "onepath-api-keys", "key": "keys"}}})),
    ("service links", "service_links", PAIR, lambda d: pod(d).pop("enableServiceLinks")),
    ("in another namespace", "namespace", PAIR,
     lambda d: at(d, "Service/gateway")["metadata"].update(namespace="default")),
    ("Pod Security relaxed", "namespace", PAIR, lambda d: at(d, "Namespace/onepath")["metadata"]["labels"].update(
        {"pod-security.kubernetes.io/enforce": "privileged"})),
    # Networks.
    ("nothing denied by default", "default_deny", PAIR, lambda d: remove(d, "NetworkPolicy/default-deny")),
    ("open to everybody", "default_deny", PAIR,
     lambda d: at(d, "NetworkPolicy/gateway")["spec"]["ingress"][0].pop("from")),
    ("decode may not call prefill", "reach", PAIR,
     lambda d: at(d, "NetworkPolicy/decode")["spec"].update(egress=[])),
    ("decode does not let the gateway in", "reach", PAIR,
     lambda d: at(d, "NetworkPolicy/decode")["spec"]["ingress"].pop(0)),
    # What refers to something.
    ("a selector that selects nothing", "selectors", PAIR,
     lambda d: at(d, "Service/gateway")["spec"].update(selector={"onepath.dev/role": "gatway"})),
    ("a budget for no pods", "selectors", SINGLE, lambda d: at(
        d, "PodDisruptionBudget/single")["spec"]["selector"].update(matchLabels={"app": "x"})),
    ("a port that no container has", "ports", PAIR,
     lambda d: at(d, "Service/gateway")["spec"]["ports"][0].update(targetPort="web")),
    ("another port in the cluster file", "ports", SINGLE, lambda d: cluster(d, "port: 8000", "port: 8080")),
    ("a key that the ConfigMap has not", "references", PAIR,
     lambda d: main(d)["args"].__setitem__(1, "/etc/onepath/onepath.yaml")),
    ("a secret that nobody makes", "references", PAIR, lambda d: next(
        v for v in pod(d)["volumes"] if v["name"] == "secret")["secret"].update(secretName="curve")),
    ("pods that wait for each other", "headless", PAIR,
     lambda d: at(d, "Service/prefill")["spec"].pop("publishNotReadyAddresses")),
    ("a pod that is no node", "nodes", PAIR, lambda d: at(d, "StatefulSet/decode")["spec"].update(replicas=2)),
    ("a node at another name", "nodes", PAIR, lambda d: cluster(d, "host: decode-0.decode", "host: decode-0.prefill")),
    ("an actor without its key", "keys", PAIR, lambda d: next(
        v for v in pod(d)["volumes"] if v["name"] == "secret")["secret"]["items"].pop()),
    # The life of a pod.
    ("killed while it drains", "grace", PAIR, lambda d: pod(d).update(terminationGracePeriodSeconds=90)),
    ("no drain", "grace", PAIR, lambda d: main(d)["lifecycle"]["preStop"]["exec"].update(command=["sleep", "5"])),
    ("a health path that there is not", "probes", PAIR,
     lambda d: main(d, GATEWAY)["livenessProbe"]["httpGet"].update(path="/healthz")),
    ("liveness that asks for readiness", "probes", PAIR,
     lambda d: main(d, GATEWAY)["livenessProbe"]["httpGet"].update(path="/health/ready")),
    ("a command that there is not", "commands", PAIR,
     lambda d: main(d)["readinessProbe"]["exec"].update(command=["onepath", "prob", "ready"])),
    ("an option that there is not", "commands", PAIR,
     lambda d: main(d)["lifecycle"]["preStop"]["exec"]["command"].append("--until")),
    ("a variable that there is not", "environment", PAIR,
     lambda d: main(d)["env"].append({"name": "ONEPATH_MAX_SEQS", "value": "3"})),
    ("a wrong key in the cluster file", "cluster_file", PAIR, lambda d: cluster(d, "drain_timeout", "drain_timout")),
    ("links in the clear", "cluster_file", PAIR, lambda d: cluster(d, "curve_keys: /keys/own", "insecure_bind: false")),
    ("a machine that cannot be emptied", "disruption", PAIR, lambda d: at(
        d, "PodDisruptionBudget/decode")["spec"].update(maxUnavailable=0)),
]
