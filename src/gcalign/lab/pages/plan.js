// The plan as the library solves it: log P = log K + log u + log v, rows first, then columns.

function cosines(z1, z2, n, d) {
  const out = new Float32Array(n * n), dot = (p, q) => { let s = 0; for (let k = 0; k < d; k++) s += z1[p + k] * z2[q + k]; return s; };
  for (let i = 0; i < n; i++) {
    const p = i * d;
    let j = 0;
    for (; j + 3 < n; j += 4) { // four columns at a time: each number of the row is read once for all
      const q = j * d, r = q + d, s = r + d, t = s + d;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let k = 0; k < d; k++) {
        const x = z1[p + k];
        s0 += x * z2[q + k];
        s1 += x * z2[r + k];
        s2 += x * z2[s + k];
        s3 += x * z2[t + k];
      }
      out[i * n + j] = s0;
      out[i * n + j + 1] = s1;
      out[i * n + j + 2] = s2;
      out[i * n + j + 3] = s3;
    }
    for (; j < n; j++) out[i * n + j] = dot(p, j * d);
  }
  return out;
}

// rows and columns: null is free, Infinity is hard, anything else the KL relaxation λ
function solve(cos, n, { eps, iterations, rows, columns }) {
  const power = (lam) => (lam === null ? 0 : lam === Infinity ? 1 : lam / (lam + eps));
  const tau1 = power(rows), tau2 = power(columns);
  const a = new Float64Array(n), b = new Float64Array(n); // log u, log v
  const a0 = new Float64Array(n), b0 = new Float64Array(n); // what `kernel` has absorbed of them
  const kernel = new Float32Array(n * n), sums = new Float64Array(n), factor = new Float64Array(n);
  const logK = (i, j) => (cos[i * n + j] - 1) / eps;

  function absorb() {
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) kernel[i * n + j] = Math.exp(logK(i, j) + a0[i] + b0[j]);
  }
  // log-sum-exp of one row or column: the way out where a product underflows
  function careful(term) {
    let top = -Infinity, sum = 0;
    for (let k = 0; k < n; k++) top = Math.max(top, term(k));
    for (let k = 0; k < n; k++) sum += Math.exp(term(k) - top);
    return top + Math.log(sum);
  }
  function rowStep() {
    for (let j = 0; j < n; j++) factor[j] = Math.exp(b[j] - b0[j]);
    for (let i = 0; i < n; i++) {
      let s = 0;
      for (let j = 0, at = i * n; j < n; j++, at++) s += kernel[at] * factor[j];
      const fine = s > 1e-30 && s < 1e30;
      a[i] = -tau1 * (fine ? Math.log(s) - a0[i] : careful((j) => logK(i, j) + b[j]));
    }
  }
  function columnStep() {
    for (let i = 0; i < n; i++) factor[i] = Math.exp(a[i] - a0[i]);
    sums.fill(0);
    for (let i = 0; i < n; i++) {
      const f = factor[i];
      for (let j = 0, at = i * n; j < n; j++, at++) sums[j] += kernel[at] * f;
    }
    for (let j = 0; j < n; j++) {
      const fine = sums[j] > 1e-30 && sums[j] < 1e30;
      b[j] = -tau2 * (fine ? Math.log(sums[j]) - b0[j] : careful((i) => logK(i, j) + a[i]));
    }
  }

  for (let i = 0; i < n; i++) {
    let top = -Infinity;
    for (let j = 0; j < n; j++) top = Math.max(top, logK(i, j));
    a0[i] = -top;
  }
  absorb();
  const once = tau1 === 0 || tau2 === 0;
  const passes = once ? 1 : iterations;
  for (let t = 1; t <= passes; t++) {
    if (tau1) rowStep();
    if (tau2) columnStep();
    if (t % 8 === 1 && t < passes) { a0.set(a); b0.set(b); absorb(); }
  }
  return measured(a, b, logK, n);
}

function measured(a, b, logK, n) {
  const log = new Float32Array(n * n), rowSums = new Float64Array(n), columnSums = new Float64Array(n), diagonal = new Float64Array(n);
  let entropy = 0;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const l = logK(i, j) + a[i] + b[j], p = Math.exp(l);
      log[i * n + j] = l;
      rowSums[i] += p;
      columnSums[j] += p;
      if (p > 0) entropy -= p * l;
    }
    diagonal[i] = Math.exp(log[i * n + i]);
  }
  const mass = rowSums.reduce((s, x) => s + x, 0);
  const off = (sums) => sums.reduce((s, x) => s + Math.abs(x - 1), 0) / n;
  const share = diagonal.map((x, i) => x / rowSums[i]);
  return { n, log, rowSums, columnSums, share, mass, entropy, rowError: off(rowSums), columnError: off(columnSums) };
}
