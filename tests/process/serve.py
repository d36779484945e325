"""A node from the outside: answers, independence of neighbours, limits, orderly end."""
import json
import socket
import subprocess
import tempfile
import threading

from system import System, binary, check, main, model, wait_for

SMALL = ("--max-model-len", "512", "--max-num-seqs", "8")


def answers_and_ends_in_order():
    with System(*SMALL) as node:
        node.wait_ready()
        answer = node.complete("The capital of France is", max_tokens=8)
        check("Paris" in answer["choices"][0]["text"], f"no Paris in {answer}")
        check(answer["usage"]["completion_tokens"] == 8, f"usage is {answer['usage']}")
        check(sorted(node.pids()) == ["executor", "gateway", "recorder", "scheduler"],
              f"the actors are {node.pids()}")
        check(node.stop() == 0, "an asked stop must exit with 0")


def tokens_do_not_depend_on_neighbours():
    """Greedy and seeded text of a request alone, and among seven others of other lengths."""
    wanted = [
        {"prompt": "Once upon a time", "max_tokens": 40},
        {"prompt": "def fibonacci(n):", "max_tokens": 40, "temperature": 0.8, "seed": 7},
        {"prompt": "The three primary colours are", "max_tokens": 24, "temperature": 1.2,
         "top_p": 0.9, "seed": 99},
    ]
    with System(*SMALL) as node:
        node.wait_ready()
        alone = [node.complete(**fields)["choices"][0]["text"] for fields in wanted]
        for round_number in range(3):
            results = [None] * len(wanted)

            def ask(index, into=results):
                into[index] = node.complete(**wanted[index])["choices"][0]["text"]

            def noise(index):
                node.complete("Noise " * (3 + 17 * index), max_tokens=5 + 11 * index, seed=index,
                              temperature=1.0)

            threads = [threading.Thread(target=noise, args=(i + round_number,)) for i in range(5)]
            threads += [threading.Thread(target=ask, args=(i,)) for i in range(len(wanted))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for index, text in enumerate(results):
                check(text == alone[index],
                      f"{wanted[index]} alone gave {alone[index]!r}, among others {text!r}")


def eager_and_graph_agree():
    """The same requests with captured graphs, without any, and with what may be set between."""
    texts = {}
    for name, options in (("graph", ()), ("eager", ("--enforce-eager",)),
                          ("ladder", ("--max-capture-size", "2")),
                          ("decode only", ("--disable-prefill-graph",)),
                          ("listed", ("--capture-sizes", "1,5", "--no-capture-padding",
                                      "--prefill-graph-max-tokens", "8"))):
        with System(*SMALL, *options) as node:
            node.wait_ready()
            results = [None] * 5

            def ask(index, into=results, node=node):
                into[index] = node.complete("Tell me a story about the number %d." % index,
                                            max_tokens=24, seed=index, ignore_eos=True,
                                            temperature=0.7 if index % 2 else 0)["choices"][0]["text"]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            texts[name] = results
            wait_for("the step figures", 5, lambda: node.metric("onepath_num_requests_running") == 0)
            graph = node.metric("onepath_decode_steps_total", mode="graph")
            eager = node.metric("onepath_decode_steps_total", mode="eager")
            check((graph > 0) == (name != "eager"), f"{name}: {graph} graph steps")
            if name != "listed":  # how often 2 to 4 requests met is the clock's choice
                check((eager > 0) == (name in ("eager", "ladder")), f"{name}: {eager} eager steps")
    check(all(text == texts["eager"] for text in texts.values()), f"outputs differ: {texts}")


def prefix_cache_changes_nothing_but_the_work():
    prompt = "It was the best of times, it was the worst of times. " * 20
    with System(*SMALL) as node:
        node.wait_ready()
        first = node.complete(prompt, max_tokens=12)
        second = node.complete(prompt, max_tokens=12)
        check(first["choices"][0]["text"] == second["choices"][0]["text"], "a prefix hit changed the text")
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        check(cached >= 64, f"the second request found {cached} cached tokens")
        check(first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "the first found some")


def salted_requests_share_nothing():
    """Neither pages of the prompt nor pages of an answer, with prompts shorter than a page too."""
    def cached(node, prompt, salt):
        answer = node.complete(prompt, max_tokens=150, ignore_eos=True, cache_salt=salt)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with System(*SMALL) as node:
        node.wait_ready()
        text, _ = cached(node, "Once upon a time", "alpha")
        whole = "Once upon a time" + text
        check(cached(node, whole, "beta")[1] == 0, "another salt found the answer's pages")
        check(cached(node, whole, "alpha")[1] >= 64, "the same salt did not find them")
        check(cached(node, whole, None)[1] == 0, "no salt found salted pages")


def a_client_that_leaves_gives_its_blocks_back():
    with System(*SMALL) as node:
        node.wait_ready()

        for _ in range(4):
            client = socket.create_connection(("127.0.0.1", node.port))
            body = json.dumps({"prompt": "Count for ever:", "max_tokens": 400, "stream": True,
                               "ignore_eos": True})
            client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            client.recv(200)
            client.close()
        wait_for("the requests to end", 10, lambda: node.metric("onepath_num_requests_running") == 0)
        wait_for("the blocks to come back", 10,
                 lambda: node.metric("onepath_kv_blocks", state="active") == 0)
        check("choices" in node.complete("Next", max_tokens=4), "the next request failed")


def limits_are_clear_errors():
    with System(*SMALL) as node:
        node.wait_ready()
        status, answer, _ = node.request("POST", "/v1/completions",
                                         {"prompt": "word " * 2000, "max_tokens": 4})
        check(status == 400, f"a prompt over the context gave {status}")
        check("512" in answer["error"]["message"], f"the limit is not named: {answer}")
        for field, value in (("temperature", "hot"), ("max_tokens", -1), ("n", 17),
                             ("top_p", 2), ("stop", 5), ("logit_bias", {"999999999": 1})):
            status, answer, _ = node.request("POST", "/v1/completions", {"prompt": "x", field: value})
            check(status == 400, f"{field}={value!r} gave {status}: {answer}")
            check(answer["error"]["param"] == field, f"{field} is not named in {answer}")
        for field, value in (("tools", [{}]), ("response_format", {"type": "json_object"})):
            status, answer, _ = node.request("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": "x"}], field: value})
            check(status == 400 and answer["error"]["param"] == field, f"{field}: {status} {answer}")
        check(node.stop() == 0, "exit code")


