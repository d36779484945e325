"""Every event that is logged is documented: events.py ROOT.

Event names are an interface: people and tools match on them.  A table row in docs/ names one as `room.name`, or
behind it others of the same room as `.name`.
"""
import glob
import os
import re
import sys

LOGGED = re.compile(r'actor_log(?:_each)?\(\s*[^;]*?"([a-z]+\.[a-z_]+)"')
ROW = re.compile(r"^\| (`[^|]*`) \|", re.M)


def logged(root):
    found = {}
    for folder in ("actors", "cli", "gpu"):
        for path in glob.glob(os.path.join(root, folder, "**", "*.c"), recursive=True):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for match in LOGGED.finditer(text):
                for name in re.findall(r'"([a-z]+\.[a-z_]+)"', match.group(0)):
                    found.setdefault(name, os.path.relpath(path, root))
            for match in re.finditer(r'actor_log(?:_each)?\(\s*[^;"]*\?[^;"]*"([a-z]+\.[a-z_]+)"\s*:\s*"([a-z]+\.[a-z_]+)"', text):
                for name in match.groups():
                    found.setdefault(name, os.path.relpath(path, root))
    return found


def documented(root):
    found = set()
    for path in glob.glob(os.path.join(root, "docs", "*.md")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for row in ROW.finditer(text):
            room = None
            for name in re.findall(r"`([a-z]*\.[a-z_]+)`", row.group(1)):
                room = name.split(".")[0] or room
                if room:
                    found.add(f"{room}.{name.split('.')[1]}")
        found.update(re.findall(r"`([a-z]+\.[a-z_]+)`", text))
    return found


def main():
    root = sys.argv[1]
    names, known = logged(root), documented(root)
    findings = [f"{path}: the event {name} is in no table of docs/" for name, path in sorted(names.items()) if name not in known]
    if len(names) < 60:
        findings.append(f"only {len(names)} events were found: the search is wrong")
    print("\n".join(findings + [f"tidy events: {len(findings)} findings"]))
    sys.exit(1 if findings else 0)


main()
