"""Top-1 on real digits: what the main job costs where it counts.

The judge is scikit-learn's 1,797 labelled images of 8 x 8 pixels. The `digits_*` files were trained on such, the
`mnist_*` files on 28 x 28: for those the images are enlarged, and moved so that their centre of mass lies in the
middle, as those of MNIST do. Every file then knows more than nine of ten, so that the preparation is right.
"""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import parser
from sklearn.datasets import load_digits

import rewriter
import rules
from tests import real_models, sessions
from tests.real_models import Row

pytestmark = real_models.needs_shared

Floats = npt.NDArray[np.float32]
ROWS = [row for row in real_models.table() if row.name.startswith(("digits_", "mnist_"))]
BOX = 18  # pixels of the enlarged digit


@functools.cache
def digits() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Images of 8 x 8 from 0 to 1, and what they show."""
    bunch = load_digits()
    return (bunch.images / 16).astype(np.float32), bunch.target


@functools.cache
def like_mnist() -> Floats:
    """Images of 28 x 28 from 0 to 1."""
    images, _ = digits()
    resize = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,1,8,8] x) => (float[N,1,{BOX},{BOX}] y) <int64[4] sizes = {{{len(images)}, 1, {BOX}, {BOX}}}> {{
            y = Resize<mode = "cubic">(x, , , sizes)
        }}""")
    large = sessions.run(resize, {"x": images[:, None]})[0][:, 0]
    canvas = np.zeros((len(images), 28, 28), np.float32)
    canvas[:, :BOX, :BOX] = np.clip(large, 0, 1)
    pixels = np.arange(28)
    for image in canvas:
        rows, columns = (np.average(pixels, weights=image.sum(axis)) for axis in (1, 0))
        image[:] = np.roll(image, (round(13.5 - rows), round(13.5 - columns)), (0, 1))
    return canvas


INPUTS: dict[str, Callable[[], Floats]] = {
    "digits_cnn.real": lambda: digits()[0][:, None],
    "digits_mlp.real": lambda: digits()[0].reshape(-1, 64),
    "mnist_cnn_pytorch.real": lambda: (like_mnist()[:, None] - np.float32(0.1307)) / np.float32(0.3081),
    "mnist_cntk.real": lambda: like_mnist()[:, None] * np.float32(255),
}
"""What each file was trained on."""


def top_1(row: Row, model: onnx.ModelProto) -> float:
    """Per cent of the digits that a model knows. The `mnist_*` files take one at a time."""
    session, images = sessions.session(model), INPUTS[row.name]()
    (name,) = real_models.inputs(row)[0]
    size = len(images) if row.name.startswith("digits_") else 1
    batches = (images[k : k + size] for k in range(0, len(images), size))
    answers = np.concatenate([session.run(None, {name: batch})[0].argmax(-1) for batch in batches])
    return 100 * float(np.mean(answers == digits()[1]))


@functools.cache
def float_top_1(row: Row) -> float:
    return top_1(row, onnx.load(row.path))


def test_there_are_four_files() -> None:
    assert sorted(row.name for row in ROWS) == sorted(INPUTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_images_are_prepared_as_the_file_wants_them(row: Row) -> None:
    assert float_top_1(row) > 90


@pytest.mark.parametrize("rounding", ["balanced", "nearest"])
@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_top_1_is_that_of_float_weights(row: Row, backend: str, rounding: str) -> None:
    quantized = rewriter.apply(onnx.load(row.path), rules.WeightBias(backend=backend, rounding=rounding))
    assert quantized != onnx.load(row.path)
    assert abs(top_1(row, quantized) - float_top_1(row)) <= 0.2
