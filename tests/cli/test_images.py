"""Images through the command line: training without a config, prediction, evaluation, and every kind of bad input."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.api.model import OneSource
from tests_command import Result, run_preloaded

Run = Callable[..., Result]

COLORS = ["red", "green", "blue", "yellow"]
FAST = ("model.encoder.channels=[8,16,32]", "model.decoder.hidden=64", "model.embedding=16", "training.threads=1")


def draw(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Draw plain images in two halves of different colors. Return lines with their names and captions."""
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        left, right = (COLORS[index] for index in generator.choice(4, 2, replace=False))
        image = Image.new("RGB", (32, 32), left)
        image.paste(right, (16, 0, 32, 32))
        image.save(folder / f"{number:03}.png")
        lines.append(f"{number:03}.png\t{left} and then {right}\n")
    return lines


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a caption file, and a captioner that was trained without a config."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "photos").mkdir()
    (folder / "captions.tsv").write_text("".join(draw(folder / "photos", 160)))
    words = ["train", "--images", "photos", "--pairs", "captions.tsv", "--out", "run", "training.steps=100", *FAST]
    done = run_preloaded([*words, "training.learning_rate=0.004", "model.dropout=0"], b"", folder, 300)
    assert done.returncode == 0, done.stderr
    (folder / "train.log").write_text(done.stderr)
    return folder


@pytest.mark.slow
def test_training_without_a_config_gives_the_reasons_for_its_choices(project: Path) -> None:
    log = (project / "train.log").read_text()
    assert "of about 32 × 32 pixels" in log
    assert "Tokenizer: words, about 6 different ones" in log
    assert "Encoder: a convolutional network for 32 × 32 pixels" in log
    assert "Images are held out with all their captions" in log
    assert "the best checkpoint is selected by bleu" in log


def test_a_captioner_describes_new_images(cli: Run, project: Path, tmp_path: Path) -> None:
    lines = draw(tmp_path, 20, seed=1)
    (tmp_path / "captions.tsv").write_text("".join(lines))
    done = cli(
        "evaluate", project / "run", "--images", ".", "--pairs", "captions.tsv", "--min", "accuracy=0.9", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split("\t")[0] for line in lines]
    piped = cli("predict", project / "run", cwd=tmp_path, stdin="".join(f"{name}\n" for name in names))
    assert piped.returncode == 0, piped.stderr
    expected = [line.strip().split("\t")[1] for line in lines]
    assert sum(text == other for text, other in zip(piped.stdout.splitlines(), expected, strict=True)) >= 18


