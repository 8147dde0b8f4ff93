"""The slow and obvious way: the authors' formulas, written out tensor by tensor, with full batches and all clients.

Shares nothing with the package: no flat vectors, no differences sent up, no engine.
"""

import torch
from torch.nn import functional


def gradients(model, params, x, y, hidden_weight=0.0):
    """The gradient of the loss at `params`, a list of tensors."""
    names = [name for name, _ in model.named_parameters()]
    leaves = [p.detach().clone().requires_grad_() for p in params]
    weights = dict(zip(names, leaves, strict=True))
    loss = functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
    if hidden_weight:
        hidden = torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])
        uniform = torch.full_like(hidden, 1 / hidden.shape[1])
        loss = loss + hidden_weight * functional.kl_div(hidden.log_softmax(1), uniform, reduction="batchmean")
    return torch.autograd.grad(loss, leaves)


class Rule:
    """One tensor's optimiser: name and hyperparameters as a dict; statistics as a dict."""

    def __init__(self, name, lr, beta=None, beta1=None, beta2=0.99, eps=1e-3):
        self.name, self.lr, self.eps = name, lr, eps
        self.b1, self.b2 = (beta1, beta2) if name == "adam" else (beta, beta)

    def init(self, p):
        stats = {"sgd": "", "sgdm": "m", "rmsprop": "v", "adam": "mv"}[self.name]
        return {key: torch.zeros_like(p) if key == "m" else torch.ones_like(p) for key in stats}

    def u(self, g, s):
        top = self.b1 * s["m"] + (1 - self.b1) * g if "m" in s else g
        return self.lr * top / (s["v"].sqrt() + self.eps) if "v" in s else self.lr * top

    def t(self, g, s):
        new = {}
        if "m" in s:
            new["m"] = self.b1 * s["m"] + (1 - self.b1) * g
        if "v" in s:
            new["v"] = self.b2 * s["v"] + (1 - self.b2) * g * g
        return new

    def i(self, before, after, s, k):
        d = (before - after) / (self.lr * k)
        if "v" in s:
            d = d * (s["v"].sqrt() + self.eps)
        return (d - self.b1 * s["m"]) / (1 - self.b1) if "m" in s else d

    def moving(self, p, g, s):
        s = self.t(g, s)
        top = s.get("m", g)
        return p - (self.lr * top / (s["v"].sqrt() + self.eps) if "v" in s else self.lr * top), s


def train(name, model, start, clients, rounds, k, rule, server_rule=None, mu=0.0, hidden_weight=0.0):
    """Return parameters and statistics (lists over tensors) after some rounds."""
    n = len(clients)
    server_rule = server_rule or rule
    x = [p.clone() for p in start]
    s = [server_rule.init(p) for p in x]
    for _ in range(rounds):
        models, stats, full = [], [], []
        for cx, cy in clients:
            y, local = [p.clone() for p in x], [dict(part) for part in s]
            full.append(gradients(model, x, cx, cy, hidden_weight))
            for _ in range(k):
                g = gradients(model, y, cx, cy, hidden_weight)
                if name == "mfl":
                    moved = [rule.moving(p, gp, sp) for p, gp, sp in zip(y, g, local, strict=True)]
                    y, local = [m[0] for m in moved], [m[1] for m in moved]
                elif name in ("fedgbo", "mimelite", "mimexlite"):
                    y = [p - rule.u(gp, sp) for p, gp, sp in zip(y, g, s, strict=True)]
                else:
                    y = [p - rule.lr * (gp + mu * (p - xp)) for p, gp, xp in zip(y, g, x, strict=True)]
            models.append(y)
            stats.append(local)
        mean = [sum(parts) / n for parts in zip(*models, strict=True)]
        if name == "fedgbo":
            g = [rule.i(a, b, sp, k) for a, b, sp in zip(x, mean, s, strict=True)]
            s = [rule.t(gp, sp) for gp, sp in zip(g, s, strict=True)]
        elif name in ("mimelite", "mimexlite"):
            g = [sum(parts) / n for parts in zip(*full, strict=True)]
            s = [rule.t(gp, sp) for gp, sp in zip(g, s, strict=True)]
        elif name == "mfl":
            s = [{key: sum(c[j][key] for c in stats) / n for key in stats[0][j]} for j in range(len(x))]
        if name == "adaptivefedopt":
            stepped = [server_rule.moving(a, a - b, sp) for a, b, sp in zip(x, mean, s, strict=True)]
            x, s = [p for p, _ in stepped], [sp for _, sp in stepped]
        else:
            x = mean
    return x, s
