"""References of the algorithms and optimisers that the paper does not have, in numpy, from their papers' pseudocode.

They share nothing with the package. A linear model with cross-entropy, clients of unequal sizes, full batches, unequal
numbers of local steps, full or partial participation.
"""

# ruff: noqa: B023 - functions that use loop variables are called before the loop goes on

from types import SimpleNamespace
from zlib import crc32

import numpy as np
from torch import nn

import fedgbo

SIZES, K, LR, ROUNDS, SEED, N, P = [5, 20, 9, 14, 30, 7], [3, 1, 4, 2, 5, 3], 0.3, 6, 3, 6, 15
RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 4)) + RNG.normal(size=4), RNG.integers(0, 3, n)) for n in SIZES]
TEST = (RNG.normal(size=(10, 4)), RNG.integers(0, 3, 10))


def task(clients_per_round=3, batch_size=None):
    data = fedgbo.FederatedData.from_clients(train=CLIENTS, test=TEST)
    return fedgbo.Task("uneven", data, lambda: nn.Linear(4, 3).double(), clients_per_round, batch_size=batch_size)


def cohort_of(t, size):
    rng = np.random.default_rng([SEED, crc32(b"cohort"), t])
    return sorted(rng.choice(N, size, replace=False).tolist())


def probabilities(x, i):
    features, labels = CLIENTS[i]
    scores = features @ x[:12].reshape(3, 4).T + x[12:]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), features, labels


def loss(x, i):
    p, _, labels = probabilities(x, i)
    return -np.log(p[np.arange(len(labels)), labels]).mean()


def grad(x, i):
    p, features, labels = probabilities(x, i)
    p = p - np.eye(3)[labels]
    return np.concatenate([(p.T @ features).ravel(), p.sum(axis=0)]) / len(labels)


def sgd(x, i, gradient=grad, lr=LR):
    y = x
    for _ in range(K[i]):
        y = y - lr * gradient(y, i)
    return y


def mean(vectors):
    return sum(vectors) / len(vectors)


# Algorithms: each takes the start and the cohort size, and returns the model and, if there are any, personal models.


def fedcm(x, size, alpha=0.3, server_lr=0.8, gradient=grad):
    delta = np.zeros(P)
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        ys = [sgd(x, i, gradient=lambda y, i: alpha * gradient(y, i) + (1 - alpha) * delta) for i in s]
        moved = mean([x - y for y in ys])
        x, delta = x - server_lr * moved, moved / (LR * mean([K[i] for i in s]))
    return x


def averaged(x, size, decay=0.6, beta=0.8):
    """FedGBO with SGDm, whose model a is not the one that trains."""
    a, m = x, np.zeros(P)
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        moved = mean([x - sgd(x, i, gradient=lambda y, i: beta * m + (1 - beta) * grad(y, i)) for i in s])
        x, m = x - moved, moved / (LR * mean([K[i] for i in s]))
        d = min(decay, (t + 1) / (t + 10))
        a = d * a + (1 - d) * x
    return a


def sharp(y, i, rho=0.2):
    g = grad(y, i)
    return grad(y + rho * g / np.linalg.norm(g), i)


def fedsam(x, size):
    for t in range(ROUNDS):
        x = x - 0.9 * mean([x - sgd(x, i, gradient=sharp) for i in cohort_of(t, size)])
    return x


def mofedsam(x, size):
    return fedcm(x, size, gradient=sharp)


def scaffold(x, size, server_lr=0.8):
    c, own = np.zeros(P), np.zeros((N, P))
    for t in range(ROUNDS):
        s, before = cohort_of(t, size), own.copy()
        ys = {i: sgd(x, i, gradient=lambda y, i: grad(y, i) - before[i] + c) for i in s}
        for i, y in ys.items():
            own[i] = before[i] - c + (x - y) / (K[i] * LR)
        x, c = x + server_lr / len(s) * sum(y - x for y in ys.values()), c + (own - before).sum(axis=0) / N
    return x


def fednova(x, size, server_lr=0.8, samples=None):
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        p = {i: samples[i] / sum(samples[j] for j in s) if samples else 1 / len(s) for i in s}
        tau_eff = sum(p[i] * K[i] for i in s)
        x = x - server_lr * tau_eff * sum(p[i] * (x - sgd(x, i)) / K[i] for i in s)
    return x


def feddyn(x, size, alpha=0.4):
    h, own = np.zeros(P), np.zeros((N, P))
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        ys = {i: sgd(x, i, gradient=lambda y, i: grad(y, i) - own[i] + alpha * (y - x)) for i in s}
        for i, y in ys.items():
            own[i] = own[i] - alpha * (y - x)
        h = h - alpha / N * sum(y - x for y in ys.values())
        x = mean(list(ys.values())) - h / alpha
    return x


