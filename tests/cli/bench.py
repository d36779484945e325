"""`onepath bench` against a fake server whose every fault is counted, and against a real node."""
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "process"))
from fake_server import PIECES, STALL_S, FakeServer  # noqa: E402
from system import System, binary, check, fixture, main, wait_for  # noqa: E402


def clean_environment(**extra):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("ONEPATH_")}, **extra}


def bench(*arguments, code=0, env=None, seconds=60):
    done = subprocess.run([binary(), "bench", *arguments], capture_output=True, text=True, timeout=seconds,
                          env=clean_environment(**(env or {})), stdin=subprocess.DEVNULL, check=False)
    check(done.returncode == code,
          f"bench {arguments} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done


def report(*arguments, **keywords):
    return json.loads(bench("--json", *arguments, **keywords).stdout)


def errors_of(result):
    return {error["kind"]: error["count"] for error in result["errors"]}


def good_answers_are_counted_exactly():
    with FakeServer() as server:
        for api in ("chat", "completions"):
            result = report(server.url("good"), "--api", api, "--requests", "20", "--concurrency", "4")
            check((result["started"], result["completed"], result["failed"]) == (20, 20, 0), f"{result}")
            check(result["answer_tokens"] == 20 * (PIECES + 3), "tokens are those of the usage event")
            check(result["prompt_tokens"] == 20 * 7, f"prompt tokens {result['prompt_tokens']}")
            check(result["first_token_ms"]["count"] == 20, "one first token each")
            check(result["between_tokens_ms"]["count"] == 20 * (PIECES - 1), "gaps between events with text")
            check(result["errors"] == [] and result["settings"]["model"] == "fake-model", f"{result}")
        whole = report(server.url("good"), "--no-stream", "--requests", "6")
        check(whole["completed"] == 6 and whole["answer_tokens"] == 48, f"{whole}")
        check(whole["first_token_ms"]["count"] == 0 and whole["whole_answer_ms"]["count"] == 6, f"{whole}")


def what_a_server_leaves_out_is_said():
    with FakeServer() as server:
        result = report(server.url("nousage"), "--requests", "4")
        check(result["answers_without_usage"] == 4 and result["answer_tokens"] == 4 * PIECES, f"{result}")
        result = report(server.url("empty"), "--requests", "4")
        check(result["empty"] == 4 and result["completed"] == 4 and result["answer_tokens"] == 0, f"{result}")
        result = report(server.url("dribble"), "--requests", "2", "--concurrency", "1")
        check(result["completed"] == 2 and result["answer_tokens"] == 4, f"{result}")


def every_fault_is_counted_by_kind():
    with FakeServer() as server:
        result = report(server.url("mixed"), "--requests", "35", "--concurrency", "3", code=1)
        check(result["completed"] == 5 and result["failed"] == 30, f"{result}")
        check(errors_of(result) == {"broken_stream": 10, "http_429": 5, "malformed": 5, "error_event": 5,
                                    "http_500": 5}, f"{errors_of(result)}")
        first = {error["kind"]: error["first"] for error in result["errors"]}
        check(first["http_429"] == "too many; Retry-After: 7", first["http_429"])
        check(first["error_event"] == "the executor is gone", first["error_event"])
        check("no JSON at all" in first["http_500"], first["http_500"])
        check("[DONE]" in first["broken_stream"], first["broken_stream"])
        check(result["first_token_ms"]["count"] == 5, "failed requests give no latencies")
        bench(server.url("mixed"), "--requests", "7", "--concurrency", "1", "--errors-max", "6")
        bench(server.url("mixed"), "--requests", "7", "--concurrency", "1", "--errors-max", "5", code=1)


def a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    done = bench(url, "--requests", "3", code=75)
    check("refused" in done.stderr, done.stderr)
    result = report(url, "--requests", "3", "--model", "m", code=1)
    check(errors_of(result) == {"connect": 3}, f"{result['errors']}")
    check("refused" in result["errors"][0]["first"], f"{result['errors']}")
    with FakeServer() as server:
        result = report(server.url("mute"), "--requests", "3", code=1)
        check(errors_of(result) == {"connect": 3}, f"{result['errors']}")
        result = report(server.url("hang"), "--requests", "3", "--timeout", "1", code=1)
        check(errors_of(result) == {"timeout": 3}, f"{result['errors']}")
        check("1 events" in result["errors"][0]["first"], f"{result['errors']}")


def a_slow_first_token_is_seen():
    with FakeServer() as server:
        result = report(server.url("slow"), "--requests", "8", "--concurrency", "8")
        check(result["first_token_ms"]["min"] >= 300, f"{result['first_token_ms']}")
        check(15 <= result["between_tokens_ms"]["p50"], f"{result['between_tokens_ms']}")
        check(result["whole_answer_ms"]["min"] >= 300 + 20 * (PIECES - 1), f"{result['whole_answer_ms']}")


def a_stall_is_not_hidden_by_waiting_for_it():
    """The server stands still once and is quick otherwise.  A closed loop sees one slow answer; with
    a rate, all that was due meanwhile is late, and says so.  On a slow machine everything takes
    longer, but the stall stays the largest part: half of it parts the two."""
    half_ms = STALL_S * 1000 / 2
    options = ("--requests", "20", "--concurrency", "1")
    with FakeServer() as server:
        closed = report(server.url("stall"), *options)["first_token_ms"]
        check(closed["max"] >= 2 * half_ms, f"{closed}")
    with FakeServer() as server:
        # 20 at 20 a second: they are all due within a second, and so half a stall late or more.
        opened = report(server.url("stall"), *options, "--rate", "20", "--seed", "3")
        check(opened["completed"] == 20 and opened["first_token_ms"]["p50"] >= half_ms, f"{opened}")
        check(opened["start_delay_ms"]["p50"] >= half_ms, "held back by --concurrency, and not hidden")
        check(closed["p50"] < opened["first_token_ms"]["p50"], f"closed {closed}, open {opened}")


def arrivals_and_prompts_repeat_from_the_seed():
    with FakeServer() as server:
        bodies = []
        for seed in (5, 5, 6):
            del server.bodies[:]
            options = ("--prompt-words", "10-30", "--max-tokens", "exp:40", "--prefix-words", "4",
                       "--requests", "12", "--concurrency", "1", "--api", "completions")
            result = report(server.url("good"), *options, "--seed", str(seed))
            check(result["settings"]["seed"] == seed, f"{result['settings']}")
            bodies.append(list(server.bodies))
        check(bodies[0] == bodies[1] and bodies[0] != bodies[2], "the seed decides what is asked")
        words = [body["prompt"].split() for body in bodies[0]]
        check(all(14 <= len(w) <= 34 and w[:4] == words[0][:4] for w in words), f"{words}")
        check([w[4] for w in words] == [str(i) for i in range(12)], "unlike after the common prefix")
        check(len({len(w) for w in words}) > 3 and len({b["max_tokens"] for b in bodies[0]}) > 3, "lengths vary")
        text = bench(server.url("good"), "--requests", "1", "--seed", "-7").stdout
        check("seed -7\n" in text, "the seed is printed as it is typed")
        result = report(server.url("good"), "--rate", "50", "--duration", "2", "--seed", "1")
        # 100 are expected, and 10 is the standard deviation; the seed makes it one number.
        check(60 <= result["completed"] <= 140 and result["failed"] == 0, f"{result['completed']}")
        again = report(server.url("good"), "--rate", "50", "--duration", "2", "--seed", "1")
        check(again["completed"] == result["completed"], "the same arrivals")


def prompts_come_from_a_file():
    with FakeServer() as server, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"prompt": "first", "max_tokens": 3, "top_p": 0.5}\n\n'
                       '{"messages": [{"role": "user", "content": "second"}]}\n')
        report(server.url("good"), "--prompts", path, "--requests", "4", "--concurrency", "1")
        check([b["messages"][0]["content"] for b in server.bodies] == ["first", "second"] * 2, f"{server.bodies}")
        check(server.bodies[0]["max_tokens"] == 3 and server.bodies[0]["top_p"] == 0.5, f"{server.bodies[0]}")
        check(server.bodies[1]["max_tokens"] == 64 and "prompt" not in server.bodies[0], f"{server.bodies}")
        done = bench(server.url("good"), "--prompts", path, "--api", "completions", code=78)
        check("line 3" in done.stderr and "--api chat" in done.stderr, done.stderr)
        with open(path, "a", encoding="utf-8") as file:
            file.write("{nonsense\n")
        check("line 4" in bench(server.url("good"), "--prompts", path, code=78).stderr, "the line is named")


