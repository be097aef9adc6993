// The numbers of the plan explorer, without a page: kernel, target, plan, loss and gradient as gcalign computes them.
// A test compares them with the library. Matrices are Float64Array in row order.
(function (root) {
  "use strict";

  const OFF = null; // a side without a constraint
  const HARD = Infinity; // a side whose sums must be exact; a number between is the relaxation λ

  /** Costs [n, m] between the rows of x [n, d] and y [m, d]: "squared" distance, or 1 − "cosine". */
  function costs(x, y, kind) {
    const out = new Float64Array(x.length * y.length);
    const norm = (z) => Math.hypot(...z) || 1;
    x.forEach((p, i) => y.forEach((q, j) => {
      let s = 0;
      if (kind === "squared") p.forEach((value, k) => { s += (value - q[k]) ** 2; });
      else {
        p.forEach((value, k) => { s += value * q[k]; });
        s = 1 - s / (norm(p) * norm(q));
      }
      out[i * y.length + j] = s;
    }));
    return out;
  }

  /** T = I + α within a group + β between groups (gcalign.Blocks); α = β = 0 is gcalign.Identity. */
  function blocks(groups, alpha, beta) {
    const n = groups.length, out = new Float64Array(n * n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) out[i * n + j] = i === j ? 1 : groups[i] === groups[j] ? alpha : beta;
    }
    return out;
  }

  const rowSums = (a, n, m) => Float64Array.from({ length: n }, (_, i) => { let s = 0; for (let j = 0; j < m; j++) s += a[i * m + j]; return s; });
  const columnSums = (a, n, m) => Float64Array.from({ length: m }, (_, j) => { let s = 0; for (let i = 0; i < n; i++) s += a[i * m + j]; return s; });
  const exponent = (lam, eps) => (lam === OFF ? 0 : lam === HARD ? 1 : lam / (lam + eps));

  // log Σ_j exp(E_ij + b_j) for each row
  function overRows(e, b, n, m) {
    const out = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let top = -Infinity, s = 0;
      for (let j = 0; j < m; j++) top = Math.max(top, e[i * m + j] + b[j]);
      for (let j = 0; j < m; j++) s += Math.exp(e[i * m + j] + b[j] - top);
      out[i] = top + Math.log(s);
    }
    return out;
  }

  function overColumns(e, a, n, m) {
    const out = new Float64Array(m);
    for (let j = 0; j < m; j++) {
      let top = -Infinity, s = 0;
      for (let i = 0; i < n; i++) top = Math.max(top, e[i * m + j] + a[i]);
      for (let i = 0; i < n; i++) s += Math.exp(e[i * m + j] + a[i] - top);
      out[j] = top + Math.log(s);
    }
    return out;
  }

  /**
   * The plan and everything that is drawn of it.
   * problem: { x, y, kind, eps, rows, columns, iterations, target [n * m] }.
   * u = (μ / K v)^τ₁, then v = (ν / Kᵀ u)^τ₂, with τ = λ / (λ + ε); the masses μ and ν are those of the target.
   */
  function solve(problem) {
    const { x, y, kind, eps, rows, columns, target } = problem;
    const n = x.length, m = y.length, tau1 = exponent(rows, eps), tau2 = exponent(columns, eps);
    const e = costs(x, y, kind).map((c) => -c / eps); // log K
    const mu = rowSums(target, n, m), nu = columnSums(target, n, m);
    const record = []; // [log Kv, log u, log Kᵀu, log v] of each iteration
    let a = new Float64Array(n), b = new Float64Array(m);
    const count = tau1 && tau2 ? problem.iterations : 1; // one side alone is solved in one step
    for (let t = 0; t < count; t++) {
      const before = b, kv = overRows(e, b, n, m);
      a = kv.map((s, i) => (tau1 ? tau1 * (Math.log(mu[i]) - s) : 0));
      const ku = overColumns(e, a, n, m);
      b = ku.map((s, j) => (tau2 ? tau2 * (Math.log(nu[j]) - s) : 0));
      record.push({ before, kv, a, ku });
    }
    const log = new Float64Array(n * m);
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) log[i * m + j] = e[i * m + j] + a[i] + b[j];
    const plan = log.map(Math.exp), r = rowSums(plan, n, m), c = columnSums(plan, n, m);
    const mass = r.reduce((s, v) => s + v, 0);
    const off = (sums, wanted) => sums.reduce((s, v, k) => s + Math.abs(v - wanted[k]), 0) / wanted.reduce((s, v) => s + v, 0);
    let entropy = 0;
    plan.forEach((p, k) => { if (p > 0) entropy -= p * log[k]; });
    const solved = {
      n, m, eps, rows, columns, tau1, tau2, e, target, mu, nu, a, b, log, plan, rowSums: r, columnSums: c, mass, entropy, record,
      kernel: e.map(Math.exp), rowError: off(r, mu), columnError: off(c, nu),
    };
    solved.loss = loss(solved);
    solved.pull = gradient(solved); // ∂L/∂log K
    [solved.dx, solved.dy] = toPoints(solved.pull, problem);
    return solved;
  }

  /** KL(T‖P) with its mass terms, and (λ/ε) KL(T1‖P1) for each relaxed side; mean over rows. */
  function loss({ target, log, plan, mu, nu, rowSums, columnSums, rows, columns, eps, n }) {
    let total = 0;
    target.forEach((t, k) => { total += (t > 0 ? t * (Math.log(t) - log[k]) : 0) - t + plan[k]; });
    const relaxed = (lam, wanted, sums) => {
      if (lam === OFF || lam === HARD) return 0;
      return (lam / eps) * wanted.reduce((s, v, k) => s + v * Math.log(v / sums[k]) - v + sums[k], 0);
    };
    return (total + relaxed(rows, mu, rowSums) + relaxed(columns, nu, columnSums)) / n;
  }

  /** ∂L/∂log K, exact for any number of iterations: the iterations are reversed one by one. */
  function gradient({ target, plan, mu, nu, rowSums: r, columnSums: c, rows, columns, eps, n, m, e, record, tau1, tau2 }) {
    const finite = (lam) => (lam === OFF || lam === HARD ? 0 : lam / eps);
    const g = new Float64Array(n * m), rowPart = finite(rows), columnPart = finite(columns);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < m; j++) {
        const k = i * m + j;
        g[k] = (plan[k] * (1 + rowPart * (1 - mu[i] / r[i]) + columnPart * (1 - nu[j] / c[j])) - target[k]) / n;
      }
    }
    let toA = rowSums(g, n, m), toB = columnSums(g, n, m);
    for (let t = record.length - 1; t >= 0; t--) {
      const { before, kv, a, ku } = record[t];
      if (tau2) {
        for (let i = 0; i < n; i++) {
          for (let j = 0; j < m; j++) {
            const part = tau2 * toB[j] * Math.exp(e[i * m + j] + a[i] - ku[j]);
            g[i * m + j] -= part;
            toA[i] -= part;
          }
        }
      }
      toB = new Float64Array(m);
      if (tau1) {
        for (let i = 0; i < n; i++) {
          for (let j = 0; j < m; j++) {
            const part = tau1 * toA[i] * Math.exp(e[i * m + j] + before[j] - kv[i]);
            g[i * m + j] -= part;
            toB[j] -= part;
          }
        }
      }
      toA = new Float64Array(n);
    }
    return g;
  }

  /** ∂L/∂x and ∂L/∂y from ∂L/∂log K. */
  function toPoints(pull, { x, y, kind, eps }) {
    const m = y.length, d = x[0].length, zeros = (z) => z.map(() => new Float64Array(d));
    const dx = zeros(x), dy = zeros(y);
    const norm = (z) => Math.hypot(...z) || 1;
    const one = kind === "squared" ? x : x.map((p) => p.map((v) => v / norm(p)));
    const two = kind === "squared" ? y : y.map((q) => q.map((v) => v / norm(q)));
    x.forEach((_, i) => y.forEach((_, j) => {
      const g = pull[i * m + j] / eps;
      for (let k = 0; k < d; k++) {
        if (kind === "squared") {
          const step = 2 * g * (x[i][k] - y[j][k]);
          dx[i][k] -= step;
          dy[j][k] += step;
        } else {
          dx[i][k] += g * two[j][k];
          dy[j][k] += g * one[i][k];
        }
      }
    }));
    if (kind !== "squared") { // a step along the embedding does not change its direction
      const across = (d, unit, z) => d.forEach((g, i) => {
        const along = g.reduce((s, v, k) => s + v * unit[i][k], 0);
        g.forEach((v, k) => { g[k] = (v - along * unit[i][k]) / norm(z[i]); });
      });
      across(dx, one, x);
      across(dy, two, y);
    }
    return [dx, dy];
  }

  /** log of (what independent sides would give the pair) / P_ii: above 0, the plan prefers other partners. */
  function suspicion({ n, m, log, rowSums, columnSums, mass }) {
    return Float64Array.from({ length: n }, (_, i) => Math.log(rowSums[i]) + Math.log(columnSums[i]) - Math.log(mass) - log[i * m + i]);
  }

  /** Which column each row is paired with if a share of the pairs is mismatched: a cycle through those of `order`. */
  function mismatch(order, share) {
    const wrong = order.slice(0, Math.round(share * order.length)), partner = order.map((_, i) => i);
    if (wrong.length > 1) wrong.forEach((i, k) => { partner[i] = wrong[(k + 1) % wrong.length]; });
    return partner;
  }

  /** Numbers in [0, 1) from a seed (mulberry32). */
  function random(seed) {
    let s = seed >>> 0;
    return () => {
      s = (s + 0x6d2b79f5) >>> 0;
      let t = Math.imul(s ^ (s >>> 15), 1 | s);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  const numerics = { OFF, HARD, costs, blocks, solve, suspicion, mismatch, random };
  if (typeof module !== "undefined" && module.exports) module.exports = numerics;
  else root.numerics = numerics;
})(typeof self !== "undefined" ? self : this);
