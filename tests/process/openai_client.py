"""A scripted conversation with the official `openai` client against a running gateway.

    python3 tests/process/openai_client.py --base-url http://127.0.0.1:8000/v1

Needs `pip install openai`.  Exits 1 at the first thing that an application would stumble over.
The answers' words are the model's own business; shapes, reasons, counts and errors are ours.
"""
import argparse
import sys
import threading

import openai


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def check_usage(usage, what):
    check(usage is not None, f"{what}: no usage")
    check(usage.prompt_tokens > 0, f"{what}: no prompt tokens counted")
    check(usage.completion_tokens > 0, f"{what}: no completion tokens counted")
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens,
          f"{what}: total is not the sum")
    check(usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens,
          f"{what}: more cached than there are")


def models(client, args):
    listed = [model.id for model in client.models.list()]
    check(len(listed) == 1, f"one model expected, not {listed}")
    args.model = args.model or listed[0]
    check(args.model in listed, f"{args.model} is not served, {listed} is")
    check(client.models.retrieve(args.model).id == args.model, "retrieve gives another model")


def chat(client, args):
    """Two turns; greedy answers repeat."""
    messages = [{"role": "system", "content": "You are brief."},
                {"role": "user", "content": "Name a colour."}]
    first = client.chat.completions.create(model=args.model, messages=messages, max_tokens=12,
                                           temperature=0)
    choice = first.choices[0]
    check(first.object == "chat.completion" and first.id.startswith("chatcmpl-"), "wrong object")
    check(choice.message.role == "assistant", "the role is not assistant")
    check(choice.finish_reason in ("stop", "length"), f"finish_reason {choice.finish_reason}")
    check(isinstance(choice.message.content, str), "the content is no text")
    check_usage(first.usage, "chat")
    check(first.usage.completion_tokens <= 12, "more tokens than max_tokens")
    check(first.system_fingerprint, "no system_fingerprint")
    messages += [{"role": "assistant", "content": choice.message.content},
                 {"role": "user", "content": [{"type": "text", "text": "And"},
                                              {"type": "text", "text": "another one?"}]}]
    answers = [client.chat.completions.create(model=args.model, messages=messages,
                                              max_completion_tokens=12, temperature=0)
               for _ in range(2)]
    texts = [answer.choices[0].message.content for answer in answers]
    check(texts[0] == texts[1], f"greedy answers differ: {texts}")


def chat_stream(client, args):
    """The pieces of a stream are the answer in one piece."""
    messages = [{"role": "user", "content": "Count from one to five."}]
    whole = client.chat.completions.create(model=args.model, messages=messages, max_tokens=24,
                                           temperature=0)
    stream = client.chat.completions.create(model=args.model, messages=messages, max_tokens=24,
                                            temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    text, reasons, ids, usages, roles = "", [], set(), [], []
    for chunk in stream:
        check(chunk.object == "chat.completion.chunk", f"object {chunk.object}")
        ids.add((chunk.id, chunk.created, chunk.model))
        if chunk.usage is not None:
            check(not chunk.choices, "the usage chunk has choices")
            usages.append(chunk.usage)
        for choice in chunk.choices:
            if choice.delta.role:
                roles.append(choice.delta.role)
            text += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    check(len(ids) == 1, f"id, created or model change within a stream: {ids}")
    check(roles == ["assistant"], f"roles {roles}")
    check(len(reasons) == 1, f"finish reasons {reasons}")
    check(text == whole.choices[0].message.content, "the stream differs from the whole answer")
    check(reasons[0] == whole.choices[0].finish_reason, "the finish reason differs")
    check(len(usages) == 1, "one usage expected")
    check_usage(usages[0], "stream")
    check(usages[0].completion_tokens == whole.usage.completion_tokens, "the counts differ")


def completions(client, args):
    """Prompts as text, list, tokens; echo; several choices; logprobs."""
    answer = client.completions.create(model=args.model, prompt=["One, two,", "Red, green,"],
                                       max_tokens=6, temperature=0, echo=True)
    check([choice.index for choice in answer.choices] == [0, 1], "choices out of order")
    check(answer.choices[0].text.startswith("One, two,"), "no echo")
    check_usage(answer.usage, "completion")
    several = client.completions.create(model=args.model, prompt="The sea is", n=3, seed=7,
                                        max_tokens=8)
    again = client.completions.create(model=args.model, prompt="The sea is", n=3, seed=7,
                                      max_tokens=8)
    texts = [choice.text for choice in several.choices]
    check(texts == [choice.text for choice in again.choices], "a seed does not repeat")
    with_logprobs = client.completions.create(model=args.model, prompt="The sea is", logprobs=2,
                                              max_tokens=4, temperature=0)
    logprobs = with_logprobs.choices[0].logprobs
    check(len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset),
          "logprobs of different lengths")
    check(all(value <= 0 for value in logprobs.token_logprobs), "a logprob above zero")
    check("".join(logprobs.tokens) == with_logprobs.choices[0].text, "tokens are not the text")
    text = ""
    for chunk in client.completions.create(model=args.model, prompt="One, two,", max_tokens=6,
                                           temperature=0, stream=True):
        text += chunk.choices[0].text
    check("One, two," + text == answer.choices[0].text, "the stream differs from the whole answer")