def ghbm(x, size, beta=0.8, tau=2):
    queue, momentum = [], np.zeros(P)
    for t in range(ROUNDS):
        ys = [sgd(x, i, gradient=lambda y, i: grad(y, i) + beta * momentum / (LR * K[i])) for i in cohort_of(t, size)]
        queue = [*queue, x][-tau:]
        x = mean(ys)
        momentum = (queue[0] - x) / tau if len(queue) == tau else np.zeros(P)
    return x


def qfedavg(x, size, q=1.5):
    for t in range(ROUNDS):
        s, top, bottom = cohort_of(t, size), 0, 0
        for i in s:
            f, dw = loss(x, i), (x - sgd(x, i)) / LR
            top = top + f**q * dw
            bottom = bottom + q * f ** (q - 1) * (dw**2).sum() + f**q / LR
        x = x - top / bottom
    return x


def mime(x, size, beta=0.7):
    m = np.zeros(P)
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        c = mean([grad(x, i) for i in s])
        ys = [sgd(x, i, gradient=lambda y, i: beta * m + (1 - beta) * (grad(y, i) - grad(x, i) + c)) for i in s]
        x, m = mean(ys), beta * m + (1 - beta) * c
    return x


def fedlin(x, size):
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        g = mean([grad(x, i) for i in s])
        x = mean([sgd(x, i, gradient=lambda y, i: grad(y, i) - grad(x, i) + g, lr=LR / K[i]) for i in s])
    return x


def server_optimiser(x, size, rule, server_lr=0.5, b1=0.8, b2=0.9, eps=0.1, initial=1.0):
    m, v = np.zeros(P), np.full(P, initial)
    for t in range(ROUNDS):
        d = mean([x - sgd(x, i) for i in cohort_of(t, size)])
        m = d if rule == "adagrad" else b1 * m + (1 - b1) * d
        v = {
            "sgdm": v,
            "adam": b2 * v + (1 - b2) * d**2,
            "yogi": v - (1 - b2) * d**2 * np.sign(v - d**2),
            "adagrad": v + d**2,
        }[rule]
        x = x - server_lr * (m if rule == "sgdm" else m / (np.sqrt(v) + eps))
    return x


HEAD = slice(12, 15)


def fedper(x, size, head_steps=None):
    heads = {i: x[HEAD].copy() for i in range(N)}
    for t in range(ROUNDS):
        bodies = []
        for i in cohort_of(t, size):
            y = np.concatenate([x[:12], heads[i]])
            if head_steps is None:
                y = sgd(y, i)
            else:
                only_head = np.arange(P) >= 12
                for k in range(head_steps + K[i]):
                    y = y - LR * grad(y, i) * (only_head if k < head_steps else ~only_head)
            bodies.append(y[:12])
            heads[i] = y[HEAD]
        x = np.concatenate([mean(bodies), x[HEAD]])
    return x, {i: np.concatenate([x[:12], heads[i]]) for i in range(N)}


def ditto(x, size, lam=0.6):
    own = dict.fromkeys(range(N), x)
    for t in range(ROUNDS):
        s = cohort_of(t, size)
        for i in s:
            own[i] = sgd(own[i], i, gradient=lambda v, i: grad(v, i) + lam * (v - x))
        x = mean([sgd(x, i) for i in s])
    return x, own


def apfl(x, size, alpha=0.3):
    own = dict.fromkeys(range(N), x)
    for t in range(ROUNDS):
        ws = []
        for i in cohort_of(t, size):
            w, v = x, own[i]
            for _ in range(K[i]):
                mixed = alpha * v + (1 - alpha) * w
                w, v = w - LR * grad(w, i), v - LR * alpha * grad(mixed, i)
            ws.append(w)
            own[i] = v
        x = mean(ws)
    return x, {i: alpha * v + (1 - alpha) * x for i, v in own.items()}


# Optimisers: init, u (the update with fixed statistics), t (tracking), moving (a step with statistics that move).


