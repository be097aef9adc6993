// The heat map of a plan, its controls, and the way from the kernel to the target.

const STEPS = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100];
// viridis, from no mass to all of it
const STOPS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
const RAMP = new Uint32Array(256);
for (let k = 0; k < 256; k++) {
  const x = (k / 255) * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(x)), f = x - i;
  const [r, g, b] = STOPS[i].map((v, c) => Math.round(v + f * (STOPS[i + 1][c] - v)));
  RAMP[k] = (255 << 24) | (b << 16) | (g << 8) | r;
}

const plannable = data.shown.filter((run) => run.pairing !== null);
const heat = { run: null, eps: 0.5, iterations: 10, lam: 0.2, mode: "both", sort: "class", order: null, plan: null, at: null };
const MODES = {
  free: () => ({ rows: null, columns: null }),
  rows: () => ({ rows: Infinity, columns: null }),
  both: () => ({ rows: Infinity, columns: Infinity }),
  relaxed: () => ({ rows: heat.lam, columns: heat.lam }),
};
const cosineCache = new Map();

function cosinesOf(run) {
  if (!cosineCache.has(run)) {
    const { n } = data.pairings[run.pairing];
    if (cosineCache.size > 2) cosineCache.clear(); // a matrix of 1024 rows is 4 MB
    cosineCache.set(run, cosines(halves(run.z1), halves(run.z2), n, run.dim));
  }
  return cosineCache.get(run);
}

function ordered(pairing) {
  const key = { class: pairing.labels, domain: pairing.domains }[heat.sort];
  const order = Array.from({ length: pairing.n }, (_, k) => k);
  return key ? order.sort((p, q) => key[p] - key[q] || p - q) : order;
}

function replan() {
  const pairing = data.pairings[heat.run.pairing];
  heat.plan = solve(cosinesOf(heat.run), pairing.n, { eps: heat.eps, iterations: heat.iterations, ...MODES[heat.mode]() });
  redraw();
  suspects();
}

function redraw() {
  const pairing = data.pairings[heat.run.pairing], { n, log } = heat.plan, canvas = byId("heat");
  heat.order = ordered(pairing);
  paint(canvas, heat.order, n, (k) => log[k]);
  grouped(pairing);
  said(pairing);
  flow(pairing);
  point(heat.at);
}

// a matrix [n, n] of logarithms, its rows and columns in this order
function paint(canvas, order, n, log) {
  const m = order.length, image = new ImageData(m, m), pixels = new Uint32Array(image.data.buffer), depth = 2 * Math.log(n);
  for (let r = 0; r < m; r++) {
    const row = order[r] * n;
    for (let c = 0; c < m; c++) {
      const x = 1 + log(row + order[c]) / depth;
      pixels[r * m + c] = RAMP[x <= 0 ? 0 : x >= 1 ? 255 : (x * 255) | 0];
    }
  }
  canvas.width = canvas.height = m;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// P_tgt as a function of the entry, from what the two images share; null where the page does not know
function targetOf({ goal }, pairing) {
  const group = goal?.group ? pairing[goal.group] : null, { n } = pairing;
  if (!goal || (goal.group && !group)) return null;
  const value = (i, j) => (i === j ? goal.pair : group && group[i] === group[j] ? goal.same : goal.other);
  const sums = Array.from({ length: n }, (_, i) => {
    let sum = 0;
    for (let j = 0; j < n; j++) sum += value(i, j);
    return goal.normalized ? sum : 1;
  });
  return (k) => value(Math.floor(k / n), k % n) / sums[Math.floor(k / n)];
}

const WORDS = { free: "no constraint", rows: "row sums", both: "row and column sums", relaxed: "relaxed sums" };

function flow(pairing) {
  const { n, log, share } = heat.plan, most = Math.min(n, 64), cos = cosinesOf(heat.run), { goal } = heat.run;
  const some = Array.from({ length: most }, (_, k) => heat.order[Math.floor((k * n) / most)]);
  paint(byId("flow-kernel"), some, n, (k) => (cos[k] - 1) / heat.eps);
  paint(byId("flow-plan"), some, n, (k) => log[k]);
  const target = targetOf(heat.run, pairing);
  byId("flow").classList.toggle("untold", !target);
  let pairs = 0, all = 0, divergence = 0;
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
    all += cos[i * n + j];
    if (i === j) pairs += cos[i * n + j];
  }
  for (let i = 0; target && i < n; i++) { // rows are asked for mass 1 here, whatever the target's mass is
    let mass = 0, sum = 0;
    for (let k = i * n; k < (i + 1) * n; k++) {
      const t = target(k);
      mass += t;
      if (t > 0) sum += t * (Math.log(t) - log[k]);
    }
    divergence += sum / mass - Math.log(mass);
  }
  if (target) paint(byId("flow-target"), some, n, (k) => Math.log(target(k)));
  const mean = share.reduce((s, x) => s + x, 0) / n, others = (all - pairs) / (n * (n - 1));
  const kinds = { labels: "images of one class belong together", domains: `1 on pairs, ${goal?.same} within a domain, ${goal?.other} across` };
  const words = {
    "flow-kernel-said": `cosine ${(pairs / n).toFixed(2)} of pairs, ${others.toFixed(2)} of others`,
    "flow-step-said": WORDS[heat.mode] + (heat.mode === "both" || heat.mode === "relaxed" ? `, ${heat.iterations} iterations` : ""),
    "flow-plan-said": `${percent(mean)} of a row is on its pair`,
    "flow-loss-said": target ? `Σ T log(T/P) = ${short(divergence / n)} a row` : "",
    "flow-target-said": !target ? "" : goal.group ? kinds[goal.group] : "1 on pairs, 0 elsewhere",
    "flow-said": most < n ? `${most} of the ${n} rows and columns, evenly chosen.` : "",
  };
  words["flow-narrow"] = `→ scale to: ${words["flow-step-said"]}. ${target ? `↔ ${words["flow-loss-said"]}.` : ""}`;
  for (const [id, text] of Object.entries(words)) byId(id).textContent = text;
  for (const [name, what] of [["kernel", "Kernel"], ["plan", "Plan"], ["target", "Target"]]) byId(`flow-${name}`).setAttribute("aria-label", `${what}: ${words[`flow-${name}-said`]}`);
}

