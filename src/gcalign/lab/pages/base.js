// Decoding of what the page carries, and small helpers.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
  return out;
}

function halves(text) { // float16, little-endian
  const view = bytes(text), words = new Uint16Array(view.buffer), out = new Float32Array(words.length);
  for (let k = 0; k < words.length; k++) {
    const w = words[k], exponent = (w >> 10) & 31, fraction = w & 1023;
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : (fraction / 1024) * 2 ** -14;
    out[k] = w >> 15 ? -size : size;
  }
  return out;
}

const whole = (text) => new Uint16Array(bytes(text).buffer);

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "path", "circle", "line", "text", "g", "title", "polygon", "rect", "marker"].includes(tag);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function short(x) {
  if (x === 0) return "0";
  if (!Number.isFinite(x)) return String(x);
  const text = Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? x.toExponential(1) : String(Number(x.toPrecision(3)));
  return text.replaceAll("-", "−");
}

const percent = (x) => `${x >= 0.1 ? (100 * x).toFixed(0) : short(100 * x)}\u00a0%`;

function options(select, names) {
  select.replaceChildren(...names.map((name, k) => make("option", { value: k }, name)));
}

// a sprite's picture is set once, in a rule; a tile is a window on it
const sprites = document.createElement("style");
sprites.textContent = data.sprites.map((s, k) => `.sprite-${k} { background-image: url(${s.url}); }`).join("\n");
document.head.append(sprites);

function tile(sprite, k, said, size = 48) {
  const { columns, rows } = data.sprites[sprite];
  const node = make("span", { class: `tile sprite-${sprite}`, role: "img", "aria-label": said, title: said });
  const x = k % columns, y = Math.floor(k / columns);
  node.style.cssText =
    `width:${size}px;height:${size}px;background-size:${columns * size}px ${rows * size}px;background-position:${-x * size}px ${-y * size}px`;
  return node;
}

// what is under the pointer, in words and pictures, beside it
const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });
document.body.append(tip);
function tipAt(event, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), far = 14;
  const left = event.clientX + far + width > innerWidth ? event.clientX - far - width : event.clientX + far;
  const top = event.clientY + far + height > innerHeight ? event.clientY - far - height : event.clientY + far;
  tip.style.transform = `translate(${Math.max(4, Math.min(left, innerWidth - width - 4))}px, ${Math.max(4, top)}px)`;
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

const classOf = (labels, classes, k) => (labels ? classes[labels[k]] ?? String(labels[k]) : "");
const numbered = (k, name) => (name ? `#${k}: ${name}` : `#${k}`); // an image by its place in the data, with its class
const colour = (run) => `var(--c${run.colour % 10})`;
