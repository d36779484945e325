#!/usr/bin/env python3
"""Mean accepted length and tokens/s with a drafter, against none, at batch 1.

    python3 bench/spec/spec.py MODEL --bin build/release/bin [--each 10] [--draft-model PATH] [--json FILE]

One node for each way stands ready; each prompt goes to all of them in turn, in an order that rotates, so that
what else the machine does strikes all alike.  Greedy, so all must give the same text: the run fails if
one does not.  tokens/s counts from the first token to the last.  "accepted" is the tokens of a step that had room for
candidates, the verified one included; "wide" the share of steps that had.  Speed against none is the
median over the prompts of a kind.
"""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time

from prompts import prompts

READY = re.compile(r"^ready: http://127\.0\.0\.1:(\d+)")
FIGURES = {"wide": "decode_wide_steps", "tested": "draft_tokens", "accepted": "draft_accepted_tokens",
           "missing": "draft_missing_rows", "ignored": "draft_ignored", "steps": "steps"}


class Node:
    def __init__(self, binary, model, options):
        self.process = subprocess.Popen([binary, "serve", model, "--port", "0", *options],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        self.port, self.lines = None, []
        self.is_ready = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        if not self.is_ready.wait(120):
            sys.exit("a node did not become ready:\n" + "".join(self.lines[-20:]))

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            match = READY.match(line)
            if match:
                self.port = int(match.group(1))
                self.is_ready.set()

    def ask(self, prompt, tokens):
        """The text, its tokens, and seconds from the first to the last."""
        body = json.dumps({"messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
                           "max_tokens": tokens, "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text, first, last, count = "", None, None, 0
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"a request failed: {event}")
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content") or ""
                if piece:
                    last = time.monotonic()
                    first = first or last
                    text += piece
            count = (event.get("usage") or {}).get("completion_tokens", count)
        connection.close()
        return text, count, (last or 0) - (first or 0)

    def figures(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().split("\n")
        connection.close()
        found = {}
        for key, name in FIGURES.items():
            for line in lines:
                if line.startswith((f"onepath_{name}_total{{", f"onepath_{name}_total ")):
                    found[key] = float(line.rsplit(" ", 1)[1])
        return found

    def settled(self):
        """The figures when no more come: the scheduler tells of them in intervals."""
        before = self.figures()
        while True:
            time.sleep(0.3)
            after = self.figures()
            if after == before:
                return after
            before = after

    def close(self):
        self.process.terminate()
        self.process.wait(30)


def measure(options, ways):
    binary = os.path.join(options.bin, "onepath")
    common = ["--max-model-len", "1024", "--max-num-seqs", "4", "--log-level", "warn"] + options.options
    nodes = {name: Node(binary, options.model, common + list(words)) for name, words in ways.items()}
    for node in nodes.values():
        node.ask("Say hello.", 8)
    rows, turn = [], 0
    figures = {name: {} for name in ways}
    wanted = prompts(options.each)
    for kind in dict.fromkeys(kind for kind, _ in wanted):
        before = {name: node.settled() for name, node in nodes.items()}
        for prompt in (prompt for its, prompt in wanted if its == kind):
            row = {"kind": kind}
            names = list(ways)
            turn += 1
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                text, count, seconds = nodes[name].ask(prompt, options.tokens)
                if row.setdefault("text", text) != text:
                    sys.exit(f"{name} gives {text!r} instead of {row['text']!r}")
                row[name] = (count - 1) / seconds if count > 1 and seconds > 0 else None
            rows.append(row)
        for name, node in nodes.items():
            after = node.settled()
            figures[name][kind] = {key: after[key] - before[name][key] for key in after}
    for node in nodes.values():
        node.close()
    return rows, figures


def ratios(rows, name, against):
    return [row[name] / row[against] for row in rows if row.get(name) and row.get(against)]


def accepted_length(figures):
    return 1 + figures["accepted"] / figures["wide"] if figures["wide"] else None


def report(rows, figures, ways):
    print(f"{'kind':10} {'way':10} {'tokens/s':>9} {'vs none':>8} {'wide':>6} {'accepted':>9} {'acceptance':>11}")
    found = {}
    for kind in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        of_kind = [row for row in rows if kind in (row["kind"], "all")]
        for name in ways:
            parts = [f for k, f in figures[name].items() if kind in (k, "all")]
            total = {key: sum(part[key] for part in parts) for key in FIGURES}
            speed = statistics.median(row[name] for row in of_kind if row[name])
            gain = statistics.median(ratios(of_kind, name, "none"))
            length = accepted_length(total)
            acceptance = total["accepted"] / total["tested"] if total["tested"] else None
            found[f"{kind}/{name}"] = {"tokens_per_s": speed, "against_none": gain, "accepted_length": length,
                                       "acceptance": acceptance, "wide": total["wide"] / total["steps"],
                                       "ignored": total["ignored"]}
            print(f"{kind:10} {name:10} {speed:9.1f} {gain:8.2f} {total['wide'] / total['steps']:6.0%} "
                  f"{length or 0:9.2f} {acceptance or 0:11.0%}")
    if "process" in ways and "shared" in ways:
        cost = statistics.median(ratios(rows, "shared", "process"))
        found["shared against process"] = cost
        print(f"a drafter in a process of its own: {cost:.3f} times the round of one in the executor's")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--each", type=int, default=10, help="prompts of each of the ten kinds")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--draft-model", help="a draft model too")
    parser.add_argument("--json")
    parser.add_argument("options", nargs="*", help="of every node, after --")
    options = parser.parse_args()
    width = ["--decode-width", str(options.width)]
    ways = {"none": [], "process": ["--drafter", "ngram", *width],
            "shared": ["--drafter", "ngram", "--drafter-shared", *width]}
    if options.draft_model:
        ways["model"] = ["--draft-model", options.draft_model, *width]
    rows, figures = measure(options, ways)
    found = report(rows, figures, ways)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"model": os.path.basename(options.model), "prompts": len(rows), "width": options.width,
                       "cores": os.cpu_count(), "figures": found}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
