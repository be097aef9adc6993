// Training curves and the plane of alignment and uniformity, as SVG of the width there is.

const PAD = { left: 64, right: 12, top: 12, bottom: 40 }, TALL = 260;
const DASHES = ["", "7 4", "2 3", "10 3 2 3"];

function ticks(low, high, about = 7) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((k) => k * power >= raw) ?? 10);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) out.push(Number((k * step).toPrecision(10)));
  return out;
}

function range(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low === Infinity) return [0, 1];
  const air = 0.06 * (high - low) || Math.abs(high) * 0.05 || 0.5;
  return [low - air, high + air];
}

function axes(svg, wide, [x0, x1], [y0, y1], xName, yName) {
  const x = (v) => PAD.left + ((v - x0) / (x1 - x0)) * (wide - PAD.left - PAD.right);
  const y = (v) => TALL - PAD.bottom - ((v - y0) / (y1 - y0)) * (TALL - PAD.top - PAD.bottom);
  for (const v of ticks(y0, y1)) svg.append(
    make("line", { class: "rule", x1: PAD.left, x2: wide - PAD.right, y1: y(v), y2: y(v) }),
    make("text", { x: PAD.left - 6, y: y(v) + 4, "text-anchor": "end" }, short(v)));
  for (const v of ticks(x0, x1, wide < 420 ? 4 : 8)) svg.append(make("text", { x: x(v), y: TALL - PAD.bottom + 16, "text-anchor": "middle" }, short(v)));
  svg.append(
    make("text", { x: (wide + PAD.left) / 2, y: TALL - 6, "text-anchor": "middle" }, xName),
    make("text", { x: -(TALL - PAD.bottom) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, yName));
  return [x, y];
}

function fresh(holder, label) {
  const wide = Math.max(260, holder.clientWidth);
  const svg = make("svg", { viewBox: `0 0 ${wide} ${TALL}`, role: "img", "aria-label": label });
  holder.replaceChildren(svg);
  return [svg, wide];
}

function startCurves() {
  const holder = byId("curves"), runs = data.shown.filter((run) => Object.keys(run.curves).length);
  if (!holder) return;
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))];
  const shown = new Set(names.slice(0, 4)), hidden = new Set();
  byId("curve-names").replaceChildren(...names.map((name) => {
    const button = make("button", { type: "button", value: name, "aria-pressed": String(shown.has(name)) }, name);
    button.addEventListener("click", () => {
      if (!shown.delete(name)) shown.add(name);
      button.setAttribute("aria-pressed", shown.has(name));
      draw();
    });
    return button;
  }));
  byId("curve-runs").replaceChildren(...runs.map((run) => {
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => { if (box.checked) hidden.delete(run); else hidden.add(run); draw(); });
    return make("label", {}, box, key(run), run.name);
  }));
  byId("curve-ends").replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "run"), ...names.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...runs.map((run) => make("tr", {}, make("td", {}, run.name), ...names.map((name) => make("td", {}, run.curves[name] ? short(run.curves[name].y.at(-1)) : "–"))))));
  function draw() {
    const drawn = names.filter((name) => shown.has(name));
    holder.replaceChildren(...drawn.map(() => make("div", { class: "chart" })));
    drawn.forEach((name, k) => chart(holder.children[k], name, runs.filter((run) => !hidden.has(run) && run.curves[name])));
  }
  draw();
  return draw;
}

function key(run) {
  const line = make("i", { class: "key", "aria-hidden": "true" });
  line.style.borderTop = `3px ${run.dash ? "dashed" : "solid"} ${colour(run)}`;
  return line;
}