function grouped(pairing) {
  const [key, names] = { class: [pairing.labels, pairing.classes], domain: [pairing.domains, pairing.domainNames] }[heat.sort] ?? [];
  const runs = [];
  if (key) heat.order.forEach((k, r) => {
    const last = runs[runs.length - 1];
    if (last && last.group === key[k]) last.end = r + 1;
    else runs.push({ group: key[k], start: r, end: r + 1 });
  });
  const shown = runs.length <= 24 ? runs : [];
  byId("groups").replaceChildren(...shown.map(({ group, start, end }) => {
    const label = make("span", {}, names[group] ?? String(group));
    label.style.cssText = `top:${(100 * start) / pairing.n}%;height:${(100 * (end - start)) / pairing.n}%`;
    return label;
  }));
  byId("grid").replaceChildren(...shown.slice(1).flatMap(({ start }) => ["left", "top"].map((side) => {
    const line = make("i", { class: side });
    line.style[side] = `${(100 * start) / pairing.n}%`;
    return line;
  })));
}

function said(pairing) {
  const p = heat.plan, mean = p.share.reduce((s, x) => s + x, 0) / p.n;
  const facts = {
    "mass per row": short(p.mass / p.n),
    "row sums": `${short(Math.min(...p.rowSums))} – ${short(Math.max(...p.rowSums))}`,
    "column sums": `${short(Math.min(...p.columnSums))} – ${short(Math.max(...p.columnSums))}`,
    "on the pairs": percent(mean),
    entropy: short(p.entropy),
  };
  byId("facts").replaceChildren(...Object.entries(facts).map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, v))));
  byId("heat").setAttribute("aria-label",
    `Transport plan of ${heat.run.name}, ${p.n} by ${p.n}, sorted by ${heat.sort}, ε = ${short(heat.eps)}: ${percent(mean)} of the mass of a row is on its pair on average. ` +
    "Arrow keys move over it, Home goes to the pair of the row.");
  byId("objective").textContent = heat.run.objective;
  byId("eps-said").textContent = short(heat.eps);
  byId("iterations-said").textContent = heat.iterations;
  byId("lam-said").textContent = short(heat.lam);
  byId("lam").closest("label").hidden = heat.mode !== "relaxed";
  byId("iterations").disabled = heat.mode === "rows" || heat.mode === "free";
  byId("pairing").textContent = pairing.about;
}

