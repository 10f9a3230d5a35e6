"""Every image encoder: shapes, independence of rows, gradients, and use with every decoder."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.config import resolve
from regard.data.source_readers import find_reader
from regard.models.contracts import Grid, reorder
from regard.models.seq2seq import Seq2Seq, build_model
from regard.models.settings import EncoderSettings
from regard.models.vision.encoder import GridPositions, ImageEncoder
from regard.models.vision.sources import Features, Pixels
from tests_shared import ModelOnly

V = 11
TOKENS = torch.tensor([[2, 5, 6], [2, 8, 4]])

ENCODERS: dict[str, tuple[dict[str, Any], Grid]] = {
    "cnn": ({"kind": "cnn", "height": 16, "width": 32, "channels": [4, 12]}, Grid(4, 8)),
    "cnn, odd size": ({"kind": "cnn", "height": 25, "width": 30, "channels": [4, 5, 12], "depth": 1}, Grid(4, 4)),
    "cnn, pooled": ({"kind": "cnn", "height": 25, "width": 40, "channels": [4, 12], "grid": [3, 5]}, Grid(3, 5)),
    "cnn, sinusoidal": (
        {"kind": "cnn", "height": 16, "width": 16, "channels": [8, 12], "positions": "sinusoidal"},
        Grid(4, 4),
    ),
    "patches": (
        {
            "kind": "patches",
            "height": 16,
            "width": 24,
            "patch": 8,
            "size": 12,
            "heads": 2,
            "layers": 2,
            "feedforward": 16,
        },
        Grid(2, 3),
    ),
    "patches, sinusoidal": (
        {
            "kind": "patches",
            "height": 16,
            "width": 16,
            "patch": 4,
            "size": 12,
            "layers": 1,
            "positions": "sinusoidal",
            "norm": "post",
        },
        Grid(4, 4),
    ),
    "efficientnet_lite0": (
        {
            "kind": "efficientnet_lite0",
            "height": 64,
            "width": 33,
            "stage": "stage3",
            "weights": "none",
            "frozen": False,
            "size": 12,
            "positions": "learned",
        },
        Grid(8, 5),
    ),
}

DECODERS: list[dict[str, Any]] = [
    {"kind": "recurrent", "embedding": 6, "decoder": {"hidden": 12, "cell": "lstm", "gate": True}},
    {"kind": "recurrent", "embedding": 6, "decoder": {"hidden": 12, "order": "luong"}, "attention": "luong-general"},
    {"kind": "recurrent", "embedding": 6, "decoder": {"hidden": 12}, "attention": "exact-hard"},
    {"kind": "fixed", "embedding": 6, "decoder": {"hidden": 12}},
    {"kind": "transformer", "size": 8, "heads": 2, "layers": 1, "feedforward": 12},
]  # fmt: skip


def build(encoder: dict[str, Any], decoder: dict[str, Any]) -> Seq2Seq:
    torch.manual_seed(0)
    return build_model(resolve(ModelOnly, {"model": {**decoder, "encoder": encoder}}, {}).model, V, V).double().eval()


def draw(encoder: dict[str, Any], rows: int = 2) -> Pixels:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (rows, 3, encoder["height"], encoder["width"]), generator=generator, dtype=torch.uint8)
    return Pixels(pixels)


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Grid]:
    return ENCODERS[request.param]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: " ".join(map(str, decoder.values())))
def test_works_with_every_decoder(encoder: tuple[dict[str, Any], Grid], decoder: dict[str, Any]) -> None:
    settings, _ = encoder
    model, source = build(settings, decoder), draw(settings)
    memory = model.encoder(source)
    expected = model.decoder(TOKENS, memory).logits_BTV
    keys, state = model.decoder.begin(memory)
    for step in range(TOKENS.shape[1]):
        logits, state = model.decoder.step(TOKENS[:, step], state, keys)
        torch.testing.assert_close(logits, expected[:, step])
    torch.testing.assert_close(model(source.rows(slice(1, 2)), TOKENS[1:]).logits_BTV, expected[1:])


def test_the_memory_is_a_grid_with_the_average_annotation_as_summary(encoder: tuple[dict[str, Any], Grid]) -> None:
    settings, grid = encoder
    model = build(settings, DECODERS[0])
    memory = model.encoder(draw(settings))
    assert memory.layout == grid
    assert memory.slots_BSD.shape == (2, grid.height * grid.width, 12)
    assert model.encoder.size == 12
    assert memory.allowed_BS.all()
    torch.testing.assert_close(memory.summary_BD, memory.slots_BSD.mean(1))


def test_gradients_reach_every_parameter(encoder: tuple[dict[str, Any], Grid]) -> None:
    settings, _ = encoder
    model = build(settings, DECODERS[0]).train()
    model(draw(settings), TOKENS).logits_BTV.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_slots_are_numbered_row_by_row() -> None:
    """A change in the upper right corner changes the annotations there, and not those in the lower left."""
    settings = {"kind": "efficientnet_lite0", "height": 32, "width": 64, "stage": "stage1"}
    model, source = build(settings, DECODERS[0]), draw(settings, rows=1)
    pixels = source.pixels_B3HW.clone()
    pixels[..., :4, -4:] = 255 - pixels[..., :4, -4:]
    before, after = (model.encoder(image).slots_BSD.unflatten(1, (16, 32)) for image in (source, Pixels(pixels)))
    changed = (before != after).any(-1)[0]
    assert changed[0, -1]
    assert not changed[8:].any()
    assert not changed[:, :16].any()


def test_images_of_another_size_are_rejected() -> None:
    model = build({"kind": "cnn", "height": 16, "width": 32}, DECODERS[0])
    with pytest.raises(regard.DataError, match="images of the shape 3 × 16 × 32, not 3 × 32 × 16"):
        model.encoder(draw({"height": 32, "width": 16}))


def test_features_take_the_place_of_pixels() -> None:
    settings = {
        "kind": "efficientnet_lite0",
        "height": 64,
        "width": 64,
        "stage": "stage2",
        "size": 8,
        "positions": "learned",
    }
    model = build(settings, DECODERS[0])
    source = draw(settings)
    part = model.encoder.frozen_part
    assert part is not None
    assert part.dtype == torch.float16
    features = part.wrap(part.compute(source))
    assert isinstance(features, Features)
    assert features.features_BSD.shape == (2, 256, 24)
    assert torch.equal(model(features, TOKENS).logits_BTV, model(source, TOKENS).logits_BTV)
    half = features.with_tensors([features.features_BSD.half()])
    torch.testing.assert_close(model(half, TOKENS).logits_BTV, model(source, TOKENS).logits_BTV, rtol=1e-2, atol=1e-2)


def test_only_a_frozen_backbone_is_cached() -> None:
    frozen = {"kind": "efficientnet_lite0", "stage": "stage2", "height": 32, "width": 32}
    for changes in ({"frozen": False}, {"cache": "none"}):
        assert build({**frozen, **changes}, DECODERS[0]).encoder.frozen_part is None
    assert build({"kind": "cnn"}, DECODERS[0]).encoder.frozen_part is None


def test_rows_of_images_can_be_selected_and_joined() -> None:
    source = draw({"height": 4, "width": 4}, rows=3)
    assert torch.equal(source.rows(torch.tensor([2, 0])).pixels_B3HW, source.pixels_B3HW[[2, 0]])
    assert source.concatenate(source).pixels_B3HW.shape == (6, 3, 4, 4)
    assert source.length_hint_B.shape == (3,)


def test_learned_positions_differ_between_slots_and_sinusoidal_ones_encode_rows_and_columns() -> None:
    grid, slots = Grid(3, 5), torch.zeros(1, 15, 8)
    sinusoidal = GridPositions("sinusoidal", grid, 8)(slots)[0].unflatten(0, (3, 5))
    assert len({tuple(vector) for vector in sinusoidal.flatten(0, 1).tolist()}) == 15
    # The first half encodes the row, the second half the column.
    assert (sinusoidal[:, :, :4] == sinusoidal[:, :1, :4]).all()
    assert (sinusoidal[:, :, 4:] == sinusoidal[:1, :, 4:]).all()
    learned = GridPositions("learned", grid, 8)
    assert sum(p.numel() for p in learned.parameters()) == 15 * 8
    assert not torch.equal(learned(slots)[0, 0], learned(slots)[0, 1])
    assert torch.equal(GridPositions("none", grid, 8)(slots), slots)


def test_a_memory_of_an_image_can_be_reordered() -> None:
    settings, grid = ENCODERS["cnn"]
    memory = build(settings, DECODERS[0]).encoder(draw(settings))
    swapped = reorder(memory, torch.tensor([1, 0]))
    assert torch.equal(swapped.slots_BSD, memory.slots_BSD.flip(0))
    assert swapped.layout == grid


def fit(model: Seq2Seq, source: Pixels, target_BT: Tensor) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens_BT = torch.cat([torch.full_like(target_BT[:, :1], 2), target_BT[:, :-1]], 1)
    loss = torch.tensor(0.0)
    for _ in range(100):
        logits_BTV = model(source, tokens_BT).logits_BTV
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "patches"])
def test_learns_to_tell_images_apart(name: str) -> None:
    settings, _ = ENCODERS[name]
    model = build(settings, {**DECODERS[0], "dropout": 0.0}).float()
    colors = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)) * 255
    pixels = torch.nn.functional.interpolate(colors, (settings["height"], settings["width"]))
    assert fit(model, Pixels(pixels), torch.tensor([[4, 6], [4, 7], [5, 6], [5, 7]])) < 0.1


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"kind": "patches", "height": 20, "width": 16, "patch": 16}, "must be divisible by the patch size, 16"),
        ({"kind": "patches", "size": 6, "heads": 2, "positions": "sinusoidal"}, "divisible by 4, but it is 6"),
        ({"kind": "patches", "score": "chorowski"}, "score"),
        ({"kind": "cnn", "channels": [6], "positions": "sinusoidal"}, "divisible by 4, but it is 6"),
        ({"kind": "cnn", "channels": []}, "channels"),
        ({"kind": "efficientnet_lite0", "weights": "none"}, "random weights must be trained"),
        ({"kind": "efficientnet_lite0", "stage": "stage8"}, "stage"),
        ({"kind": "timm", "model": "resnet18", "pretrained": False}, "random weights must be trained"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(encoder: dict[str, Any], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        build(encoder, DECODERS[0])


def test_an_image_encoder_reads_images() -> None:
    settings = resolve(ModelOnly, {"model": {"kind": "recurrent", "encoder": "cnn"}}, {}).model
    assert settings.source_kind == "image" == ImageEncoder.source_kind


class BrightnessEncoder(regard.Encoder[regard.Pixels]):
    """The average color of the left and the right half of an image."""

    source_kind = "image"

    def __init__(self, height: int = 8, width: int = 16) -> None:
        super().__init__()
        del height, width  # options of the reader
        self.scale = torch.nn.Parameter(torch.ones(3))

    @property
    def size(self) -> int:
        return 3

    def forward(self, source: regard.Pixels) -> regard.Memory:
        halves = source.pixels_B3HW.to(self.scale.dtype).chunk(2, dim=-1)
        slots_BSD = torch.stack([half_B3HW.mean((2, 3)) for half_B3HW in halves], 1) / 255 * self.scale
        allowed_BS = torch.ones(slots_BSD.shape[:2], dtype=torch.bool)
        return regard.Memory(slots_BSD, allowed_BS, slots_BSD.mean(1), layout=regard.Grid(1, 2))


def test_an_image_encoder_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of images resizes them to the height and width of the encoder."""
    registry = EncoderSettings.registry
    for name in ("settings", "builders", "plugins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    regard.register_encoder("brightness", BrightnessEncoder)
    encoder = {"kind": "brightness", "height": 4, "width": 6}
    model = build(encoder, DECODERS[0])
    reader = find_reader(EncoderSettings.parse(encoder))
    assert reader is not None
    image = np.zeros((20, 30, 3), np.uint8)
    image[:, 15:] = 255
    source = reader.collate(reader.read([image]))
    assert source.shape == ((1, 3, 4, 6),)
    memory = model.encoder(source)
    torch.testing.assert_close(memory.slots_BSD[0], torch.tensor([[0.0] * 3, [1.0] * 3]).double(), rtol=0, atol=0.1)
    assert model(source, TOKENS[:1]).logits_BTV.isfinite().all()


def test_an_occluded_cell_has_the_average_color_of_its_image() -> None:
    pixels = torch.arange(2 * 3 * 4 * 6, dtype=torch.uint8).view(2, 3, 4, 6)
    hidden = torch.zeros(2, 6, dtype=torch.bool)
    hidden[0, 4] = True  # the second row and the second column of a grid of 2 × 3 cells
    occluded = Pixels(pixels).occlude(hidden, 1, Grid(2, 3)).pixels_B3HW
    assert occluded.dtype == torch.uint8
    changed = torch.zeros(2, 3, 4, 6, dtype=torch.bool)
    changed[0, :, 2:, 2:4] = True
    assert torch.equal(occluded[~changed], pixels[~changed])
    average = pixels[0].double().mean((1, 2)).round().to(torch.uint8)
    assert torch.equal(occluded[0, :, 2:, 2:4], average[:, None, None].expand(3, 2, 2))


def test_features_cannot_be_occluded() -> None:
    with pytest.raises(regard.ConfigError, match="Features does not define how a part of a source is hidden"):
        Features(torch.zeros(1, 6, 4)).occlude(torch.zeros(1, 6, dtype=torch.bool), 1, Grid(2, 3))
