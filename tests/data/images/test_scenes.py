"""Scenes: captions are true of their pictures, and boxes contain the objects."""

import numpy as np
import pytest

from regard.data.corpora import load_corpus
from regard.data.images.reader import ImageReader
from regard.data.images.scenes import COLORS, Box, Scene, sample
from regard.data.images.settings import ScenesData

SETTINGS = ScenesData(train=200, dev=50, test=50)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return sample(SETTINGS)


def center(box: Box) -> tuple[float, float]:
    return (box.top + box.bottom) / 2, (box.left + box.right) / 2


def words_of(scene: Scene, box: Box) -> list[str]:
    return scene.caption.split()[box.first_word : box.end_word]


def test_each_box_contains_the_object_that_its_words_name(scenes: list[Scene]) -> None:
    for scene in scenes:
        assert scene.pixels.shape == (64, 64, 3)
        background = scene.pixels[(scene.pixels == scene.pixels[..., :1]).all(-1)].max(0)
        painted = (scene.pixels != background).any(-1)
        for box in scene.boxes:
            _, size, color, _ = words_of(scene, box)
            inside = scene.pixels[box.top : box.bottom, box.left : box.right]
            assert (inside == COLORS[color]).all(-1).mean() > 0.3
            assert (box.bottom - box.top > 17) == (size == "large")
            painted[box.top : box.bottom, box.left : box.right] = False
        assert not painted.any(), "every painted pixel is in a box"


def test_relations_are_true(scenes: list[Scene]) -> None:
    found = set()
    for scene in scenes:
        if len(scene.boxes) < 2:
            continue
        first, second = scene.boxes
        relation = " ".join(scene.caption.split()[first.end_word : second.first_word])
        found.add(relation)
        (y1, x1), (y2, x2) = center(first), center(second)
        true = {"left of": x1 < x2, "right of": x1 > x2, "above": y1 < y2, "below": y1 > y2}
        assert true[relation]
        horizontal = relation in {"left of", "right of"}
        assert (abs(x1 - x2) > abs(y1 - y2)) == horizontal, "no other relation describes the picture better"
    assert found == {"left of", "right of", "above", "below"}


def test_a_picture_has_one_correct_caption(scenes: list[Scene]) -> None:
    """The larger object is mentioned first; of equal sizes, the left or the upper one."""
    for scene in scenes:
        sizes = [words_of(scene, box)[1] for box in scene.boxes]
        assert sizes == sorted(sizes)
        if len(set(sizes)) == 1 and len(sizes) == 2:
            assert "right of" not in scene.caption
            assert "below" not in scene.caption


def test_scenes_are_a_function_of_seed_and_split(scenes: list[Scene]) -> None:
    again = sample(SETTINGS)
    assert all((one.pixels == other.pixels).all() for one, other in zip(scenes, again, strict=True))
    assert [scene.caption for scene in scenes] == [scene.caption for scene in again]
    fewer = sample(ScenesData(train=10))
    assert [scene.caption for scene in fewer] == [scene.caption for scene in scenes[:10]]
    other_seed = sample(SETTINGS.model_copy(update={"seed": 1}))
    assert [scene.caption for scene in other_seed] != [scene.caption for scene in scenes]
    dev = sample(SETTINGS, "dev")
    assert [scene.caption for scene in dev] != [scene.caption for scene in scenes[:50]]


def test_the_corpus_has_a_stable_fingerprint() -> None:
    reader = ImageReader(64, 64)
    hashes = [load_corpus(SETTINGS).fingerprint(reader.fingerprint) for _ in range(2)]
    assert hashes[0] == hashes[1]
    other = load_corpus(SETTINGS.model_copy(update={"seed": 1})).fingerprint(reader.fingerprint)
    assert other != hashes[0]


def test_other_sizes_are_drawn() -> None:
    scene = sample(ScenesData(train=1, height=48, width=96))[0]
    assert scene.pixels.shape == (48, 96, 3)
    assert np.unique(scene.pixels.reshape(-1, 3), axis=0).shape[0] in {2, 3}
