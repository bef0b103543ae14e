// The runs of the page, and the hovered and the selected run. Every chart and table listens to changes.

const byId = id => document.getElementById(id);
const make = (tag, name, text) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
};
const colourOf = name => getComputedStyle(document.documentElement).getPropertyValue(`--f-${name}`).trim();
const narrow = () => window.innerWidth < 620;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });  // slow to construct, so only once
const number = (value, digits = 4) => {
  if (value === null || !Number.isFinite(value)) return "";
  if (Number.isInteger(value)) return Math.abs(value) < 1000 ? String(value) : grouped.format(value);
  if (Math.abs(value) >= 1000) return grouped.format(value);
  return String(Number(value.toPrecision(digits)));
};

const NOBODY = -1;
const selection = {
  keys: [], labels: [], numbers: new Map(),
  hovered: NOBODY, selected: NOBODY,
  listeners: [],
  names(data) {
    this.keys = data.keys;
    this.labels = data.labels;
    data.keys.forEach((key, i) => this.numbers.set(key, i));
  },
  get shown() { return this.hovered !== NOBODY ? this.hovered : this.selected; },
  hover(run, source) {
    if (run === this.hovered) return;
    this.hovered = run;
    this.tell(source);
  },
  select(run, source) {
    this.selected = run === this.selected ? NOBODY : run;
    const hash = this.selected === NOBODY ? "" : `#run=${this.keys[this.selected]}`;
    try { history.replaceState(null, "", hash || location.pathname + location.search); } catch { /* a sandboxed file */ }
    this.tell(source);
  },
  tell(source) { for (const listener of this.listeners) listener(source); },
};

const tooltip = {
  node: null,
  show(x, y, title, rows) {
    this.node ??= document.body.appendChild(make("div", "pointer-tip"));
    this.node.replaceChildren(make("b", "", title), ...rows.map(row => make("div", "", row)));
    this.node.style.display = "block";
    const box = this.node.getBoundingClientRect();
    const left = x + 16 + box.width > window.innerWidth ? x - 12 - box.width : x + 14;
    this.node.style.left = `${Math.max(4, Math.min(left, window.innerWidth - box.width - 4))}px`;
    this.node.style.top = `${y + 18 + box.height > window.innerHeight ? y - 12 - box.height : y + 14}px`;
  },
  hide() { if (this.node) this.node.style.display = "none"; },
};
