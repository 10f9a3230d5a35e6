"""The cache of features: computed once per distinct source, and identified by sources, weights and preprocessing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import regard
from regard.data.features import CachedFeatures, cache_features, hash_weights
from regard.data.images.reader import ImageReader
from regard.models.contracts import FrozenPart
from regard.models.seq2seq import build_efficientnet_encoder
from regard.models.settings import EfficientNetEncoderSettings
from regard.models.vision.sources import Features, Pixels

Image = NDArray[np.uint8]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    return tmp_path


READER = ImageReader(height=8, width=8)


class Counter:
    """A frozen part that counts the images that it reads."""

    def __init__(self, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> None:
        torch.manual_seed(0)
        self.module = nn.Conv2d(3, 5, 4, stride=4)
        nn.init.constant_(self.module.weight, scale / 48)
        self.read = 0
        self.part = FrozenPart(self.module, self.compute, Features, dtype)

    def compute(self, source: Pixels) -> Tensor:
        self.read += len(source.pixels_B3HW)
        output: Tensor = self.module(source.pixels_B3HW.float()).flatten(2).transpose(1, 2)
        return output


def draw(count: int) -> list[Image]:
    generator = np.random.default_rng(0)
    return [generator.integers(256, size=(8, 8, 3), dtype=np.uint8) for _ in range(count)]


def features_of(counter: Counter, sources: Sequence[Image], reader: ImageReader = READER) -> CachedFeatures:
    return cache_features(counter.part, reader.encode(sources), sources, reader, CPU, lambda _: None)


def test_features_are_computed_once_per_distinct_source_and_then_read_from_the_cache() -> None:
    images = draw(70)
    sources = [*images, images[3].copy(), images[0]]  # images with several captions
    first = Counter()
    features = features_of(first, sources)
    assert first.read == 70
    assert len(features) == 72
    second = Counter()
    again = features_of(second, sources)
    assert second.read == 0
    rows = [71, 3, 70, 42]
    source = again.batch(rows)
    assert isinstance(source, Features)
    expected = first.compute(READER.encode(sources).batch(rows))
    assert torch.equal(source.features_BSD, expected.half())
    assert torch.equal(source.features_BSD, features.batch(rows, epoch=3).tensors[0])
    assert again.lengths.tolist() == again.epoch_lengths(2).tolist() == READER.encode(sources).lengths.tolist()


def test_other_sources_weights_preprocessing_or_precision_are_computed_again() -> None:
    images = draw(3)
    features_of(Counter(), images)
    for counter, sources, reader in (
        (Counter(), images[:2], READER),
        (Counter(), [images[0], images[1], images[2] // 2], READER),
        (Counter(scale=2.0), images, READER),
        (Counter(torch.float32), images, READER),
        (Counter(), images, ImageReader(height=8, width=12)),
        (Counter(), images, ImageReader(height=8, width=12, resize="crop")),
    ):
        features_of(counter, sources, reader)
        assert counter.read == len(sources)
    unchanged = Counter()
    features_of(unchanged, images)
    assert unchanged.read == 0


def test_the_dtype_of_the_cache_is_that_of_the_frozen_part() -> None:
    for dtype in (torch.float16, torch.float32):
        (tensor,) = features_of(Counter(dtype), draw(2)).batch([1]).tensors
        assert tensor.dtype == dtype
        assert tensor.shape == (1, 4, 5)


def test_values_that_do_not_fit_the_dtype_are_reported() -> None:
    with pytest.raises(regard.ModelError, match=r"that float16 cannot represent. Set model.encoder.cache=float32"):
        features_of(Counter(scale=1e4), draw(2))
    assert features_of(Counter(torch.float32, scale=1e4), draw(2)).batch([0]).tensors[0].isfinite().all()


def test_a_damaged_entry_is_computed_again(cache: Path) -> None:
    images = draw(2)
    features_of(Counter(), images)
    (path,) = cache.glob("features/*/features.npy")
    path.write_bytes(path.read_bytes()[:-1])
    counter = Counter()
    features_of(counter, images)
    assert counter.read == 2


def test_the_hash_of_weights_depends_on_names_and_values() -> None:
    layer = nn.Linear(2, 2)
    before = hash_weights(layer)
    assert hash_weights(nn.Sequential(layer)) != before
    with torch.no_grad():
        layer.bias[0] += 1e-3
    assert hash_weights(layer) != before


def test_an_encoder_reads_cached_features_as_it_reads_pixels() -> None:
    torch.manual_seed(0)
    settings = EfficientNetEncoderSettings(height=32, width=32, stage="stage2", cache="float32", size=6)
    encoder = build_efficientnet_encoder(settings)
    generator = np.random.default_rng(0)
    images = [generator.integers(256, size=(32, 32, 3), dtype=np.uint8) for _ in range(3)]
    part, reader = encoder.frozen_part, ImageReader(height=32, width=32)
    assert part is not None
    encoded = reader.encode(images)
    features = cache_features(part, encoded, images, reader, CPU, lambda _: None)
    expected, actual = encoder(encoded.batch([2, 0])), encoder(features.batch([2, 0]))
    torch.testing.assert_close(actual.slots_BSD, expected.slots_BSD)
    assert actual.layout == expected.layout
