"""The three drafters as PyTorch modules, trained with their own drafts as input (training-time test).

Notation: x_t is the token at position t.  Row t of a head has read x_0..x_t through the target and is
given x_{t+1}, the token that the target chose there: its first proposal is x_{t+2}.  A head's
`steps(batch)` returns, for each of its steps s, logits [B, T', vocabulary] of x_{t+2+s} and the tokens
they should name.  Where all proposals before s were right, the tokens given here are the tokens that
would have been drafted, so consecutive hits are exactly what a greedy round accepts.
"""
import torch
import torch.nn.functional as F
from torch import nn

from target import rms_norm, rotate


class Batch:
    """tokens [B, T], rows after the target's final norm, and its taps."""

    def __init__(self, target, tokens, taps):
        self.target, self.tokens = target, tokens
        self.rows, self.taps = target.forward(tokens, taps)

    def embed(self, shift):
        return self.target.embed[self.tokens[:, shift:]]


class Norm(nn.Module):
    def __init__(self, size, eps, like=None):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size) if like is None else like.float().clone()), eps

    def forward(self, x):
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def passing(inputs, outputs):
    """A projection that begins as: the last `outputs` inputs, unchanged."""
    made = linear(inputs, outputs)
    made.weight.data.mul_(0.1)[:, -outputs:] += torch.eye(outputs)
    return made


