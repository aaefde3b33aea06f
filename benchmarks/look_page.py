"""Measure the page of `trifold look` in a browser, with an untrained model of the size of GPT-2 and
512 tokens.

    python benchmarks/look_page.py [--layers 12] [--tokens 512]

Prints the seconds of the forward pass, those until the first view is drawn after it, the bytes that
the page transfers for the first view and for all layers, and the frames per second while the
pointer moves over a heat map."""

from __future__ import annotations

import argparse
import random
import shutil
import string
import threading
import time

import torch
from playwright.sync_api import sync_playwright

from trifold.look.server import serve
from trifold.look.session import Session
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

FRAMES = """(box) => new Promise((done) => {
  const target = document.querySelector("svg.figure"), times = [];
  let n = 0;
  const step = (now) => {
    times.push(now);
    const [x, y] = [box.x + (n * 7) % box.width, box.y + (n * 3) % box.height];
    const at = {bubbles: true, clientX: x, clientY: y};
    const under = document.elementFromPoint(at.clientX, at.clientY) || target;
    for (const name of ["pointermove", "mousemove"]) under.dispatchEvent(new MouseEvent(name, at));
    if (++n < 180) requestAnimationFrame(step);
    else done(times.slice(1).map((each, k) => each - times[k]));
  };
  requestAnimationFrame(step);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    codec = train_tokenizer(
        [string.ascii_lowercase], TokenizerSettings(kind="char", min_frequency=1)
    )
    config = ModelConfig(
        shape="decoder", heads=("lm",), vocab_size=codec.vocab_size, max_positions=1024,
        d_model=768, n_heads=12, d_ff=3072, n_layers=options.layers,
        norm_placement="pre", positions="learned", activation="gelu",
    )  # fmt: skip
    torch.manual_seed(1)
    session = Session(Pipeline(Transformer(config).eval(), codec))
    text = "".join(random.Random(1).choices(string.ascii_lowercase, k=options.tokens))
    started = time.perf_counter()
    session.trace(text)
    print(f"forward pass with every activation: {time.perf_counter() - started:.2f} s")
    ready: list[str] = []
    start = {"text": text, "target": None, "models": ["benchmark"]}
    threading.Thread(target=serve, args=([session], start, 0, ready.append), daemon=True).start()
    while not ready:
        time.sleep(0.05)
    time.sleep(0.5)
    with sync_playwright() as running:
        arguments = {
            "executable_path": shutil.which("chromium"),
            "args": ["--no-sandbox", "--disable-gpu"],
        }
        page = running.chromium.launch(**arguments).new_page(
            viewport={"width": 1280, "height": 900}
        )
        sizes: list[int] = []
        page.on(
            "requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"])
        )
        began = time.perf_counter()
        page.goto(ready[0], wait_until="commit")
        page.wait_for_selector("svg.figure image")
        print(f"first view: {time.perf_counter() - began:.2f} s, {sum(sizes) / 1e6:.1f} MB")
        page.locator(".thumbnail").nth(options.layers * 12 - 1).wait_for()
        page.wait_for_timeout(1000)
        print(f"all thumbnails: {time.perf_counter() - began:.2f} s, {sum(sizes) / 1e6:.1f} MB")
        box = page.locator("svg.figure image").bounding_box()
        seen = {
            "x": box["x"] + 2,
            "y": box["y"] + 2,
            "width": min(900, box["width"]) - 4,
            "height": 500,
        }
        times = sorted(page.evaluate(FRAMES, seen))
        middle, worst = times[len(times) // 2], times[int(0.95 * len(times))]
        print(
            f"hovering: {1000 * len(times) / sum(times):.0f} frames per second; "
            f"frame {middle:.1f} ms, 95 % {worst:.1f} ms"
        )


if __name__ == "__main__":
    main()
