"""Greedy output against llama.cpp's, on committed reference outputs.

A first difference counts as a near-tie only if the gap of the two candidates' logarithms is at most
four times the largest difference of the logarithms that both engines report on that prefix, and
at most 3 of the prompts may have one (docs/architecture.md).
"""
import json
import math
import sys

from system import System, check, fixture, main

NEAR_TIES_MAX = 3


def greedy_agrees_with_the_reference():
    with open(fixture("smollm2-greedy.json"), encoding="utf-8") as file:
        reference = json.load(file)
    cases = reference["cases"]
    check(len(cases) >= 20, f"only {len(cases)} reference cases")
    ties = []
    with System("--max-model-len", "2048", "--max-num-seqs", "4") as node:
        node.wait_ready()
        for case in cases:
            length = len(case["tokens"])
            status, answer, _ = node.request("POST", "/v1/completions", {
                "prompt": case["prompt_tokens"], "max_tokens": length, "temperature": 0,
                "logprobs": 5, "ignore_eos": True, "return_token_ids": True})
            check(status == 200, f"{case['name']}: {status} {answer}")
            choice = answer["choices"][0]
            tokens = choice["token_ids"]
            at = next((i for i, (a, b) in enumerate(zip(tokens, case["tokens"])) if a != b), None)
            if at is None:
                check(len(tokens) == length, f"{case['name']}: {len(tokens)} tokens of {length}")
                continue
            mine = choice["logprobs"]["token_logprobs"][at]
            top = case["top"][at]
            theirs = {int(k): v for k, v in top.items()}
            gap = theirs[case["tokens"][at]] - theirs.get(tokens[at], -math.inf)
            spread = max(abs(choice["logprobs"]["token_logprobs"][i] - max(case["top"][i].values()))
                         for i in range(at + 1))
            print(f"{case['name']}: first difference at token {at}: gap {gap:.4f}, largest "
                  f"difference of the logarithms {spread:.4f} (ours {mine:.4f})", flush=True)
            check(gap <= 4 * spread, f"{case['name']}: token {at} differs and is no near-tie")
            ties.append(case["name"])
    check(len(ties) <= NEAR_TIES_MAX, f"{len(ties)} near-ties: {ties}")
    print(f"{len(cases) - len(ties)} of {len(cases)} identical, {len(ties)} near-ties", flush=True)


if __name__ == "__main__":
    main([greedy_agrees_with_the_reference])
