"""Writes a folder with random weights in the shape of a real model, for measuring speed.

usage: make_random_model.py FOLDER [--layers N]
The geometry is that of Qwen3-8B.  Random, because zeros run faster than real data; scaled so that no
value overflows.  Needs PyTorch, with a GPU in seconds.
"""
import argparse
import json
import pathlib
import struct

import torch

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 12288, 32, 8, 128, 151936


def tensors(layers):
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(layers):
        name = f"model.layers.{i}."
        yield name + "input_layernorm.weight", (HIDDEN,)
        yield name + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield name + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield name + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield name + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield name + "self_attn.q_norm.weight", (HEAD_DIM,)
        yield name + "self_attn.k_norm.weight", (HEAD_DIM,)
        yield name + "post_attention_layernorm.weight", (HIDDEN,)
        yield name + "mlp.gate_proj.weight", (FFN, HIDDEN)
        yield name + "mlp.up_proj.weight", (FFN, HIDDEN)
        yield name + "mlp.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=36)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_hidden_layers": arguments.layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 151643,
        "eos_token_id": 151645,
    }
    (arguments.folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in tensors(arguments.layers):
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    with open(arguments.folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(arguments.layers):
            if len(shape) == 1:
                values = torch.ones(shape, dtype=torch.bfloat16, device=device)
            else:
                values = torch.randn(shape, dtype=torch.bfloat16, device=device) * shape[1] ** -0.5
            file.write(values.view(torch.uint8).cpu().numpy().tobytes())


main()