class Attention(nn.Module):
    def __init__(self, inputs, hidden, heads, kv_heads, head_dim, theta):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.theta = heads, kv_heads, head_dim, theta
        self.q_proj, self.o_proj = linear(inputs, heads * head_dim), linear(heads * head_dim, hidden)
        self.k_proj, self.v_proj = linear(inputs, kv_heads * head_dim), linear(inputs, kv_heads * head_dim)

    def cut(self, x, heads):
        return x.unflatten(-1, (heads, self.head_dim)).transpose(-2, -3)

    def q(self, x, positions):
        return rotate(self.cut(self.q_proj(x), self.heads), positions, self.theta)

    def kv(self, x, positions):
        """[B, heads, T, D] each: a head of keys serves several of queries."""
        share = self.heads // self.kv_heads
        k = rotate(self.cut(self.k_proj(x), self.kv_heads), positions, self.theta)
        v = self.cut(self.v_proj(x), self.kv_heads)
        return k.repeat_interleave(share, -3), v.repeat_interleave(share, -3)

    def out(self, y):
        return self.o_proj(y.transpose(-2, -3).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, intermediate), linear(hidden, intermediate)
        self.down_proj = linear(intermediate, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Eagle3(nn.Module):
    """One layer over cat(norm(embedding), norm(hidden)), hidden = fc(three taps) and then its own
    output; a head over `vocabulary`, the tokens that the target's answers use most, which begins as
    those rows of the target's head."""

    def __init__(self, target, vocabulary, intermediate, depth):
        super().__init__()
        hidden, eps = target.hidden, target.eps
        self.taps = (2, target.layers // 2, target.layers - 3)
        self.depth = depth
        self.fc = passing(3 * hidden, hidden)
        self.input_layernorm, self.hidden_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.post_attention_layernorm, self.norm = Norm(hidden, eps), Norm(hidden, eps, target.norm)
        self.self_attn = Attention(2 * hidden, hidden, target.heads, target.kv_heads, target.head_dim,
                                   target.theta)
        self.mlp = FeedForward(hidden, intermediate)
        self.register_buffer("vocabulary", vocabulary)
        self.lm_head = linear(hidden, len(vocabulary))
        self.lm_head.weight.data = target.head[vocabulary].float()
        index = torch.full((target.vocab,), -1, dtype=torch.long, device=vocabulary.device)
        index[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
        self.register_buffer("index", index)

    def steps(self, batch):
        tokens, length = batch.tokens, batch.tokens.shape[1]
        rows = length - 1 - self.depth  # every row has a token for each of its steps
        hidden = self.fc(torch.cat(batch.taps, -1)[:, :rows])
        attention, place = self.self_attn, torch.arange(rows, device=tokens.device)
        later = torch.triu(torch.ones(rows, rows, dtype=torch.bool, device=tokens.device), 1)
        scale, own = attention.head_dim**-0.5, []
        for step in range(self.depth):
            given = batch.target.embed[tokens[:, 1 + step : 1 + step + rows]]
            x = torch.cat([self.input_layernorm(given), self.hidden_norm(hidden)], -1)
            q, (k, v) = attention.q(x, place + step), attention.kv(x, place + step)
            own.append((k, v))
            scores = (q @ own[0][0].transpose(-1, -2)).masked_fill(later, float("-inf"))
            ones = [(q * key).sum(-1, keepdim=True) for key, _ in own[1:]]  # this row's own later keys
            weight = (torch.cat([scores, *ones], -1).float() * scale).softmax(-1).to(v.dtype)
            y = weight[..., :rows] @ own[0][1]
            for i, (_, value) in enumerate(own[1:]):
                y = y + weight[..., rows + i, None] * value
            hidden = hidden + attention.out(y)
            hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
            yield self.lm_head(self.norm(hidden)), self.index[tokens[:, 2 + step : 2 + step + rows]]


class MtpDepth(nn.Module):
    def __init__(self, target, heads, kv_heads, intermediate):
        super().__init__()
        hidden, eps = target.hidden, target.eps
        self.enorm, self.hnorm, self.eh_proj = Norm(hidden, eps), Norm(hidden, eps), passing(2 * hidden, hidden)
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)
        self.self_attn = Attention(hidden, hidden, heads, kv_heads, target.head_dim, target.theta)
        self.mlp = FeedForward(hidden, intermediate)
        self.norm = Norm(hidden, eps, target.norm)

    def forward(self, given, hidden):
        x = self.eh_proj(torch.cat([self.enorm(given), self.hnorm(hidden)], -1))
        rows, place = self.input_layernorm(x), torch.arange(x.shape[1], device=x.device)
        k, v = self.self_attn.kv(rows, place)
        y = F.scaled_dot_product_attention(self.self_attn.q(rows, place), k, v, is_causal=True)
        x = x + self.self_attn.out(y)
        return x + self.mlp(self.post_attention_layernorm(x))


class Mtp(nn.Module):
    """Depth d has its own layer; it is given x_{t+1+d} and the rows of depth d - 1 (the target's rows
    after its final norm for depth 0), and borrows the target's embedding and head."""

    taps = ()

    def __init__(self, target, depth, heads, kv_heads, intermediate):
        super().__init__()
        self.depth = depth
        self.layers = nn.ModuleList(MtpDepth(target, heads, kv_heads, intermediate) for _ in range(depth))

    def steps(self, batch):
        tokens = batch.tokens
        rows = tokens.shape[1] - 1 - self.depth
        hidden = batch.rows[:, :rows]
        for step, layer in enumerate(self.layers):
            hidden = layer(batch.target.embed[tokens[:, 1 + step : 1 + step + rows]], hidden)
            yield batch.target.logits(layer.norm(hidden)), tokens[:, 2 + step : 2 + step + rows]


class DflashLayer(nn.Module):
    def __init__(self, target, heads, kv_heads, intermediate):
        super().__init__()
        hidden, eps = target.hidden, target.eps
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)
        self.self_attn = Attention(hidden, hidden, heads, kv_heads, target.head_dim, target.theta)
        self.self_attn.q_norm = Norm(target.head_dim, eps)
        self.self_attn.k_norm = Norm(target.head_dim, eps)
        self.mlp = FeedForward(hidden, intermediate)


class Dflash(nn.Module):
    """Block drafter: N rows [last token, mask ...] attend to every context row before the block and to
    each other, both ways; rows 1.. name the next tokens.  Context rows are fc(taps), normed."""

    def __init__(self, target, width, taps, mask, shape, anchors=32):
        super().__init__()
        self.taps, self.width, self.depth, self.mask, self.anchors = taps, width, width - 1, mask, anchors
        self.fc, self.hidden_norm = linear(len(taps) * target.hidden, target.hidden), Norm(target.hidden, target.eps)
        layers, heads, kv_heads, intermediate = shape
        self.layers = nn.ModuleList(DflashLayer(target, heads, kv_heads, intermediate) for _ in range(layers))
        self.norm = Norm(target.hidden, target.eps, target.norm)

    def keys(self, layer, x, places):
        """Keys with their norm before the rotation, and values, [B, heads, rows, D]."""
        a = layer.self_attn
        share = a.heads // a.kv_heads
        k = rotate(a.k_norm(a.cut(a.k_proj(x), a.kv_heads)), places[..., None, :], a.theta)
        v = a.cut(a.v_proj(x), a.kv_heads)
        return k.repeat_interleave(share, -3), v.repeat_interleave(share, -3)

    def steps(self, batch, anchors=None):
        """An anchor p is the place of the last token; the context is rows before p."""
        tokens, width = batch.tokens, self.width
        count, length = tokens.shape
        if anchors is None:
            anchors = torch.randint(8, length - width, (count, self.anchors), device=tokens.device)
        blocks = anchors.shape[1]
        places = anchors[..., None] + torch.arange(width, device=tokens.device)  # [B, A, N]
        ids = torch.full(places.shape, self.mask, device=tokens.device)
        ids[..., 0] = tokens.gather(1, anchors)
        context = self.hidden_norm(self.fc(torch.cat(batch.taps, -1)))
        row = torch.arange(length, device=tokens.device)
        hidden_rows = (row >= anchors[..., None]).repeat_interleave(width, 1)[:, None]  # [B, 1, A N, T]
        x = batch.target.embed[ids]  # [B, A, N, H]
        for layer in self.layers:
            a = layer.self_attn
            keys, values = self.keys(layer, context, row.expand(count, -1))
            rows = layer.input_layernorm(x)
            near_k, near_v = self.keys(layer, rows, places)  # [B, A, heads, N, D]
            q = rotate(a.q_norm(a.cut(a.q_proj(rows), a.heads)), places[..., None, :], a.theta)
            flat = q.transpose(1, 2).flatten(2, 3)  # [B, heads, A N, D]
            far = (flat @ keys.transpose(-1, -2)).masked_fill(hidden_rows, float("-inf"))
            near = (q @ near_k.transpose(-1, -2)).transpose(1, 2).flatten(2, 3)
            weight = (torch.cat([far, near], -1).float() * a.head_dim**-0.5).softmax(-1).to(values.dtype)
            own = weight[..., length:].unflatten(2, (blocks, width)).transpose(1, 2) @ near_v
            y = (weight[..., :length] @ values).unflatten(2, (blocks, width)).transpose(1, 2) + own
            x = x + a.out(y)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        x = self.norm(x)
        for step in range(self.depth):
            yield batch.target.logits(x[:, :, 1 + step]), tokens.gather(1, anchors + 1 + step)
