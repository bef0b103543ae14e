// The layers of a chart: decoding, drawing, and the layer nearest to the pointer.

const MISSING = 65535;

function dequantise(packed) {
  const bytes = Uint8Array.from(atob(packed.codes), c => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const out = new Float64Array(bytes.length / 2);
  const [low, high] = packed.log ? [Math.log(packed.low), Math.log(packed.high)] : [packed.low, packed.high];
  for (let i = 0; i < out.length; i++) {
    const code = view.getUint16(2 * i, true);
    const value = low + (high - low) * code / (MISSING - 1);
    out[i] = code === MISSING ? NaN : packed.log ? Math.exp(value) : value;
  }
  return out;
}

// Decode a layer. For lines, each curve is a range in the flat arrays x, y and step.
function decode(layer) {
  if (layer.kind !== "lines") return layer;
  const y = dequantise(layer.y), step = new Float64Array(y.length);
  const curves = [];
  let place = 0;
  layer.runs.forEach((run, i) => {
    const grid = layer.grids[layer.grid[i]];
    step.set(grid, place);
    curves.push({ run, start: place, end: place + grid.length, drawn: layer.drawn[i] === 1 });
    place += grid.length;
  });
  const x = layer.x ? dequantise(layer.x) : step;
  return { ...layer, x, y, step, curves, byRun: new Map(curves.map(curve => [curve.run, curve])) };
}

function path(context, layer, curve, to) {
  let open = false;
  for (let i = curve.start; i < curve.end; i++) {
    const x = to.x(layer.x[i]), y = to.y(layer.y[i]);
    if (!Number.isFinite(x) || !Number.isFinite(y)) { open = false; continue; }
    if (open) context.lineTo(x, y); else context.moveTo(x, y);
    open = true;
  }
}

const painters = {
  lines(context, layer, to, unit) {
    context.strokeStyle = colourOf(layer.colour);
    context.globalAlpha = layer.alpha;
    context.lineWidth = layer.width * unit;
    context.lineJoin = "round";
    context.setLineDash({ solid: [], dashed: [4, 2], dotted: [1, 2] }[layer.dash].map(v => v * unit));
    for (const curve of layer.curves) {
      if (!curve.drawn) continue;
      context.beginPath();
      path(context, layer, curve, to);
      context.stroke();
    }
  },
  points(context, layer, to, unit) {
    context.fillStyle = colourOf(layer.colour);
    const many = layer.x.length > 500;
    context.globalAlpha = many ? 0.45 : 0.8;
    const radius = (many ? 2 : Math.sqrt(layer.size)) * unit;
    layer.x.forEach((x, i) => {
      if (x === null || layer.y[i] === null) return;
      const size = radius * Math.sqrt(layer.times?.[i] ?? 1);
      context.beginPath();
      if (layer.marker === "|") context.rect(to.x(x) - unit / 2, to.y(layer.y[i]) - size, unit, 2 * size);
      else context.arc(to.x(x), to.y(layer.y[i]), size, 0, 2 * Math.PI);
      context.fill();
    });
  },
  bars(context, layer, to) {
    context.fillStyle = colourOf(layer.colour);
    layer.low.forEach((low, i) => {
      if (!layer.count[i]) return;
      const left = to.x(low), right = to.x(layer.high[i]);
      const bottom = to.y(layer.base[i]), top = to.y(layer.base[i] + layer.count[i]);
      context.fillRect(left + 0.05 * (right - left), top, Math.max(1, 0.9 * (right - left)), bottom - top);
    });
  },
  band(context, layer, to, unit) {
    const colour = colourOf(layer.colour);
    const trace = (values, backwards) => {
      const last = layer.x.length - 1;
      for (let k = 0; k <= last; k++) {
        const i = backwards ? last - k : k;
        if (values[i] === null) continue;
        const x = to.x(layer.x[i]), y = to.y(values[i]);
        if (layer.stairs && !backwards && i > 0) context.lineTo(x, to.y(values[i - 1]));
        context.lineTo(x, y);
        if (layer.stairs && backwards && i > 0) context.lineTo(x, to.y(values[i - 1]));
      }
    };
    context.fillStyle = colour;
    context.globalAlpha = 0.16;
    context.beginPath();
    trace(layer.low, false);
    trace(layer.high, true);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = 2 * unit;
    context.beginPath();
    trace(layer.value, false);
    context.stroke();
  },
  intervals(context, layer, to, unit) {
    context.strokeStyle = context.fillStyle = colourOf(layer.colour);
    context.lineWidth = (1 + layer.size / 15) * unit;
    layer.place.forEach((place, i) => {
      const at = v => layer.vertical ? [to.x(place), to.y(v)] : [to.x(v), to.y(place)];
      context.globalAlpha = 0.35;
      context.beginPath();
      context.moveTo(...at(layer.low[i]));
      context.lineTo(...at(layer.high[i]));
      context.stroke();
      context.globalAlpha = 1;
      context.beginPath();
      context.arc(...at(layer.value[i]), Math.sqrt(layer.size) * 0.7 * unit, 0, 2 * Math.PI);
      context.fill();
    });
  },
  rule(context, layer, to, unit, box) {
    context.strokeStyle = context.fillStyle = colourOf(layer.colour);
    if (layer.until !== null) {
      context.globalAlpha = 0.18;
      const [a, b] = [layer.at, layer.until].map(layer.axis === "x" ? to.x : to.y);
      if (layer.axis === "x") context.fillRect(a, box.top, b - a, box.height);
      else context.fillRect(box.left, a, box.width, b - a);
      return;
    }
    context.lineWidth = unit;
    context.setLineDash([4 * unit, 4 * unit]);
    context.beginPath();
    if (layer.axis === "x") {
      const x = to.x(layer.at);
      context.moveTo(x, box.top);
      context.lineTo(x, box.top + box.height);
    } else if (layer.axis === "y") {
      context.moveTo(box.left, to.y(layer.at));
      context.lineTo(box.left + box.width, to.y(layer.at));
    } else {
      context.moveTo(to.x(to.low), to.y(to.low));
      context.lineTo(to.x(to.high), to.y(to.high));
    }
    context.stroke();
    context.setLineDash([]);
    if (!layer.label) return;
    context.font = `${12 * unit}px system-ui, sans-serif`;
    const { width } = context.measureText(layer.label), right = box.left + box.width;
    let left = right - width - 4 * unit, top = to.y(layer.at) + (to.y(layer.at) >= box.top + box.height / 2 ? -17 : 3) * unit;
    if (layer.axis === "x") {
      const x = to.x(layer.at);
      left = x + 5 * unit + width > right ? x - 5 * unit - width : x + 5 * unit;
      top = box.top + (2 + 14 * layer.before) * unit;
    }
    context.globalAlpha = 0.7;  // what is below the label stays visible
    context.fillStyle = colourOf("paper");
    context.fillRect(left, top, width, 13 * unit);
    context.globalAlpha = 1;
    context.fillStyle = colourOf(layer.colour);
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillText(layer.label, left, top);
  },
};

// Return the line or point nearest to (px, py) in pixels: {distance, layer, run, i (index of its nearest point)}.
function nearest(layers, to, px, py, reach) {
  let best = null;
  const better = (distance, rest) => { if (distance <= reach && (!best || distance < best.distance)) best = { distance, ...rest }; };
  for (const layer of layers) {
    if (layer.hidden) continue;
    if (layer.kind === "points") {
      layer.x.forEach((x, i) => {
        if (x === null || layer.y[i] === null) return;
        better(Math.hypot(to.x(x) - px, to.y(layer.y[i]) - py), { layer, run: layer.runs[i], i });
      });
    } else if (layer.kind === "lines") {
      for (const curve of layer.curves) {
        if (!curve.drawn && curve.run !== selection.selected) continue;
        let [distance, own, place] = [Infinity, Infinity, curve.start];
        let ax = NaN, ay = NaN;
        for (let i = curve.start; i < curve.end; i++) {
          const bx = to.x(layer.x[i]), by = to.y(layer.y[i]);
          const point = Math.hypot(bx - px, by - py);
          if (point < own) [own, place] = [point, i];
          const length = (bx - ax) ** 2 + (by - ay) ** 2;
          const t = length > 0 ? Math.max(0, Math.min(1, ((px - ax) * (bx - ax) + (py - ay) * (by - ay)) / length)) : NaN;
          const between = Math.hypot(ax + t * (bx - ax) - px, ay + t * (by - ay) - py);
          distance = Math.min(distance, point, Number.isFinite(between) ? between : Infinity);
          [ax, ay] = [bx, by];
        }
        better(distance, { layer, run: curve.run, i: place });
      }
    }
  }
  return best;
}
