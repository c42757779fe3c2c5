"""AdamW in NumPy, written from Loshchilov and Hutter 2019, with clipping and a schedule."""

from __future__ import annotations

import numpy as np


class NumpyAdamW:
    def __init__(self, weights, spared, rate, settings):
        self.weights, self.spared, self.rate, self.settings = weights, spared, rate, settings
        self.first = {name: np.zeros_like(w) for name, w in weights.items()}
        self.second = {name: np.zeros_like(w) for name, w in weights.items()}
        self.steps = 0

    def step(self, gradients):
        s = self.settings
        rate = self.rate(self.steps)
        self.steps += 1
        length = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        clip = s["max_grad_norm"] / max(length, s["max_grad_norm"]) if s["max_grad_norm"] else 1.0
        for name, gradient in gradients.items():
            decay = 0.0 if name in self.spared else s["weight_decay"]
            self.update(name, gradient * clip, rate, decay)

    def update(self, name, g, rate, decay):
        s = self.settings
        m, v = self.first[name], self.second[name]
        m[:] = s["beta1"] * m + (1 - s["beta1"]) * g
        v[:] = s["beta2"] * v + (1 - s["beta2"]) * g**2
        m_hat = m / (1 - s["beta1"] ** self.steps)
        v_hat = v / (1 - s["beta2"] ** self.steps)
        self.move(self.weights[name], m_hat / (np.sqrt(v_hat) + s["epsilon"]), rate, decay)

    def move(self, weight, move, rate, decay):
        weight *= 1 - rate * decay
        weight -= rate * move


def linear_rate(step, peak, total, warmup):
    """Rises over the first `warmup` steps, the last of which has the peak; 0 after the last."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)
