// One chart: uPlot's axes, scales and zoom, our layers, and the highlighted run in front.

// Ticks of a logarithmic axis: as many digits of each decade as have room, or even steps on a short axis.
function ticks(low, high) {
  const apart = (high / low) ** (narrow() ? 0.18 : 0.12);
  for (const [digits, every] of [["123456789", 1], ["1235", 1], ["125", 1], ["13", 1], ...[...Array(20).keys()].map(n => ["1", n + 1])]) {
    const out = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++)
      if (decade % every === 0) for (const digit of digits) out.push(Number(`${digit}e${decade}`));
    const inside = out.filter(v => v >= low * 0.999 && v <= high * 1.001);
    if (inside.length > 1 && inside.length < 8 && inside.every((v, i) => !i || v / inside[i - 1] >= apart)) return inside;
  }
  const step = 10 ** Math.floor(Math.log10((high - low) / 2));
  const width = step * ([5, 2, 1].find(k => k * step <= (high - low) / 2));
  return [...Array(Math.floor(high / width) - Math.ceil(low / width) + 1).keys()].map(i => (Math.ceil(low / width) + i) * width);
}

// Return the function from values to positions on an axis, up to scale.
function shapeOf(axis) {
  return {
    linear: v => v, log: Math.log10, logit: v => Math.log(v / (1 - v)), asinh: v => Math.asinh(v / axis.linear_until),
  }[axis.scale];
}

// Return the options of uPlot's scale for an axis.
function scaleOf(axis) {
  const { low, high } = axis;
  return {
    time: false, auto: false, range: (_, a, b) => [a ?? low, b ?? high], min: low, max: high,
    distr: { linear: 1, log: 3, asinh: 4, logit: 100 }[axis.scale], asinh: axis.linear_until,
    fwd: shapeOf(axis), bwd: v => 1 / (1 + Math.exp(-v)),
  };
}

function axisOf(spec, side) {
  const isX = side === 2;
  const axis = {
    side,
    stroke: () => colourOf("soft"),
    font: "12px system-ui, sans-serif",
    grid: { show: !isX, stroke: () => colourOf("line"), width: 1 },
    ticks: { show: isX, stroke: () => colourOf("line"), width: 1, size: 4 },
    gap: 5,
    space: isX ? 60 : 32,
    values: (_, splits) => splits.map(v => v === null ? null : spec.percent ? `${number(100 * v, 3)}%` : number(v)),
    size: isX ? 28 : (_, values) => 14 + 7 * Math.max(2, ...(values ?? []).map(v => (v ?? "").length)),
  };
  if (spec.whole) axis.incrs = [1, 2, 5].flatMap(k => [...Array(8).keys()].map(e => k * 10 ** e)).sort((a, b) => a - b);
  const decades = [0, ...[...Array(8).keys()].map(e => spec.linear_until * 10 ** e)];
  const places = spec.ticks ? () => spec.ticks[0] : { log: ticks, asinh: () => decades }[spec.scale];
  if (places) {
    axis.splits = (_u, _i, low, high) => places(low, high).filter(v => v >= low * 0.999 && v <= high * 1.001);
    axis.filter = (_u, splits) => splits;
  }
  if (spec.ticks) axis.values = (_u, splits) => splits.map(v => spec.ticks[1][spec.ticks[0].indexOf(v)]);
  return axis;
}

// Return the name of a layer's group without the number of its runs.
const nameOf = layer => layer.group.replace(/ \((n=)?[\d,]+( of [\d,]+)?\)$/, "");