def stops(client, args):
    """A stop string ends the text before it."""
    whole = client.completions.create(model=args.model, prompt="One, two, three,", max_tokens=16,
                                      temperature=0).choices[0].text
    check(len(whole) > 4, f"an answer too short to stop in: {whole!r}")
    middle = len(whole) // 2
    stop = whole[middle:middle + 2]
    cut = client.completions.create(model=args.model, prompt="One, two, three,", max_tokens=16,
                                    temperature=0, stop=[stop]).choices[0]
    check(cut.text == whole[:whole.index(stop)], f"cut {cut.text!r} of {whole!r} at {stop!r}")
    check(cut.finish_reason == "stop", f"finish_reason {cut.finish_reason}")


def chat_logprobs(client, args):
    answer = client.chat.completions.create(model=args.model, max_tokens=3, logprobs=True,
                                            top_logprobs=2, temperature=0,
                                            messages=[{"role": "user", "content": "Hi"}])
    content = answer.choices[0].logprobs.content
    check(0 < len(content) <= 3, f"{len(content)} entries")
    for entry in content:
        check(len(entry.top_logprobs) == 2, "two alternatives expected")
        check(abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-4,
              "greedy is not the likeliest")


def errors(client, args):
    messages = [{"role": "user", "content": "Hi"}]

    def refused(kind, param, **fields):
        try:
            client.chat.completions.create(**{"model": args.model, "messages": messages, **fields})
        except kind as error:
            check(param is None or error.param == param,
                  f"the error names {error.param}, not {param}")
            check(error.request_id, "an error without x-request-id")
            return error
        raise Failure(f"{fields} was not refused")

    refused(openai.NotFoundError, "model", model="no-such-model")
    refused(openai.BadRequestError, "temperature", temperature=3)
    refused(openai.BadRequestError, "top_logprobs", top_logprobs=3)
    refused(openai.BadRequestError, "n", n=0)
    refused(openai.BadRequestError, "max_tokens", max_tokens=0)
    refused(openai.BadRequestError, "response_format", response_format={"type": "json_object"})
    refused(openai.BadRequestError, "tools",
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    refused(openai.BadRequestError, "messages[0].content[0]", messages=[
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    error = refused(openai.BadRequestError, "messages",
                    messages=[{"role": "user", "content": "word " * 100000}])
    check(error.code == "context_length_exceeded", f"code {error.code}")


def early_close(client, args):
    """Leaving a stream early frees it; the next request is served."""
    stream = client.completions.create(model=args.model, prompt="Once", max_tokens=400,
                                       stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    client.completions.create(model=args.model, prompt="Once", max_tokens=2)


def parallel(client, args):
    """Requests at once give what they give alone."""
    prompts = [f"Number {number} is" for number in range(4)]
    alone = [client.completions.create(model=args.model, prompt=prompt, max_tokens=8,
                                       temperature=0).choices[0].text for prompt in prompts]
    together = [None] * len(prompts)

    def ask(index):
        together[index] = client.completions.create(model=args.model, prompt=prompts[index],
                                                    max_tokens=8, temperature=0).choices[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(alone == together, f"neighbours change an answer: {alone} {together}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True, help="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="the served name; default: the one that is listed")
    args = parser.parse_args()
    base_url = args.base_url.rstrip("/")
    if not base_url.endswith("/v1"):
        base_url += "/v1"
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=120, max_retries=0)
    for scene in (models, chat, chat_stream, completions, stops, chat_logprobs, errors,
                  early_close, parallel):
        try:
            scene(client, args)
        except Failure as failure:
            print(f"openai client: {scene.__name__}: {failure}", file=sys.stderr)
            return 1
        print(f"openai client: {scene.__name__}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
