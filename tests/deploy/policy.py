"""What our manifests must keep to, held against a rendered overlay.

`findings(documents, program)` yields (rule, object, what).  Each rule is one function below, named
rule_NAME; tests/deploy/mistakes.py plants something that it must find.  `program` answers for the onepath
program: its commands and options, the paths of its HTTP server, its keys, and whether it takes a cluster file.
"""
import re

import yaml

WORKLOADS = ("Deployment", "StatefulSet")
# Made by the operator, as docs/operations.md says.
SECRETS = {"onepath-curve", "onepath-api-keys"}
NOT_NAMESPACED = {"Namespace"}


class Overlay:
    def __init__(self, documents, program):
        self.documents, self.program = documents, program
        self.workloads = [d for d in documents if d["kind"] in WORKLOADS]
        self.cluster_text, self.cluster = "", {}
        for document in self.of("ConfigMap"):
            for key, text in document.get("data", {}).items():
                if key == "cluster.yaml":
                    self.cluster_text, self.cluster = text, yaml.safe_load(text)

    def of(self, kind):
        return [d for d in self.documents if d["kind"] == kind]

    def named(self, kind):
        return {d["metadata"]["name"] for d in self.of(kind)}

    def selected(self, selector):
        """Workloads whose pods have all labels of `selector`."""
        return [w for w in self.workloads if selector.items() <= labels(w).items()]

    def nodes(self):
        return self.cluster.get("nodes", [])


def name(document):
    return f"{document['kind']}/{document['metadata']['name']}"


def pod(workload):
    return workload["spec"]["template"]["spec"]


def labels(workload):
    return workload["spec"]["template"]["metadata"].get("labels", {})


def containers(workload):
    return pod(workload).get("initContainers", []) + pod(workload)["containers"]


def ports(workload):
    """{name or number: number}"""
    found = {}
    for container in pod(workload)["containers"]:
        for port in container.get("ports", []):
            found[port["containerPort"]] = port["containerPort"]
            found[port.get("name", port["containerPort"])] = port["containerPort"]
    return found


def memory(text):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)?", str(text)).groups()
    return int(number) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[unit]


def hook(container):
    return container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])


def commands(container):
    """Every call of the program in a container: [(["up", ...])]"""
    calls = [container.get("args", [])] if not container.get("command") else []
    probes = [container.get(p, {}).get("exec", {}).get("command", [])
              for p in ("startupProbe", "livenessProbe", "readinessProbe")]
    for words in probes + [hook(container)]:
        if words[:2] == ["/bin/sh", "-c"]:
            for part in re.split(r"[;&|]+", words[2]):
                part = [w for w in part.split() if w != "exec"]
                if part and part[0] == "onepath":
                    calls.append(part[1:])
        elif words and words[0] == "onepath":
            calls.append(words[1:])
    return [c for c in calls if c]


# ---- hazards of containers (robustness contract, row "K8s") ---------------------------------------

def rule_non_root(overlay):
    for workload in overlay.workloads:
        context = pod(workload).get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
            yield name(workload), "runs as root, or may"


def rule_read_only_root(overlay):
    for workload in overlay.workloads:
        for container in containers(workload):
            if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
                yield name(workload), f"{container['name']} may write to its image"
        mounts = {m["mountPath"] for m in pod(workload)["containers"][0].get("volumeMounts", [])}
        for path in ("/tmp", "/run/onepath", "/dev/shm"):
            if path not in mounts:
                yield name(workload), f"nothing can be written at {path}"


def rule_capabilities(overlay):
    for workload in overlay.workloads:
        for container in containers(workload):
            context = container.get("securityContext", {})
            found = context.get("capabilities", {})
            if found.get("drop") != ["ALL"]:
                yield name(workload), f"{container['name']} keeps capabilities"
            rdma = any(k.startswith("rdma/") for k in container.get("resources", {}).get("limits", {}))
            if set(found.get("add", [])) - ({"IPC_LOCK"} if rdma else set()):
                yield name(workload), f"{container['name']} has {found['add']}"
            if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
                yield name(workload), f"{container['name']} may gain privileges"


def rule_seccomp(overlay):
    for workload in overlay.workloads:
        profile = pod(workload).get("securityContext", {}).get("seccompProfile", {})
        if profile.get("type") != "RuntimeDefault":
            yield name(workload), "has no seccomp profile"


