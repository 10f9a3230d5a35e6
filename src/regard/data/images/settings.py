"""Settings of corpora of images: captions of image files, and the built-in scenes."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from regard.config import MAY_CHANGE_ON_RESUME, PATH, Settings
from regard.data.settings import DataSettings, Files, FilesChoice
from regard.models.settings import IMAGE
from regard.quantities import CorpusSize, Count, Fraction, ImageSize, PositiveFraction, Seed
from regard.urls import join_path

BadImages = Literal["error", "skip"]


class Augmentation(Settings):
    """Random changes of the training images, a pure function of the seed, the epoch and the pair."""

    flip: Fraction = Field(0.0, description="probability of a horizontal flip; 0 if captions mention left and right")
    crop: PositiveFraction = Field(
        1.0, description="minimum height and width of a random crop, as a share; 1 is the whole image"
    )

    @property
    def is_identity(self) -> bool:
        """Whether images stay the same."""
        return self.flip == 0 and self.crop == 1


class CaptionsData(DataSettings):
    """Images with one or more captions each. Training uses every caption; metrics compare a prediction with all
    captions of its image.

    The format of the captions is detected: lines `image<TAB>caption`, the token file of Flickr8k
    (`image#0<TAB>caption`), the JSON of COCO, or the JSON of Karpathy's splits, which also sets train, dev and test.
    Without a caption file, the name of each image is its caption.
    """

    source_kind: ClassVar[str] = IMAGE

    kind: Literal["captions"] = "captions"
    folder: str = Field("", json_schema_extra=MAY_CHANGE_ON_RESUME, description="folder of the files below")
    images: Annotated[str, PATH] = Field(
        json_schema_extra=MAY_CHANGE_ON_RESUME, description="a folder or a zip file of images, or the URL of a zip file"
    )
    captions: FilesChoice | None = Field(
        None, description="the caption file; without it, the name of each image is its caption"
    )
    train: FilesChoice | None = Field(
        None, description="names of the training images, one per line; by default, all that are not held out"
    )
    dev: FilesChoice | None = Field(
        None,
        description="names of the images for validation, or a file with their captions; by default, 5 % of the images "
        "are held out (of a large corpus, about 2,000 pairs)",
    )
    test: FilesChoice | None = Field(
        None,
        description="names of the images for testing, or a file with their captions; without dev and test, 5 % of the "
        "images are held out if there are 1,000 pairs or more",
    )
    test_every: Count | None = Field(
        None, ge=2, description="hold out every n-th image for testing, in the order of their names, from the first"
    )
    bad_images: BadImages = Field("error", description="how to handle images that cannot be read")
    augmentation: Augmentation = Augmentation()

    @property
    def image_path(self) -> str:
        """The path of the folder or the zip file of images."""
        return join_path(self.folder, self.images)

    def files(self, name: str) -> Files | None:
        """Return the file that a setting names, with folder applied to its path."""
        files: Files | None = getattr(self, name)
        return None if files is None else files.within(self.folder, "")

    def map_paths(self, function: Callable[[str], str]) -> Self:
        """Return the settings with other paths. Paths inside `folder` stay relative to it."""
        if self.folder:
            return self.model_copy(update={"folder": function(self.folder)})
        return super().map_paths(function)

    def check_options(self) -> None:
        if self.test is not None and self.test_every is not None:
            raise ValueError("test_every: the test images are already set by test. Set one of them.")


class ScenesData(DataSettings):
    """Images of colored shapes, with captions such as `a large red circle left of a small blue square`. Built in; a
    pure function of the seed.
    """

    source_kind: ClassVar[str] = IMAGE

    kind: Literal["scenes"] = "scenes"
    height: ImageSize = Field(64, ge=32, le=512, description="height of the images in pixels")
    width: ImageSize = Field(64, ge=32, le=512, description="width of the images in pixels")
    single: Fraction = Field(0.2, description="share of images with one object; others have two")
    train: CorpusSize = 6_000
    dev: CorpusSize = 300
    test: CorpusSize = 1_000
    seed: Seed = 0
    augmentation: Augmentation = Augmentation()
