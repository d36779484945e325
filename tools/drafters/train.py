#!/usr/bin/env python3
"""Trains a drafter for a GGUF llama by self-distillation and writes it as a folder that `onepath serve
--drafter FOLDER` loads: config.json, model.safetensors (BF16), card.json.

    python3 tools/drafters/train.py eagle3 MODEL.gguf OUT [--seconds 180] [--device cuda]
    python3 tools/drafters/train.py mtp    MODEL.gguf OUT
    python3 tools/drafters/train.py dflash MODEL.gguf OUT

The sequences are generated first (--rows of --length tokens); 256 of them are never trained on and
give the acceptance of the card.  The target's embedding is lent, so is its head but for eagle3's.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import data
import heads
from target import Target

HELD_OUT = 256  # at most an eighth of the sequences
WIDTH = 4  # tokens of a round: the last verified one and three proposals


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("eagle3", "mtp", "dflash"))
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=180, help="of training, after the data is made")
    parser.add_argument("--rows", type=int, default=16384, help="sequences to generate")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a training step")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens of eagle3's own head")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="file that keeps the sequences: read if it is there, else written")
    return parser.parse_args()


def sequences(target, options):
    if options.data and os.path.exists(options.data):
        return torch.load(options.data, weights_only=True).to(options.device)
    made, count, start = [], 0, time.time()
    for rows in data.sequences(target, options.rows, options.length, options.seed, min(512, options.rows // 4)):
        made.append(rows.to(torch.int32))
        count += len(rows)
        print(f"data: {count} of {options.rows} sequences, {time.time() - start:.0f} s", flush=True)
    made = torch.cat(made)
    made = made[torch.randperm(len(made), generator=torch.Generator().manual_seed(options.seed)).to(made.device)]
    if options.data:
        torch.save(made.cpu(), options.data)
    return made


def make(kind, target, tokens, options):
    if kind == "eagle3":
        counts = torch.bincount(tokens[held_out(tokens) :].flatten().long(), minlength=target.vocab)
        most = counts.argsort(descending=True)[: options.vocabulary].sort().values
        return heads.Eagle3(target, most, intermediate=640, depth=WIDTH - 1)
    if kind == "mtp":
        return heads.Mtp(target, depth=WIDTH - 1, heads=3, kv_heads=1, intermediate=256)
    taps = (target.layers // 2, target.layers - 3)
    return heads.Dflash(target, WIDTH, taps, mask=16, shape=(1, target.heads, target.kv_heads, 512))


def held_out(tokens):
    return min(HELD_OUT, len(tokens) // 8)


def counted(tokens, stop):
    """Places whose token was generated or is the first stop: padding behind it teaches nothing."""
    ended = (tokens == stop).long().cumsum(-1)
    return ended <= 3  # a system turn, a user turn, an answer: three stops


def loss_of(head, batch, stop):
    """Cross entropy with the tokens themselves; each later step weighs a little less."""
    total, weight = 0.0, 1.0
    alive = counted(batch.tokens, stop)
    for step, (logits, wanted) in enumerate(head.steps(batch)):
        known = wanted.clone()
        if known.dim() == 2 and known.shape[1] < alive.shape[1] and not isinstance(head, heads.Dflash):
            known[~alive[:, 2 + step : 2 + step + known.shape[1]]] = -1
        total = total + weight * F.cross_entropy(logits.float().flatten(0, -2), known.flatten(), ignore_index=-1)
        weight *= 0.8
    return total


@torch.no_grad()
def acceptance(head, target, tokens, options, stop):
    """Mean tokens of a round (the bonus token counts) when greedy rounds walk over each sequence."""
    rounds = taken = 0
    for at in range(0, len(tokens), 16):
        part = tokens[at : at + 16].long()
        batch = heads.Batch(target, part, head.taps)
        if isinstance(head, heads.Dflash):
            place = torch.arange(64, part.shape[1] - head.width, device=part.device)
            # Few anchors at a time: every one of them is scored against the whole context.
            found = [torch.stack([logits.argmax(-1) == wanted for logits, wanted in
                                  head.steps(batch, chunk.expand(len(part), -1))]) for chunk in place.split(32)]
            hits, first = torch.cat(found, -1), 64
        else:
            hits = []
            for logits, wanted in head.steps(batch):
                hits.append(logits.argmax(-1) == wanted)
            hits, first = torch.stack(hits), 0
        runs = hits.long().cumprod(0).sum(0).cpu()
        alive = counted(part, stop).cpu()
        for row in range(len(part)):
            t = max(64, first)
            while t - first < runs.shape[1] and t + 1 < alive.shape[1] and alive[row, t + 1]:
                step = 1 + int(runs[row, t - first])
                rounds, taken, t = rounds + 1, taken + step, t + step
    return taken / max(1, rounds)


def train(head, target, tokens, options, stop):
    weights = [p for p in head.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    draw = torch.Generator().manual_seed(options.seed)
    start, step, said, shown = time.time(), 0, 0.0, None
    while (spent := (time.time() - start) / options.seconds) < 1:
        warm = min(1, (step + 1) / 100)
        for group in optimiser.param_groups:
            group["lr"] = options.rate * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * spent)) / 2)
        pick = torch.randint(held_out(tokens), len(tokens), (options.batch,), generator=draw).to(tokens.device)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            loss = loss_of(head, heads.Batch(target, tokens[pick].long(), head.taps), stop)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        step += 1
        if spent - said > 0.05 or step == 1:
            said, shown = spent, loss.item()
            print(f"train: step {step}, loss {shown:.3f}, {100 * spent:.0f} %", flush=True)
    return step, loss.item()


def named(kind, head, target):
    """{name of the folder's file: tensor} and config.json, as published folders of the kind have them."""
    state = {name: value for name, value in head.state_dict().items() if name not in ("vocabulary", "index")}
    config = {
        "hidden_size": target.hidden, "num_attention_heads": target.heads, "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim, "rms_norm_eps": target.eps, "rope_theta": target.theta, "hidden_act": "silu",
        "vocab_size": target.vocab, "max_position_embeddings": target.keys["llama.context_length"],
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
    }
    if kind == "eagle3":
        outer = ("fc.", "norm.", "lm_head.")
        state = {name if name.startswith(outer) else "midlayer." + name: v for name, v in state.items()}
        state["d2t"] = head.vocabulary - torch.arange(len(head.vocabulary), device=head.vocabulary.device)
        state["t2d"] = head.index >= 0
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
                   "intermediate_size": head.mlp.gate_proj.out_features, "draft_vocab_size": len(head.vocabulary),
                   # published heads count what goes into a layer
                   "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in head.taps]}}
    elif kind == "mtp":
        layer = head.layers[0]
        state = {name.replace("layers.", "model.layers.", 1).replace(".norm.", ".shared_head.norm."): v
                 for name, v in state.items()}
        config |= {"architectures": ["LlamaForCausalLMMTP"], "model_type": "llama", "num_hidden_layers": head.depth,
                   "num_attention_heads": layer.self_attn.heads, "num_key_value_heads": layer.self_attn.kv_heads,
                   "intermediate_size": layer.mlp.gate_proj.out_features, "num_nextn_predict_layers": head.depth}
    else:
        config |= {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": len(head.layers),
                   "intermediate_size": head.layers[0].mlp.gate_proj.out_features, "block_size": head.width,
                   "dflash_config": {"mask_token_id": head.mask, "target_layer_ids": list(head.taps)}}
    keep = lambda v: v if v.dtype in (torch.int64, torch.bool) else v.to(torch.bfloat16)
    return {name: keep(v).contiguous().cpu() for name, v in state.items()}, config


def main():
    options = arguments()
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    target = Target(options.model, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    stop = data.tokenizer(target.keys).token_to_id("<|im_end|>")
    began = time.time()
    tokens = sequences(target, options)
    made = time.time() - began
    head = make(options.kind, target, tokens, options).to(device)
    count = sum(p.numel() for p in head.parameters())
    print(f"{options.kind}: {count / 1e6:.2f} M parameters, {len(tokens)} sequences", flush=True)
    steps, loss = train(head, target, tokens, options, stop)
    with torch.autocast(device.type, torch.bfloat16):
        accepted = acceptance(head, target, tokens[: held_out(tokens)], options, stop)
    tensors, config = named(options.kind, head, target)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "model.safetensors")
    save_file(tensors, path, metadata={"format": "pt"})
    with open(os.path.join(options.out, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    card = {"kind": options.kind, "width": WIDTH, "parameters": count, "file_bytes": os.path.getsize(path),
            "sequences": len(tokens), "sequence_length": tokens.shape[1], "steps": steps, "batch": options.batch,
            "loss": round(loss, 4), "data_seconds": round(made, 1), "training_seconds": options.seconds,
            "held_out_tokens_per_round": round(accepted, 3), "seed": options.seed,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    with open(os.path.join(options.out, "card.json"), "w") as file:
        json.dump(card, file, indent=2)
    print(json.dumps(card))


if __name__ == "__main__":
    main()
