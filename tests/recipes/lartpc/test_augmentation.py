"""Random changes of training images: what each one does, where they are not applied, and that a resume repeats them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clew
from clew import Batch, Dataset, Run, settings
from clew.core.files import sha256
from clew.data.dataset.batch import to_batch
from clew.errors import ConfigError, StoppedError
from clew.recipe import TrainingPlan
from clew.recipes.lartpc import LArTPC, LArTPCConfig
from clew.recipes.lartpc.augmentation import Augmentation, AugmentationHooks
from clew.recipes.lartpc.network import dense_images
from clew.recipes.lartpc.settings import LArTPCAugmentConfig
from clew.training.api import resume

from .events import SIDE, Pixels, listed, particles

NOTHING = {"shift_wires": 0, "shift_ticks": 0, "flip_ticks": 0, "charge_scale": 0, "dropped_wires": 0}
SMALL = [f"image.rows={SIDE}", f"image.columns={SIDE}", "train.threads=1"]
CHANGED = ["augment.enabled=true", "model.dropout=0.3", "loss.label_smoothing=0.1"]


def augmentation(size: tuple[int, int] = (60, 40), *, columns: int = 0, **changes: Any) -> Augmentation:
    config = LArTPCAugmentConfig(**{**NOTHING, **changes})
    return Augmentation(config, size, columns or size[1])


def centred(events: int = 40) -> Tensor:
    """Different images (events, 60, 40) with charge in the middle only."""
    images = torch.zeros(events, 60, 40)
    random = torch.Generator().manual_seed(3)
    images[:, 25:35, 15:25] = torch.rand(events, 10, 10, generator=random) * (
        torch.rand(events, 10, 10, generator=random) < 0.3
    )
    images[:, 30, 20] = 1.0
    return images


def changed(images: Tensor, module: Augmentation) -> Tensor:
    """Return the changed images."""
    index, charge, offsets = listed(images)
    index, charge = module(index, charge, offsets)
    return dense_images(index, charge, offsets, images.shape[1], images.shape[2])[:, 0]


def lists(count: int, seed: int = 0) -> Pixels:
    batch = to_batch(particles(count, seed=seed))
    return batch["index"], batch["charge"], batch.ragged("index").offsets


def test_nothing_changes_with_all_settings_at_zero() -> None:
    torch.testing.assert_close(changed(centred(), augmentation()), centred(), rtol=0, atol=0)


def test_shifts_conserve_charge_inside_the_image() -> None:
    images = centred()
    moved = changed(images, augmentation(shift_wires=0.3, shift_ticks=0.3))
    wires, ticks = set(), set()
    for before, after in zip(images, moved, strict=True):
        first, second = (each.nonzero().amin(dim=0) for each in (before, after))
        wires.add(int(second[0] - first[0]))
        ticks.add(int(second[1] - first[1]))
        torch.testing.assert_close(before.roll(tuple((second - first).tolist()), (0, 1)), after)
    assert -18 <= min(wires) < -9 and 9 < max(wires) <= 18 and -12 <= min(ticks) < -6 and 6 < max(ticks) <= 12


def test_charge_that_leaves_the_image_is_lost() -> None:
    images = torch.zeros(200, 60, 40)
    images[:, 0, 3:23] = torch.rand(200, 20) + 0.1
    moved = changed(images, augmentation(shift_wires=0.5))
    total, before = moved.sum(dim=(1, 2)), images.sum(dim=(1, 2))
    lost = total == 0
    assert 60 < lost.sum() < 140
    torch.testing.assert_close(total[~lost], before[~lost])


def test_a_mirror_image_of_a_mirror_image_is_the_image() -> None:
    images, module = centred(), augmentation(flip_ticks=1.0)
    once = changed(images, module)
    torch.testing.assert_close(once, images.flip(2), rtol=0, atol=0)
    torch.testing.assert_close(changed(once, module), images, rtol=0, atol=0)


def test_half_of_the_images_are_mirrored() -> None:
    images = centred(400)
    same = (changed(images, augmentation(flip_ticks=0.5)) == images).all(dim=2).all(dim=1)
    assert 150 < same.sum() < 250


def test_charges_of_an_image_get_one_factor() -> None:
    images = centred(400)
    after = changed(images, augmentation(charge_scale=0.2))
    factors = after.sum(dim=(1, 2)) / images.sum(dim=(1, 2))
    assert 0.8 <= factors.min() < 0.82 and 1.18 < factors.max() <= 1.2 and abs(factors.mean() - 1) < 0.02
    torch.testing.assert_close(after, images * factors[:, None, None])


def test_dropped_wires_have_no_charge() -> None:
    images = torch.rand(100, 60, 40) + 0.1
    after = changed(images, augmentation(dropped_wires=0.2))
    dropped = (after == 0).all(dim=2)
    assert abs(float(dropped.double().mean()) - 0.2) < 0.02 and len(set(dropped.sum(dim=1).tolist())) > 5
    torch.testing.assert_close(after, images * ~dropped[:, :, None])


def test_no_place_stands_twice_and_all_are_in_the_image() -> None:
    index, charge, offsets = listed((torch.rand(5, 60, 40) < 0.5) * torch.rand(5, 60, 40))
    module = augmentation(shift_wires=0.9, shift_ticks=0.9, flip_ticks=0.5, charge_scale=0.1, dropped_wires=0.1)
    new, value = module(index, charge, offsets)
    assert new.dtype == torch.int32 and new.min() >= 0 and new.max() < 60 * 40 and (value >= 0).all()
    for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        assert len(new[first:end].unique()) == end - first


def test_small_images_in_a_corner_stay_there() -> None:
    images = torch.zeros(30, 60, 40)
    images[:, :20, :10] = torch.rand(30, 20, 10)
    module = augmentation((20, 10), columns=40, shift_wires=0.5, shift_ticks=0.5, flip_ticks=0.5)
    after = changed(images, module)
    assert after.sum() > 0 and (after[:, 20:] == 0).all() and (after[:, :, 10:] == 0).all()


def test_an_image_is_changed_alike_in_any_batch() -> None:
    module = LArTPC(LArTPCConfig(augment=LArTPCAugmentConfig(enabled=True))).augmentation()
    assert module is not None
    index, charge, offsets = lists(8)
    whole = module(index, charge, offsets)
    cut = int(offsets[3])
    parts = [
        module(index[:cut], charge[:cut], offsets[:4]),
        module(index[cut:], charge[cut:], offsets[3:] - cut),
    ]
    for place in (0, 1):
        torch.testing.assert_close(whole[place], torch.cat([part[place] for part in parts]), rtol=0, atol=0)


def test_items_after_the_last_offset_have_no_influence() -> None:
    module = LArTPC(LArTPCConfig(augment=LArTPCAugmentConfig(enabled=True))).augmentation()
    assert module is not None
    index, charge, offsets = lists(3)
    plain = module(index, charge, offsets)
    padded = module(torch.cat([index, index.new_zeros(100)]), torch.cat([charge, charge.new_zeros(100)]), offsets)
    for one, two in zip(plain, padded, strict=True):
        torch.testing.assert_close(one, two[: len(index)], rtol=0, atol=0)


def test_changes_depend_on_the_epoch_and_the_seed() -> None:
    module, results = augmentation(charge_scale=0.5), []
    index, charge, offsets = lists(2)
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0)):
        AugmentationHooks(module, TrainingPlan(seed=seed)).start_epoch(epoch)
        results.append(module(index, charge, offsets)[1][0].item())
    assert len(set(results)) == 3 and results[0] == results[3]


def test_hooks_continue_in_the_epoch_of_a_state() -> None:
    module = augmentation()
    before = AugmentationHooks(module, TrainingPlan(seed=4))
    before.start_epoch(7)
    module.epoch.zero_()
    AugmentationHooks(module, TrainingPlan(seed=4)).load_state(before.state())
    assert (module.seed.item(), module.epoch.item()) == (4, 7)


def test_an_asynchronous_worker_counts_steps() -> None:
    module = augmentation()
    hooks = AugmentationHooks(module, TrainingPlan(asynchronous=True))
    hooks.end_step()
    hooks.end_step()
    assert module.epoch.item() == 2


@pytest.mark.parametrize("kind", ["cells", "dense"])
def test_validation_sees_images_as_they_are(kind: str) -> None:
    batch, logits = to_batch(particles(4), LArTPC.columns), []
    for more in ([], CHANGED):
        recipe = settings.load_settings("lartpc", [*SMALL, f"model.kind={kind}", *more]).recipe
        torch.manual_seed(2)
        model = recipe.model()
        logits.append(_evaluated(recipe, model.eval(), batch))
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    assert not torch.equal(_evaluated(recipe, model.train(), batch)[0], logits[1][0])


def _evaluated(recipe: Any, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return outputs and loss, as a validation computes them."""
    with torch.no_grad():
        outputs = recipe.forward(model, batch)
        return outputs, recipe.loss(outputs, batch)


