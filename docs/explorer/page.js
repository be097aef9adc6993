// The page: reads sliders, asks numerics.js, draws. The address keeps the settings, so that a link shows what you see.
"use strict";

const { OFF, HARD, blocks, solve, suspicion, mismatch, random } = self.numerics;
const byId = (id) => document.getElementById(id);
const STEPS = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100];
const LAMBDAS = [OFF, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, HARD];
const START = { data: "plane", eps: 0.1, iterations: 10, rows: HARD, columns: HARD, alpha: 0, beta: 0, share: 0.15, n: 18, seed: 1 };
const PRESETS = { ince: [HARD, OFF], "gca-ince": [HARD, HARD], "gca-uot": [0.2, 0.2], none: [OFF, OFF] };
const RANGES = { alpha: [0, 0.5], beta: [0, 0.5], share: [0, 0.6] };
const dark = matchMedia("(prefers-color-scheme: dark)");

const state = { ...START };
let base, points, result, suspicious, at = null, chosen = null, timer = 0;

// --- data ---------------------------------------------------------------------------------------------------

function shuffled(n, seed) {
  const next = random(1000 + seed), order = Array.from({ length: n }, (_, k) => k);
  for (let k = n - 1; k > 0; k--) {
    const j = Math.floor(next() * (k + 1));
    [order[k], order[j]] = [order[j], order[k]];
  }
  return order;
}

// a point in the plane, kept in the picture
const inside = (point) => point.map((v) => Math.max(-1.3, Math.min(1.3, v)));

// samples as they are before pairs are mismatched: view 1, view 2, groups and what they are called
function sampled() {
  if (state.data === "emoji") {
    const { emoji, names, kind, kinds, z1, z2 } = self.emoji, first = emoji.map((e) => e);
    return { kind: "cosine", x: z1.map((z) => [...z]), y: z2.map((z) => [...z]), groups: kind, first, second: names, groupNames: kinds };
  }
  const next = random(state.seed), bell = () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
  const groups = Array.from({ length: state.n }, (_, k) => Math.floor((3 * k) / state.n)), turn = next() * 2 * Math.PI;
  const x = groups.map((g) => inside([0.78 * Math.cos(turn + (2 * Math.PI * g) / 3) + 0.25 * bell(), 0.78 * Math.sin(turn + (2 * Math.PI * g) / 3) + 0.25 * bell()]));
  const y = x.map((p) => inside(p.map((v) => v + 0.1 * bell())));
  const names = groups.map((_, k) => String(k));
  return { kind: "squared", x, y, groups, first: names, second: names, groupNames: ["A", "B", "C"] };
}

function restart() {
  base = sampled();
  points = { x: base.x.map((p) => [...p]), y: base.y.map((p) => [...p]) };
  at = chosen = null;
  update();
}

// column j holds view 2 of sample partner[j]
const partners = () => mismatch(shuffled(base.x.length, state.seed), state.share);

function problem() {
  const y = partners().map((j) => points.y[j]);
  return {
    x: points.x, y, kind: base.kind, eps: state.eps, rows: state.rows, columns: state.columns, iterations: state.iterations,
    target: blocks(base.groups, state.alpha, state.beta),
  };
}

function update() {
  result = solve(problem());
  result.suspicion = suspicion(result);
  result.partner = partners();
  suspicious = Array.from(result.suspicion, (s) => s > 0);
  say();
  drawPlane();
  drawMaps();
  list();
  python();
  remember();
}

// one step against the gradient; in the plane its largest move is limited, emoji stay on their sphere
function train() {
  const { dx, dy, partner, n } = result, size = (g) => Math.hypot(...g);
  const largest = Math.max(...dx.map(size), ...dy.map(size), 1e-9), rate = Math.min(0.35 * n * state.eps, 0.08 / largest);
  const move = (p, g) => {
    const moved = Array.from(p, (v, k) => v - rate * g[k]);
    return base.kind === "squared" ? inside(moved) : moved.map((v) => v / size(moved));
  };
  points.x = points.x.map((p, i) => move(p, dx[i]));
  dy.forEach((g, j) => { points.y[partner[j]] = move(points.y[partner[j]], g); });
  update();
}

