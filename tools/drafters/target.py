"""The target of a drafter in plain PyTorch: a llama from a GGUF file, its taps, and its generations.

Only what the training of drafters needs, and nothing that a machine with PyTorch and `tokenizers`
alone lacks.  Shapes: tokens [B, T]; hidden rows [B, T, hidden]; a tap of layer i is the sum that
leaves layer i (counted from 0), before the next norm: the residual stream.
"""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from gguf_file import halves, read_gguf  # in tools/


def rms_norm(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x, positions, theta):
    """RoPE over halves; x [..., T, D], positions [T] or broadcast against x's rows."""
    half = x.shape[-1] // 2
    rate = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[..., None].float() * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Target:
    def __init__(self, path, device, dtype):
        keys, tensors = read_gguf(path)
        get = lambda name: keys["llama." + name]
        self.keys, self.device, self.dtype = keys, device, dtype
        self.layers, self.hidden = get("block_count"), get("embedding_length")
        self.heads, self.kv_heads = get("attention.head_count"), get("attention.head_count_kv")
        self.head_dim = self.hidden // self.heads
        self.intermediate = get("feed_forward_length")
        self.eps, self.theta = get("attention.layer_norm_rms_epsilon"), get("rope.freq_base")
        self.vocab = get("vocab_size")

        def weight(name, heads=None):
            array = tensors[name] if heads is None else halves(tensors[name], heads)
            return torch.from_numpy(np.array(array)).to(device, dtype)

        self.embed, self.norm = weight("token_embd.weight"), weight("output_norm.weight")
        self.head = self.embed if "output.weight" not in tensors else weight("output.weight")
        self.blocks = [{
            "norm": weight(f"blk.{i}.attn_norm.weight"), "ffn_norm": weight(f"blk.{i}.ffn_norm.weight"),
            "q": weight(f"blk.{i}.attn_q.weight", self.heads),
            "k": weight(f"blk.{i}.attn_k.weight", self.kv_heads),
            "v": weight(f"blk.{i}.attn_v.weight"), "o": weight(f"blk.{i}.attn_output.weight"),
            "gate": weight(f"blk.{i}.ffn_gate.weight"), "up": weight(f"blk.{i}.ffn_up.weight"),
            "down": weight(f"blk.{i}.ffn_down.weight"),
        } for i in range(self.layers)]

    def _layer(self, w, x, positions, attend):
        rows = rms_norm(x, w["norm"], self.eps)
        batch, count = rows.shape[:2]
        cut = lambda y, heads: y.view(batch, count, heads, self.head_dim).transpose(1, 2)
        q = rotate(cut(rows @ w["q"].T, self.heads), positions, self.theta)
        k = rotate(cut(rows @ w["k"].T, self.kv_heads), positions, self.theta)
        y = attend(q, k, cut(rows @ w["v"].T, self.kv_heads))
        x = x + y.transpose(1, 2).reshape(batch, count, -1) @ w["o"].T
        rows = rms_norm(x, w["ffn_norm"], self.eps)
        return x + (F.silu(rows @ w["gate"].T) * (rows @ w["up"].T)) @ w["down"].T

    def logits(self, hidden):
        return hidden @ self.head.T

    @torch.no_grad()
    def forward(self, tokens, taps=()):
        """Returns (rows after the final norm, [tap of each layer in taps])."""
        positions = torch.arange(tokens.shape[1], device=self.device)
        x, kept = self.embed[tokens], {}
        causal = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        for i, w in enumerate(self.blocks):
            x = self._layer(w, x, positions, causal)
            if i in taps:
                kept[i] = x
        return rms_norm(x, self.norm, self.eps), [kept[i] for i in taps]

    @torch.no_grad()
    def generate(self, prompts, count, temperatures, stop, generator):
        """Continues prompts (all of one length: [B, P]) to P + count tokens; temperature 0 is greedy.
        A row that met `stop` is filled with it.  Returns [B, P + count]."""
        batch, width = prompts.shape
        shape = (batch, self.kv_heads, width + count, self.head_dim)
        cache = [(torch.zeros(shape, device=self.device, dtype=self.dtype),
                  torch.zeros(shape, device=self.device, dtype=self.dtype)) for _ in self.blocks]
        tokens = torch.full((batch, width + count), stop, device=self.device)
        tokens[:, :width] = prompts
        done = torch.zeros(batch, dtype=torch.bool, device=self.device)
        at, rows = 0, prompts
        while at < width + count - 1:
            end = at + rows.shape[1]
            x, positions = self.embed[rows], torch.arange(at, end, device=self.device)
            for w, (keys, values) in zip(self.blocks, cache):
                def attend(q, k, v, keys=keys, values=values):
                    keys[:, :, at:end], values[:, :, at:end] = k, v
                    return F.scaled_dot_product_attention(
                        q, keys[:, :, :end], values[:, :, :end], is_causal=at == 0, enable_gqa=True)
                x = self._layer(w, x, positions, attend)
            logits = self.logits(rms_norm(x[:, -1], self.norm, self.eps)).float()
            noise = torch.rand(logits.shape, device=self.device, generator=generator)
            gumbel = -torch.log(-torch.log(noise.clamp(1e-20, 1 - 1e-7)))
            chosen = (logits + temperatures[:, None] * gumbel).argmax(-1)
            chosen = torch.where(done, torch.full_like(chosen, stop), chosen)
            tokens[:, end] = chosen
            done |= chosen == stop
            at, rows = end, chosen[:, None]
            if bool(done.all()):
                break
        return tokens