def test_labels_are_smoothed_in_training_only() -> None:
    recipe = LArTPC(LArTPCConfig.model_validate({"loss": {"label_smoothing": 0.5}}))
    batch, outputs = to_batch(particles(4), LArTPC.columns), torch.randn(4, 5)
    plain = torch.nn.functional.cross_entropy(outputs, batch["label"], reduction="none")
    torch.testing.assert_close(recipe.loss(outputs, batch), plain)
    uniform = -outputs.log_softmax(dim=1).mean(dim=1)
    torch.testing.assert_close(recipe.loss(outputs.requires_grad_(), batch), 0.5 * plain + 0.5 * uniform)


def test_weights_have_the_same_names_with_and_without() -> None:
    plain, more = (settings.load_settings("lartpc", [*SMALL, *words]).recipe.model() for words in ([], CHANGED))
    assert plain.state_dict().keys() == more.state_dict().keys()


def test_it_is_captured_whole() -> None:
    module = LArTPC(LArTPCConfig(augment=LArTPCAugmentConfig(enabled=True))).augmentation()
    assert module is not None
    pixels = lists(3)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for one, two in zip(compiled(*pixels), module(*pixels), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("augmented")
    particles(60).save(folder / "synthetic.h5")
    loaded = settings.load_settings("lartpc", SMALL)
    files = [str(folder / "synthetic.h5")]
    return clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / "data"), workers=1)