// --- words --------------------------------------------------------------------------------------------------

function short(v) {
  if (v === 0) return "0";
  if (!Number.isFinite(v)) return String(v);
  const text = Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5 ? v.toExponential(1) : String(Number(v.toPrecision(3)));
  return text.replaceAll("-", "−");
}
const percent = (v) => `${Math.round(100 * v)} %`;
const lambda = (lam) => (lam === OFF ? "off" : lam === HARD ? "hard" : short(lam));

function make(tag, attributes = {}, ...children) {
  const drawn = ["circle", "rect", "line", "path", "text", "title", "g"].includes(tag);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function say() {
  const r = result, pairs = r.plan.reduce((s, p, k) => s + (k % (r.m + 1) === 0 ? p : 0), 0);
  const found = { loss: short(r.loss), mass: short(r.mass), "row error": short(r.rowError), "column error": short(r.columnError), "on the pairs": percent(pairs / r.mass), entropy: short(r.entropy) };
  byId("facts").replaceChildren(...Object.entries(found).map(([k, v]) => make("div", { class: k }, make("dt", {}, k), make("dd", {}, v))));
  for (const [id, text] of Object.entries({
    eps: short(state.eps), iterations: state.iterations, rows: lambda(state.rows), columns: lambda(state.columns),
    alpha: short(state.alpha), beta: short(state.beta), share: percent(state.share), n: base.x.length,
  })) byId(`${id}-said`).textContent = text;
  byId("n").disabled = byId("draw").disabled = state.data === "emoji";
  byId("iterations").disabled = state.rows === OFF || state.columns === OFF;
  byId("rows").setAttribute("aria-valuetext", lambda(state.rows));
  byId("columns").setAttribute("aria-valuetext", lambda(state.columns));
  byId("eps").setAttribute("aria-valuetext", short(state.eps));
  byId("iterations").setAttribute("aria-valuetext", state.iterations);
  for (const button of byId("presets").children) {
    const [rows, columns] = PRESETS[button.value];
    button.setAttribute("aria-pressed", rows === state.rows && columns === state.columns);
  }
  readout();
}

function python() {
  const side = (name, lam) => (lam === OFF ? null : lam === HARD ? `gcalign.${name}()` : `gcalign.${name}(${lam})`);
  const sides = [side("Rows", state.rows), side("Columns", state.columns)].filter(Boolean);
  const kernel = base.kind === "squared" ? `gcalign.SquaredEuclidean(${Number(state.eps.toPrecision(6))}, normalized=False)` : `gcalign.Cosine(${Number(state.eps.toPrecision(6))})`;
  const blocked = state.alpha || state.beta;
  byId("python").textContent = `criterion = gcalign.Alignment(\n    ${kernel},\n    (${sides.join(", ")}${sides.length === 1 ? "," : ""}),\n    gcalign.KL(),\n` +
    `    ${blocked ? `gcalign.Blocks(alpha=${state.alpha}, beta=${state.beta})` : "gcalign.Identity()"},\n    iterations=${state.iterations},\n)\n` +
    `loss = criterion(z1, z2${blocked ? ", domains=groups" : ""})  # ${result.loss.toFixed(4)} at tol=0\nplan = criterion.plan(z1, z2${blocked ? ", domains=groups" : ""})`;
}

const nameOf = (i, j) => (state.data === "emoji" ? `${base.first[i]} × “${base.second[result.partner[j]]}”` : `view 1 of ${i} × view 2 of ${result.partner[j]}`);

function readout() {
  const out = byId("pair");
  if (!at) {
    out.textContent = "Point at a matrix, tap it, or move over it with the arrow keys, to read one entry.";
    return;
  }
  const { i, j } = at, k = i * result.m + j;
  const what = i !== j ? "not a pair" : result.partner[i] === i ? "a pair" : "a pair that was mismatched on purpose";
  out.textContent = `${nameOf(i, j)} (${what}): K = ${short(result.kernel[k])}, P = ${short(result.plan[k])}, T = ${short(result.target[k])}, n·∂L/∂log K = ${short(result.n * result.pull[k])}`;
}

function list() {
  const { n, partner } = result, wrong = partner.map((j, i) => j !== i), order = Array.from({ length: n }, (_, k) => k).sort((p, q) => result.suspicion[q] - result.suspicion[p]);
  const caught = wrong.filter((w, i) => w && suspicious[i]).length, alarms = suspicious.filter((s, i) => s && !wrong[i]).length, all = wrong.filter(Boolean).length;
  byId("suspects-said").textContent = `${all} of ${n} pairs were mismatched on purpose. ${caught} of them are marked as suspicious, and so are ${alarms} of the ${n - all} true pairs.`;
  byId("suspects").replaceChildren(...order.slice(0, 8).map((i) => make("li", { class: suspicious[i] ? "lit" : null },
    make("b", {}, state.data === "emoji" ? nameOf(i, i) : `pair ${i}${wrong[i] ? ` (has view 2 of ${partner[i]})` : ""}`), make("br"),
    make("small", {}, `suspicion ${short(result.suspicion[i])}${wrong[i] ? ", mismatched" : ""}`))));
}

// --- points -------------------------------------------------------------------------------------------------

const along = (z) => self.emoji.axes.map((axis) => axis.reduce((s, v, d) => s + v * z[d], 0));
const SPREAD = 1.12 / Math.max(...[...self.emoji.z1, ...self.emoji.z2].flatMap(along).map(Math.abs));

function placed(z) {
  if (state.data !== "emoji") return [z[0], -z[1]];
  const [px, py] = along(z);
  return [SPREAD * px, -SPREAD * py];
}

function arrow([px, py], [dx, dy], scale) {
  const x = px - scale * dx, y = py - scale * dy, length = Math.hypot(x - px, y - py);
  if (length < 0.012) return [];
  const [ux, uy] = [(x - px) / length, (y - py) / length], head = Math.min(0.05, 0.5 * length);
  const wing = (s) => `${x - head * (ux - s * 0.6 * uy)} ${y - head * (uy + s * 0.6 * ux)}`;
  return [make("path", { class: "arrow", d: `M${px} ${py}L${x} ${y}M${wing(1)}L${x} ${y}L${wing(-1)}` })];
}

function drawPlane() {
  const { n, m, plan, dx, dy, partner } = result, p = problem();
  const x = p.x.map(placed), y = p.y.map(placed), nodes = [], most = Math.max(...plan);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      const share = plan[i * m + j] / most;
      if (share > 0.03) nodes.push(make("line", { class: "bond", x1: x[i][0], y1: x[i][1], x2: y[j][0], y2: y[j][1], "stroke-width": 0.05 * share, "stroke-opacity": 0.12 + 0.4 * share }));
    }
  }
  for (let i = 0; i < n; i++) {
    nodes.push(make("line", { class: suspicious[i] ? "own bad" : "own", x1: x[i][0], y1: x[i][1], x2: y[i][0], y2: y[i][1] }));
    if (suspicious[i]) nodes.push(...[x[i], y[i]].map(([cx, cy]) => make("circle", { class: "glow", cx, cy, r: 0.075 })));
  }
  const emoji = state.data === "emoji", mark = (side, i) => (chosen && chosen.side === side && chosen.i === i ? " chosen" : "");
  const one = (i) => (emoji ? make("text", { x: x[i][0], y: x[i][1], class: mark("x", i) }, base.first[i]) : make("circle", { class: `one-mark${mark("x", i)}`, cx: x[i][0], cy: x[i][1], r: 0.036 }));
  const two = (j) => (emoji ? make("text", { x: y[j][0], y: y[j][1] + 0.075, class: `name${mark("y", j)}` }, base.second[partner[j]]) : make("rect", { class: `two-mark${mark("y", j)}`, x: y[j][0] - 0.032, y: y[j][1] - 0.032, width: 0.064, height: 0.064 }));
  const size = (v) => Math.hypot(...v), longest = Math.max(...dx.map(size), ...dy.map(size), 1e-9);
  const scale = Math.min(0.32 / longest, 2.5 * n * state.eps); // arrows keep their relative lengths
  const flat = (g) => placed(Array.from(g));
  for (let i = 0; i < n; i++) nodes.push(one(i), two(i));
  for (let i = 0; i < n; i++) nodes.push(...arrow(x[i], flat(dx[i]), scale), ...arrow(y[i], flat(dy[i]), scale));
  byId("plane").replaceChildren(...nodes);
  const lit = suspicious.filter(Boolean).length;
  byId("plane").setAttribute("aria-label", `${n} pairs of points; ${lit} pairs are suspicious. Arrows show a training step.` + (chosen ? ` Chosen: view ${chosen.side === "x" ? 1 : 2} of pair ${chosen.i}.` : ""));
}

