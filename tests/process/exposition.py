"""A strict reader of what /metrics says: the text format 0.0.4 of Prometheus, and the naming rules that
`promtool check metrics` has."""
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
NUMBER = re.compile(r"(?:[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|\+Inf|-Inf|NaN)\Z")
TYPES = ("counter", "gauge", "histogram")


class Wrong(Exception):
    pass


def _labels(text, line):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match or match[1] in labels:
            raise Wrong(f"labels: {line}")
        labels[match[1]] = match[2]
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise Wrong(f"labels: {line}")
            at += 1
    return labels


def _family_of(name, families):
    for suffix in ("", "_bucket", "_sum", "_count"):
        base = name[:len(name) - len(suffix)] if suffix and name.endswith(suffix) else name
        if base in families and (not suffix or families[base]["type"] == "histogram"):
            return base
    return None


def read(text):
    """Families by name: {"type", "help", "samples": [(name, labels, value)]}; raises Wrong."""
    if not text.endswith("\n"):
        raise Wrong("the last line has no end")
    families, open_family, closed = {}, None, set()
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, help_text = line[7:].partition(" ")
            if not NAME.match(name) or name in families or not help_text:
                raise Wrong(f"HELP: {line}")
            if open_family:
                closed.add(open_family)
            families[name] = {"type": None, "help": help_text, "samples": []}
            open_family = name
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name != open_family or kind not in TYPES or families[name]["type"]:
                raise Wrong(f"TYPE: {line}")
            families[name]["type"] = kind
        elif line.startswith("#") or not line:
            raise Wrong(f"neither a sample nor HELP or TYPE: '{line}'")
        else:
            match = re.match(r"([^{ ]+)(?:\{(.*)\})? ([^ ]+)\Z", line)
            if not match or not NAME.match(match[1]) or not NUMBER.match(match[3]):
                raise Wrong(f"sample: {line}")
            family = _family_of(match[1], families)
            if family is None or family in closed or not families[family]["type"]:
                raise Wrong(f"a sample outside its family: {line}")
            families[family]["samples"].append(
                (match[1], _labels(match[2] or "", line), float(match[3])))
    for name, family in families.items():
        _check_family(name, family)
    return families


def _check_family(name, family):
    seen = set()
    for sample, labels, value in family["samples"]:
        key = (sample, tuple(sorted(labels.items())))
        if key in seen:
            raise Wrong(f"{sample} {labels} is there twice")
        seen.add(key)
        if family["type"] == "counter" and value < 0:
            raise Wrong(f"a counter below zero: {sample}")
    if not family["samples"]:
        raise Wrong(f"{name} has no sample")
    if family["type"] == "histogram":
        _check_histogram(name, family["samples"])


def _check_histogram(name, samples):
    series = {}
    for sample, labels, value in samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        entry = series.setdefault(key, {"buckets": [], "sum": None, "count": None})
        if sample == name + "_bucket":
            entry["buckets"].append((float(labels["le"].replace("+Inf", "inf")), value))
        elif sample in (name + "_sum", name + "_count"):
            entry[sample[len(name) + 1:]] = value
        else:
            raise Wrong(f"{sample} in a histogram")
    for entry in series.values():
        bounds = [bound for bound, _ in entry["buckets"]]
        counts = [count for _, count in entry["buckets"]]
        if bounds != sorted(set(bounds)) or not bounds or bounds[-1] != float("inf"):
            raise Wrong(f"{name}: bounds {bounds}")
        if counts != sorted(counts) or counts[-1] != entry["count"] or entry["sum"] is None:
            raise Wrong(f"{name}: buckets {counts}, count {entry['count']}")


def lint(families):
    """What promtool would complain of, as sentences; for names that are our own."""
    found = []
    for name, family in families.items():
        kind = family["type"]
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name} is a {kind}")
        if ":" in name or re.search(r"[A-Z]", name):
            found.append(f"{name} has a colon or a capital letter")
        if re.search(r"_(milliseconds?|ms|microseconds?|minutes?|kilobytes?|megabytes?)(_|\Z)", name):
            found.append(f"{name} is not in a base unit")
        if kind != "histogram" and re.search(r"_(count|sum|bucket)\Z", name):
            found.append(f"{name} ends as a part of a histogram")
    return found
