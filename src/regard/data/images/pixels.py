"""Pixels of images: decode a file of any format and mode to RGB, and fit it to the size that an encoder reads.

H height, W width, C channels.
"""

import io
import os
import struct
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.images.files import read_bytes
from regard.errors import ConfigError, DataError
from regard.formatting import short_path

if TYPE_CHECKING:
    from PIL.Image import Image

PixelArray = NDArray[np.uint8]
"""An image as (H, W, 3) bytes: red, green, blue."""

Resize = Literal["squash", "crop", "pad"]
"""How an image is fitted to a height and width: squash changes its proportions, crop cuts off what exceeds the center,
and pad adds white borders.
"""

MAX_PIXELS = 89_478_485
"""The maximum number of pixels of an image, checked before it is decoded: a small file can contain a huge image."""

_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, KeyError, IndexError, TypeError, struct.error)
"""What Pillow raises for damaged files."""

_MAX_16_BIT = 65_535

_ORIENTATION = 0x0112
"""The EXIF tag of the orientation."""


def import_pillow() -> ModuleType:
    """Import Pillow, which is needed only for images."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ConfigError(
            "Images require the package Pillow, which is not installed. Run pip install 'regard[vision]'."
        ) from None
    return PIL


def read_pixels(source: Any, height: int, width: int, resize: Resize = "squash") -> PixelArray:
    """Read an image, and fit it to a size.

    Args:
        source: The path of a file (also inside a zip file, `photos.zip/1.jpg`), an array (H, W), (H, W, 3) or
            (H, W, 4), or a `PIL.Image.Image`.
        height: The height of the result.
        width: The width of the result.
        resize: How the image is fitted to this size.

    Returns:
        The pixels, (height, width, 3).

    Raises:
        DataError: The source is missing, empty, damaged, too large, or not an image.
    """
    pillow = import_pillow()
    # A JPEG file can be decoded at a fraction of its size, which is several times faster.
    image = load_image(source, at_least=2 * max(height, width))
    if image.size == (width, height):
        return np.asarray(image)
    method = pillow.Image.Resampling.BICUBIC
    if resize == "crop":
        image = pillow.ImageOps.fit(image, (width, height), method)
    elif resize == "pad":
        image = pillow.ImageOps.pad(image, (width, height), method, color="white")
    else:
        image = image.resize((width, height), method)
    return np.asarray(image)


def read_size(path: str) -> tuple[int, int]:
    """Return the height and the width of an image file, from its header."""
    name = describe_source(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _open(read_bytes(path), name)
        _check_size(image, name)
        width, height = image.size
        # From 5 on, the orientation swaps rows and columns.
        return (width, height) if image.getexif().get(_ORIENTATION, 1) >= 5 else (height, width)


def load_image(source: Any, at_least: int | None = None) -> "Image":
    """Read an image as RGB: apply the orientation, and replace transparency with white. Read the first frame of an
    animation.

    With `at_least`, a large image in a file may be reduced, but not below this height and width.
    """
    import_pillow()
    name = describe_source(source)
    if isinstance(source, str | os.PathLike):
        return decode_image(read_bytes(os.fspath(source)), name, at_least=at_least)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _convert(_as_image(source), name)


def decode_image(
    content: bytes, name: str, formats: Sequence[str] | None = None, at_least: int | None = None
) -> "Image":
    """Decode the content of an image file as `load_image` does. With `formats`, other formats are rejected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of pixels is checked; other warnings are about metadata
        return _convert(_open(content, name, formats), name, at_least)


def _convert(image: "Image", name: str, at_least: int | None = None) -> "Image":
    """Decode an image, orient it, and convert it to RGB."""
    _check_size(image, name)
    try:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        return _to_rgb(import_pillow().ImageOps.exif_transpose(image))
    except _UNREADABLE as error:
        raise DataError(f"{name} is a damaged image ({error}). Copy or download it again.") from None


