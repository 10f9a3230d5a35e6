"""Captions in every format are matched to images, and split without an image in two splits."""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from regard.config import resolve
from regard.data.corpora import Corpus, Pairs, load_corpus
from regard.data.images.settings import CaptionsData
from regard.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def write_images(folder: Path, names: Iterable[str]) -> Path:
    for index, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (index % 256, 0, 0)).save(path)
    return folder


def load(**settings: Any) -> Corpus:
    return load_corpus(resolve(CaptionsData, settings, {}))


def pairs_of(pairs: Any, root: Path) -> list[tuple[str, str]]:
    """The pairs of a split, with paths relative to a folder."""
    return [(os.path.relpath(path, root), text) for path, text in pairs]


def all_pairs(corpus: Corpus) -> list[tuple[str, str]]:
    return [pair for split in (corpus.train, corpus.dev, corpus.test or Pairs()) for pair in split]


def test_lines_of_image_tab_caption(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", ["a.png", "b/c.png", "d.png"])
    (tmp_path / "captions.tsv").write_text("a.png\ta cat\nb/c.png\ta dog\nd.png\tone\nd.png\ttwo\n")
    (tmp_path / "dev.txt").write_text("d.png\n")
    corpus = load(images=str(images), captions=str(tmp_path / "captions.tsv"), dev=str(tmp_path / "dev.txt"))
    assert pairs_of(corpus.train, images) == [("a.png", "a cat"), ("b/c.png", "a dog")]
    assert pairs_of(corpus.dev, images) == [("d.png", "one"), ("d.png", "two")]
    assert corpus.test is None


def test_flickr8k_with_split_lists_and_images_of_another_format_in_a_zip_file(tmp_path: Path) -> None:
    """The images were converted, and the lists contain names without extension."""
    write_images(tmp_path / "files", [f"{number}_0.webp" for number in range(8)])
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in sorted((tmp_path / "files").iterdir()):
            archive.write(path, path.name)
    lines = [f"{number}_0.jpg#{k}\tCaption {k} of {number} .\n" for number in range(8) for k in range(2)]
    lines[3] = lines[3].replace("\t", "  ")  # as in one line of the corpus
    (tmp_path / "Flickr8k.token.txt").write_text("".join([*lines, "missing.jpg.1#0\tNo image .\n"]))
    for split, numbers in (("train", range(4)), ("dev", (4,)), ("test", (5, 6))):
        (tmp_path / f"{split}.txt").write_text("".join(f"{number}_0\n" for number in numbers))
    names = {split: f"{split}.txt" for split in ("train", "dev", "test")}
    corpus = load(folder=str(tmp_path), images="images.zip", captions="Flickr8k.token.txt", **names)
    assert [len(list(split or ())) for split in (corpus.train, corpus.dev, corpus.test)] == [8, 2, 4]
    assert next(iter(corpus.dev)) == (str(tmp_path / "images.zip/4_0.webp"), "Caption 0 of 4 .")
    assert not any("7_0" in path for path, _ in all_pairs(corpus)), "7 is in none of the lists"
    assert len(corpus.files) == 4


def test_captions_csv_with_a_header(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", [f"{number}.png" for number in range(10)])
    rows = "".join(f'{number}.png,"One, two, {number}"\n' for number in range(10))
    (tmp_path / "captions.txt").write_text(f"image,caption\n{rows}")
    corpus = load(images=str(images), captions=str(tmp_path / "captions.txt"))
    assert sorted(text for _, text in all_pairs(corpus)) == [f"One, two, {number}" for number in range(10)]


def test_karpathy_json_sets_the_splits(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", ["val2014/a.png", "train2014/b.png", "train2014/c.png", "d.png"])
    entries = [("val2014", "a.png", "val"), ("train2014", "b.png", "train"), ("train2014", "c.png", "restval")]
    document = {
        "dataset": "coco",
        "images": [
            {"filepath": folder, "filename": name, "split": split, "sentences": [{"raw": f"The {name}.\n"}] * 2}
            for folder, name, split in entries
        ]
        + [{"filename": "d.png", "split": "test", "sentences": [{"raw": "The d."}]}],
    }
    (tmp_path / "dataset.json").write_text(json.dumps(document))
    corpus = load(images=str(images), captions=str(tmp_path / "dataset.json"))
    assert [text for _, text in corpus.train] == ["The b.png."] * 2 + ["The c.png."] * 2
    assert pairs_of(corpus.dev, images) == [("val2014/a.png", "The a.png.")] * 2
    assert pairs_of(corpus.test, images) == [("d.png", "The d.")]


def test_coco_json_with_a_second_file_for_validation(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", [f"train/{number}.png" for number in range(3)] + ["val/9.png"])
    for name, numbers in (("train", range(3)), ("val", (9,))):
        document = {
            "info": {},
            "images": [{"id": number, "file_name": f"{number}.png"} for number in numbers],
            "annotations": [
                {"id": k, "image_id": number, "caption": f" a  caption\nof {number}"}
                for number in numbers
                for k in (0, 1)
            ],
        }
        (tmp_path / f"captions_{name}.json").write_text(json.dumps(document))
    corpus = load(
        images=str(images), captions=str(tmp_path / "captions_train.json"), dev=str(tmp_path / "captions_val.json")
    )
    assert pairs_of(corpus.train, images)[:2] == [("train/0.png", "a caption of 0")] * 2
    assert len(list(corpus.train)) == 6
    assert pairs_of(corpus.dev, images) == [("val/9.png", "a caption of 9")] * 2


def test_names_are_captions_and_every_tenth_image_is_held_out(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", [f"{number:03}x.png" for number in range(60)])
    corpus = load(images=str(images), test_every=10)
    assert [text for _, text in corpus.test or ()] == ["000x", "010x", "020x", "030x", "040x", "050x"]
    texts = {text for _, text in corpus.train}
    dev = {text for _, text in corpus.dev}
    assert dev
    assert not texts & dev
    assert len(texts) + len(dev) == 54


def test_images_are_held_out_with_all_their_captions(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", [f"{number}.png" for number in range(100)])
    lines = "".join(f"{number}.png\tcaption {k} of {number}\n" for k in range(3) for number in range(100))
    (tmp_path / "captions.tsv").write_text(lines)
    corpus = load(images=str(images), captions=str(tmp_path / "captions.tsv"))
    train, dev = ({path for path, _ in split} for split in (corpus.train, corpus.dev))
    assert not train & dev
    assert len(list(corpus.dev)) == 3 * len(dev)
    # The split depends on the names alone, not on where the folder is.
    moved = images.rename(tmp_path / "moved")
    again = load(images=str(moved), captions=str(tmp_path / "captions.tsv"))
    assert pairs_of(again.dev, moved) == pairs_of(corpus.dev, images)


def test_captions_without_image_and_images_without_caption_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = write_images(tmp_path / "images", [f"{number}.png" for number in range(30)])
    lines = "".join(f"{number}.png\tcaption {number}\n" for number in range(20))
    (tmp_path / "captions.tsv").write_text(f"{lines}gone.png\tno image\n")
    corpus = load(images=str(images), captions=str(tmp_path / "captions.tsv"))
    assert len(all_pairs(corpus)) == 20
    assert "has no image for 1 caption of 21: gone.png" in caplog.text
    assert "because they have no caption: 10 images" in caplog.text
    (tmp_path / "captions.tsv").write_text(lines + "".join(f"gone{number}.png\ttext\n" for number in range(5)))
    with pytest.raises(DataError, match=r"has no image for 5 captions of 25: gone0\.png.*At most 10% may be missing"):
        load(images=str(images), captions=str(tmp_path / "captions.tsv"))


def test_images_that_cannot_be_read_are_rejected_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = write_images(tmp_path / "images", [f"{number}.png" for number in range(30)])
    (images / "7.png").write_bytes(b"")
    (images / "8.png").write_text("text")
    settings = {"images": str(images), "test_every": 10}
    for _ in range(2):  # the second result is cached
        with pytest.raises(DataError, match=r"7\.png is empty.* 1 other image .*data\.bad_images=skip"):
            load(**settings)
    corpus = load(**settings, bad_images="skip")
    assert len(all_pairs(corpus)) == 28
    assert "Skipped 2 images" in caplog.text
    assert "7.png is empty" in caplog.text
    assert "8.png is not an image" in caplog.text
    Image.new("RGB", (4, 4)).save(images / "7.png")
    Image.new("RGB", (4, 4)).save(images / "8.png")
    assert len(all_pairs(load(**settings))) == 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"images": [{"id": 1}]}', r"captions\.json is neither COCO captions .* nor Karpathy's splits"),
        ('{"images": [', r"captions\.json is not valid JSON"),
        ("", r"captions\.json is empty"),
    ],
)
def test_a_damaged_json_file_is_reported(tmp_path: Path, content: str, message: str) -> None:
    write_images(tmp_path / "images", ["a.png"])
    (tmp_path / "captions.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load(images=str(tmp_path / "images"), captions=str(tmp_path / "captions.json"))


def test_a_folder_without_images_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(DataError, match="contains no images"):
        load(images=str(tmp_path))
    with pytest.raises(DataError, match="is not a zip file"):
        load(images=str(tmp_path / "notes.txt"))
    with pytest.raises(DataError, match="There is no folder or zip file"):
        load(images=str(tmp_path / "missing"))


@pytest.mark.skipif("REGARD_FLICKR8K" not in os.environ, reason="set REGARD_FLICKR8K to the folder of the corpus")
def test_flickr8k() -> None:
    names = {split: f"Flickr_8k.{split}Images.txt" for split in ("train", "dev", "test")}
    folder = os.environ["REGARD_FLICKR8K"]
    images = next(path.name for path in Path(folder).iterdir() if path.suffix == ".zip" or path.is_dir())
    captions = next(path.name for path in Path(folder).iterdir() if path.name.startswith("Flickr8k.token"))
    corpus = load(folder=folder, images=images, captions=captions, **names)
    assert [len(list(split or ())) for split in (corpus.train, corpus.dev, corpus.test)] == [30_000, 5_000, 5_000]