function chart(holder, name, runs) {
  const last = runs.map((run) => `${run.name} ${short(run.curves[name].y.at(-1))}`);
  const [svg, wide] = fresh(holder, `${name} against step; at the end: ${last.join(", ") || "no run chosen"}`);
  const [, x1] = range(runs.flatMap((run) => run.curves[name].x));
  const [x, y] = axes(svg, wide, [0, x1], range(runs.flatMap((run) => run.curves[name].y)), "step", name);
  for (const run of runs) {
    const { x: xs, y: ys } = run.curves[name];
    const line = make("path", { d: xs.map((v, k) => `${k ? "L" : "M"}${x(v).toFixed(1)} ${y(ys[k]).toFixed(1)}`).join(""), class: "curve", "stroke-dasharray": DASHES[run.dash % 4] });
    line.style.stroke = colour(run);
    svg.append(line);
  }
  const rule = make("line", { class: "now", y1: PAD.top, y2: TALL - PAD.bottom, visibility: "hidden" });
  svg.append(rule);
  const point = (e) => {
    if (!runs.length) return;
    const box = svg.getBoundingClientRect(), v = (((e.clientX - box.left) * wide) / box.width - PAD.left) / (wide - PAD.left - PAD.right) * x1;
    const near = runs.map((run) => {
      const { x: xs, y: ys } = run.curves[name];
      const k = xs.reduce((best, s, i) => (Math.abs(s - v) < Math.abs(xs[best] - v) ? i : best), 0);
      return { run, step: xs[k], value: ys[k] };
    }).sort((p, q) => q.value - p.value);
    for (const side of ["x1", "x2"]) rule.setAttribute(side, x(near[0].step));
    rule.setAttribute("visibility", "visible");
    tipAt(e, make("span", {}, make("b", {}, `${name}, step ${near[0].step}`), ...near.flatMap(({ run, value }) => [make("br"), key(run), ` ${short(value)} ${run.name}`])));
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; rule.setAttribute("visibility", "hidden"); });
}

const MARKS = [
  (x, y) => make("circle", { cx: x, cy: y, r: 5 }),
  (x, y) => make("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9 }),
  (x, y) => make("polygon", { points: `${x},${y - 6} ${x + 6},${y + 5} ${x - 6},${y + 5}` }),
  (x, y) => make("polygon", { points: `${x},${y - 7} ${x + 6},${y} ${x},${y + 7} ${x - 6},${y}` }),
];

function startPlane() {
  const select = byId("plane-of");
  if (!select) return;
  options(select, data.planes.map((plane) => plane.name));
  select.closest("label").hidden = data.planes.length < 2;
  function draw() {
    const { points } = data.planes[select.value];
    const methods = [...new Set(points.map((p) => p.method))], settings = [...new Set(points.map((p) => p.setting))];
    const best = points.reduce((b, p) => (p.alignment + p.uniformity < b.alignment + b.uniformity ? p : b), points[0]);
    const [svg, wide] = fresh(byId("plane"), `Alignment against uniformity of ${points.length} runs; lower is better for both. The lowest sum has ${best.name}: alignment ${short(best.alignment)}, uniformity ${short(best.uniformity)}.`);
    const [x, y] = axes(svg, wide, range(points.map((p) => p.uniformity)), range(points.map((p) => p.alignment)), "uniformity (← better)", "alignment (better ↓)");
    for (const p of points) {
      const mark = MARKS[settings.indexOf(p.setting) % 4](x(p.uniformity), y(p.alignment));
      mark.append(make("title", {}, `${p.name}: alignment ${short(p.alignment)}, uniformity ${short(p.uniformity)}`));
      mark.style.fill = colour(p);
      mark.setAttribute("class", "mark");
      svg.append(mark);
    }
    const entry = (mark, text, fill) => {
      const picture = make("svg", { viewBox: "0 0 16 16", class: "mark-key", "aria-hidden": "true" }, mark);
      mark.style.fill = fill;
      return make("span", {}, picture, text);
    };
    byId("plane-key").replaceChildren(
      ...methods.map((m) => entry(MARKS[0](8, 8), m, colour(points.find((p) => p.method === m)))),
      ...(settings.length > 1 ? settings.map((s, k) => entry(MARKS[k % 4](8, 8), s, "var(--soft)")) : []));
    byId("plane-table").replaceChildren(...points.map((p) => make("tr", {}, make("td", {}, p.name), make("td", {}, short(p.alignment)), make("td", {}, short(p.uniformity)))));
  }
  select.addEventListener("change", draw);
  draw();
  return draw;
}