def optimiser(name, lr=0.2, b1=0.8, b2=0.9, eps=0.1, decay=0.3):
    zero, one = (lambda: np.zeros(P)), (lambda: np.ones(P))
    mix = lambda s, g: b1 * s["m"] + (1 - b1) * g  # noqa: E731
    ema = lambda s, g: b2 * s["v"] + (1 - b2) * g**2  # noqa: E731
    root = lambda v: np.sqrt(v) + eps  # noqa: E731
    corrected = lambda s: s["v"] / (1 - b2 ** s["t"]) if s["t"] else np.ones(P)  # noqa: E731
    init, u, t, moving = {
        "nesterov": (
            lambda: {"m": zero()},
            lambda s, g, x: lr * (b1 * mix(s, g) + (1 - b1) * g),
            lambda s, g: {"m": mix(s, g)},
            lambda s, g, y: lr * (b1 * s["m"] + (1 - b1) * g),
        ),
        "adagrad": (
            lambda: {"v": one()},
            lambda s, g, x: lr * g / root(s["v"]),
            lambda s, g: {"v": s["v"] + g**2},
            lambda s, g, y: lr * g / root(s["v"]),
        ),
        "yogi": (
            lambda: {"m": zero(), "v": one()},
            lambda s, g, x: lr * mix(s, g) / root(s["v"]),
            lambda s, g: {"m": mix(s, g), "v": s["v"] - (1 - b2) * np.sign(s["v"] - g**2) * g**2},
            lambda s, g, y: lr * s["m"] / root(s["v"]),
        ),
        "amsgrad": (
            lambda: {"m": zero(), "v": 0.01 * one(), "w": 0.01 * one()},
            lambda s, g, x: lr * mix(s, g) / root(s["w"]),
            lambda s, g: {"m": mix(s, g), "v": ema(s, g), "w": np.maximum(s["w"], ema(s, g))},
            lambda s, g, y: lr * s["m"] / root(s["w"]),
        ),
        "adamw": (
            lambda: {"m": zero(), "v": one()},
            lambda s, g, x: lr * mix(s, g) / root(s["v"]) + lr * decay * x,
            lambda s, g: {"m": mix(s, g), "v": ema(s, g)},
            lambda s, g, y: lr * s["m"] / root(s["v"]) + lr * decay * y,
        ),
        "corrected adam": (
            lambda: {"m": zero(), "v": zero(), "t": 0},
            lambda s, g, x: lr * mix(s, g) / (1 - b1 ** (s["t"] + 1)) / root(corrected(s)),
            lambda s, g: {"m": mix(s, g), "v": ema(s, g), "t": s["t"] + 1},
            lambda s, g, y: lr * s["m"] / (1 - b1 ** s["t"]) / root(corrected(s)),
        ),
        "lion": (
            lambda: {"m": zero()},
            lambda s, g, x: lr * np.sign(mix(s, g)),
            lambda s, g: {"m": b2 * s["m"] + (1 - b2) * g},
            None,
        ),
        "signum": (
            lambda: {"m": zero()},
            lambda s, g, x: lr * np.sign(mix(s, g)),
            lambda s, g: {"m": mix(s, g)},
            lambda s, g, y: lr * np.sign(s["m"]),
        ),
    }[name]
    return SimpleNamespace(init=init, u=u, t=t, moving=moving)


def local(o, x, i, s, variate=0.0):
    """K steps with fixed statistics; return the model and the sum of gradients."""
    y, total = x, np.zeros(P)
    for _ in range(K[i]):
        g = grad(y, i) + variate
        y, total = y - o.u(s, g, x), total + g
    return y, total


def stepped(o, y, g, s):
    """A step with statistics that move."""
    after = o.t(s, g)
    return y - (o.u(s, g, y) if o.moving is None else o.moving(after, g, y)), after


def with_optimiser(algorithm, o, x, size):
    """FedGBO with sums of gradients, Mime and its variants, MFL and AdaptiveFedOpt."""
    s = o.init()
    for t in range(ROUNDS):
        cohort = cohort_of(t, size)
        if algorithm == "fedgbo":
            trained = [local(o, x, i, s) for i in cohort]
            s = o.t(s, sum(total for _, total in trained) / sum(K[i] for i in cohort))
            x = mean([y for y, _ in trained])
        elif algorithm in ("mimelite", "mimexlite", "mime"):
            c = mean([grad(x, i) for i in cohort])
            variate = (lambda i: c - grad(x, i)) if algorithm == "mime" else (lambda i: np.zeros(P))
            ys = [local(o, x, i, s, variate(i))[0] for i in cohort]
            x, s = mean(ys), o.t(s, c)
        elif algorithm == "mfl":
            ends = []
            for i in cohort:
                y, own = x, s
                for _ in range(K[i]):
                    y, own = stepped(o, y, grad(y, i), own)
                ends.append((y, own))
            x, s = mean([y for y, _ in ends]), {key: mean([own[key] for _, own in ends]) for key in s}
        else:
            x, s = stepped(o, x, mean([x - sgd(x, i) for i in cohort]), s)
    return x, s