function pointer(event) {
  const box = byId("plane").getBoundingClientRect();
  return [(2.7 * (event.clientX - box.left)) / box.width - 1.35, 1.35 - (2.7 * (event.clientY - box.top)) / box.height];
}

function moveChosen(to) {
  if (!chosen || state.data === "emoji") return;
  const place = inside(to);
  if (chosen.side === "x") points.x[chosen.i] = place;
  else points.y[result.partner[chosen.i]] = place;
  update();
}

// --- matrices -----------------------------------------------------------------------------------------------

// viridis, from nothing to most
const STOPS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
function viridis(share) {
  const t = Math.max(0, Math.min(1, share)) * (STOPS.length - 1), k = Math.min(STOPS.length - 2, Math.floor(t));
  return `rgb(${STOPS[k].map((v, c) => Math.round(v + (t - k) * (STOPS[k + 1][c] - v))).join(" ")})`;
}
function signed(share) { // blue pulls, orange pushes
  const end = share < 0 ? [10, 98, 168] : [213, 94, 0], paper = dark.matches ? [40, 40, 46] : [244, 244, 242], t = Math.min(1, Math.abs(share));
  const bright = dark.matches ? end.map((v) => Math.min(255, v + 60)) : end;
  return `rgb(${paper.map((v, c) => Math.round(v + t * (bright[c] - v))).join(" ")})`;
}