def the_key_is_sent():
    with FakeServer() as server, tempfile.NamedTemporaryFile("w", suffix=".key") as file:
        file.write("secret-key\n")
        file.flush()
        report(server.url("key"), "--requests", "2", env={"ONEPATH_API_KEY": "secret-key"})
        report(server.url("key"), "--requests", "2", "--api-key-file", file.name)
        result = report(server.url("key"), "--requests", "2", code=1)
        check(errors_of(result) == {"http_401": 2}, f"{result['errors']}")
        done = bench(server.url("key"), "--requests", "1", "--json", env={"ONEPATH_API_KEY": "secret-key"})
        check("secret-key" not in done.stdout + done.stderr, "the key is never printed")


def wrong_options_are_named():
    for arguments, words in ((["--rate", "0"], "--rate"), (["--rate", "nan"], "--rate"),
                             (["--max-tokens", "9-3"], "--max-tokens"), (["--prompt-words", "0"], "--prompt-words"),
                             (["--prompt-words", "normal:3"], "--prompt-words"), (["--api", "x"], "--api"),
                             (["https://h:1"], "no https"), (["ftp://h"], "http://"), (["localhost:8000"], "http://"),
                             (["--api-key-file", "/nowhere"], "--api-key-file"), (["--"], "MODEL"),
                             (["http://h:1", "--", "m"], "either"), (["--", *["m"] * 129], "129 arguments"), (["--prompts", "/nowhere", "--model", "m"], "--prompts")):
        done = bench(*arguments, code=78)
        check(words in done.stderr, f"{arguments}: {done.stderr}")