def train(dataset: Dataset, output: Path, *more: str, **settings_of_run: Any) -> Run:
    loaded = settings.load_settings("lartpc", [*SMALL, "train.epochs=2", "train.batch_size=16", *more])
    return clew.train(loaded.recipe, dataset, config=loaded.train, output=output, **settings_of_run)


def test_a_resumed_training_ends_with_the_same_weights(dataset: Dataset, tmp_path: Path) -> None:
    whole = train(dataset, tmp_path / "whole", *CHANGED)
    with pytest.raises(StoppedError):
        train(dataset, tmp_path / "parts", *CHANGED, time_limit_minutes=1e-6)
    while Run.open(tmp_path / "parts").state != "finished":
        try:
            resume(tmp_path / "parts", time_limit_minutes=1e-6)
        except StoppedError:
            continue
    parts = Run.open(tmp_path / "parts")
    assert sha256(parts.checkpoint("last")) == sha256(whole.checkpoint("last"))
    other = train(dataset, tmp_path / "plain")
    assert sha256(other.checkpoint("last")) != sha256(whole.checkpoint("last"))


def test_two_workers_see_the_images_of_one(dataset: Dataset, tmp_path: Path) -> None:
    more = ["augment.enabled=true", "train.log_every=1"]
    losses = []
    for workers in (1, 2):
        run = train(dataset, tmp_path / str(workers), *more, f"train.workers={workers}", "train.loading.keep=memory")
        losses.append([record["loss"]["loss"] for record in run.records(kind="step")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("augment.shift_wires=1.5", "augment.shift_wires: input should be less than 1"),
        ("augment.dropped_wires=-0.1", "augment.dropped_wires: input should be greater than or equal to 0"),
        ("augment.flip_ticks=2", "augment.flip_ticks: input should be less than or equal to 1"),
        ("augment.flips=1", "unknown key 'augment.flips'"),
        ("model.dropout=1", "model.dropout: input should be less than 1"),
        ("loss.label_smoothing=-1", "loss.label_smoothing: input should be greater than or equal to 0"),
    ],
)
def test_a_bad_setting_gets_one_line(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings.load_settings("lartpc", [words])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_network_of_ones_own_without_augmentation_is_named() -> None:
    class OwnNetwork(clew.Section):
        size: int = 3

    class OwnConfig(LArTPCConfig):
        model: Any = OwnNetwork()

    recipe = LArTPC(OwnConfig(augment=LArTPCAugmentConfig(enabled=True)))
    with pytest.raises(ConfigError, match=r"augment.enabled: true has no effect, because Linear has no augmentation"):
        recipe.hooks(torch.nn.Linear(1, 1), TrainingPlan())
