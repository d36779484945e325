"""Onepath beside llama.cpp: the same GGUF, the same machine, two threads, interleaved in one run.

    python3 bench/llama_cpp/compare.py MODEL --python PYTHON_WITH_LLAMA_CPP [--out FILE.json]

`pip install llama-cpp-python` builds the peer.  Prints the medians and the ratios ours/theirs.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))


def ours(binary, model, threads, extra):
    done = subprocess.run([binary, model, str(threads), "16", *extra], capture_output=True, text=True,
                          check=True)
    return {words[0]: float(words[1]) for words in map(str.split, done.stdout.split("\n"))
            if len(words) > 1 and words[0].endswith("_per_s")}


def theirs(python, model, threads):
    done = subprocess.run([python, os.path.join(HERE, "baseline.py"), model, "--threads", str(threads),
                           "--repeats", "1"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().split("\n")[-1])


def command_output(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, cwd=SOURCE).stdout.strip()
    except OSError:
        return ""


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--bench", default=os.path.join(SOURCE, "build/release/bin/bench_model"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    parser.add_argument("extra", nargs="*", help="more words for bench_model")
    options = parser.parse_args()
    mine, peer = [], []
    for number in range(options.rounds):
        mine.append(ours(options.bench, options.model, options.threads, options.extra))
        peer.append(theirs(options.python, options.model, options.threads))
        print(f"round {number + 1}: ours {mine[-1]}, theirs prefill "
              f"{peer[-1]['prefill_tokens_per_s']:.1f} decode {peer[-1]['decode_tokens_per_s']:.1f}",
              flush=True)

    def median(rows, name):
        return statistics.median(row[name] for row in rows)

    result = {
        "commit": command_output("git", "rev-parse", "--short", "HEAD"),
        "cpu": cpu_name(), "cores": os.cpu_count(), "threads": options.threads,
        "model": os.path.basename(options.model), "peer": "llama.cpp via llama-cpp-python " + peer[0]["version"],
        "rounds": options.rounds,
        "prefill_512": {"ours": median(mine, "prefill_512_tokens_per_s"),
                        "theirs": median(peer, "prefill_tokens_per_s")},
        "decode_1": {"ours": median(mine, "decode_bs1_tokens_per_s"),
                     "theirs": median(peer, "decode_tokens_per_s")},
        "decode_16": {"ours": median(mine, "decode_bs16_tokens_per_s")},
    }
    for name in ("prefill_512", "decode_1"):
        result[name]["ratio"] = result[name]["ours"] / result[name]["theirs"]
    result["decode_16"]["ratio_to_decode_1"] = result["decode_16"]["ours"] / result["decode_1"]["ours"]
    print(json.dumps(result, indent=1))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
