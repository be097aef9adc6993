"""Views are a function of the batch and the seed, each image for itself, and do what the paper says."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import interpolate

from gcalign.lab.data import views as v
from gcalign.lab.data.corruptions import scale_saturation
from gcalign.lab.data.views import add_value, make_views, normalise, shift_hue

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
ALL = v.names()


def pictures(n: int = 64, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 5, 5, generator=generator)
    smooth = interpolate(coarse, size=(height, width), mode="bicubic", align_corners=False)
    return (smooth.clamp(0, 1) * 255).round().to(torch.uint8)


def unit(name: str, batch, seed: int = 0):
    """The view before normalisation."""
    channels = batch.shape[1]
    return make_views(name, batch.shape[1:], (0.0,) * channels, (1.0,) * channels)(batch, seed)


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_view_and_leaves_the_global_generator_alone(name):
    batch, views = pictures(), make_views(name, (3, 32, 32), MEAN, STD)
    first = views(batch, 7)
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    second = views(batch, 7)
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert name == "plain" or not torch.equal(first, views(batch, 8))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 36)])
def test_views_keep_the_shape_and_stay_in_range(name, shape):
    batch = pictures(33, *shape)
    untouched = batch.clone()
    view = unit(name, batch)
    assert view.shape == batch.shape
    assert view.dtype == torch.float32
    assert view.min() >= 0
    assert view.max() <= 1
    assert torch.equal(batch, untouched)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"plain"}))
def test_copies_of_one_image_get_views_of_their_own(name):
    view = unit(name, pictures(1).expand(40, -1, -1, -1))
    assert len(torch.unique(view.flatten(1), dim=0)) == 40


def test_plain_only_normalises():
    batch = pictures()
    expected = (batch.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    plain = make_views("plain", (3, 32, 32), MEAN, STD)(batch, 0)
    assert torch.equal(plain, normalise(batch, MEAN, STD))
    torch.testing.assert_close(plain.double(), expected, atol=1e-6, rtol=1e-5)


def test_a_crop_is_the_box_cut_out_and_resized():
    images, generator = pictures(50).float() / 255, torch.Generator().manual_seed(3)
    top, left, height, width = v.boxes(images, generator, (0.2, 1.0), (3 / 4, 4 / 3))
    mirrored = torch.rand(50, generator=generator) < 0.5
    ours = v.resized_crop_and_flip(images, torch.Generator().manual_seed(3))
    for k, image in enumerate(images):
        box = image[None, :, top[k] : top[k] + height[k], left[k] : left[k] + width[k]]
        expected = interpolate(box, size=(32, 32), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(ours[k], expected.flip(2) if mirrored[k] else expected, atol=1e-5, rtol=0)


def test_crops_cover_a_fifth_to_all_of_the_image_and_every_corner():
    top, left, height, width = v.boxes(
        torch.empty(4000, 3, 32, 32), torch.Generator().manual_seed(0), (0.2, 1.0), (3 / 4, 4 / 3)
    )
    share = height * width / 32**2
    assert 0.17 < share.min() < 0.25
    assert 0.95 < share.max() <= 1
    assert top.min() == left.min() == 0
    assert (top + height).max() == (left + width).max() == 32
    ratio = width / height
    assert 0.68 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.47


def test_the_standard_view_flips_half_jitters_four_fifths_and_greys_a_fifth():
    n = 3000
    gradient = torch.arange(16.0).repeat(n, 3, 16, 1) / 15
    view = v.resized_crop_and_flip(gradient, torch.Generator().manual_seed(0))
    assert 0.46 < (view[..., 0] > view[..., -1]).all(dim=2).all(dim=1).float().mean() < 0.54
    images = pictures(n, 3, 8, 8).float() / 255
    unchanged = (v.colour_jitter(images, torch.Generator().manual_seed(0)) - images).abs().amax((1, 2, 3)) < 1e-5
    assert 0.17 < unchanged.float().mean() < 0.23
    grey = v.greyscale(images, torch.Generator().manual_seed(0))
    assert 0.17 < (grey.amax(1) == grey.amin(1)).all(2).all(1).float().mean() < 0.23


def test_domainbeds_view_crops_from_seven_tenths_jitters_every_image_and_greys_a_tenth():
    n = 3000
    crop, jitter, grey = v.POLICIES["domainbed"]
    ramp = (torch.arange(64.0) / 63).expand(n, 1, 64, 64)
    spans = [(x := crop(image, torch.Generator().manual_seed(0))).amax((1, 2, 3)) - x.amin((1, 2, 3))
             for image in (ramp, ramp.transpose(2, 3))]  # fmt: skip
    area = (spans[0] * 63 + 1) * (spans[1] * 63 + 1) / 64**2  # width × height of each box
    assert 0.66 < area.min() < 0.73
    assert 0.97 < area.max() <= 1.001
    images = pictures(n, 3, 8, 8).float() / 255
    moved = (jitter(images, torch.Generator().manual_seed(0)) - images).abs().amax((1, 2, 3))
    assert (moved > 1e-4).float().mean() > 0.995
    pale = grey(images, torch.Generator().manual_seed(0))
    assert 0.08 < (pale.amax(1) == pale.amin(1)).all(2).all(1).float().mean() < 0.12
    # brightness by at most three tenths of one another's value; C0's is four
    light = torch.full((n, 3, 4, 4), 0.5)
    only = v.colour_jitter(light, torch.Generator().manual_seed(1), most=(0.3, 0.0, 0.0, 0.0), share=1.0)
    assert 0.5 * 0.69 < only.min() < 0.5 * 0.71
    assert 0.5 * 1.29 < only.max() < 0.5 * 1.31


def test_c1_erases_a_tenth_to_a_third_of_every_image():
    white = torch.full((500, 3, 32, 32), 255, dtype=torch.uint8)
    erased = (unit("C1", white) == 0).all(dim=1)
    share = erased.float().mean((1, 2))
    assert 0.08 < share.min() < 0.13
    assert 0.30 < share.max() < 0.36
    heights, widths = erased.any(2).sum(1), erased.any(1).sum(1)
    assert torch.equal(heights * widths, erased.sum((1, 2)))  # one box each


def test_c2_shows_a_box_of_five_sevenths_of_each_side():
    ramp = (torch.arange(224.0) / 223).expand(100, 1, 224, 224)
    view = v.strong_crop(ramp, torch.Generator().manual_seed(0))
    span = (view[..., -1] - view[..., 0]).mean(dim=(1, 2)) * 223 + 1
    torch.testing.assert_close(span, torch.full((100,), 160.0), atol=0.01, rtol=0)
    assert view[..., 0].max() - view[..., 0].min() > 0.2  # in different places


def test_c3_raises_the_value_channel_of_the_standard_view_by_three_tenths():
    batch = pictures()
    standard, bright = unit("C0", batch, seed=5), unit("C3", batch, seed=5)
    torch.testing.assert_close(bright.amax(1), (standard.amax(1) + 0.3).clamp(max=1), atol=1e-5, rtol=0)


def test_colour_changes_agree_with_kornia_in_hsv():
    from kornia.color import hsv_to_rgb, rgb_to_hsv

    images = torch.rand(20, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    turns = torch.rand(20) - 0.5
    hsv = rgb_to_hsv(images)
    shifted, raised, saturated = hsv.clone(), hsv.clone(), hsv.clone()
    shifted[:, 0] = (shifted[:, 0] + 2 * torch.pi * turns.view(-1, 1, 1)).remainder(2 * torch.pi)
    raised[:, 2] = (raised[:, 2] + 0.3).clamp(max=1)
    saturated[:, 1] = (saturated[:, 1] * 2 + 0.1).clamp(max=1)
    close = {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(shift_hue(images, turns), hsv_to_rgb(shifted), **close)
    torch.testing.assert_close(add_value(images, 0.3), hsv_to_rgb(raised), **close)
    torch.testing.assert_close(scale_saturation(images, 2, 0.1), hsv_to_rgb(saturated), **close)


def test_bad_requests_say_what_is_wrong():
    with pytest.raises(ValueError, match="C = 1 or 3"):
        make_views("C0", (4, 32, 32), (0.5,) * 4, (0.5,) * 4)
    with pytest.raises(ValueError, match="each of 3 channels"):
        make_views("C0", (3, 32, 32), (0.5,), (0.5,))