def describe_source(source: Any) -> str:
    """Return the name of a source for messages: its path, or `image` for an array."""
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    return short_path(path) if path else "The image"


def _open(content: bytes, name: str, formats: Sequence[str] | None = None) -> "Image":
    """Read the header of an image."""
    if not content:
        raise DataError(f"{name} is empty (0 bytes). Copy or download the image again.")
    pillow = import_pillow()
    try:
        image: Image = pillow.Image.open(io.BytesIO(content), formats=formats)
    except pillow.Image.DecompressionBombError:
        raise DataError(_too_large(name)) from None
    except pillow.UnidentifiedImageError:
        raise DataError(
            f"{name} is not an image of at least 1 × 1 pixels, or has a format that cannot be read. Use a "
            f"{'JPEG, PNG, WebP, GIF, TIFF or BMP' if formats is None else ' or '.join(formats)} file."
        ) from None
    except _UNREADABLE as error:
        raise DataError(f"{name} is a damaged image ({error}). Copy or download it again.") from None
    return image


def _check_size(image: "Image", name: str) -> None:
    width, height = image.size
    if not width or not height:
        raise DataError(f"{name} has {width} × {height} pixels. An image has at least 1 × 1.")
    if width * height > MAX_PIXELS:
        raise DataError(_too_large(name, f" ({width:,} × {height:,})"))


def _too_large(name: str, size: str = "") -> str:
    return (
        f"{name} has too many pixels{size}: the limit is {MAX_PIXELS // 1_000_000} million, because a small file can "
        "contain an image that fills the memory. Resize the image."
    )


def _to_rgb(image: "Image") -> "Image":
    """Convert an image of any mode to RGB."""
    if image.mode.startswith("I"):
        return _scale(image, _MAX_16_BIT)
    if image.mode == "F":
        return _scale(image, 255 if np.asarray(image).max() > 1 else 1)
    if image.has_transparency_data:
        pillow = import_pillow()
        layer = image.convert("RGBA")
        white = pillow.Image.new("RGBA", image.size, "white")
        opaque: Image = pillow.Image.alpha_composite(white, layer)
        return opaque.convert("RGB")
    return image.convert("RGB")


def _scale(image: "Image", maximum: float) -> "Image":
    """Convert gray values from 0 to a maximum to RGB."""
    values_HW = np.nan_to_num(np.asarray(image, np.float64)) * (255 / maximum)
    pixels_HW = np.rint(values_HW.clip(0, 255)).astype(np.uint8)
    scaled: Image = import_pillow().Image.fromarray(pixels_HW).convert("RGB")
    return scaled


def _as_image(source: Any) -> "Image":
    """Return an image in memory as a Pillow image. Arrays contain bytes, 16-bit integers, or floats in [0, 1] or
    [0, 255].
    """
    if not isinstance(source, np.ndarray):
        image: Image = source
        return image
    array: NDArray[Any] = source[:, :, 0] if source.ndim == 3 and source.shape[2] == 1 else source
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in {3, 4}):
        raise DataError(
            f"An image must have the shape (height, width), (height, width, 3) or (height, width, 4), not "
            f"{array.shape}. For (3, height, width), use array.transpose(1, 2, 0)."
        )
    if not array.size:
        raise DataError(f"The image has the shape {array.shape}, without pixels. An image has at least 1 × 1.")
    if array.dtype.kind not in "buif":
        raise DataError(f"An image must contain numbers, not {array.dtype}.")
    if array.dtype != np.uint8:
        array = np.rint(np.nan_to_num(array * (255 / _maximum(array))).clip(0, 255)).astype(np.uint8)
    converted: Image = import_pillow().Image.fromarray(array)
    return converted


def _maximum(array: NDArray[Any]) -> float:
    """Return the number that means white in an array."""
    if array.dtype == np.uint16:
        return _MAX_16_BIT
    if array.dtype.kind == "f":
        return 255 if np.nanmax(array) > 1 else 1
    return 1 if array.dtype == bool else 255
