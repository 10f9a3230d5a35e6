"""Images of every mode and format become the same pixels; files that are not images are reported by name."""

import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.images.pixels import load_image, read_pixels
from regard.errors import ConfigError, DataError

RED_AND_BLUE = np.zeros((2, 4, 3), np.uint8)
RED_AND_BLUE[:, :2, 0] = RED_AND_BLUE[:, 2:, 2] = 255


def picture() -> Image.Image:
    """An image with a red left half and a blue right half."""
    return Image.fromarray(RED_AND_BLUE)


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def huge_png(width: int, height: int) -> bytes:
    """A PNG file that declares a size, with almost no data."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0")) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def read(path: Path) -> Any:
    return np.asarray(load_image(str(path)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_color_modes_give_the_same_pixels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.tiff" if mode == "CMYK" else "image.png")
    picture().convert(mode).save(path)
    np.testing.assert_array_equal(read(path), RED_AND_BLUE)


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("1", np.array([[False, True]])),
        ("L", np.array([[0, 255]], np.uint8)),
        ("I;16", np.array([[0, 65535]], np.uint16)),
        ("F", np.array([[0, 1]], np.float32)),
        ("F", np.array([[0, 255]], np.float32)),
    ],
)
def test_gray_modes_become_rgb(tmp_path: Path, mode: str, values: Any) -> None:
    path = tmp_path / "image.tiff"
    Image.fromarray(values).save(path)
    with Image.open(path) as image:
        assert image.mode == mode
    np.testing.assert_array_equal(read(path), [[[0] * 3, [255] * 3]])


def test_a_16_bit_png_is_scaled_and_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 32896, 65535]], np.uint16)).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(read(tmp_path / "deep.png")[0, :, 0], [0, 128, 255])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(np.array([[[0, 0, 0, 255], [0, 0, 0, 0]]], np.uint8))
    image.convert(mode).save(tmp_path / "image.png")
    np.testing.assert_array_equal(read(tmp_path / "image.png"), [[[0] * 3, [255] * 3]])


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise to display
    picture().save(tmp_path / "image.png", exif=exif)
    pixels = read(tmp_path / "image.png")
    assert pixels.shape == (4, 2, 3)
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[-1, 0].tolist() == [0, 0, 255]


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (3, 3), color) for color in ("red", "blue", "green")]
    frames[0].save(tmp_path / "animated.gif", save_all=True, append_images=frames[1:])
    assert read(tmp_path / "animated.gif")[1, 1].tolist() == [255, 0, 0]


def test_images_in_a_zip_file_are_read_in_place(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture().save(buffer, "png")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("folder/a.png", buffer.getvalue())
    np.testing.assert_array_equal(read(tmp_path / "images.zip/folder/a.png"), RED_AND_BLUE)
    with pytest.raises(DataError, match=r"no file folder/b\.png in .*images\.zip\. Did you mean 'folder/a\.png'"):
        read(tmp_path / "images.zip/folder/b.png")


def write_truncated(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "jpeg")
    path.write_bytes(buffer.getvalue()[:1500])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.unlink(missing_ok=True), r"There is no file .*image\.jpg"),
        (lambda path: path.mkdir(), r"image\.jpg is a folder"),
        (lambda path: path.touch(), r"image\.jpg is empty \(0 bytes\)"),
        (lambda path: path.write_text("text"), r"image\.jpg is not an image"),
        (write_truncated, r"image\.jpg is a damaged image \(.*truncated"),
        (lambda path: path.write_bytes(huge_png(0, 0)), r"image\.jpg is not an image of at least 1 × 1 pixels"),
        (lambda path: path.write_bytes(huge_png(40_000, 40_000)), r"image\.jpg has too many pixels"),
        (
            lambda path: path.write_bytes(huge_png(10_000, 10_000)),
            r"image\.jpg has too many pixels \(10,000 × 10,000\): the limit is 89 million",
        ),
    ],
)
def test_files_that_cannot_be_read_are_reported(tmp_path: Path, write: Callable[[Path], Any], message: str) -> None:
    path = tmp_path / "image.jpg"
    write(path)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_member_of_a_damaged_zip_file_is_reported(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("a.png", b"content")
    damaged = bytearray((tmp_path / "images.zip").read_bytes())
    damaged[35] ^= 255  # inside the content
    (tmp_path / "images.zip").write_bytes(damaged)
    with pytest.raises(DataError, match=r"images\.zip/a\.png cannot be read: Bad CRC"):
        read(tmp_path / "images.zip/a.png")


@pytest.mark.parametrize(
    "array",
    [RED_AND_BLUE, RED_AND_BLUE / 255, RED_AND_BLUE.astype(float), RED_AND_BLUE.astype(np.uint16) * 257],
)
def test_arrays_of_every_type_give_the_same_pixels(array: Any) -> None:
    np.testing.assert_array_equal(read_pixels(array, 2, 4), RED_AND_BLUE)


def test_an_array_of_the_wrong_shape_is_rejected() -> None:
    with pytest.raises(DataError, match=r"\(3, 8, 6\).*transpose\(1, 2, 0\)"):
        read_pixels(np.zeros((3, 8, 6), np.uint8), 2, 4)
    with pytest.raises(DataError, match="without pixels"):
        read_pixels(np.zeros((0, 4, 3), np.uint8), 2, 4)


def test_images_are_fitted_to_the_size_of_the_encoder() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 100  # the center
    assert read_pixels(wide, 20, 20, "squash")[:, [2, 10, 17], 0].mean(0).tolist() == [0, 100, 0]
    assert (read_pixels(wide, 20, 20, "crop")[:, 3:-3] == 100).all()
    padded = read_pixels(wide, 30, 30, "pad")
    assert (padded[:9] == 255).all()
    assert (padded[11:19, 12:18] == 100).all()


def test_a_large_photograph_is_decoded_at_a_reduced_size(tmp_path: Path) -> None:
    """The pixels may differ slightly from those of the full size."""
    gradient = np.linspace(0, 255, 1600, dtype=np.uint8)[None, :, None].repeat(1600, 0).repeat(3, 2)
    Image.fromarray(gradient).save(tmp_path / "large.jpg", quality=95)
    expected = read_pixels(gradient, 64, 64)
    np.testing.assert_allclose(read_pixels(str(tmp_path / "large.jpg"), 64, 64).astype(int), expected, atol=4)
    assert load_image(str(tmp_path / "large.jpg"), at_least=128).size == (200, 200)


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"pip install 'regard\[vision\]'"):
        read_pixels(RED_AND_BLUE, 2, 4)