def an_address_in_brackets_is_reached():
    try:
        server = FakeServer("::1")
    except OSError as failure:
        print(f"no IPv6 here: {failure}")  # what is parsed, tests/cli/test_bench.c says anyway
        return
    with server:
        result = report(server.url("good"), "--requests", "2")
        check(result["completed"] == 2 and result["failed"] == 0, f"{result}")
        check(server.heads[0]["host"] == f"[::1]:{server.port}", f"{server.heads[0]}")


def the_text_has_figures_and_a_plot():
    with FakeServer() as server:
        text = bench(server.url("slow"), "--requests", "6", "--concurrency", "2").stdout
        for words in ("6 of 6 requests answered, 0 failed", "answer tokens/s", "p50", "p99", "to the first token"):
            check(words in text, f"no '{words}' in:\n{text}")
        check(len(re.findall(r"^ +[0-9.]+ \|#* \d+$", text, re.M)) == 24, f"two plots of 12 rows:\n{text}")


def an_interrupt_still_gives_the_result():
    with FakeServer() as server:
        process = subprocess.Popen([binary(), "bench", server.url("slow"), "--duration", "600", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env=clean_environment())
        wait_for("some answers", 20, lambda: server.counts.get("slow", 0) > 20)
        process.send_signal(signal.SIGINT)
        result = json.loads(process.communicate(timeout=20)[0])
        check(process.returncode == 1 and result["interrupted"] and result["completed"] > 0, f"{result}")
        check(result["started"] == result["completed"] + result["failed"] + result["unfinished"], f"{result}")


def what_an_interrupt_cuts_off_took_its_time():
    """No request settles at all: the time ends with the interrupt, not with the last answer."""
    with FakeServer() as server:
        process = subprocess.Popen([binary(), "bench", server.url("hang"), "--duration", "600", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env=clean_environment())
        wait_for("requests", 20, lambda: server.counts.get("hang", 0) >= 8)
        begin = time.monotonic()
        time.sleep(0.5)  # the measure itself
        waited = time.monotonic() - begin
        process.send_signal(signal.SIGINT)
        result = json.loads(process.communicate(timeout=20)[0])
        check(result["unfinished"] == 8 and result["completed"] + result["failed"] == 0, f"{result}")
        check(result["wall_s"] >= waited, f"{result}")


def progress_is_for_terminals():
    with FakeServer() as server:
        leader, follower = pty.openpty()
        process = subprocess.Popen([binary(), "bench", server.url("slow"), "--requests", "24", "--concurrency", "4"],
                                   stdout=subprocess.DEVNULL, stderr=follower, env=clean_environment())
        os.close(follower)
        seen = b""
        try:
            while True:
                seen += os.read(leader, 4096)
        except OSError:
            pass
        os.close(leader)
        check(process.wait(20) == 0 and b" of 24 answers" in seen, f"{seen}")
        check("answers" not in bench(server.url("good"), "--requests", "2").stderr, "no progress in a file")


def a_real_node():
    with System("--null-device", "--chat-template", "chatml", model_path=fixture("tiny-llama")) as node:
        node.wait_ready()
        for api in ("chat", "completions"):
            result = report(f"http://127.0.0.1:{node.port}", "--api", api, "--requests", "30", "--concurrency", "6",
                            "--max-tokens", "20", "--ignore-eos")
            check(result["completed"] == 30 and result["failed"] == 0, f"{result}")
            check(result["answer_tokens"] == 600 and result["answers_without_usage"] == 0, f"{result}")
        result = report(f"http://127.0.0.1:{node.port}/v1/", "--requests", "3", "--model", "no-such-model", code=1)
        check(errors_of(result) == {"http_404": 3}, f"{result['errors']}")


def a_node_of_its_own():
    result = report("--requests", "10", "--max-tokens", "8", "--ignore-eos", "--", fixture("tiny-llama"), "--null-device",
                    "--chat-template", "chatml")
    check(result["completed"] == 10 and result["answer_tokens"] == 80, f"{result}")
    done = bench("--requests", "1", "--", "/nowhere/model.gguf", code=78)
    check("cannot be opened" in done.stderr and "did not start" in done.stderr, done.stderr)


if __name__ == "__main__":
    main([good_answers_are_counted_exactly, what_a_server_leaves_out_is_said, every_fault_is_counted_by_kind,
          a_server_that_is_not_there, a_slow_first_token_is_seen, a_stall_is_not_hidden_by_waiting_for_it,
          arrivals_and_prompts_repeat_from_the_seed, prompts_come_from_a_file, the_key_is_sent,
          wrong_options_are_named, an_address_in_brackets_is_reached, the_text_has_figures_and_a_plot,
          an_interrupt_still_gives_the_result, what_an_interrupt_cuts_off_took_its_time,
          progress_is_for_terminals, a_real_node, a_node_of_its_own])
