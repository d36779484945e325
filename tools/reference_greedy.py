#!/usr/bin/env python3
"""Writes tests/models/fixtures/smollm2-greedy.json: what llama.cpp answers greedily.

Needs llama-cpp-python and the SmolLM2-135M-Instruct Q4_1 GGUF.

    python3 tools/reference_greedy.py MODEL.gguf OUT.json [--threads 2]

For each prompt: its text and token ids, 64 greedy tokens (fewer after an end-of-turn token, which
is the last one then), and for each step the best TOP ids with their logits.  A first difference
of another engine is a near-tie if the gap of the two logits is at most four times the largest
difference of logits on that prefix; `top` shows the gap.
"""
import argparse
import ctypes
import hashlib
import json

import llama_cpp
import numpy as np

TOKENS = 64
TOP = 8
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

CHAT = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List five vegetables.",
    "How do I sort a list in Python?",
    "What is 17 plus 25?",
    "Tell me a story about a fox and a crow.",
    "Give me three tips for learning a language.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "What is photosynthesis?",
    "Summarise the water cycle for a child.",
    "Write an email that asks for a day off.",
    "Why is exercise good for the heart?",
    "Name the planets of the solar system in order.",
    "Write a C function that adds two integers.",
]
PLAIN = [
    "The quick brown fox",
    "Once upon a time there was a",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "In 1969, the first humans",
    "Water boils at 100 degrees Celsius, and",
    "1, 2, 3, 4, 5,",
    "The recipe needs two eggs, a cup of flour and",
]
TURNS = [
    [("user", "My name is Ada."), ("assistant", "Nice to meet you, Ada!"), ("user", "What is my name?")],
    [("system", "You answer in one word."), ("user", "Which colour has grass?")],
]


def chat_text(turns):
    text = ""
    if turns[0][0] != "system":
        text += f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    for role, content in turns:
        text += f"<|im_start|>{role}\n{content}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def logits_of_last(model):
    size = model.n_vocab()
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (size,))


def answer(model, ids, stop):
    model.reset()
    model.eval(ids)
    out, top = [], []
    for _ in range(TOKENS):
        logits = logits_of_last(model)
        order = np.argsort(-logits, kind="stable")[:TOP]
        top.append([[int(i), round(float(logits[i]), 5)] for i in order])
        out.append(int(order[0]))
        if out[-1] in stop:
            break
        model.eval([out[-1]])
    return out, top


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    model = llama_cpp.Llama(
        args.model, n_ctx=1024, n_batch=512, n_threads=args.threads, n_threads_batch=args.threads,
        n_gpu_layers=0, flash_attn=False, type_k=0, type_v=0, verbose=False, logits_all=False,
    )
    stop = {model.token_eos()}
    prompts = [("chat", chat_text([("user", text)])) for text in CHAT]
    prompts += [("chat", chat_text(turns)) for turns in TURNS]
    prompts += [("plain", text) for text in PLAIN]
    items = []
    for kind, text in prompts:
        ids = model.tokenize(text.encode(), add_bos=False, special=True)
        tokens, top = answer(model, ids, stop)
        items.append({"kind": kind, "text": text, "ids": ids, "tokens": tokens, "top": top,
                      "answer": model.detokenize(tokens).decode("utf-8", "replace")})
        print(kind, len(ids), len(tokens), json.dumps(items[-1]["answer"])[:70], flush=True)
    with open(args.model, "rb") as f:
        sha256 = hashlib.sha256(f.read()).hexdigest()
    with open(args.out, "w") as f:
        f.write('{"model_sha256": "%s", "engine": "llama.cpp (llama-cpp-python %s), f32 cache",\n'
                % (sha256, llama_cpp.__version__))
        f.write(' "prompts": [\n')
        f.write(",\n".join("  " + json.dumps(item) for item in items))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
