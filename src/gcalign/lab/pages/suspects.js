// The pairs that fit worst: by `gcalign.audit`, or by the plan as it is set on the page. Two views of one image are
// never wrong, however little they look alike: only where pairs were mismatched on purpose does a card say so.

const CARDS = 24, WEAK = 0.8; // at an AUROC of 0.78 the expected precision was 0.75, the true one 0.49 (docs/audit.md)

function suspects() {
  const pairing = data.pairings[heat.run.pairing], { n } = pairing, wrong = new Set(pairing.mismatched), { audit } = heat.run;
  const by = byId("suspects-by");
  by.closest("label").hidden = !audit;
  const cos = cosinesOf(heat.run), views = !wrong.size;
  const found = audit && by.value === "audit" ? audited(audit, n) : planned(n), shown = found.ranking.slice(0, CARDS);
  byId("suspects-title").textContent = views ? "Views that look least alike" : "Most suspicious pairs";
  const said = (labels, k) => numbered(k, classOf(labels, pairing.classes, k));
  byId("suspects").replaceChildren(...shown.map((k) => {
    const first = said(pairing.labels, k), second = said(pairing.secondLabels, k), better = found.other(k);
    return make("li", { class: wrong.has(k) ? "wrong" : null },
      tile(pairing.first, k, `view 1 of ${first}`), tile(pairing.second, k, `view 2 of ${second}`),
      make("span", {}, make("b", {}, first === second ? first : `${first} → ${classOf(pairing.secondLabels, pairing.classes, k)}`), make("br"), views ? `cosine ${cos[k * n + k].toFixed(2)} ` : found.said(k),
        wrong.has(k) ? make("em", {}, "mismatched") : ""),
      make("span", { class: "better" }, tile(pairing.second, better, `${said(pairing.secondLabels, better)} fits best of the others`, 36), make("small", {}, "best other")));
  }));
  let sentence = `${heat.run.name}. ${found.about}`;
  if (views) sentence = `${heat.run.name}. No pair was mismatched here: the two pictures of a card are views of one image, so none is wrong. These are the views that this encoder finds least alike, often because a crop shows little of the image.`;
  else {
    const hit = shown.filter((k) => wrong.has(k)).length;
    sentence += ` ${wrong.size} of the ${n} pairs were mismatched on purpose; of the ${shown.length} cards, ${hit} show such a pair (${((shown.length * wrong.size) / n).toFixed(0)} expected by chance). A mismatched pair ranks above a true one in ${percent(separation(found.ranking, wrong))} of cases.`;
  }
  byId("suspects-said").textContent = sentence;
}

// how often a pair of `wrong` ranks above one that is not
function separation(ranking, wrong) {
  let above = 0, right = 0;
  for (const k of ranking) if (wrong.has(k)) above += ranking.length - wrong.size - right; else right++;
  return above / (wrong.size * (ranking.length - wrong.size));
}

function audited(audit, n) {
  const other = whole(audit.other), probability = halves(audit.probability);
  return {
    ranking: Array.from(whole(audit.ranking)),
    other: (k) => other[k],
    said: (k) => (audit.share === null ? "" : `wrong: ${percent(probability[k])} `), // it cannot tell
    about: `Expected share of mismatched pairs: ${audit.share === null ? "it cannot tell" : percent(audit.share)}; ${audit.flagged} of ${n} pairs are flagged as wrong` +
      `${audit.auroc === null ? "" : `; expected AUROC ${audit.auroc.toFixed(2)}`}. ${audit.auroc !== null && audit.auroc < WEAK ? "These embeddings are weak, so do not rely on these numbers. " : ""}` +
      `The audit chose ε = ${short(audit.eps)}, with which the plan explains the pairs best.`,
  };
}

function planned(n) {
  const { share, log } = heat.plan;
  return {
    ranking: Array.from({ length: n }, (_, k) => k).sort((p, q) => share[p] - share[q]),
    other: (k) => { let best = k === 0 ? 1 : 0; for (let j = 0; j < n; j++) if (j !== k && log[k * n + j] > log[k * n + best]) best = j; return best; },
    said: (k) => `${percent(share[k])} of its row `,
    about: `Ranked by the plan as set above. A plan without any information puts ${percent(1 / n)} of a row on each column.`,
  };
}