def rule_no_token(overlay):
    for document in overlay.of("ServiceAccount"):
        if document.get("automountServiceAccountToken") is not False:
            yield name(document), "gives its token to pods"
    for workload in overlay.workloads:
        if pod(workload).get("automountServiceAccountToken") is not False:
            yield name(workload), "mounts a token"
    for document in overlay.documents:
        if document["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
            yield name(document), "no actor talks to the API server"


def rule_no_host(overlay):
    for workload in overlay.workloads:
        for key in ("hostNetwork", "hostIPC", "hostPID"):
            if pod(workload).get(key):
                yield name(workload), f"has {key}"
        for volume in pod(workload).get("volumes", []):
            if "hostPath" in volume:
                yield name(workload), f"volume {volume['name']} is a folder of the host"
        for container in containers(workload):
            if any("hostPort" in p for p in container.get("ports", [])):
                yield name(workload), "takes a port of the host"


def rule_image(overlay):
    """By digest; an image without a registry is one that was built and loaded by hand."""
    for workload in overlay.workloads:
        for container in containers(workload):
            image = container["image"]
            by_hand = "/" not in image and ":" in image and not image.endswith(":latest") and \
                container.get("imagePullPolicy", "IfNotPresent") in ("IfNotPresent", "Never")
            if not re.search(r"@sha256:[0-9a-f]{64}$", image) and not by_hand:
                yield name(workload), f"image {image} has no digest"


def rule_resources(overlay):
    for workload in overlay.workloads:
        for container in containers(workload):
            limits = container.get("resources", {}).get("limits", {})
            requests = container.get("resources", {}).get("requests", {})
            for key in ("cpu", "memory"):
                if key not in limits or key not in requests:
                    yield name(workload), f"{container['name']} has no bound or no share of {key}"
            gpus = {k for k in limits if k.startswith("nvidia.com/")}
            if gpus and limits != requests:
                yield name(workload), "has a GPU, and requests that are not its limits"
            environment = {e["name"] for e in container.get("env", [])}
            if gpus and "NVIDIA_DRIVER_CAPABILITIES" not in environment:
                yield name(workload), "has a GPU without NVIDIA_DRIVER_CAPABILITIES"


def rule_memory_volumes(overlay):
    for workload in overlay.workloads:
        total = 0
        for volume in pod(workload).get("volumes", []):
            if "emptyDir" not in volume:
                continue
            if "sizeLimit" not in volume["emptyDir"]:
                yield name(workload), f"volume {volume['name']} has no sizeLimit"
            elif volume["emptyDir"].get("medium") == "Memory":
                total += memory(volume["emptyDir"]["sizeLimit"])
        limit = pod(workload)["containers"][0].get("resources", {}).get("limits", {}).get("memory")
        if limit is not None and total > memory(limit) // 2:
            yield name(workload), "its volumes in memory may take more than half of its limit"


def rule_secrets(overlay):
    for workload in overlay.workloads:
        for container in containers(workload):
            for entry in container.get("env", []):
                if "secretKeyRef" in entry.get("valueFrom", {}):
                    yield name(workload), f"{entry['name']} is a secret in the environment"
                if re.search(r"API_KEY$|TOKEN|PASSWORD|SECRET", entry["name"]):
                    yield name(workload), f"{entry['name']} looks like a secret in the environment"
            if any("secretRef" in e for e in container.get("envFrom", [])):
                yield name(workload), "a whole secret is in the environment"
    for document in overlay.of("Secret"):
        yield name(document), "a secret in a repository is none"


def rule_service_links(overlay):
    for workload in overlay.workloads:
        if pod(workload).get("enableServiceLinks") is not False:
            yield name(workload), "services are injected into its environment"


def rule_namespace(overlay):
    spaces = overlay.named("Namespace")
    for document in overlay.documents:
        space = document["metadata"].get("namespace")
        if document["kind"] not in NOT_NAMESPACED and space not in spaces:
            yield name(document), f"is in namespace {space}, which is not made here"
    rdma = any(k.startswith("rdma/") for w in overlay.workloads for c in containers(w)
               for k in c.get("resources", {}).get("limits", {}))
    for document in overlay.of("Namespace"):
        level = document["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
        if level != ("privileged" if rdma else "restricted"):
            yield name(document), f"enforces {level}"


# ---- networks --------------------------------------------------------------------------------------

def rule_default_deny(overlay):
    policies = overlay.of("NetworkPolicy")
    if not any(p["spec"]["podSelector"] == {} and set(p["spec"].get("policyTypes", [])) == {"Ingress", "Egress"}
               and "ingress" not in p["spec"] and "egress" not in p["spec"] for p in policies):
        yield "NetworkPolicy", "nothing denies by default"
    for policy in policies:
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for entry in policy["spec"].get(direction, []):
                if not entry.get(peers) or {} in entry[peers] or not entry.get("ports"):
                    yield name(policy), f"{direction} is open to everybody, or on every port"


def allows(overlay, direction, workload, other, port):
    """True if a policy of `workload` lets `other` (a workload) through on this port number."""
    for policy in overlay.of("NetworkPolicy"):
        if not policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels(workload).items():
            continue
        for entry in policy["spec"].get(direction, []):
            peers = entry.get("from" if direction == "ingress" else "to", [])
            near = any("namespaceSelector" not in p and
                       p.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels(other).items()
                       for p in peers)
            # A name is that of the pod the packet goes to; kubernetes resolves it for both directions.
            target = workload if direction == "ingress" else other
            if near and any(ports(target).get(p["port"]) == port for p in entry.get("ports", [])):
                return True
    return False


def rule_reach(overlay):
    """Links that the cluster file makes between pods pass both policies; names are resolved."""
    homes = {n["name"]: home(overlay, n) for n in overlay.nodes()}
    gateways = [w for w in overlay.workloads if "--node" in pod(w)["containers"][0].get("args", []) and
                "gateway" in pod(w)["containers"][0]["args"]]
    wanted = []
    for node in overlay.nodes():
        there = homes[node["name"]]
        if there is None or not node.get("endpoints"):
            continue
        port = {k: int(v.rsplit(":", 1)[1]) for k, v in node["endpoints"].items() if v.startswith("tcp://")}
        if node.get("role") == "decode":
            wanted += [(g, there, port["role"]) for g in gateways]
        for other in overlay.nodes():
            if other.get("role") == node.get("role") or homes[other["name"]] is None:
                continue
            wanted.append((homes[other["name"]], there, port["transfer"]))
            if node.get("role") == "prefill":
                wanted.append((homes[other["name"]], there, port["role"]))
    for here, there, port in wanted:
        if not allows(overlay, "egress", here, there, port):
            yield name(here), f"may not call {name(there)} at {port}"
        if not allows(overlay, "ingress", there, here, port):
            yield name(there), f"does not let {name(here)} in at {port}"
    remote = {name(h): h for h, _, _ in wanted}
    for workload in remote.values():
        dns = any(p["spec"]["podSelector"].get("matchLabels", {}).items() <= labels(workload).items() and
                  any(q.get("port") == 53 for e in p["spec"].get("egress", []) for q in e.get("ports", []))
                  for p in overlay.of("NetworkPolicy"))
        if not dns:
            yield name(workload), "may not ask for the address of a name"


# ---- everything resolves ---------------------------------------------------------------------------

def rule_selectors(overlay):
    for workload in overlay.workloads:
        selector = workload["spec"]["selector"].get("matchLabels", {})
        if not selector or not selector.items() <= labels(workload).items():
            yield name(workload), "does not select its own pods"
        if any(other is not workload for other in overlay.selected(selector)):
            yield name(workload), "selects the pods of another one too"
        for spread in pod(workload).get("topologySpreadConstraints", []):
            if not spread["labelSelector"].get("matchLabels", {"": ""}).items() <= labels(workload).items():
                yield name(workload), "spreads pods that are not its own"
    wanted = [(d, d["spec"].get("selector", {})) for d in overlay.of("Service")]
    wanted += [(d, d["spec"]["selector"].get("matchLabels", {})) for d in
               overlay.of("PodDisruptionBudget") + overlay.of("PodMonitor")]
    for policy in overlay.of("NetworkPolicy"):
        wanted.append((policy, policy["spec"]["podSelector"].get("matchLabels", {})))
        for entry in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
            wanted += [(policy, p["podSelector"].get("matchLabels", {}))
                       for p in entry.get("from", []) + entry.get("to", [])
                       if "podSelector" in p and "namespaceSelector" not in p]
    for document, selector in wanted:
        if not overlay.selected(selector) or (not selector and document["kind"] != "NetworkPolicy"):
            yield name(document), f"selects no pods of ours with {selector}"


def rule_ports(overlay):
    for service in overlay.of("Service"):
        for workload in overlay.selected(service["spec"].get("selector", {})):
            for port in service["spec"]["ports"]:
                if port.get("targetPort", port["port"]) not in ports(workload):
                    yield name(service), f"port {port.get('targetPort')} is none of {name(workload)}"
    for policy in overlay.of("NetworkPolicy"):
        for workload in overlay.selected(policy["spec"]["podSelector"].get("matchLabels", {"": ""})):
            for entry in policy["spec"].get("ingress", []):
                for port in entry.get("ports", []):
                    if port["port"] not in ports(workload):
                        yield name(policy), f"port {port['port']} is none of {name(workload)}"
    for monitor in overlay.of("PodMonitor"):
        for workload in overlay.selected(monitor["spec"]["selector"]["matchLabels"]):
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                if endpoint["port"] not in ports(workload) or endpoint["path"] not in overlay.program.paths():
                    yield name(monitor), f"{endpoint['port']}{endpoint['path']} is not served"
    http = overlay.cluster.get("gateway", {}).get("port", 8000)
    for workload in overlay.workloads:
        if "http" in ports(workload) and ports(workload)["http"] != http:
            yield name(workload), f"port http is not gateway.port ({http}) of the cluster file"


def rule_references(overlay):
    known = {"configMap": overlay.named("ConfigMap"), "secret": overlay.named("Secret") | SECRETS,
             "persistentVolumeClaim": overlay.named("PersistentVolumeClaim")}
    for workload in overlay.workloads:
        spec = pod(workload)
        if spec.get("serviceAccountName") not in overlay.named("ServiceAccount"):
            yield name(workload), "its service account is not made here"
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        for template in workload["spec"].get("volumeClaimTemplates", []):
            volumes[template["metadata"]["name"]] = {}
        for volume in volumes.values():
            for kind, key in (("configMap", "name"), ("secret", "secretName"), ("persistentVolumeClaim", "claimName")):
                if kind in volume and volume[kind][key] not in known[kind]:
                    yield name(workload), f"there is no {kind} {volume[kind][key]}"
        used = {m["name"] for c in containers(workload) for m in c.get("volumeMounts", [])}
        for missing in used - volumes.keys():
            yield name(workload), f"mounts {missing}, which is no volume"
        for idle in volumes.keys() - used:
            yield name(workload), f"volume {idle} is mounted nowhere"
        for container in spec["containers"]:
            mounts = {m["mountPath"]: volumes.get(m["name"], {}) for m in container.get("volumeMounts", [])}
            for word in container.get("args", []):
                if not word.startswith("/"):
                    continue
                folder, _, file = word.rpartition("/")
                source = mounts.get(folder, {}).get("configMap", {}).get("name")
                if not any(d["metadata"]["name"] == source and file in d.get("data", {})
                           for d in overlay.of("ConfigMap")):
                    yield name(workload), f"{word} is in no ConfigMap that it mounts"


def rule_headless(overlay):
    services = {d["metadata"]["name"]: d for d in overlay.of("Service")}
    for workload in overlay.of("StatefulSet"):
        service = services.get(workload["spec"].get("serviceName"))
        if service is None or workload not in overlay.selected(service["spec"].get("selector", {})):
            yield name(workload), "its service does not exist, or selects other pods"
        elif service["spec"].get("clusterIP") != "None" or service["spec"].get("publishNotReadyAddresses") is not True:
            yield name(service), "pods do not find each other through it before they are ready"


def home(overlay, node):
    """The StatefulSet whose pod is the node, or None."""
    match = re.fullmatch(r"(.+)-(\d+)", node["name"])
    for workload in overlay.of("StatefulSet"):
        if match and workload["metadata"]["name"] == match.group(1) and \
                int(match.group(2)) < workload["spec"].get("replicas", 1):
            return workload
    return None


def rule_nodes(overlay):
    """A pod is a node of the cluster file, found under the name that the file says."""
    services = {d["metadata"]["name"]: d for d in overlay.of("Service")}
    for node in overlay.nodes():
        if "host" not in node:
            continue
        workload = home(overlay, node)
        if workload is None:
            yield f"node {node['name']}", "is no pod"
            continue
        service = workload["spec"]["serviceName"]
        host = f"{node['name']}.{service}"
        if node["host"] != host:
            yield f"node {node['name']}", f"is at {host}, not at {node['host']}"
        for key, endpoint in node.get("endpoints", {}).items():
            address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            offered = {p["port"] for p in services.get(service, {}).get("spec", {}).get("ports", [])}
            if address != host or int(port) not in offered or int(port) not in ports(workload):
                yield f"node {node['name']}", f"endpoints.{key} {endpoint} is no port of its pod and service"
    names = {n["name"] for n in overlay.nodes() if "host" in n}
    for workload in overlay.of("StatefulSet"):
        if "$(POD_NAME)" not in pod(workload)["containers"][0].get("args", []):
            continue
        for index in range(workload["spec"].get("replicas", 1)):
            if f"{workload['metadata']['name']}-{index}" not in names:
                yield name(workload), f"pod {index} is no node of the cluster file"


def rule_keys(overlay):
    """With keys every actor of a pod has its own, or it does not start."""
    if not overlay.cluster.get("security", {}).get("curve_keys"):
        return
    node = {"kv-transfer", "scheduler", "executor", "drafter", "recorder"}
    wanted = {"gateway": {"gateway", "recorder"}, "prefill": node | {"prefill-role"}, "decode": node | {"decode-role"}}
    for workload in overlay.workloads:
        items = [i["key"] for v in pod(workload)["volumes"] if v.get("secret", {}).get("secretName") == "onepath-curve"
                 for i in v["secret"].get("items", [])]
        missing = {f"{k}.key" for k in wanted[labels(workload)["onepath.dev/role"]]} | {"peers"}
        if set(items) != missing:
            yield name(workload), f"its keys are {sorted(items)}, not {sorted(missing)}"


# ---- life of a pod ---------------------------------------------------------------------------------

def rule_grace(overlay):
    drain = overlay.cluster.get("supervisor", {}).get("drain_timeout", 60)
    for workload in overlay.workloads:
        container = pod(workload)["containers"][0]
        text = " ".join(hook(container))
        waits = [int(n) for n in re.findall(r"sleep (\d+)|--timeout (\d+)", text) for n in n if n]
        if "onepath drain --wait" not in text or not re.search(r"--timeout \d+", text):
            yield name(workload), "its preStop does not drain"
        grace = pod(workload).get("terminationGracePeriodSeconds", 30)
        if grace <= sum(waits) + drain:
            yield name(workload), f"{grace} s of grace are not more than preStop {sum(waits)} s and drain {drain} s"


def rule_probes(overlay):
    for workload in overlay.workloads:
        container = pod(workload)["containers"][0]
        ways = {}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            how = container.get(probe)
            if how is None:
                yield name(workload), f"has no {probe}"
                continue
            if "httpGet" in how:
                ways[probe] = how["httpGet"]["path"]
                if how["httpGet"]["port"] not in ports(workload):
                    yield name(workload), f"{probe} asks at a port that there is not"
                if how["httpGet"]["path"] not in overlay.program.paths():
                    yield name(workload), f"{probe} asks {how['httpGet']['path']}, which nobody answers"
            else:
                ways[probe] = " ".join(how.get("exec", {}).get("command", []))
        if len(set(ways.values())) != len(ways):
            yield name(workload), "two probes ask the same: a pod that is busy would be killed"
        startup = container.get("startupProbe", {})
        if startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 600:
            yield name(workload), "a model that loads for ten minutes is killed"


def rule_commands(overlay):
    for workload in overlay.workloads:
        for container in pod(workload)["containers"]:
            for call in commands(container):
                problem = overlay.program.takes(call)
                if problem:
                    yield name(workload), problem


def rule_environment(overlay):
    known = overlay.program.variables()
    for workload in overlay.workloads:
        for container in containers(workload):
            for entry in container.get("env", []):
                if entry["name"].startswith("ONEPATH_") and entry["name"] not in known:
                    yield name(workload), f"{entry['name']} is no variable of the program"


def rule_cluster_file(overlay):
    if not overlay.cluster_text:
        yield "ConfigMap", "there is no cluster.yaml"
        return
    problem = overlay.program.config_check(overlay.cluster_text)
    if problem:
        yield "cluster.yaml", problem


def rule_disruption(overlay):
    for workload in overlay.workloads:
        budgets = [d for d in overlay.of("PodDisruptionBudget")
                   if d["spec"]["selector"].get("matchLabels", {}).items() <= labels(workload).items()]
        if len(budgets) != 1:
            yield name(workload), f"has {len(budgets)} disruption budgets"
        for budget in budgets:
            if budget["spec"].get("maxUnavailable", 1) == 0 or \
                    budget["spec"].get("minAvailable", 0) >= workload["spec"].get("replicas", 1):
                yield name(budget), "no pod may ever leave: a machine cannot be emptied"
    for workload in overlay.of("Deployment"):
        rolling = workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") != 0:
            yield name(workload), "a rollout takes the last pod away"


RULES = {key[5:]: value for key, value in list(globals().items()) if key.startswith("rule_")}


def findings(documents, program):
    overlay = Overlay(documents, program)
    for rule, check in RULES.items():
        for where, what in check(overlay):
            yield rule, where, what