const MAPS = {
  kernel: () => { const most = Math.max(...result.kernel, 1e-300); return (k) => viridis(Math.sqrt(result.kernel[k] / most)); },
  plan: () => { const most = Math.max(...result.plan, 1e-300); return (k) => viridis(Math.sqrt(result.plan[k] / most)); },
  target: () => { const most = Math.max(...result.target); return (k) => viridis(Math.sqrt(result.target[k] / most)); },
  pull: () => { const most = Math.max(...result.pull.map(Math.abs), 1e-300); return (k) => signed(Math.sign(result.pull[k]) * Math.sqrt(Math.abs(result.pull[k]) / most)); },
};

// the square of cells within a canvas; the plan leaves room for its sums
const cellsOf = (canvas) => (canvas.id === "plan" ? 0.84 : 1) * canvas.width;

function drawMaps() {
  for (const id of Object.keys(MAPS)) {
    const canvas = byId(id), size = Math.round(canvas.clientWidth * (self.devicePixelRatio || 1)) || 300;
    if (canvas.width !== size) canvas.width = canvas.height = size;
    const pen = canvas.getContext("2d"), { n, m } = result, side = cellsOf(canvas), cell = side / n, colour = MAPS[id]();
    pen.clearRect(0, 0, size, size);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < m; j++) {
        pen.fillStyle = colour(i * m + j);
        pen.fillRect(Math.floor(j * cell), Math.floor(i * cell), Math.ceil(cell), Math.ceil(cell));
      }
    }
    const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
    if (id === "plan") {
      sums(pen, side, size, read);
      pen.lineWidth = Math.max(2, size / 160);
      pen.strokeStyle = read("--glow");
      suspicious.forEach((lit, i) => { if (lit) pen.strokeRect(i * cell, i * cell, cell, cell); });
    }
    if (at) {
      pen.lineWidth = Math.max(2, size / 150);
      for (const [colour, more] of [["#000", 1], ["#fff", 0]]) {
        pen.strokeStyle = colour;
        pen.strokeRect(at.j * cell - more * pen.lineWidth, at.i * cell - more * pen.lineWidth, cell + 2 * more * pen.lineWidth, cell + 2 * more * pen.lineWidth);
      }
    }
    canvas.setAttribute("aria-label", describe(id));
  }
}

