"""Images are read in batches, once per corpus if they fit into memory, and hashed by their content."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.corpora import load_corpus
from regard.data.images.augmentation import ImageAugmentation
from regard.data.images.reader import EncodedImages, ImageReader, to_batch
from regard.data.images.settings import ScenesData
from regard.data.source_readers import register_reader
from regard.data.sources import AugmentedSources, MaskRegion
from regard.errors import ConfigError
from regard.models.contracts import Grid

READER = ImageReader(height=8, width=12)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Four images of different sizes."""
    names = []
    for number in range(4):
        image = Image.new("RGB", (10 + number, 20), (10 * number, 0, 255))
        image.save(tmp_path / f"{number}.png")
        names.append(str(tmp_path / f"{number}.png"))
    return names


def test_files_arrays_and_images_give_the_same_batch(paths: list[str]) -> None:
    images = [Image.open(path) for path in paths]
    sources: list[Any] = [*paths, *map(np.asarray, images), *images, *map(Path, paths)]
    assert all(map(READER.is_source, sources))
    assert not READER.is_source(paths)
    batch = READER.collate(READER.read(sources))
    assert batch.pixels_B3HW.shape == (16, 3, 8, 12)
    for start in (4, 8, 12):
        assert batch.pixels_B3HW[start : start + 4].equal(batch.pixels_B3HW[:4])
    assert batch.pixels_B3HW[3, :, 0, 0].tolist() == [30, 0, 255]
    for image in images:
        image.close()


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_a_corpus_reads_an_image_with_several_captions_once(
    paths: list[str], max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = EncodedImages(READER, [path for path in paths for _ in range(5)], max_bytes)
    expected = READER.collate(READER.read([paths[3], paths[0], paths[0]]))
    reads: list[Any] = []

    def read_pixels(source: Any, *size: int) -> Any:
        reads.append(source)
        return np.full((8, 12, 3), 9, np.uint8)

    monkeypatch.setattr("regard.data.images.reader.read_pixels", read_pixels)
    batch = encoded.batch([15, 0, 4])
    assert len(encoded) == 20
    assert batch.pixels_B3HW.shape == expected.pixels_B3HW.shape
    assert len(reads) == (2 if max_bytes else 3)
    encoded.batch([16, 1, 3], epoch=1)
    assert len(reads) == (2 if max_bytes else 6)


def test_batches_contain_the_images_of_their_rows(paths: list[str]) -> None:
    encoded = READER.encode([paths[2], paths[0], paths[2], paths[1]])
    for _ in range(2):
        batch = encoded.batch([3, 2, 0])
        assert batch.pixels_B3HW[:, 0, 0, 0].tolist() == [10, 20, 20]


def test_the_fingerprint_is_that_of_the_content(paths: list[str], tmp_path: Path) -> None:
    before = READER.fingerprint(paths[0])
    copy = tmp_path / "copy.png"
    copy.write_bytes(Path(paths[0]).read_bytes())
    assert READER.fingerprint(str(copy)) == before
    copy.write_bytes(Path(paths[1]).read_bytes())
    assert READER.fingerprint(str(copy)) != before
    pixels = np.zeros((4, 6, 3), np.uint8)
    assert READER.fingerprint(pixels) == READER.fingerprint(pixels.copy())
    assert READER.fingerprint(pixels) != READER.fingerprint(pixels.reshape(6, 4, 3))


def test_problems_are_found_without_an_exception(paths: list[str]) -> None:
    assert READER.find_problem(paths[0]) is None
    assert "There is no file" in str(READER.find_problem("missing.png"))
    assert "is empty" in str(READER.find_problem(""))


def test_the_reader_of_images_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="reader of image cannot be replaced"):
        register_reader("image", ImageReader)


def test_augmentation_is_a_function_of_seed_epoch_and_index() -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 12, 3), np.uint8)
    encoded = READER.encode(list(images))
    sources = AugmentedSources(encoded, ImageAugmentation(flip=0.5, crop=0.6), seed=3)
    first = sources.batch(range(6), epoch=1).tensors[0]
    # An image is augmented in the same way, whatever the other images of its batch are.
    assert sources.batch([4, 2], epoch=1).tensors[0].equal(first[[4, 2]])
    assert not sources.batch(range(6), epoch=2).tensors[0].equal(first)
    other_seed = AugmentedSources(encoded, ImageAugmentation(flip=0.5, crop=0.6), seed=4)
    assert not other_seed.batch(range(6), epoch=1).tensors[0].equal(first)
    assert first.shape == (6, 3, 8, 12)
    assert 0 <= first.min() <= first.max() <= 255


def test_a_flip_mirrors_the_columns_and_a_crop_enlarges_a_part() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (2, 8, 12, 3), np.uint8)
    source = to_batch(pixels)
    flipped = ImageAugmentation(flip=1.0)(source, [0, 1], 0, 0)
    np.testing.assert_allclose(flipped.pixels_B3HW, source.pixels_B3HW.flip(-1), atol=1e-3)
    ramp = to_batch(np.arange(12, dtype=np.uint8)[None, None, :, None].repeat(8, 1).repeat(3, 3))
    for seed in range(10):
        row = ImageAugmentation(crop=0.5)(ramp, [0], 0, seed).pixels_B3HW[0, 0, 4]
        steps = row.diff()[2:-2]
        assert 0.5 - 1e-3 <= steps.min() <= steps.max() <= 1
        assert steps.max() - steps.min() < 1e-3


def test_the_augmentation_of_the_data_applies_to_training_only() -> None:
    size = {"train": 2, "dev": 2, "test": 2}
    assert load_corpus(ScenesData(**size)).augment is None
    augmented = load_corpus(ScenesData(**size, augmentation={"crop": 0.8}))
    assert augmented.augment == ImageAugmentation(0.0, 0.8)


def test_masked_cells_have_the_average_color(paths: list[str]) -> None:
    pixels_HW3 = np.zeros((8, 12, 3), np.uint8)
    pixels_HW3[:4, :4] = (240, 60, 0)  # the first of 2 × 3 cells
    [item] = READER.read([pixels_HW3])
    edited = READER.edit(item, MaskRegion(cells=(0, 4)), Grid(2, 3))
    expected = np.zeros_like(pixels_HW3)
    expected[:4, :4] = expected[4:, 4:8] = (40, 10, 0)
    np.testing.assert_array_equal(edited.pixels, expected)
    assert READER.edit(READER.read(paths)[0], MaskRegion(cells=(0,)), Grid(2, 3)).label == paths[0]
    with pytest.raises(
        ConfigError, match=r"there is no cell 6: the grid of the image has 6 cells. Use cell 0 to 5, counted from 0"
    ):
        READER.edit(item, MaskRegion(cells=(0, 6)), Grid(2, 3))
    with pytest.raises(ConfigError, match="does not arrange the slots of an image in a grid"):
        READER.edit(item, MaskRegion(cells=(0,)), None)
