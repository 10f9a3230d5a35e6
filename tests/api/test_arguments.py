"""Checks of the arguments of predictions."""

import pytest

from regard.api.arguments import check_sources
from regard.data.images.reader import ImageReader
from regard.errors import ArgumentTypeError


def test_messages_about_images_use_the_right_article() -> None:
    with pytest.raises(ArgumentTypeError, match=r"^source must be an image \(.*\) or a list of images, not int"):
        check_sources(3, ImageReader())
    with pytest.raises(ArgumentTypeError, match=r"^source\[1\] must be an image \(.*\), not int"):
        check_sources(["a.png", 3], ImageReader())
