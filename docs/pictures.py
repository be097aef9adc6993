"""Takes the pictures of the pages `your-own-images.md` and `audit.md` from a report and an audit, in Chromium.

gcalign demo && gcalign report runs/demo -o report.html && python docs/pictures.py report.html worst.html

The audit is that of `audit.md`: worst.html is what its first command writes.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from browser.chromium import Chromium  # noqa: E402  # after the path to the tests, whose own it is

WIDE = 1000
PICTURES = {  # name: what is seen, and the select that is set first to an option of this place
    "flow": ("#flow", ("plan-run", 2)),
}


def take(page: Path, folder: Path) -> None:
    """Each picture as a WebP file."""
    folder.mkdir(exist_ok=True)
    with Chromium() as browser:
        browser.look(width=WIDE, height=900)
        browser.open(page)
        for name, (what, choice) in PICTURES.items():
            if choice:
                options = f"document.getElementById({choice[0]!r}).options"
                browser.pick(f"#{choice[0]}", browser.run(f"[...{options}].at({choice[1]}).value"))
            box = browser.run(
                f"(({{x, y, width, height}}) => ({{x: x - 12, y: y + scrollY - 12, width: width + 24, "
                f"height: Math.min(height, 720) + 24}}))(document.querySelector({what!r}).getBoundingClientRect())"
            )
            image = Image.open(io.BytesIO(browser.screenshot(clip=box))).convert("RGB")
            image.save(folder / f"{name}.webp", quality=84, method=6)


def take_audit(page: Path, folder: Path, cards: int = 4) -> None:
    """The beginning of the page of an audit, to the end of its fourth card."""
    with Chromium() as browser:
        browser.look(width=WIDE - 100, height=900)
        browser.open(page)
        top = browser.run("document.querySelector('h1').getBoundingClientRect().top + scrollY")
        end = browser.run(f"document.querySelectorAll('li')[{cards - 1}].getBoundingClientRect().bottom + scrollY")
        box = {"x": 0, "y": top - 12, "width": WIDE - 100, "height": end - top + 20}
        image = Image.open(io.BytesIO(browser.screenshot(clip=box))).convert("RGB")
        image.save(folder / "audit.webp", quality=84, method=6)


if __name__ == "__main__":
    take(Path(sys.argv[1]), HERE / "report")
    if len(sys.argv) > 2:
        take_audit(Path(sys.argv[2]), HERE / "report")
