"""Make the example model: a small CNN for scikit-learn's digits with quantized activations and float weights.

The project's first model must be one that anybody may have, that is small enough to ship, and that really has
the problem which the project solves. So this script trains one from nothing, in plain numpy, within a minute:

    python examples/train_digits.py

It writes two files beside itself. `digits_qdq.onnx` is the network as a tool leaves it which only calibrates
activations: a uint8 Q/DQ pair on every activation, float weights and biases. `digits.npz` holds the held-out
images and labels, so that every claim about accuracy can be measured.

The network is a MobileNet in miniature: depthwise 3x3 and pointwise 1x1 convolutions, each with a batch norm
that is folded into it in the end. Folding is what gives the channels of real models their unequal weight
ranges, and those are what makes one scale per tensor the poorer choice. Every run writes the same bytes, on
one machine with one numpy (another may round a sum differently, and then training goes another way).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Weights = list[Floats]

HERE = Path(__file__).parent
WHITE = np.float32(16)
HELD_OUT = 500
EPOCHS = 40
BATCH = 32


class Conv:
    """A convolution, a batch norm and a Relu: forwards, and backwards. Images are (N, H, W, C) here."""

    def __init__(
        self,
        rng: np.random.Generator,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        group: int = 1,
    ) -> None:
        fan_in = inputs // group * kernel * kernel
        shape = (outputs, inputs // group, kernel, kernel)
        self.weight: Floats = rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
        self.gain: Floats = np.ones(outputs, np.float32)
        self.shift: Floats = np.zeros(outputs, np.float32)
        self.kernel, self.stride, self.group = kernel, stride, group

    def parameters(self) -> Weights:
        return [self.weight, self.gain, self.shift]

    def forward(self, x: Floats) -> Floats:
        pad, step = self.kernel // 2, self.stride
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.kernel, self.kernel), axis=(1, 2))
        windows = windows[:, ::step, ::step]
        self.into, self.out = x.shape, windows.shape[:3]
        grouped = windows.reshape(*self.out, self.group, -1, self.kernel, self.kernel)
        self.columns = grouped.transpose(3, 0, 1, 2, 4, 5, 6).reshape(self.group, math.prod(self.out), -1)
        product = self.columns @ self._matrix().transpose(0, 2, 1)
        z = product.transpose(1, 0, 2).reshape(-1, len(self.weight))
        self.mean: Floats = z.mean(axis=0)
        self.deviation: Floats = np.sqrt(z.var(axis=0) + 1e-5)
        self.normal = (z - self.mean) / self.deviation
        y: Floats = np.maximum(self.gain * self.normal + self.shift, 0)
        self.alive = y > 0
        return y.reshape(*self.out, -1)

    def backward(self, dy: Floats) -> tuple[Floats, Weights]:
        dy = dy.reshape(self.alive.shape) * self.alive
        d_gain, d_shift = (dy * self.normal).sum(axis=0), dy.sum(axis=0)
        dz = self.gain / self.deviation * (dy - (d_shift + self.normal * d_gain) / len(dy))
        dz = dz.reshape(len(dy), self.group, -1).transpose(1, 0, 2)
        d_weight = (dz.transpose(0, 2, 1) @ self.columns).reshape(self.weight.shape)
        d_columns = (dz @ self._matrix()).reshape(self.group, *self.out, -1, self.kernel, self.kernel)

        (n, height, width, channels), pad, step = self.into, self.kernel // 2, self.stride
        dx = np.zeros((n, height + 2 * pad, width + 2 * pad, channels), np.float32)
        _, rows, columns = self.out
        for i in range(self.kernel):
            for j in range(self.kernel):
                part = d_columns[..., i, j].transpose(1, 2, 3, 0, 4).reshape(*self.out, channels)
                dx[:, i : i + step * rows : step, j : j + step * columns : step] += part
        return dx[:, pad : pad + height, pad : pad + width], [d_weight, d_gain, d_shift]

    def folded(self) -> tuple[Floats, Floats]:
        """The weight and the bias of the convolution alone which does what it and its batch norm do."""
        factor = self.gain / self.deviation
        return self.weight * factor[:, None, None, None], self.shift - self.mean * factor

    def _matrix(self) -> Floats:
        return self.weight.reshape(self.group, len(self.weight) // self.group, -1)


class Head:
    """The mean over each channel, and ten linear outputs."""

    def __init__(self, rng: np.random.Generator, inputs: int) -> None:
        self.weight: Floats = rng.normal(0, np.sqrt(1 / inputs), (10, inputs)).astype(np.float32)
        self.bias: Floats = np.zeros(10, np.float32)

    def parameters(self) -> Weights:
        return [self.weight, self.bias]

    def forward(self, x: Floats) -> Floats:
        self.into = x.shape
        self.means: Floats = x.mean(axis=(1, 2))
        logits: Floats = self.means @ self.weight.T + self.bias
        return logits

    def backward(self, dy: Floats) -> tuple[Floats, Weights]:
        _, height, width, _ = self.into
        d_means = dy @ self.weight / (height * width)
        dx = np.broadcast_to(d_means[:, None, None, :], self.into)
        return dx, [dy.T @ self.means, dy.sum(axis=0)]


class Network:
    """Convolutions and a head; `forward` leaves in each layer what `gradients` and the folding need of it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.convs = [
            Conv(rng, 1, 8, kernel=3),
            Conv(rng, 8, 8, kernel=3, group=8),
            Conv(rng, 8, 16, kernel=1),
            Conv(rng, 16, 16, kernel=3, stride=2, group=16),
            Conv(rng, 16, 32, kernel=1),
        ]
        self.head = Head(rng, 32)

    def parameters(self) -> Weights:
        layers: list[Conv | Head] = [*self.convs, self.head]
        return [parameter for layer in layers for parameter in layer.parameters()]

    def activations(self, x: Floats) -> Iterator[Floats]:
        """Each activation in turn: the input, every convolution's output, the channel means, the logits."""
        yield x
        for conv in self.convs:
            yield (x := conv.forward(x))
        logits = self.head.forward(x)
        yield self.head.means
        yield logits

    def gradients(self, d_logits: Floats) -> Weights:
        """The loss's gradient by each parameter, in the order of `parameters`."""
        dx, gradients = self.head.backward(d_logits)
        for conv in reversed(self.convs):
            dx, own = conv.backward(dx)
            gradients = own + gradients
        return gradients