def a_full_queue_answers_429():
    with System("--max-model-len", "512", "--max-num-seqs", "1", "--queue-len", "1") as node:
        node.wait_ready()
        statuses = []

        def ask():
            statuses.append(node.request("POST", "/v1/completions", {
                "prompt": "A long answer:", "max_tokens": 200, "ignore_eos": True}))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [(status, headers) for status, _, headers in statuses if status != 200]
        check(refused and all(status == 429 for status, _ in refused), f"answers: {[s[0] for s in statuses]}")
        check(all(int(headers["Retry-After"]) >= 1 for _, headers in refused), "no Retry-After")
        check(any(status == 200 for status, _, _ in statuses), "nobody was served")


def run_serve(*words, seconds=60):
    done = subprocess.run([binary(), "serve", *words], capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stderr


def bad_starts_are_clear():
    code, text = run_serve("/no/such/model.gguf", "--port", "0")
    check(code == 78 and "/no/such/model.gguf" in text, f"a missing model: {code} {text[-400:]}")
    code, text = run_serve(model(), "--port", "0", "--draft-model", "/no/such/draft")
    check(code == 78 and "/no/such/draft" in text, f"a missing draft model: {code} {text[-400:]}")
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        with open(model(), "rb") as source:
            file.write(source.read(1 << 20))
        file.flush()
        code, text = run_serve(file.name, "--port", "0")
        check(code == 78 and file.name in text, f"a truncated model: {code} {text[-2000:]}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = run_serve(model(), "--port", str(port), *SMALL)
        check(code == 75 and str(port) in text, f"a port in use: {code} {text[-600:]}")
    code, text = run_serve(model(), "--max-num-seqs", "-3")
    check(code == 78 and "-3" in text, f"a bad option: {code} {text[-400:]}")
    # A prompt and an answer are two tokens; a node that no request fits would wait for ever.
    code, text = run_serve(model(), "--max-model-len", "1")
    check(code == 78 and "from 2" in text, f"a length of one token: {code} {text[-400:]}")
    for options, words in ((("--capture-sizes", "4,2"), "'4,2'"),
                           (("--capture-sizes", "1,9"), "up to --max-num-seqs (8)"),
                           (("--prefill-graph-max-tokens", "4096"), "is 4096; a step has at most"),
                           (("--disable-prefill-graph", "--prefill-graph-max-tokens", "64"),
                            "do not go together")):
        code, text = run_serve(model(), "--port", "0", *SMALL, *options)
        check(code == 78 and words in text, f"{options}: {code} {text[-400:]}")
    code, text = run_serve(model(), "--port", "0", *SMALL, "--memory", "1M")
    check(code == 78 and "1.0 MiB as asked" in text, f"a cache without a block: {code} {text[-600:]}")
    code, text = run_serve(model(), "--port", "0", *SMALL, "--memory", "999999G")
    check(code == 78 and "as asked" in text, f"a cache beyond the machine: {code} {text[-600:]}")
    for fault in ("executor", "/x:kill", "nobody/x:kill", "executor/x", "executor/x:melt",
                  "executor/x:kill:often"):
        code, text = run_serve(model(), "--enable-fault-injection", "--fault", fault)
        check(code == 78 and fault in text, f"--fault {fault}: {code} {text[-400:]}")


if __name__ == "__main__":
    main([answers_and_ends_in_order, tokens_do_not_depend_on_neighbours, eager_and_graph_agree,
          prefix_cache_changes_nothing_but_the_work, salted_requests_share_nothing,
          a_client_that_leaves_gives_its_blocks_back,
          limits_are_clear_errors, a_full_queue_answers_429, bad_starts_are_clear])
