"""Greedy output against that of transformers in float32, on committed reference outputs.

A first difference counts as a near-tie only if the gap of the two candidates' logits is at most
four times the largest difference of the logits that both engines report on that prefix, and at
most 3 of the prompts may have one (docs/architecture.md).
"""
import json

from system import System, check, fixture, main

NEAR_TIES_MAX = 3


def deviation(ours, theirs):
    """Largest difference of the logits that both report, up to a constant: ours are
    log-probabilities, theirs raw logits, so a shift of all of them means nothing."""
    common = [ours[token] - theirs[token] for token in ours if token in theirs]
    if len(common) < 2:
        return 0.0
    mean = sum(common) / len(common)
    return max(abs(value - mean) for value in common)


def by_id(entries):
    return {int(name.partition(":")[2]): value for name, value in entries.items()}


def compare(name, case, choice, ties):
    tokens = [int(text.partition(":")[2]) for text in choice["logprobs"]["tokens"]]
    ours = [by_id(entries) for entries in choice["logprobs"]["top_logprobs"]]
    theirs = [dict((int(token), value) for token, value in top) for top in case["top"]]
    at = next((i for i, (a, b) in enumerate(zip(tokens, case["tokens"])) if a != b), None)
    if at is None:
        check(len(tokens) == len(case["tokens"]), f"{name}: {len(tokens)} tokens")
        return
    check(tokens[at] in theirs[at], f"{name}: token {at} is not among the reference's first "
                                    f"{len(theirs[at])}")
    gap = theirs[at][case["tokens"][at]] - theirs[at][tokens[at]]
    largest = max(deviation(ours[i], theirs[i]) for i in range(at + 1))
    print(f"{name}: first difference at token {at}: gap {gap:.4f}, largest difference of the "
          f"logits {largest:.4f}", flush=True)
    check(gap <= 4 * largest, f"{name}: token {at} differs and is no near-tie")
    ties.append(name)


def greedy_agrees_with_the_reference():
    with open(fixture("smollm2-greedy-float.json"), encoding="utf-8") as file:
        cases = json.load(file)["prompts"]
    check(len(cases) >= 20, f"only {len(cases)} reference cases")
    ties = []
    with System("--max-model-len", "2048", "--max-num-seqs", "4") as node:
        node.wait_ready()
        for number, case in enumerate(cases):
            status, answer, _ = node.request("POST", "/v1/completions", {
                "prompt": case["ids"], "max_tokens": len(case["tokens"]), "temperature": 0,
                "logprobs": 8, "ignore_eos": True, "return_tokens_as_token_ids": True})
            check(status == 200, f"prompt {number}: {status} {answer}")
            compare(f"prompt {number} ({case['kind']})", case, answer["choices"][0], ties)
    check(len(ties) <= NEAR_TIES_MAX, f"{len(ties)} near-ties: {ties}")
    print(f"{len(cases) - len(ties)} of {len(cases)} identical, {len(ties)} near-ties", flush=True)


if __name__ == "__main__":
    main([greedy_agrees_with_the_reference])