def test_images_in_a_zip_file_in_python_and_on_the_command_line(cli: Run, project: Path, tmp_path: Path) -> None:
    lines = draw(tmp_path, 3, seed=2)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(tmp_path.glob("*.png")):
            archive.write(path, path.name)
    (tmp_path / "captions.tsv").write_text("".join(lines))
    done = cli("evaluate", project / "run", "--images", "photos.zip", "--pairs", "captions.tsv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predicted = cli("predict", project / "run", "photos.zip/001.png", cwd=tmp_path).stdout.strip()
    model = regard.load(project / "run")
    with Image.open(tmp_path / "001.png") as image:
        sources: list[OneSource] = [str(tmp_path / "001.png"), tmp_path / "001.png", image, np.asarray(image)]
        for source in sources:
            assert model.predict(source).text == predicted


def png(width: int, height: int) -> bytes:
    """A PNG file that declares a size, with almost no data."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def truncated_jpeg() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "jpeg")
    return buffer.getvalue()[:1500]


BAD = {
    "empty.png": (b"", "empty.png is empty (0 bytes)"),
    "text.png": (b"This is text.", "text.png is not an image"),
    "truncated.jpg": (truncated_jpeg(), "truncated.jpg is a damaged image"),
    "zero.png": (png(0, 0), "zero.png is not an image of at least 1 × 1 pixels"),
    "bomb.png": (png(40_000, 40_000), "bomb.png has too many pixels: the limit is 89 million"),
}


def write_bad_images(folder: Path) -> None:
    for name, (content, _) in BAD.items():
        (folder / name).write_bytes(content)


def test_bad_images_do_not_affect_other_predictions(cli: Run, project: Path, tmp_path: Path) -> None:
    write_bad_images(tmp_path)
    good = str(project / "photos/000.png")
    names = [good, "missing.png", *BAD, good]
    done = cli("predict", project / "run", *names, cwd=tmp_path)
    assert done.returncode == 3
    first, *between, last = done.stdout.splitlines()
    assert first == last != ""
    assert between == [""] * (1 + len(BAD))
    for message in ["There is no file missing.png", *(message for _, message in BAD.values())]:
        assert message in done.stderr
    assert "6 of 8 images could not be read" in done.stderr
    as_json = cli("predict", project / "run", "--json", "empty.png", good, cwd=tmp_path)
    failed, predicted = map(json.loads, as_json.stdout.splitlines())
    assert failed == {"source": "empty.png", "error": "empty.png is empty (0 bytes). Copy or download the image again."}
    assert predicted["text"] == first


@pytest.mark.parametrize("name", ["animated.gif", "deep.png", "cmyk.jpg", "transparent.png", "gray.png", "palette.png"])
def test_every_kind_of_image_is_captioned(cli: Run, project: Path, tmp_path: Path, name: str) -> None:
    image = Image.new("RGB", (32, 32), "red")
    image.paste("blue", (16, 0, 32, 32))
    variants = {
        "deep.png": Image.fromarray(np.full((20, 20), 40_000, np.uint16)),
        "cmyk.jpg": image.convert("CMYK"),
        "transparent.png": image.convert("RGBA"),
        "gray.png": image.convert("L"),
        "palette.png": image.convert("P"),
    }
    if name == "animated.gif":
        image.save(tmp_path / name, save_all=True, append_images=[Image.new("RGB", (32, 32), "green")])
    else:
        variants[name].save(tmp_path / name)
    done = cli("predict", project / "run", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if name in {"animated.gif", "cmyk.jpg", "transparent.png", "palette.png"}:
        assert done.stdout == "red and then blue\n"


def train(cli: Run, folder: Path, *words: str) -> Result:
    return cli("train", "--images", "photos", "--out", "run", "training.steps=1", *FAST, *words, cwd=folder)


def test_bad_images_are_rejected_or_skipped_in_training(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    lines = draw(tmp_path / "photos", 40)
    write_bad_images(tmp_path / "photos")
    (tmp_path / "captions.tsv").write_text("".join([*lines, *(f"{name}\tbad\n" for name in BAD)]))
    rejected = train(cli, tmp_path, "--pairs", "captions.tsv")
    assert rejected.returncode == 3
    assert "photos/bomb.png has too many pixels" in rejected.stderr
    assert "4 other images" in rejected.stderr
    assert "data.bad_images=skip" in rejected.stderr
    assert not (tmp_path / "run").exists()
    skipped = train(cli, tmp_path, "--pairs", "captions.tsv", "data.bad_images=skip")
    assert skipped.returncode == 0, skipped.stderr
    assert "Skipped 5 images that cannot be read" in skipped.stderr
    for _, message in BAD.values():
        assert message in skipped.stderr


def test_captions_without_image_and_images_without_caption(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    lines = draw(tmp_path / "photos", 40)
    (tmp_path / "captions.tsv").write_text("".join([*lines[:35], "gone.png\tno image\n"]))
    done = train(cli, tmp_path, "--pairs", "captions.tsv")
    assert done.returncode == 0, done.stderr
    assert "has no image for 1 caption of 36: gone.png" in done.stderr
    assert "because they have no caption: 5 images" in done.stderr
    (tmp_path / "captions.tsv").write_text("".join(f"x{line}" for line in lines))
    done = train(cli, tmp_path, "--pairs", "captions.tsv", "--out", "other")
    assert done.returncode == 3
    assert "has no image for 40 captions of 40: x000.png" in done.stderr
    assert "Check the folder of the images" in done.stderr


def test_names_of_images_are_their_captions_without_pairs(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(60):
        Image.new("L", (40, 16), 4 * number).save(tmp_path / f"photos/{number % 7}{number:02}x.png")
    done = train(cli, tmp_path, "data.test_every=10")
    assert done.returncode == 0, done.stderr
    assert "single words" in done.stderr
    assert "Tokenizer: characters." in done.stderr
    assert "Encoder: a convolutional network for 32 × 40 pixels" in done.stderr
    assert "6 captions as a test set" in done.stderr
    evaluated = cli("evaluate", "run", "--metric", "cer", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "on 6 pairs" in evaluated.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "run", "--pairs", "captions.tsv"), "with --images"),
        (("evaluate", "run", "--images", "missing", "--pairs", "captions.tsv"), "no folder or zip file missing"),
        (("train", "--images", "photos", "--source", "a", "--target", "b"), "--images needs --pairs"),
        (("train", "--images", "missing", "--pairs", "captions.tsv"), "There is no folder or zip file missing"),
        (("train", "--images", "captions.tsv"), "captions.tsv is not a zip file"),
        (("train", "--images", "photos", "--pairs", "missing.tsv"), "There is no file missing.tsv"),
        (("train", "dates", "data={kind: captions, images: photos}"), "reads sources of the kind 'text'"),
    ],
)
def test_wrong_arguments_are_explained(cli: Run, project: Path, words: tuple[str, ...], message: str) -> None:
    done = cli(*words, cwd=project)
    assert done.returncode in {2, 3}
    assert message in done.stderr