class RunChart {
  constructor(host, spec) {
    this.spec = spec;
    this.layers = spec.layers.map(decode);
    this.host = host;
    this.marks = new Map();
    if (spec.marks) {
      const x = dequantise(spec.marks.x);
      spec.marks.runs.forEach((run, i) => this.marks.set(run, x[i]));
    }
    this.stack();
    if (spec.title) host.append(make("div", "chart-title", spec.title));
    this.legend();
    host.append(make("div", "axis-label", spec.y.label));
    this.frame = host.appendChild(make("div", "plot"));
    const ends = [[spec.x.low, spec.x.high], [spec.y.low, spec.y.high]];
    this.plot = new uPlot({
      ...this.size(),
      scales: { x: scaleOf(spec.x), y: scaleOf(spec.y) },
      axes: [axisOf(spec.x, 2), axisOf(spec.y, 3)],
      series: [{}, { stroke: "transparent", points: { show: false }, paths: () => null }],
      legend: { show: false },
      cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: true, uni: 30 }, bind: { dblclick: () => () => this.reset() } },
      hooks: { draw: [() => this.draw()], setSize: [() => this.overlay()], ready: [u => this.listen(u)] },
    }, ends, this.frame);
    host.append(make("div", "axis-label x", spec.x.label));
    selection.listeners.push(() => this.highlight());
    new ResizeObserver(() => {
      const size = this.size();
      if (size.width !== this.plot.width) this.plot.setSize(size);
    }).observe(this.frame);
  }

  size() {
    const width = Math.max(220, Math.floor(this.frame.clientWidth));
    return { width, height: narrow() ? 220 : Math.round(Math.min(300, Math.max(240, 0.5 * width))) };
  }

  // Stack the bars of each bin.
  stack() {
    const base = new Map();
    for (const layer of this.layers) {
      if (layer.kind !== "bars") continue;
      layer.base = layer.low.map((low, i) => {
        const here = base.get(low) ?? 0;
        base.set(low, here + layer.count[i]);
        return here;
      });
    }
  }

  legend() {
    const groups = new Map();
    for (const layer of this.layers) if (layer.group) groups.set(layer.group, [...groups.get(layer.group) ?? [], layer]);
    if (!groups.size) return;
    const bar = this.host.appendChild(make("div", "legend"));
    for (const [name, layers] of groups) {
      const button = bar.appendChild(make("button", "", name));
      button.type = "button";
      button.style.setProperty("--swatch", `var(--f-${layers[0].colour})`);
      button.ariaPressed = "true";
      button.title = "show or hide";
      button.addEventListener("click", () => {
        for (const layer of layers) layer.hidden = !layer.hidden;
        button.ariaPressed = String(!layers[0].hidden);
        this.plot.redraw(false);
      });
    }
  }

  reset() {
    this.plot.batch(() => {
      this.plot.setScale("x", { min: this.spec.x.low, max: this.spec.x.high });
      this.plot.setScale("y", { min: this.spec.y.low, max: this.spec.y.high });
    });
  }

  // Return functions from values to pixels: of the canvas (device) or of the plot's box.
  pixels(device) {
    const u = this.plot, ratio = uPlot.pxRatio, box = u.bbox;
    const one = (scale, axis, from, to) => {
      const shape = shapeOf(axis);
      const low = shape(scale.min), unit = (to - from) / (shape(scale.max) - low);
      return v => from + (shape(v) - low) * unit;
    };
    const [left, top] = device ? [box.left, box.top] : [0, 0];
    const [width, height] = device ? [box.width, box.height] : [box.width / ratio, box.height / ratio];
    return {
      x: one(u.scales.x, this.spec.x, left, left + width), y: one(u.scales.y, this.spec.y, top + height, top),
      low: Math.max(u.scales.x.min, u.scales.y.min), high: Math.min(u.scales.x.max, u.scales.y.max),
    };
  }

  draw() {
    const context = this.plot.ctx, box = this.plot.bbox, to = this.pixels(true);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
    let labels = 0;
    for (const layer of this.layers) {
      if (layer.hidden) continue;
      context.globalAlpha = 1;
      if (layer.kind === "rule" && layer.axis === "x" && layer.label) layer.before = labels++;
      painters[layer.kind](context, layer, to, uPlot.pxRatio, box);
    }
    context.restore();
    this.highlight();
  }

  overlay() {
    if (!this.above) return;
    const { width, height } = this.plot.bbox;
    Object.assign(this.above, { width, height });
    this.highlight();
  }

  // Draw the hovered and the selected run in the text colour with an outline in the background colour.
  highlight() {
    if (!this.above) return;
    const context = this.above.getContext("2d"), ratio = uPlot.pxRatio, to = this.pixels(false);
    if (this.above.width !== Math.round(this.plot.bbox.width)) Object.assign(this.above, { width: this.plot.bbox.width, height: this.plot.bbox.height });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [width, height] = [this.above.width / ratio, this.above.height / ratio];
    context.clearRect(0, 0, width, height);
    const strokes = [[colourOf("paper"), 5], [colourOf("ink"), 2]];
    for (const run of new Set([selection.selected, selection.hovered])) {
      if (run === NOBODY) continue;
      context.globalAlpha = run === selection.shown ? 1 : 0.55;
      for (const layer of this.layers) {
        if (layer.kind === "lines" && layer.byRun.has(run)) {
          for (const [colour, thick] of strokes) {
            Object.assign(context, { strokeStyle: colour, lineWidth: thick, lineJoin: "round" });
            context.beginPath();
            path(context, layer, layer.byRun.get(run), to);
            context.stroke();
          }
        } else if (layer.kind === "points") {
          const i = layer.runs.indexOf(run);
          if (i < 0 || layer.x[i] === null || layer.y[i] === null) continue;
          for (const [colour, thick] of strokes) {
            Object.assign(context, { strokeStyle: colour, lineWidth: thick });
            context.beginPath();
            context.arc(to.x(layer.x[i]), to.y(layer.y[i]), 7, 0, 2 * Math.PI);
            context.stroke();
          }
        }
      }
      if (this.marks.has(run)) {
        const x = to.x(this.marks.get(run));
        Object.assign(context, { strokeStyle: colourOf("ink"), fillStyle: colourOf("ink"), lineWidth: 2 });
        context.beginPath();
        context.moveTo(x, 0);
        context.lineTo(x, height);
        context.stroke();
        context.beginPath();
        context.moveTo(x - 6, 0);
        context.lineTo(x + 6, 0);
        context.lineTo(x, 8);
        context.fill();
      }
    }
  }

  listen(u) {
    this.plot = u;
    this.above = u.over.appendChild(make("canvas", "above"));
    this.overlay();
    let down = null;
    const at = event => {
      const box = u.over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const point = event => {
      const [px, py] = at(event);
      const hit = nearest(this.layers, this.pixels(false), px, py, event.pointerType === "touch" ? 40 : 24);
      selection.hover(hit?.run ?? NOBODY, this);
      const rows = hit ? this.describe(hit) : this.below(px);
      if (rows) tooltip.show(event.clientX, event.clientY, hit?.run !== undefined ? selection.labels[hit.run] : rows.shift(), rows);
      else tooltip.hide();
      return hit;
    };
    u.over.addEventListener("pointermove", event => { if (event.pointerType !== "touch") point(event); });
    u.over.addEventListener("pointerdown", event => { down = at(event); });
    u.over.addEventListener("pointerup", event => {
      const [x, y] = at(event);
      if (!down || Math.hypot(x - down[0], y - down[1]) > 6) return;  // a drag zooms
      const hit = point(event);
      if (hit?.run !== undefined) selection.select(hit.run, this);
    });
    u.over.addEventListener("pointerleave", () => { selection.hover(NOBODY, this); tooltip.hide(); });
    this.host.tabIndex = 0;
    this.host.addEventListener("keydown", event => this.walk(event));
  }

  // The up and down keys select the previous and the next run.
  walk(event) {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way) return;
    const runs = this.layers.flatMap(layer => layer.kind === "lines" ? layer.curves.filter(c => c.drawn).map(c => c.run) : layer.kind === "points" ? layer.runs : []);
    if (!runs.length) return;
    event.preventDefault();
    selection.select(runs.at((runs.indexOf(selection.selected) + way) % runs.length), this);
  }

  describe({ layer, i }) {
    const { x, y } = this.spec;
    const value = (axis, v) => axis.percent ? `${number(100 * v, 3)}%` : number(v);
    const rows = [];
    if (layer.group) rows.push(nameOf(layer));
    if (layer.kind === "lines") rows.push(`step ${number(layer.step[i])}`);
    if (layer.kind === "points" || layer.x !== layer.step) rows.push(`${x.label}: ${value(x, layer.x[i])}`);
    rows.push(`${y.label}: ${value(y, layer.y[i])}`);
    return rows;
  }

  // Return the tooltip's lines for counts and shares at one place of the x axis.
  below(px) {
    const u = this.plot, x = u.posToVal(px, "x");
    const rows = [];
    let title = "";
    for (const layer of this.layers) {
      if (layer.hidden) continue;
      if (layer.kind === "bars") {
        const i = layer.low.findIndex((low, k) => x >= low && x < layer.high[k]);
        if (i < 0) continue;
        title = `${this.spec.x.label}: ${number(layer.low[i])} to ${number(layer.high[i])}`;
        rows.push(`${nameOf(layer)}: ${number(layer.count[i])}`);
      } else if (layer.kind === "band") {
        if (x < layer.x[0] || x > layer.x.at(-1)) continue;
        let i = layer.x.findLastIndex(v => v <= x);
        if (!layer.stairs && layer.x[i + 1] - x < x - layer.x[i]) i += 1;
        const show = v => v === null ? "?" : this.spec.y.percent ? `${number(100 * v, 3)}%` : number(v);
        title = `${this.spec.x.label} ${number(layer.stairs ? Math.round(x) : layer.x[i])}`;
        const ends = layer.low[i] === layer.high[i] ? "" : ` (${show(layer.low[i])} to ${show(layer.high[i])})`;
        rows.push(`${nameOf(layer) || this.spec.y.label}: ${show(layer.value[i])}${ends}`);
      }
    }
    return rows.length ? [title, ...rows] : null;
  }
}