function sums(pen, side, size, read) {
  const { n, rowSums, columnSums, mu, nu } = result, cell = side / n, room = size - side - 4;
  const most = Math.max(...rowSums, ...columnSums, ...mu, ...nu), bar = (v) => (room * v) / most;
  pen.fillStyle = read("--soft");
  rowSums.forEach((v, i) => pen.fillRect(side + 3, i * cell + 1, bar(v), Math.max(1, cell - 2)));
  columnSums.forEach((v, j) => pen.fillRect(j * cell + 1, side + 3, Math.max(1, cell - 2), bar(v)));
  pen.fillStyle = read("--accent");
  mu.forEach((v, i) => pen.fillRect(side + 2 + bar(v), i * cell, 2, cell));
  nu.forEach((v, j) => pen.fillRect(j * cell, side + 2 + bar(v), cell, 2));
}

function describe(id) {
  const r = result, pairs = Array.from({ length: r.n }, (_, i) => r.plan[i * r.m + i]).reduce((s, v) => s + v, 0);
  return {
    kernel: `Kernel, ${r.n} by ${r.m}`,
    plan: `Transport plan, ${r.n} by ${r.m}: mass ${short(r.mass)}, ${percent(pairs / r.mass)} of it on the pairs, row error ${short(r.rowError)}, column error ${short(r.columnError)}`,
    target: `Target plan: ${state.alpha || state.beta ? `pairs, α = ${short(state.alpha)} within groups, β = ${short(state.beta)} between` : "pairs alone"}`,
    pull: "Gradient of the loss for each entry of the kernel",
  }[id];
}

function point(i, j) {
  const within = (v) => Math.max(0, Math.min(result.n - 1, v));
  at = { i: within(i), j: within(j) };
  readout();
  drawMaps();
}

// --- controls -----------------------------------------------------------------------------------------------

function remember() {
  const parts = Object.entries(state).filter(([k, v]) => v !== START[k]).map(([k, v]) => `${k}=${v === OFF ? "off" : v === HARD ? "hard" : v}`);
  history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
}

// what the address says, with values that a slider can have; anything else is ignored
function recall() {
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    const value = Number(text);
    if (key === "data" && ["plane", "emoji"].includes(text)) state.data = text;
    else if (key === "rows" || key === "columns") {
      const lam = text === "off" ? OFF : text === "hard" ? HARD : value;
      if (LAMBDAS.includes(lam)) state[key] = lam;
    } else if (key === "iterations" && STEPS.includes(value)) state.iterations = value;
    else if (key === "eps" && value >= 0.01 && value <= 3.2) state.eps = value;
    else if (key === "n" && value >= 6 && value <= 36 && value % 3 === 0) state.n = value;
    else if (key === "seed" && Number.isInteger(value)) state.seed = value;
    else if (key in RANGES && text !== "" && value >= RANGES[key][0] && value <= RANGES[key][1]) state[key] = value;
  }
}

function show() { // the state on the sliders
  byId("eps").value = Math.log10(state.eps);
  byId("iterations").value = STEPS.indexOf(state.iterations);
  byId("rows").value = LAMBDAS.indexOf(state.rows);
  byId("columns").value = LAMBDAS.indexOf(state.columns);
  for (const id of ["alpha", "beta", "share", "n"]) byId(id).value = state[id];
  document.querySelector(`input[name=data][value=${state.data}]`).checked = true;
}

let waiting = 0;
function soon() { // at most one drawing a frame
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(update);
}

function stop() {
  clearInterval(timer);
  timer = 0;
  byId("run").setAttribute("aria-pressed", "false");
}

