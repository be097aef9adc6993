// An image and its nearest neighbours in the space of each encoder.

let pickNeighbours = () => {}; // of an image of a sample, for other parts of the page

function startNeighbours() {
  const gallery = byId("gallery");
  if (!gallery) return;
  const used = data.samples.map((_, k) => k).filter((k) => plannable.some((run) => data.pairings[run.pairing].sample === k));
  const select = byId("gallery-data");
  let sample = null, chosen = 0, tiles = [];
  options(select, used.map((k) => data.samples[k].name));
  select.closest("label").hidden = used.length < 2;

  const named = (k) => numbered(k, classOf(sample.labels, sample.classes, k));
  function show(k) {
    tiles[chosen]?.setAttribute("aria-selected", "false");
    chosen = k;
    tiles[k].setAttribute("aria-selected", "true");
    gallery.setAttribute("aria-activedescendant", tiles[k].id);
    byId("chosen").replaceChildren(tile(sample.sprite, k, named(k), 96), make("b", {}, named(k)));
    const runs = plannable.filter((run) => data.samples[data.pairings[run.pairing].sample] === sample);
    byId("neighbours").replaceChildren(...runs.map((run) => {
      const near = whole(run.neighbours), cos = halves(run.neighbourCosines), width = near.length / sample.n;
      let alike = 0;
      const cells = Array.from({ length: width }, (_, r) => {
        const other = near[k * width + r], like = sample.labels && sample.labels[other] === sample.labels[k];
        if (like) alike++;
        const mark = sample.labels ? (like ? "same class" : "other class") : "";
        return make("li", { class: sample.labels ? (like ? "same" : "other") : null },
          tile(sample.sprite, other, `${named(other)}, ${mark}`, innerWidth < 480 ? 36 : 48), make("small", {}, `${cos[k * width + r].toFixed(2)}${sample.labels ? (like ? " ✓" : " ✗") : ""}`));
      });
      return make("div", { class: "near" }, make("h3", {}, run.name, make("small", {}, sample.labels ? ` ${alike} of ${width} of its class` : "")), make("ol", {}, ...cells));
    }));
  }
  function fill(k) {
    sample = data.samples[k];
    chosen = 0;
    tiles = Array.from({ length: sample.n }, (_, i) => {
      const node = tile(sample.sprite, i, named(i), 40);
      for (const [key, value] of Object.entries({ role: "option", id: `image-${i}`, "aria-selected": "false" })) node.setAttribute(key, value);
      node.addEventListener("click", () => show(i));
      return node;
    });
    gallery.replaceChildren(...tiles);
    show(0);
  }
  gallery.addEventListener("keydown", (e) => {
    const across = Math.max(1, Math.floor(gallery.clientWidth / 42));
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[e.key];
    if (!step) return;
    e.preventDefault();
    show(Math.max(0, Math.min(sample.n - 1, chosen + step)));
    const at = tiles[chosen]; // scrollIntoView would move the page, too
    gallery.scrollTop = Math.max(at.offsetTop + at.offsetHeight - gallery.clientHeight, Math.min(gallery.scrollTop, at.offsetTop));
  });
  select.addEventListener("change", () => fill(used[select.value]));
  pickNeighbours = (of, k) => {
    const place = used.indexOf(data.samples.indexOf(of));
    if (of !== sample) { select.value = place; fill(used[place]); }
    show(k);
  };
  fill(used[0]);
}
