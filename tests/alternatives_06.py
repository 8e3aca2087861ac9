"""Right answers to lesson 06's exercises that look unlike the references."""

import torch
from torch import nn


def update_by_new_tensor(past, k, v):
    if past is None:
        past = (k[:, :, :0], v[:, :, :0])
    out = []
    for old, new in zip(past, (k, v), strict=True):
        grown = old.new_empty(*old.shape[:2], old.shape[2] + new.shape[2], old.shape[3])
        grown[:, :, : old.shape[2]] = old
        grown[:, :, old.shape[2] :] = new
        out.append(grown)
    return tuple(out)


def update_as_list(past, k, v):
    return [k.clone(), v.clone()] if past is None else [torch.cat(pair, -2) for pair in ((past[0], k), (past[1], v))]


def update_by_stack(past, k, v):
    new = torch.stack([k, v])
    both = new if past is None else torch.cat([torch.stack(list(past)), new], dim=3)
    return both[0], both[1]


def project(h, pairs):
    """h through each (matrix, number of heads), heads brought to axis 1."""
    return tuple(w(h).unflatten(-1, (n, -1)).transpose(1, 2) for w, n in pairs)


def attend(q, k, v):
    """(batch, heads, n_new, d) over (batch, kv, n_total, d), in einsums."""
    b, h, t, d = q.shape
    grouped = q.reshape(b, k.shape[1], h // k.shape[1], t, d)
    scores = torch.einsum("bgrtd,bgsd->bgrts", grouped, k) * d**-0.5
    hidden = torch.arange(k.shape[2])[None] > torch.arange(k.shape[2] - t, k.shape[2])[:, None]
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    return torch.einsum("bgrts,bgsd->bgrtd", weights, v).reshape(b, h, t, d)


class EinsumAttention(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.h, self.g, self.d = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.d).permute(0, 2, 1, 3)
        k = self.wk(x).view(b, t, self.g, self.d).permute(0, 2, 1, 3)
        v = self.wv(x).view(b, t, self.g, self.d).permute(0, 2, 1, 3)
        k, v = update_by_stack(cache, k, v)
        out = attend(q, k, v).permute(0, 2, 1, 3).reshape(b, t, self.h * self.d)
        return self.wo(out), (k, v)


class RepeatingAttention(EinsumAttention):
    """Repeats KV heads for the product, not in the cache, and returns lists."""

    def forward(self, x, cache=None):
        t = x.shape[1]
        q, k, v = project(x, ((self.wq, self.h), (self.wk, self.g), (self.wv, self.g)))
        cache = update_as_list(cache, k, v)
        k, v = (a.repeat_interleave(self.h // self.g, dim=1) for a in cache)
        bias = torch.zeros(t, k.shape[2]).masked_fill(
            ~torch.ones(t, k.shape[2]).tril(k.shape[2] - t).bool(), -torch.inf
        )
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return [self.wo(out.transpose(1, 2).flatten(2)), cache]


class LoopAttention(EinsumAttention):
    """One query after the other, each over the keys that it may see."""

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.d).transpose(1, 2)
        new = [w(x).view(b, t, self.g, self.d).transpose(1, 2) for w in (self.wk, self.wv)]
        k, v = update_by_new_tensor(cache, *new)
        ends = range(k.shape[2] - t + 1, k.shape[2] + 1)
        rows = [attend(q[:, :, i : i + 1], k[:, :, :end], v[:, :, :end]) for i, end in enumerate(ends)]
        out = torch.cat(rows, dim=2) if rows else q
        return self.wo(out.transpose(1, 2).flatten(2)), (k, v)


class OneBuffer:
    """Keys and values in one buffer."""

    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.kv = torch.empty(2, batch, n_kv_heads, max_len, head_dim, dtype=torch.float32)
        self.n = 0

    def update(self, k, v):
        if k.size(2) > self.kv.size(3) - self.n:
            raise ValueError("the cache is full")
        self.kv[:, :, :, self.n : self.n + k.size(2)] = torch.stack([k, v])
        self.n += k.size(2)
        return self.kv[0].narrow(2, 0, self.n), self.kv[1].narrow(2, 0, self.n)

    def __len__(self):
        return self.n

    def reset(self):
        self.n = 0


class TokensFirst:
    """Buffers with the token axis first; the views that come back are permuted."""

    def __init__(self, batch, n_kv_heads, max_len, head_dim):
        self.k = torch.full((max_len, batch, n_kv_heads, head_dim), float("nan"))
        self.v = torch.full((max_len, batch, n_kv_heads, head_dim), float("nan"))
        self.filled = 0

    def update(self, k, v):
        start, end = self.filled, self.filled + k.shape[2]
        if end > len(self.k):
            raise ValueError(f"room for {len(self.k) - start}, got {k.shape[2]}")
        self.k[start:end].copy_(k.permute(2, 0, 1, 3))
        self.v[start:end].copy_(v.permute(2, 0, 1, 3))
        self.filled = end
        return [self.k[:end].permute(1, 2, 0, 3), self.v[:end].permute(1, 2, 0, 3)]

    def __len__(self):
        return self.filled

    def reset(self):
        self.k.fill_(float("nan"))
        self.v.fill_(float("nan"))
        self.filled = 0


class SlotBySlot(OneBuffer):
    def update(self, k, v):
        if self.n + k.shape[2] > self.kv.shape[3]:
            raise ValueError("full")
        for i in range(k.shape[2]):
            self.kv[0, :, :, self.n], self.kv[1, :, :, self.n] = k[:, :, i], v[:, :, i]
            self.n += 1
        return self.kv[0, :, :, : self.n], self.kv[1, :, :, : self.n]


def cached_layers(model, ids, caches, start):
    x = model.embed(ids) + model.positions(torch.arange(start, start + ids.shape[1]))
    for i, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        a = layer.attn
        q, k, v = project(h, ((a.wq, a.n_heads), (a.wk, a.n_kv_heads), (a.wv, a.n_kv_heads)))
        caches[i] = update_by_new_tensor(caches[i], k, v)
        x = x + layer.attn.wo(attend(q, *caches[i]).transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.mlp_norm(x))
    return model.head(model.final_norm(x))


def add_pairs(model):
    def cached(ids, caches=None):
        caches = [None for _ in model.layers] if caches is None else list(caches)
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        logits = cached_layers(model, ids, caches, start)
        return logits, tuple(caches)

    return cached


def add_static(model):
    """A list of static caches, made anew for each text."""

    def cached(ids, caches=None):
        if caches is None:
            attn = model.layers[0].attn
            caches = [OneBuffer(len(ids), attn.n_kv_heads, 64, attn.head_dim) for _ in model.layers]
        x = model.embed_at(ids, len(caches[0]))
        for layer, cache in zip(model.layers, caches, strict=True):
            h = layer.attn_norm(x)
            q, k, v = layer.attn.qkv(h, start=0)  # learned positions: nothing is rotated
            x = x + layer.attn.mix(q, *cache.update(k, v))
            x = x + layer.mlp(layer.mlp_norm(x))
        return model.head(model.final_norm(x)), caches

    return cached


class AddedByClass:
    """A callable object, which takes the weights without their modules."""

    def __init__(self, model):
        self.model = model

    def __call__(self, ids, caches=None):
        m = self.model
        past = [None] * len(m.layers) if caches is None else caches
        x = m.embed_at(ids, 0 if past[0] is None else past[0][0].shape[2])
        kept = []
        for layer, old in zip(m.layers, past, strict=True):
            a, h = layer.attn, layer.attn_norm(x)
            plain = [lambda x, w=w: x @ w.weight.T for w in (a.wq, a.wk, a.wv)]
            q, k, v = project(h, zip(plain, (a.n_heads, a.n_kv_heads, a.n_kv_heads), strict=True))
            kept.append(update_by_stack(old, k, v))
            x = x + attend(q, *kept[-1]).transpose(1, 2).flatten(2) @ a.wo.weight.T
            x = x + layer.mlp(layer.mlp_norm(x))
        return m.head(m.final_norm(x)), kept


def generate_into_a_buffer(model, ids, n_new):
    n = ids.shape[1]
    out = torch.cat([ids, ids.new_zeros(len(ids), n_new)], dim=1)
    caches, start = None, 0
    for i in range(n_new):
        logits, caches = model(out[:, start : n + i], caches)
        start = n + i
        out[:, start] = logits[:, -1].argmax(-1)
    return out


def generate_with_prefill_first(model, ids, n_new):
    if n_new == 0:
        return ids
    logits, caches = model(ids, None)
    tokens = [logits[:, -1].argmax(-1)]
    while len(tokens) < n_new:
        logits, caches = model(tokens[-1].unsqueeze(1), caches)
        tokens.append(logits[:, 0].argmax(-1))
    return torch.cat([ids, torch.stack(tokens, dim=1)], dim=1)


def generate_by_recursion(model, ids, n_new):
    def more(fed, caches, left):
        if left == 0:
            return []
        logits, caches = model(fed, caches)
        token = logits[:, -1:].max(dim=-1).indices
        return [token, *more(token, caches, left - 1)]

    return torch.cat([ids, *more(ids, None, n_new)], dim=1)


ALTERNATIVES = {
    "update_cache": [update_by_new_tensor, update_as_list, update_by_stack],
    "CachedAttention": [EinsumAttention, RepeatingAttention, LoopAttention],
    "StaticCache": [OneBuffer, TokensFirst, SlotBySlot],
    "add_cache": [add_pairs, add_static, AddedByClass],
    "generate": [generate_into_a_buffer, generate_with_prefill_first, generate_by_recursion],
}