function listen() {
  const slide = (id, read, then = soon) => byId(id).addEventListener("input", (e) => { state[id] = read(Number(e.target.value)); then(); });
  slide("eps", (v) => Number((10 ** v).toPrecision(4)));
  slide("iterations", (k) => STEPS[k]);
  slide("rows", (k) => LAMBDAS[k]);
  slide("columns", (k) => LAMBDAS[k]);
  slide("alpha", (v) => v);
  slide("beta", (v) => v);
  slide("share", (v) => v);
  slide("n", (v) => v, restart);
  byId("controls").addEventListener("submit", (e) => e.preventDefault());
  byId("presets").addEventListener("click", (e) => {
    if (!(e.target.value in PRESETS)) return;
    [state.rows, state.columns] = PRESETS[e.target.value];
    show();
    update();
  });
  for (const input of document.querySelectorAll("input[name=data]")) input.addEventListener("change", (e) => { state.data = e.target.value; stop(); restart(); });
  byId("draw").addEventListener("click", () => { state.seed += 1; restart(); });
  byId("step").addEventListener("click", train);
  byId("reset").addEventListener("click", () => { stop(); restart(); });
  byId("run").addEventListener("click", () => {
    if (timer) { stop(); return; }
    timer = setInterval(train, 60);
    byId("run").setAttribute("aria-pressed", "true");
  });

  const plane = byId("plane");
  plane.addEventListener("pointerdown", (e) => {
    const [px, py] = pointer(e), p = problem();
    let best = 0.02;
    chosen = null;
    for (const side of ["x", "y"]) p[side].forEach((z, i) => {
      const [zx, zy] = placed(z), distance = (zx - px) ** 2 + (-zy - py) ** 2;
      if (distance < best) { best = distance; chosen = { side, i }; }
    });
    if (chosen) { plane.setPointerCapture(e.pointerId); at = { i: chosen.i, j: chosen.i }; }
    update();
  });
  plane.addEventListener("pointermove", (e) => { if (plane.hasPointerCapture(e.pointerId)) moveChosen(pointer(e)); });
  plane.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: [-0.03, 0], ArrowRight: [0.03, 0], ArrowUp: [0, 0.03], ArrowDown: [0, -0.03] }[e.key], n = result.n;
    if (e.key === "," || e.key === ".") {
      const now = chosen ? (chosen.side === "y" ? n : 0) + chosen.i : -1, next = (now + (e.key === "." ? 1 : -1) + 2 * n) % (2 * n);
      chosen = { side: next < n ? "x" : "y", i: next % n };
      at = { i: chosen.i, j: chosen.i };
      update();
    } else if (e.key === " ") train();
    else if (move && chosen) {
      const z = problem()[chosen.side][chosen.i];
      moveChosen([z[0] + move[0], z[1] + move[1]]);
    } else return;
    e.preventDefault();
  });

  for (const id of Object.keys(MAPS)) {
    const canvas = byId(id), where = (e) => {
      const box = canvas.getBoundingClientRect(), side = (cellsOf(canvas) / canvas.width) * box.width;
      const cell = (v) => Math.floor((v / side) * result.n);
      point(cell(e.clientY - box.top), cell(e.clientX - box.left));
    };
    canvas.addEventListener("pointermove", where);
    canvas.addEventListener("pointerdown", where);
    canvas.addEventListener("keydown", (e) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key], now = at ?? { i: 0, j: 0 };
      if (move) point(now.i + move[0], now.j + move[1]);
      else if (e.key === "Home") point(now.i, now.i);
      else return;
      e.preventDefault();
    });
  }
  addEventListener("resize", drawMaps);
  dark.addEventListener("change", drawMaps);
  addEventListener("hashchange", () => { Object.assign(state, START); recall(); show(); restart(); });
}

if (location.pathname.endsWith("/docs/explorer/index.html")) byId("home").href = "../index.md"; // in a checkout, not in the site
recall();
show();
listen();
restart();
self.explorer = { state, problem, result: () => result, groups: () => base.groups }; // for the console and the tests
