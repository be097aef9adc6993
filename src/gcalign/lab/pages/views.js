// The views that training saw: images as they are above what the network got.

function startViews() {
  const select = byId("views-run");
  if (!select) return;
  const runs = data.shown.filter((run) => run.seen !== null), steps = byId("views-step");
  let last = 0;
  options(select, runs.map((run) => run.name));
  select.closest("label").hidden = runs.length < 2;
  if (plannable.length) select.value = Math.max(0, runs.indexOf(mostTelling(plannable))); // the run of the plan below
  function draw() {
    const { about, views, steps: all } = data.seen[runs[select.value].seen], step = all[last];
    const n = step.names.length, size = innerWidth < 480 ? 56 : 72;
    const rows = ["original", ...Array.from({ length: views }, (_, v) => `view ${v + 1}`)];
    const heads = make("li", { class: "rows", "aria-hidden": "true" }, ...rows.map((row) => {
      const head = make("span", {}, row);
      head.style.height = `${size}px`;
      return head;
    }));
    byId("views").replaceChildren(heads, ...step.names.map((name, k) => {
      const wrong = step.mismatched[k];
      const tiles = rows.map((row, r) => tile(step.sprite, r * n + k, `${row} of ${name}${wrong && r > 1 ? ", mismatched on purpose" : ""}`, size));
      return make("li", { class: wrong ? "wrong" : null }, ...tiles, make("small", {}, wrong ? `${name} · mismatched` : name));
    }));
    byId("views-said").textContent = `Step ${step.number}: ${about}.`;
    steps.replaceChildren(...all.map(({ number }, k) => {
      const button = make("button", { type: "button", "aria-pressed": String(k === last) }, `step ${number}`);
      button.addEventListener("click", () => { last = k; draw(); steps.children[k].focus(); });
      return button;
    }));
  }
  select.addEventListener("change", () => { last = 0; draw(); });
  draw();
}
