#!/usr/bin/env python3
"""Writes tests/models/fixtures/smollm2-greedy-float.json: the prompts of smollm2-greedy.json,
answered greedily by transformers in float32 from the dequantised GGUF.

llama.cpp rounds activations to 8 bits; this reference does not.  An engine whose arithmetic is
between the two may agree with either.

    python3 tools/reference_greedy_float.py MODEL.gguf tests/models/fixtures/smollm2-greedy.json OUT.json
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from gguf_file import halves, read_gguf

TOP = 8
TOKENS = 64
STOP = {2}


def load(path):
    keys, tensors = read_gguf(path)
    get = lambda name: keys["llama." + name]
    config = LlamaConfig(
        vocab_size=get("vocab_size"), hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")},
        attn_implementation="eager",
    )
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"],
             "lm_head.weight": tensors["token_embd.weight"],
             "model.norm.weight": tensors["output_norm.weight"]}
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = tensors[f"blk.{layer}.{ours}.weight"]
            if ours == "attn_q":
                weight = halves(weight, config.num_attention_heads)
            if ours == "attn_k":
                weight = halves(weight, config.num_key_value_heads)
            state[f"model.layers.{layer}.{theirs}.weight"] = weight
    model = LlamaForCausalLM(config)
    model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in state.items()})
    return model.eval()


@torch.no_grad()
def answer_all(model, prompts):
    """All prompts as one batch, padded on the left: the weights are read once for all of them."""
    width = max(len(ids) for ids in prompts)
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    answers = [([], []) for _ in prompts]
    done = [False] * len(prompts)
    cache = None
    for step in range(TOKENS):
        result = model(tokens, attention_mask=mask, position_ids=positions, past_key_values=cache,
                       use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        values, order = torch.topk(result.logits[:, -1], TOP)
        for row, (out, top) in enumerate(answers):
            if not done[row]:
                top.append([[int(i), round(float(v), 5)] for i, v in zip(order[row], values[row])])
                out.append(int(order[row, 0]))
                done[row] = out[-1] in STOP
        tokens = order[:, :1]
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        positions = positions[:, -1:] + 1
        print("step", step, "of", TOKENS, flush=True)
        if all(done):
            break
    return answers


def main():
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    with open(sys.argv[2]) as f:
        reference = json.load(f)
    model = load(sys.argv[1])
    items = []
    answers = answer_all(model, [prompt["ids"] for prompt in reference["prompts"]])
    for prompt, (tokens, top) in zip(reference["prompts"], answers):
        items.append({"kind": prompt["kind"], "text": prompt["text"], "ids": prompt["ids"],
                      "tokens": tokens, "top": top})
        same = next((i for i, (a, b) in enumerate(zip(tokens, prompt["tokens"])) if a != b), None)
        gap = None if same is None else prompt["top"][same][0][1] - prompt["top"][same][1][1]
        print(len(prompt["ids"]), "first difference from llama.cpp at", same, "gap there", gap, flush=True)
    with open(sys.argv[3], "w") as f:
        f.write('{"model_sha256": "%s", "engine": "transformers %s, float32 from the dequantised file",\n'
                % (reference["model_sha256"], transformers.__version__))
        f.write(' "prompts": [\n' + ",\n".join("  " + json.dumps(item) for item in items) + "\n]}\n")


if __name__ == "__main__":
    main()
