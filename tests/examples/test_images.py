"""ResNet's examples as a reader starts them, on few small images."""

from __future__ import annotations

import numpy as np
import pytest
from example_scripts import ONE_THREAD, losses, run, run_two_ranks
from PIL import Image

pytestmark = pytest.mark.slow

SMALL = ("--network", "resnet18", "--size", "32", "data.batch_size=8", "trainer.max_steps=3")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder for each of three classes, which differ in colour."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(36):
        pixels = rng.integers(0, 128, (40, 40, 3), np.uint8)
        pixels[:, :, number % 3] += 100
        path = folder / "rgb"[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def test_two_ranks_have_the_losses_of_one_as_a_static_graph(images, tmp_path):
    script = ("resnet.py", "--images", images, *SMALL)
    expected = losses(run(tmp_path, *script, "--static", environment=ONE_THREAD))
    output = run_two_ranks(tmp_path, *script)
    assert losses(output) == pytest.approx(expected, rel=1e-3)
    assert len(set(expected)) == 3
    assert "accuracy " in output
    assert " on 3 images, " in output


def test_slow_and_fast_reader_are_measured_and_drawn(images, tmp_path):
    words = ("--steps", 14, "--images", images, "data.batch_size=8")
    said = run(tmp_path, "reader.py", *words, environment=ONE_THREAD)
    header, *rows, where = said.splitlines()
    assert header.split()[0] == "workers"
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all(0 < float(row.split()[3].rstrip("%")) < 100 for row in rows)
    picture = (tmp_path / where.split()[1].rstrip(";")).read_text(encoding="utf-8")
    assert "reader" in picture
    assert "0 workers" in picture
