"""Ctrl-C in the middle of a backward pass."""

from __future__ import annotations

import os
import signal

import paddle
import pytest

from fleetbert.compat import training


class TestCtrlC:
    class Interrupted(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            os.kill(os.getpid(), signal.SIGINT)
            return gradient * 2

    def backward(self):
        weight = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
        self.Interrupted.apply(weight).sum().backward()
        return weight.grad.tolist()

    def test_paddle_makes_an_oserror_of_it(self):  # or else `interrupt_waits` can go
        with pytest.raises(OSError, match="KeyboardInterrupt"):
            self.backward()

    def test_it_comes_after_the_backward_pass(self):
        done = []
        with pytest.raises(KeyboardInterrupt), training.interrupt_waits():
            done.append(self.backward())
        assert done == [[2.0, 2.0]]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_the_second_is_heard_at_once(self):
        with pytest.raises(OSError, match="KeyboardInterrupt"), training.interrupt_waits():
            os.kill(os.getpid(), signal.SIGINT)
            self.backward()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