function point(at) {
  heat.at = at;
  const cursor = byId("cursor"), out = byId("pair");
  cursor.hidden = !at;
  if (!at) {
    out.replaceChildren("Point at the plan, tap it, or move over it with the arrow keys.");
    return;
  }
  const pairing = data.pairings[heat.run.pairing], { n, log, rowSums } = heat.plan;
  const i = heat.order[at.r], j = heat.order[at.c], l = log[i * n + j], p = Math.exp(l);
  cursor.style.left = `${(100 * (at.c + 0.5)) / n}%`;
  cursor.style.top = `${(100 * (at.r + 0.5)) / n}%`;
  const first = numbered(i, classOf(pairing.labels, pairing.classes, i)), second = numbered(j, classOf(pairing.secondLabels, pairing.classes, j));
  const kind = i === j ? (pairing.mismatched.includes(i) ? "a pair, mismatched on purpose" : "a pair") : "not a pair";
  out.replaceChildren(
    tile(pairing.first, i, `view 1 of ${first}`, 56), tile(pairing.second, j, `view 2 of ${second}`, 56),
    make("span", {}, make("b", {}, `${first} × ${second}`), make("br"),
      `mass ${short(p)}, ${percent(p / rowSums[i])} of its row, −log P = ${(-l).toFixed(2)}; ${kind}`));
}

function choose(run) {
  const pairing = data.pairings[run.pairing];
  Object.assign(heat, { run, eps: run.eps, iterations: run.iterations, mode: run.mode, lam: run.lam ?? 0.2, at: null });
  byId("eps").value = Math.log10(run.eps);
  byId("iterations").value = STEPS.reduce((best, s, k) => (Math.abs(s - run.iterations) < Math.abs(STEPS[best] - run.iterations) ? k : best), 0);
  byId("mode").value = run.mode;
  byId("lam").value = Math.log10(heat.lam);
  for (const button of document.querySelectorAll("#sort button")) {
    button.hidden = (button.value === "class" && !pairing.labels) || (button.value === "domain" && !pairing.domains);
  }
  sortBy(document.querySelector(`#sort button[value=${heat.sort}]`).hidden ? "data" : heat.sort);
  replan();
}

function sortBy(name) {
  heat.sort = name;
  for (const button of document.querySelectorAll("#sort button")) button.setAttribute("aria-pressed", button.value === name);
}

let pending = 0;
function soon() { // sliders ask more often than a large plan can answer
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(replan);
}

function startHeat() {
  if (!plannable.length) return;
  const canvas = byId("heat");
  options(byId("plan-run"), plannable.map((run) => run.name));
  byId("plan-run").addEventListener("change", (e) => choose(plannable[e.target.value]));
  byId("mode").addEventListener("change", (e) => { heat.mode = e.target.value; replan(); });
  byId("eps").addEventListener("input", (e) => { heat.eps = 10 ** e.target.value; byId("eps-said").textContent = short(heat.eps); soon(); });
  byId("lam").addEventListener("input", (e) => { heat.lam = 10 ** e.target.value; byId("lam-said").textContent = short(heat.lam); soon(); });
  byId("iterations").addEventListener("input", (e) => { heat.iterations = STEPS[e.target.value]; byId("iterations-said").textContent = heat.iterations; soon(); });
  byId("own").addEventListener("click", () => choose(heat.run));
  byId("suspects-by").addEventListener("change", suspects);
  for (const button of document.querySelectorAll("#sort button")) {
    button.addEventListener("click", () => { sortBy(button.value); heat.at = null; redraw(); });
  }
  const where = (e) => {
    const box = canvas.getBoundingClientRect(), n = heat.plan.n;
    const cell = (x, size) => Math.max(0, Math.min(n - 1, Math.floor((x / size) * n)));
    point({ r: cell(e.clientY - box.top, box.height), c: cell(e.clientX - box.left, box.width) });
  };
  canvas.addEventListener("pointermove", where);
  canvas.addEventListener("pointerdown", where);
  canvas.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    const at = heat.at ?? { r: 0, c: 0 }, n = heat.plan.n, inside = (x) => Math.max(0, Math.min(n - 1, x));
    if (move) point({ r: inside(at.r + move[0]), c: inside(at.c + move[1]) });
    else if (e.key === "Home") point({ r: at.r, c: at.r });
    else return;
    e.preventDefault();
  });
  const first = mostTelling(plannable);
  byId("plan-run").value = plannable.indexOf(first);
  choose(first);
}

// the run whose audit tells mismatched pairs from true ones best; the first where no pair was mismatched
function mostTelling(runs) {
  const told = (run) => {
    const pairing = run.pairing === null ? null : data.pairings[run.pairing];
    return pairing?.mismatched.length && run.audit ? separation(whole(run.audit.ranking), new Set(pairing.mismatched)) : 0;
  };
  return runs.reduce((best, run) => (told(run) > told(best) ? run : best));
}
