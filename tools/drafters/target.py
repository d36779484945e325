"""The target of a drafter in plain PyTorch: a llama from a GGUF file, its taps, and its generations.

Only what the training of drafters needs, and nothing that a machine with PyTorch and `tokenizers`
alone lacks.  Shapes: tokens [B, T]; hidden rows [B, T, hidden]; a tap of layer i is the sum that
leaves layer i (counted from 0), before the next norm: the residual stream.
"""
import struct

import numpy as np
import torch
import torch.nn.functional as F

ARRAY, STRING = 9, 8
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path):
    """Returns (keys, {name: float32 array}); F32, Q8_0 and Q4_1 tensors."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    at = 4

    def number(kind):
        nonlocal at
        value = struct.unpack_from("<" + kind, data, at)[0]
        at += struct.calcsize("<" + kind)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return bytes(data[at - size : at]).decode("utf-8")

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number(NUMBERS[kind])

    number("I")
    tensor_count, key_count = number("Q"), number("Q")
    keys = {text(): value(number("I")) for _ in range(key_count)}
    table = []
    for _ in range(tensor_count):
        name = text()
        shape = [number("Q") for _ in range(number("I"))][::-1]
        table.append((name, shape, number("I"), number("Q")))
    start = (at + 31) // 32 * 32
    return keys, {name: dequantise(data[start + at_ :], shape, kind) for name, shape, kind, at_ in table}


def dequantise(data, shape, kind):
    count = int(np.prod(shape))
    if kind == 0:
        return np.frombuffer(data[: 4 * count].tobytes(), "<f4").reshape(shape)
    blocks = count // 32
    if kind == 8:  # Q8_0
        raw = data[: 34 * blocks].reshape(blocks, 34)
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        return (scale * raw[:, 2:].copy().view(np.int8)).reshape(shape)
    if kind != 3:
        raise SystemExit(f"tensor type {kind} of the GGUF is not read here: F32, Q8_0 and Q4_1 are")
    raw = data[: 20 * blocks].reshape(blocks, 20)
    scale = raw[:, :2].copy().view("<f2").astype(np.float32)
    least = raw[:, 2:4].copy().view("<f2").astype(np.float32)
    values = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1).astype(np.float32)
    return (scale * values + least).reshape(shape)


def halves(weight, heads):
    """GGUF llama keeps the rows of q and k in pairs; here the halves of a head rotate."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


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
