"""llama.cpp's speed on a GGUF file: prefill of 512 tokens and decode at batch 1.

Prints one JSON line.  Run in an environment with llama-cpp-python; compare.py runs it interleaved
with our own bench.
"""
import argparse
import json
import statistics
import time

import llama_cpp


def measure(model, threads, prompt_len, decode_len, repeats):
    llm = llama_cpp.Llama(model_path=model, n_ctx=prompt_len + decode_len + 8, n_batch=512, n_ubatch=512,
                          n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False)
    vocab = llm.n_vocab()
    prompt = [(i * 7919 + 13) % (vocab - 100) + 50 for i in range(prompt_len)]
    prefill, decode = [], []
    for _ in range(repeats):
        llm.reset()
        began = time.perf_counter()
        llm.eval(prompt)
        prefill.append(prompt_len / (time.perf_counter() - began))
        llm.reset()
        llm.eval(prompt[:16])
        began = time.perf_counter()
        for i in range(decode_len):
            llm.eval([prompt[i % prompt_len]])
        decode.append(decode_len / (time.perf_counter() - began))
    return {"engine": "llama.cpp", "version": llama_cpp.__version__, "threads": threads,
            "prefill_tokens_per_s": statistics.median(prefill),
            "decode_tokens_per_s": statistics.median(decode)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(measure(options.model, options.threads, options.prompt, options.decode,
                             options.repeats)))


if __name__ == "__main__":
    main()
