"""A node with a tiny model of each family that no real checkpoint here has: whatever shares the
steps, the cache or a prefix with a request, its tokens are those that it gets alone."""
import threading

from system import System, check, fixture, main, wait_for

SMALL = ("--max-model-len", "256", "--max-num-seqs", "8", "--block-size", "16",
         "--max-num-batched-tokens", "48")
TEXT = ("The gateway counts the requests and the scheduler plans the steps of the executor. "
        "She said that it's 12 o'clock; they'll be there in 345 minutes. ")
WANTED = [
    {"prompt": TEXT[:20], "max_tokens": 60},
    {"prompt": TEXT, "max_tokens": 40, "temperature": 0.8, "seed": 7},
    {"prompt": TEXT + TEXT[:40], "max_tokens": 24, "temperature": 1.1, "top_p": 0.9, "seed": 99},
    {"prompt": TEXT + "\n", "max_tokens": 50},  # shares blocks with the second
    {"prompt": "0x1F", "max_tokens": 70, "temperature": 0.7, "seed": 3, "frequency_penalty": 0.5},
    {"prompt": TEXT[30:90], "max_tokens": 33},
]


def ask(node, fields):
    """What the request gave, with log probabilities: they differ where a token might not."""
    answer = node.complete(**fields, ignore_eos=True, logprobs=2)["choices"][0]
    return answer["text"], answer["logprobs"]["token_logprobs"]


def ask_together(node, noise, noise_tokens=40):
    results = [None] * len(WANTED)

    def one(index):
        results[index] = ask(node, WANTED[index])

    def other(index):
        node.complete("12345 " * (1 + 3 * index), max_tokens=noise_tokens + index, seed=index,
                      temperature=1.0, ignore_eos=True)

    threads = [threading.Thread(target=other, args=(i,)) for i in range(noise)]
    threads += [threading.Thread(target=one, args=(i,)) for i in range(len(WANTED))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def compare(alone, together, what):
    for index, result in enumerate(together):
        check(result == alone[index],
              f"{what}: {WANTED[index]} alone gave {alone[index]!r}, now {result!r}")


def serves(name, small=SMALL, little="1M"):
    path = fixture(name)
    with System(*small, "--no-prefix-cache", model_path=path) as node:
        node.wait_ready()
        alone = [ask(node, fields) for fields in WANTED]
        check(len({text for text, _ in alone}) == len(WANTED), f"{name}: answers repeat: {alone}")
        compare(alone, ask_together(node, 4), f"{name} among others")
        check(node.stop() == 0, "an asked stop must exit with 0")
    with System(*small, model_path=path) as node:
        node.wait_ready()
        for round_number in range(2):
            compare(alone, ask_together(node, round_number), f"{name} with shared prefixes")
        wait_for(f"a shared prefix of {name}", 5,
                 lambda: node.metric("onepath_prefix_cache_hits_total") > 0)
    with System(*small, "--memory", little, "--enforce-eager", model_path=path) as node:
        node.wait_ready()
        compare(alone, ask_together(node, 8, 140), f"{name} with little memory")
        wait_for("a retraction", 5,
                 lambda: node.metric("onepath_num_preemptions_total") > 0)


def latent_attention_and_grouped_experts():
    serves("tiny-deepseek")


def recurrent_states_beside_attention():
    """Prefix hits go on from checkpoints, which stand at multiples of a block."""
    serves("tiny-qwen35", ("--max-model-len", "320", "--max-num-seqs", "8", "--block-size", "64",
                           "--max-num-batched-tokens", "96"), "1M")


def recurrent_states_with_candidates():
    """A verification commits the accepted state; what is proposed changes no answer."""
    small = ("--max-model-len", "320", "--max-num-seqs", "8", "--block-size", "64",
             "--max-num-batched-tokens", "96", "--memory", "1M")
    path = fixture("tiny-qwen35")
    with System(*small, model_path=path) as node:
        node.wait_ready()
        alone = [ask(node, fields) for fields in WANTED]
    with System(*small, "--drafter", "ngram", model_path=path) as node:
        node.wait_ready()
        for round_number in (0, 4):
            compare(alone, ask_together(node, round_number), "states with candidates")


if __name__ == "__main__":
    main([latent_attention_and_grouped_experts, recurrent_states_beside_attention,
          recurrent_states_with_candidates])