def train(network: Network, images: Floats, labels: Bytes, rng: np.random.Generator) -> None:
    """Cross-entropy and Adam, with a learning rate that falls to zero along a cosine."""
    adam = [(parameter, np.zeros_like(parameter), np.zeros_like(parameter)) for parameter in network.parameters()]
    steps = EPOCHS * (len(images) // BATCH)
    for step in range(1, steps + 1):
        batch = rng.choice(len(images), BATCH, replace=False)
        *_, logits = network.activations(images[batch])
        likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
        likelihoods /= likelihoods.sum(axis=1, keepdims=True)
        gradients = network.gradients((likelihoods - np.eye(10, dtype=np.float32)[labels[batch]]) / BATCH)

        rate = 0.005 * (1 + math.cos(math.pi * step / steps))
        rate *= math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for (parameter, momentum, square), gradient in zip(adam, gradients, strict=True):
            momentum += 0.1 * (gradient - momentum)
            square += 0.001 * (gradient * gradient - square)
            parameter -= rate * momentum / (np.sqrt(square) + 1e-8)


class Exporter:
    """Collects nodes and initializers; `quantize` puts a Q/DQ pair on a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.uint8]) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def quantize(self, value: str, seen: Floats, output: str | None = None) -> str:
        """A uint8 Q/DQ pair whose range is that of the values seen, widened to hold zero exactly."""
        low, high = min(float(seen.min()), 0.0), max(float(seen.max()), 0.0)
        scale = np.float32((high - low) / 255)
        zero_point = np.uint8(round(-low / float(scale)))
        parameters = [
            self.constant(f"{value}.scale", np.array(scale)),
            self.constant(f"{value}.zero_point", np.array(zero_point)),
        ]
        self.node("QuantizeLinear", [value, *parameters], f"{value}.q")
        return self.node("DequantizeLinear", [f"{value}.q", *parameters], output or f"{value}.dq")


def export(network: Network, images: Floats) -> onnx.ModelProto:
    """The folded network with the activation ranges of `images`, which also are the batch norms' statistics.

    The trained network sees pixels in 0..1; the model takes them as they are, in 0..16, by a first weight
    that is 16 times smaller (exactly so, being a power of two).
    """
    seen = list(network.activations(images))
    means, logits = seen[-2:]
    model = Exporter()
    value = model.quantize("image", seen[0] * WHITE)
    for index, (conv, activation) in enumerate(zip(network.convs, seen[1:-2], strict=True)):
        name = f"conv{index}"
        weight, bias = conv.folded()
        inputs = [
            value,
            model.constant(f"{name}.weight", weight / WHITE if index == 0 else weight),
            model.constant(f"{name}.bias", bias),
        ]
        value = model.node(
            "Conv",
            inputs,
            name,
            group=conv.group,
            kernel_shape=[conv.kernel] * 2,
            pads=[conv.kernel // 2] * 4,
            strides=[conv.stride] * 2,
        )
        value = model.quantize(model.node("Relu", [value], f"relu{index}"), activation)
    value = model.quantize(model.node("GlobalAveragePool", [value], "pool"), means)
    value = model.quantize(model.node("Flatten", [value], "flatten"), means)
    inputs = [
        value,
        model.constant("gemm.weight", network.head.weight),
        model.constant("gemm.bias", network.head.bias),
    ]
    model.quantize(model.node("Gemm", inputs, "gemm", transB=1), logits, output="logits")

    graph = helper.make_graph(
        model.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        model.initializers,
    )
    opset = helper.make_opsetid("", 17)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="train_digits.py")
    onnx.checker.check_model(proto, full_check=True)
    return proto


def accuracy(model: onnx.ModelProto, images: Bytes, labels: Bytes) -> float:
    """The share of the images that the model puts right, run as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": images.astype(np.float32)})
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def main() -> None:
    rng = np.random.default_rng(0)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images: Bytes = digits.images[order, None].astype(np.uint8)
    labels: Bytes = digits.target[order].astype(np.uint8)
    known = images[HELD_OUT:].transpose(0, 2, 3, 1).astype(np.float32) / WHITE
    network = Network(rng)
    with threadpool_limits(1):  # the order of a sum, and so its last bit, may depend on the number of threads
        train(network, known, labels[HELD_OUT:], rng)
        model = export(network, known)
    images, labels = images[:HELD_OUT], labels[:HELD_OUT]
    onnx.save(model, HERE / "digits_qdq.onnx")
    np.savez_compressed(HERE / "digits.npz", images=images, labels=labels)
    print(f"held-out accuracy: {accuracy(model, images, labels):.1%} of {len(labels)} images")


if __name__ == "__main__":
    main()
