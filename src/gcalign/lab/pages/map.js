// Where each encoder puts the images, in two dimensions; the same image is marked in every map.

function startMap() {
  const holder = byId("maps");
  if (!holder) return;
  const used = data.samples.map((_, k) => k).filter((k) => plannable.some((run) => data.pairings[run.pairing].sample === k));
  const kinds = [...new Set(plannable.flatMap((run) => Object.keys(run.maps).map((name) => name.split(" ")[0])))];
  const from = byId("map-data"), kind = byId("map-kind"), by = byId("map-colour");
  options(from, used.map((k) => data.samples[k].name));
  from.closest("label").hidden = used.length < 2;
  kind.replaceChildren(...kinds.map((name) => make("option", { value: name }, name)));
  kind.closest("label").hidden = kinds.length < 2;
  let sample = null, maps = [], chosen = 0, lit = null, groups = null, names = [];
  const PLACE = 1000, EDGE = 30; // of a map's own coordinates
  const named = (k) => numbered(k, classOf(sample.labels, sample.classes, k));

  function show(k) {
    chosen = k;
    for (const { ring, x, y } of maps) { ring.setAttribute("cx", x(k)); ring.setAttribute("cy", y(k)); }
    byId("map-said").replaceChildren(tile(sample.sprite, k, named(k), 72), make("span", {}, make("b", {}, named(k)), make("br"),
      sample.domains ? `${sample.domainNames[sample.domains[k]] ?? sample.domains[k]}; ` : "", make("a", { href: "#near" }, "its neighbours")));
  }

  function drawn(run) {
    const [name, packed] = Object.entries(run.maps).find(([full]) => full.split(" ")[0] === kind.value) ?? Object.entries(run.maps)[0];
    const at = whole(packed), size = PLACE - 2 * EDGE;
    const x = (k) => EDGE + (at[2 * k] / 65535) * size, y = (k) => PLACE - EDGE - (at[2 * k + 1] / 65535) * size;
    const all = Array.from({ length: sample.n }, (_, k) => k), count = groups ? Math.max(...groups) + 1 : 1;
    const dots = Array.from({ length: count }, (_, g) => {
      const d = all.filter((k) => !groups || groups[k] === g).map((k) => `M${x(k).toFixed(0)} ${y(k).toFixed(0)}h0`).join("");
      const path = make("path", { d, class: `dots${lit !== null && lit !== g ? " faint" : ""}` });
      path.style.stroke = `var(--c${g % 10})`;
      return path;
    });
    const ring = make("circle", { class: "ring", r: 26 });
    const svg = make("svg", { viewBox: `0 0 ${PLACE} ${PLACE}`, tabindex: "0", role: "application", "aria-describedby": "map-said",
      "aria-label": `Map of ${sample.n} images by ${run.name}, ${name}; arrow keys move to the nearest image on that side` }, ...dots, ring);
    const nearest = (px, py, fits = () => true) => all.reduce((best, k) => {
      if (!fits(x(k) - px, y(k) - py, k)) return best;
      const far = (x(k) - px) ** 2 + (y(k) - py) ** 2;
      return best === null || far < best.far ? { k, far } : best;
    }, null);
    const under = (e) => {
      const box = svg.getBoundingClientRect();
      return nearest(((e.clientX - box.left) / box.width) * PLACE, ((e.clientY - box.top) / box.height) * PLACE).k;
    };
    const point = (e) => { const k = under(e); show(k); tipAt(e, tile(sample.sprite, k, "", 72), make("b", {}, named(k))); };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    svg.addEventListener("click", (e) => pickNeighbours(sample, under(e)));
    svg.addEventListener("keydown", (e) => {
      const side = { ArrowLeft: (dx, dy) => dx < 0 && -dx >= Math.abs(dy), ArrowRight: (dx, dy) => dx > 0 && dx >= Math.abs(dy),
        ArrowUp: (dx, dy) => dy < 0 && -dy >= Math.abs(dx), ArrowDown: (dx, dy) => dy > 0 && dy >= Math.abs(dx) }[e.key];
      if (e.key === "Enter") pickNeighbours(sample, chosen);
      if (!side) return;
      e.preventDefault();
      show((nearest(x(chosen), y(chosen), side) ?? { k: chosen }).k);
    });
    maps.push({ ring, x, y });
    return make("figure", { class: "map-of" }, svg, make("figcaption", {}, make("b", {}, run.name), make("br"), name));
  }

  function draw() {
    [groups, names] = by.value === "domain" ? [sample.domains, sample.domainNames] : [sample.labels, sample.classes];
    maps = [];
    const runs = plannable.filter((run) => data.samples[data.pairings[run.pairing].sample] === sample);
    holder.classList.toggle("single", runs.length === 1);
    holder.replaceChildren(...runs.map(drawn));
    const present = groups ? [...new Set(groups)].sort((p, q) => p - q) : [];
    byId("map-key").replaceChildren(...present.map((g) => {
      const key = make("i", { class: "dot", "aria-hidden": "true" });
      key.style.background = `var(--c${g % 10})`;
      const button = make("button", { type: "button", "aria-pressed": String(lit === g) }, key, names[g] ?? String(g));
      button.addEventListener("click", () => { lit = lit === g ? null : g; draw(); });
      return button;
    }));
    show(Math.min(chosen, sample.n - 1));
  }
  function fill() {
    sample = data.samples[used[from.value || 0]];
    lit = null;
    by.closest("label").hidden = !(sample.labels && sample.domains);
    by.value = sample.labels || !sample.domains ? "class" : "domain";
    draw();
  }
  from.addEventListener("change", fill);
  kind.addEventListener("change", draw);
  by.addEventListener("change", () => { lit = null; draw(); });
  fill();
}
