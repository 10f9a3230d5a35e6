"""Files of images: in a folder, or in a zip file, which is read without unpacking it.

The path of an image in a zip file is the path of the zip file followed by the name inside it: `photos.zip/cats/1.jpg`.
"""

import hashlib
import os
import zipfile
import zlib
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from regard.data.remote_files import fetch
from regard.errors import DataError
from regard.formatting import did_you_mean, short_path
from regard.regular_files import open_regular
from regard.urls import is_url

EXTENSIONS = frozenset({
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tga", ".tif", ".tiff",
    ".webp",
})  # fmt: skip
"""The extensions of image files. Other files in a folder or a zip file are ignored."""

MAX_FILE_BYTES = 1 << 29
"""The maximum size of an image file: the content of a damaged or malicious zip file must not fill the memory."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""What `zipfile` raises for a damaged, encrypted or unsupported file."""


def read_bytes(path: str) -> bytes:
    """Read an image file, or a file inside a zip file."""
    if not path.strip():
        raise DataError("The name of an image is empty. Give the name of an image file.")
    archive, member = split_zip_path(path)
    if archive is not None:
        return _read_member(archive, member)
    try:
        with open_regular(path) as file:
            _check_size(os.fstat(file.fileno()).st_size, path)
            return file.read()
    except FileNotFoundError:
        raise DataError(f"There is no file {short_path(path)}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{short_path(path)} is a folder, not an image. Give the name of an image file.") from None
    except OSError as error:
        raise DataError(
            f"{short_path(path)} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from None


def hash_file(path: str) -> str:
    """Return a hash of the content of an image file. A file that has not changed since is not read again."""
    archive, _ = split_zip_path(path)
    return _hash_content(path, _stamp(archive or path))


@lru_cache(maxsize=1 << 20)
def _hash_content(path: str, stamp: tuple[int, int]) -> str:
    del stamp  # part of the key
    return hashlib.sha256(read_bytes(path)).hexdigest()


def split_zip_path(path: str) -> tuple[str | None, str]:
    """Split the path of a file inside a zip file: `a/b.zip/c/d.png` → (`a/b.zip`, `c/d.png`); (None, path) if it is
    not inside one.
    """
    lowered, end = path.lower(), 0
    while (end := lowered.find(".zip", end)) >= 0:
        end += len(".zip")
        if path[end : end + 1] in {"/", os.sep} and os.path.isfile(path[:end]):
            return path[:end], path[end + 1 :]
    return None, path


def list_images(folder: str) -> list[str]:
    """Return the paths of all images in a folder and its subfolders, or in a zip file, in the order of their names."""
    if os.path.isdir(folder):
        found = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    elif os.path.isfile(folder):
        if not zipfile.is_zipfile(folder):
            raise DataError(f"{short_path(folder)} is not a zip file. Give a folder or a zip file of images.")
        found = [f"{folder}/{name}" for name in _open_zip(folder).namelist()]
    else:
        raise DataError(f"There is no folder or zip file {short_path(folder)}. Check the path.")
    images = sorted(path for path in found if _is_image_name(path))
    if not images:
        listed = " ".join(sorted(EXTENSIONS))
        raise DataError(f"{short_path(folder)} contains no images. Image files have one of the extensions {listed}.")
    return images


def _is_image_name(path: str) -> bool:
    name = os.path.basename(path)
    return os.path.splitext(name)[1].lower() in EXTENSIONS and not name.startswith(".") and "__MACOSX" not in path


class ImageFolder(NamedTuple):
    """The images of a folder or a zip file, which captions refer to by name."""

    path: str
    images: tuple[str, ...]
    by_name: dict[str, str]

    @classmethod
    def open(cls, path: str) -> "ImageFolder":
        """List the images. An image is found by its path in the folder, by its file name, and by its name without the
        extension, as far as these are unique. A URL must refer to a zip file, which is downloaded.
        """
        path = str(fetch(path)) if is_url(path) else path.rstrip("/" + os.sep) or path
        folder = cls(path, tuple(list_images(path)), {})
        paths = {folder.relative(image): image for image in folder.images}
        for shorten in (_drop_extension, os.path.basename, label_from_name):
            counts = Counter(map(shorten, paths))
            folder.by_name.update({name: paths[full] for full in paths if counts[name := shorten(full)] == 1})
        folder.by_name.update(paths)
        return folder

    def relative(self, image: str) -> str:
        """Return the path of an image in the folder, or in the zip file."""
        return image[len(self.path) + 1 :].replace(os.sep, "/")

    def find(self, name: str) -> str | None:
        """Return the path of the image with a name. The extension may differ, because images are often converted."""
        normalized = name.strip().replace("\\", "/").removeprefix("./")
        for shorten in (str, os.path.basename, _drop_extension, label_from_name):
            if (candidate := shorten(normalized)) in self.by_name:
                return self.by_name[candidate]
        return None


def _drop_extension(name: str) -> str:
    """Remove the extension of an image; other dots are part of the name."""
    root, extension = os.path.splitext(name)
    return root if extension.lower() in EXTENSIONS else name


def label_from_name(path: str) -> str:
    """Return the name of a file without folder and extension, for corpora in which it is the label."""
    return _drop_extension(os.path.basename(path))


def _stamp(path: str) -> tuple[int, int]:
    """Return the size and the time of the last change of a file; zeros if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _open_zip(path: str) -> zipfile.ZipFile:
    return _open_unchanged_zip(path, _stamp(path))


@lru_cache(maxsize=8)
def _open_unchanged_zip(path: str, stamp: tuple[int, int]) -> zipfile.ZipFile:
    """Open a zip file once, because reading its list of files takes long. It is opened again if it has changed."""
    del stamp  # part of the key
    try:
        return zipfile.ZipFile(path)
    except (OSError, *_DAMAGED) as error:
        raise DataError(f"{short_path(path)} is a damaged zip file ({error}). Copy or download it again.") from None


def _read_member(archive: str, member: str) -> bytes:
    name = f"{short_path(archive)}/{member}"
    opened = _open_zip(archive)
    try:
        _check_size(opened.getinfo(member).file_size, name)
        return opened.read(member)
    except KeyError:
        hint = did_you_mean(member, opened.namelist())
        raise DataError(f"There is no file {member} in {short_path(archive)}.{hint} Check the name.") from None
    except (OSError, *_DAMAGED) as error:
        raise DataError(f"{name} cannot be read: {error}. Create the zip file again.") from None


def _check_size(size: int, name: str) -> None:
    if size > MAX_FILE_BYTES:
        raise DataError(
            f"{short_path(name)} is larger than {MAX_FILE_BYTES >> 20} MB, the limit for an image. Resize the image."
        )
