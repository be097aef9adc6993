"""Corruptions are a function of batch, name, severity and seed, and do what each is named for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.nn.functional import interpolate

from gcalign.lab.data import corruptions as filters
from gcalign.lab.data.corruptions import corrupt, names

# the published severities of these do not rank by the mean difference: a blur's or a map's parameters trade one thing
# for another, saturation goes down before it goes up, mud replaces water, and frost dims the image while it adds ice
UNRANKED = {"glass_blur", "elastic_transform", "saturate", "spatter", "frost"}


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(24, 3, 8, 8, generator=generator)
    fine = torch.rand(24, 3, 32, 32, generator=generator)
    picture = 0.75 * interpolate(coarse, size=(32, 32), mode="bilinear", align_corners=False) + 0.2 * fine
    return (picture * 255).to(torch.uint8)


def difference(images, name, severity):
    return (corrupt(images, name, severity, 0).float() - images.float()).abs().mean().item()


def test_all_nineteen_are_there():
    assert len(set(names())) == 19


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_bytes_and_leaves_the_global_generator_alone(name, images):
    untouched = images.clone()
    before = torch.random.get_rng_state()
    first = corrupt(images, name, 3, 5)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(first, corrupt(images, name, 3, 5))
    assert first.dtype == torch.uint8
    assert first.shape == images.shape
    assert torch.equal(images, untouched)
    assert not torch.equal(first, images)


@pytest.mark.parametrize("name", names())
def test_severity_increases_distortion(name, images):
    distortion = [difference(images, name, severity) for severity in range(1, 6)]
    if name in UNRANKED:
        assert min(distortion) > 0.5
    else:
        assert all(a <= b * 1.03 for a, b in pairwise(distortion)), distortion
        assert distortion[4] > 1.2 * distortion[0]


@pytest.mark.parametrize("name", names())
def test_other_sizes_and_single_images_work(name):
    image = torch.randint(0, 256, (1, 3, 40, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for severity in (1, 5):
        assert corrupt(image, name, severity, 0).shape == image.shape


@pytest.mark.parametrize(
    "name", ["gaussian_noise", "snow", "glass_blur", "elastic_transform", "fog", "frost", "spatter"]
)
def test_copies_of_one_image_are_corrupted_each_in_its_own_way(name, images):
    copies = corrupt(images[:1].expand(8, -1, -1, -1), name, 4, 0)
    assert len(torch.unique(copies.flatten(1), dim=0)) == 8


def test_noise_has_the_published_size():
    grey = torch.full((50, 3, 32, 32), 128, dtype=torch.uint8)

    def spread(name, severity):
        return (corrupt(grey, name, severity, 0).float() / 255).std().item()

    assert spread("gaussian_noise", 5) == pytest.approx(0.10, rel=0.02)
    assert spread("speckle_noise", 5) == pytest.approx(0.2 * 128 / 255, rel=0.02)
    assert spread("shot_noise", 5) == pytest.approx((128 / 255 / 50) ** 0.5, rel=0.02)
    hit = corrupt(grey, "impulse_noise", 5, 0)
    assert (hit != 128).float().mean().item() == pytest.approx(0.07, rel=0.05)
    assert set(hit.unique().tolist()) == {0, 128, 255}


def test_brightness_and_contrast_do_what_they_say(images):
    bright = corrupt(images, "brightness", 3, 0).float().amax(1)
    expected = (images.float().amax(1) + 0.15 * 255).clamp(max=255)
    assert (bright - expected).abs().max() <= 1
    flat = corrupt(images, "contrast", 5, 0).float()
    ratio = flat.std((2, 3)) / images.float().std((2, 3))
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.15), atol=0.02, rtol=0)


def test_a_jpeg_is_what_pillow_writes(images):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(file, "JPEG", quality=40)
    expected = torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1)
    assert torch.equal(corrupt(images[:1], "jpeg_compression", 5, 0)[0], expected)


def test_filters_agree_with_scipy():
    x = torch.rand(2, 3, 20, 17, generator=torch.Generator().manual_seed(0))
    blurred = ndimage.gaussian_filter(x.numpy(), (0, 0, 0.8, 0.8), mode="nearest", truncate=4)
    torch.testing.assert_close(filters.gaussian(x, 0.8), torch.from_numpy(blurred), atol=1e-5, rtol=0)
    marked = x[:, 0] > 0.9
    expected = np.stack([ndimage.distance_transform_edt(~m.numpy()) for m in marked])
    torch.testing.assert_close(filters.distance(marked), torch.from_numpy(expected).float(), atol=1e-5, rtol=0)
    square = torch.rand(1, 1, 32, 32)
    crop = square[0, 0, 2:30, 2:30].numpy()  # ceil(32 / 1.17) = 28
    large = torch.from_numpy(ndimage.zoom(crop, 1.17, order=1))
    trim = (len(large) - 32) // 2
    expected = large[trim : trim + 32, trim : trim + 32]
    torch.testing.assert_close(filters.zoomed(square, 1.17)[0, 0], expected, atol=1e-5, rtol=0)


def test_a_blur_keeps_a_flat_image():
    flat = torch.full((2, 3, 32, 32), 77, dtype=torch.uint8)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur", "elastic_transform"):
        assert (corrupt(flat, name, 5, 0).int() - 77).abs().max() <= 1, name


def test_motion_blur_smears_in_its_direction():
    point = torch.zeros(2, 1, 21, 21)
    point[:, :, 10, 10] = 1
    smeared = filters.motion(point, 6, 2.0, torch.tensor([0.0, 90.0]))
    assert smeared[0, 0].sum(1).count_nonzero() == 1  # one row
    assert smeared[1, 0].sum(0).count_nonzero() == 1  # one column
    torch.testing.assert_close(smeared.sum((1, 2, 3)), torch.ones(2), atol=0.01, rtol=0)
