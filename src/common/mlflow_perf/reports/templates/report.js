/* The page's own script: charts (uPlot draws them), tables to sort, and the same by keyboard. */
(() => {
"use strict";

const el = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fade = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

/* ---- figures as text ---- */
const number = value => {
  if (value == null) return "–";
  const size = Math.abs(value);
  const decimals = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(+value.toFixed(decimals)).replace(/\B(?=(\d{3})+$)/g, size >= 10000 ? "\u202f" : "");
};
const withUnit = (value, unit) => value == null ? "–" : number(value) + (unit === "%" ? "%" : unit ? " " + unit : "");
const two = value => String(value).padStart(2, "0");
const time = (seconds, long = seconds >= 120) => {
  if (!long) return number(seconds) + " s";
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

/* ---- tables that sort ---- */
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const valueOf = cell => {
    const text = cell.dataset.v ?? cell.textContent, value = parseFloat(text);
    return text === "" ? -Infinity : cell.classList.contains("n") && value === value ? value : text;
  };
  heads.forEach((head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map(row => [valueOf(row.cells[column]), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

/* ---- curves ---- */
const holder = document.getElementById("curves");
if (!holder) return;
const data = JSON.parse(holder.textContent);
const box = document.getElementById("charts"), chooser = document.getElementById("node");
const many = Object.keys(data.spread).length > 0;
const HEIGHT = 132, HEAT = 130, AXIS = 46;
let plots = [], rebuild = 0;

const cells = {};
const cellsOf = key => cells[key] ??= Uint8Array.from(atob(data.spread[key].cells), c => c.charCodeAt(0));
const nodeRow = (key, node) => {
  const spread = data.spread[key], width = data.x.length;
  return Array.from(cellsOf(key).subarray(node * width, (node + 1) * width), v => v === 255 ? null : v / 254 * spread.scale);
};

/* What to draw of a chart: { chart, title, unit, series: [{ label, values, peak, colour, look }], bands, heat }.
   look: "line", "edge" of a band, or "peak"; several edges share one place in the legend. */
const colourOf = series => { const c = colour(series.css || "--c" + series.colour % 8); return series.look && series.look !== "limit" ? fade(c, .4) : c; };
const linesOf = chart => chart.curves.filter(curve => curve.role === "line");
/* Of several nodes a stacked chart is drawn as lines, without those that another chart has, too. */
const ownLinesOf = chart => linesOf(chart).filter(curve => !chart.stacked || !data.charts.some(other => other !== chart && !other.stacked && other.curves.some(c => c.key === curve.key)));
const limitOf = (chart, node) => {
  const curve = chart.curves.find(c => c.role === "limit"), values = curve && data.values[curve.key]?.[node];
  return values ? [{ label: "limit", values, css: "--bad", look: "limit" }] : [];
};
const stackOf = (chart, node) => {
  const series = [], bands = [], peaks = [];
  let below = null;
  for (const curve of chart.curves.filter(c => c.role === "line" || c.role === "rest")) {
    const values = data.values[curve.key]?.[node], peak = data.values[curve.key + "_max"]?.[node];
    if (!values) continue;
    const under = below, index = series.length, css = curve.role === "rest" ? "--line" : null;
    const drawn = under ? values.map((v, i) => v == null || under[i] == null ? null : v + under[i]) : values;
    series.push({ label: curve.label, values, drawn, peak, colour: index, css, fill: under ? null : .45 });
    if (under) bands.push({ series: [index + 1, index], alpha: css ? .4 : .45, colour: index, css });
    else if (peak) peaks.push({ label: curve.label + " peak", values: peak, colour: index, look: "peak" });
    below = drawn;
  }
  return [{ chart, title: chart.title, series: [...series, ...peaks, ...limitOf(chart, node)], bands }];
};
const ofOneNode = (chart, node) => {
  if (chart.stacked) return stackOf(chart, node);
  const series = [], bands = [], values = key => data.values[key]?.[node];
  const edge = role => { const curve = chart.curves.find(c => c.role === role); return curve && { ...curve, values: values(curve.key + "_max") || values(curve.key) }; };
  const low = edge("low"), high = edge("high"), area = low?.values && high?.values;
  if (area) {
    series.push({ label: high.label, values: high.values, colour: 0, look: "edge" }, { label: low.label, values: low.values, colour: 0, look: "edge" });
    bands.push({ series: [1, 2], alpha: .16, colour: 0 });
  }
  linesOf(chart).forEach((curve, index) => {
    const line = values(curve.key), peak = values(curve.key + "_max");
    if (!line) return;
    if (peak && !area) {
      series.push({ label: curve.label + " peak", values: peak, colour: index, look: "peak" });
      bands.push({ series: [series.length, series.length + 1], alpha: .14, colour: index });
    }
    series.push({ label: curve.label, values: line, colour: index, peak });
  });
  return [{ chart, title: chart.title, series, bands }];
};
const titled = (chart, curve) => linesOf(chart).length > 1 ? `${chart.title.split(":")[0]}: ${curve.label}` : chart.title;
const overlaid = chart => ownLinesOf(chart).map(curve => ({
  chart, title: titled(chart, curve), bands: [],
  series: data.nodes.flatMap((name, node) => {
    const values = data.values[curve.key]?.[node], peak = data.values[curve.key + "_max"]?.[node];
    return values ? [{ label: "node " + name, short: String(name), values, peak, colour: node }] : [];
  }),
}));
const spreadOf = (chart, node) => ownLinesOf(chart).filter(curve => data.spread[curve.key]).map(curve => {
  const spread = data.spread[curve.key];
  const series = [
    { label: "90% of the nodes below", values: spread.high, colour: 0, look: "edge" },
    { label: "10% of the nodes below", values: spread.low, colour: 0, look: "edge" },
    { label: "highest", values: spread.max, colour: 1, thin: true },
    { label: "median", values: spread.median, colour: 0 },
  ];
  if (node != null) series.push({ label: `node ${data.nodes[node]}`, values: nodeRow(curve.key, node), colour: 4 });
  return { chart, title: titled(chart, curve), series, bands: [{ series: [1, 2], alpha: .2, colour: 0 }], heat: curve.key };
});
const drawingsOf = chart => {
  const node = chooser && chooser.value !== "" ? +chooser.value : null;
  if (many) return spreadOf(chart, node);
  const one = data.nodes.length === 1 ? 0 : node;
  return (one != null ? ofOneNode(chart, one) : overlaid(chart)).filter(d => d.series.length);
};

const peakOf = series => {
  let top = null;
  for (const list of [series.values, series.peak || []]) for (const v of list) if (v != null && (top == null || v > top)) top = v;
  return top;
};
/* A value stands for the time since the one before it: the last interval is mostly a short one. */
const meanOf = series => {
  let sum = 0, time = 0, before = null, last = null;
  series.values.forEach((value, i) => {
    if (value == null) return;
    const span = before == null ? 0 : data.x[i] - before;
    sum += value * span;
    time += span;
    before = data.x[i];
    last = value;
  });
  return time ? sum / time : last;
};

const axisBase = () => ({ stroke: colour("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } });
const STEPS = [.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
const timeAxis = () => ({ ...axisBase(), size: 24, gap: 3, space: 60, incrs: STEPS, values: (_, ticks) => ticks.map(tick => time(tick, ticks[ticks.length - 1] >= 120)) });
const common = width => ({ width, legend: { show: false }, padding: [6, 20, 0, 0] });
const cursor = () => ({ sync: { key: "run", scales: ["x", null] }, drag: { x: true, y: false }, y: false, points: { size: 5 } });

/* ---- phases: bands on all curves, with their names; and the part of the time that is zoomed ---- */
const phasesOf = data.phases || [];
const drawPhases = (u, named) => {
  if (!phasesOf.length) return;
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${10 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  phasesOf.forEach((phase, i) => {
    const left = u.valToPos(phase.start, "x", true), right = u.valToPos(phase.end, "x", true);
    if (right < bbox.left || left > bbox.left + bbox.width) return;
    if (!named) {
      if (i % 2 === 0) return;
      ctx.fillStyle = fade(colour("--soft"), .07);
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      return;
    }
    const from = Math.max(left, bbox.left) + 3 * ratio, room = Math.min(right, bbox.left + bbox.width) - from - 2 * ratio;
    let name = phase.name;
    while (name.length > 2 && ctx.measureText(name).width > room) name = name.slice(0, -2) + "…";
    ctx.fillStyle = colour("--soft");
    if (name.length > 2 && room > 12 * ratio) ctx.fillText(name, from, bbox.top + 2 * ratio);
  });
  ctx.restore();
};
let told = "";
const tellSpan = (u, key) => {
  const { min, max } = u.scales.x, first = data.x[0], last = data.x[data.x.length - 1];
  if (key !== "x" || min == null) return;
  const part = min <= first && max >= last ? null : [Math.max(0, min), max];
  if (JSON.stringify(part) === told) return;
  const isFirst = told === "" && !part;
  told = JSON.stringify(part);
  if (!isFirst) document.dispatchEvent(new CustomEvent("perf-span", { detail: part }));
};

const optionsOf = (drawing, width, onCursor) => {
  const top = drawing.chart.top;
  return {
    ...common(width), height: HEIGHT, cursor: cursor(),
    scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), top ?? ((high || 1) * 1.08)] } },
    axes: [timeAxis(), { ...axisBase(), size: AXIS, gap: 4, space: 26, values: (_, ticks) => ticks.map(number) }],
    series: [{}, ...drawing.series.map(s => {
      const dash = s.look === "limit" ? [5, 4] : undefined, fill = s.fill ? fade(colourOf(s), s.fill) : undefined;
      return { label: s.label, stroke: colourOf(s), width: s.look || s.thin ? 1 : 1.5, dash, fill, points: { show: s.values.length < 3 } };
    })],
    bands: drawing.bands.map(b => ({ series: b.series, fill: fade(colour(b.css || "--c" + b.colour % 8), b.alpha) })),
    hooks: { setCursor: [onCursor], drawClear: [u => drawPhases(u, false)], draw: [u => drawPhases(u, true)], setScale: [tellSpan] },
  };
};

/* ---- heat map: a row per node (or, of very many, per group of neighbours), peaks kept ---- */
const mix = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
const heatImage = key => {
  const width = data.x.length, nodes = data.nodes.length, source = cellsOf(key);
  const group = Math.ceil(nodes / 250), rows = Math.ceil(nodes / group);
  const stops = ["--heat0", "--heat1", "--heat2"].map(name => rgb(colour(name)));
  const palette = Array.from({ length: 255 }, (_, i) => i < 127 ? mix(stops[0], stops[1], i / 127) : mix(stops[1], stops[2], (i - 127) / 127));
  const canvas = el("canvas", { width, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(width, rows);
  for (let row = 0; row < rows; row++) for (let x = 0; x < width; x++) {
    let top = -1;
    for (let node = row * group; node < Math.min(nodes, (row + 1) * group); node++) {
      const v = source[node * width + x];
      if (v !== 255 && v > top) top = v;
    }
    if (top < 0) continue;
    image.data.set([...palette[top], 255], (row * width + x) * 4);
  }
  context.putImageData(image, 0, 0);
  return { canvas, group, rows };
};
const heatPlot = (drawing, width, place, label) => {
  const { canvas, group, rows } = heatImage(drawing.heat), nodes = data.nodes.length, spread = data.spread[drawing.heat];
  const half = (data.x[1] - data.x[0]) / 2 || .5, first = data.x[0] - half, last = data.x[data.x.length - 1] + half;
  const draw = u => {
    const { ctx, bbox } = u, left = u.valToPos(first, "x", true), right = u.valToPos(last, "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(canvas, left, bbox.top, right - left, bbox.height);
    ctx.restore();
  };
  const hover = u => {
    const { idx, top } = u.cursor;
    if (idx == null || top == null || top < 0) { label.textContent = ""; return; }
    const row = Math.min(rows - 1, Math.max(0, Math.floor(top / u.over.clientHeight * rows)));
    let best = row * group, value = -1;
    for (let node = row * group; node < Math.min(nodes, (row + 1) * group); node++) {
      const v = cellsOf(drawing.heat)[node * data.x.length + idx];
      if (v !== 255 && v > value) { value = v; best = node; }
    }
    label.textContent = `node ${data.nodes[best]}: ${value < 0 ? "–" : withUnit(value / 254 * spread.scale, drawing.chart.unit)}`;
    u.best = best;
  };
  const plot = new uPlot({
    ...common(width), height: HEAT, cursor: cursor(),
    scales: { x: { time: false }, y: { range: [0, nodes], dir: -1 } },
    axes: [{ ...timeAxis(), grid: { show: false } }, { ...axisBase(), size: AXIS, gap: 4, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000], values: (_, ticks) => ticks.map(t => data.nodes[t] ?? "") }],
    series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
    hooks: { drawAxes: [draw], setCursor: [hover] },
  }, [data.x, data.x.map(() => null)], place);
  plot.over.addEventListener("click", () => { if (plot.best != null) { chooser.value = String(plot.best); drawAll(); } });
  return plot;
};

/* ---- one chart: caption with legend and values, plot, table ---- */
const swatch = (series, area) => {
  const mark = el("i");
  if (area) { mark.className = "area"; mark.style.background = colour("--c" + series.colour % 8); }
  else mark.style.borderTopColor = colourOf(series);
  return mark;
};
/* Legend entries: { node, text(index) }, where index is null while no time is pointed at. */
const legendOf = drawing => {
  const unit = drawing.chart.unit === "%" ? "%" : "", short = drawing.series[0].short != null, entries = [];
  const entry = (series, label, text, area) => {
    const value = el("span"), node = el("span", { class: "key" }, swatch(series, area), label + " ", value);
    entries.push({ node, show: index => { value.textContent = text(index); } });
  };
  const edges = drawing.series.filter(s => s.look === "edge");
  for (const series of drawing.series) {
    if (series.look && series.look !== "limit") continue;
    const peak = peakOf(series), mean = meanOf(series);
    const resting = series.look ? withUnit(series.values.findLast(v => v != null), unit) : short ? withUnit(mean, unit) : series.thin ? withUnit(peak, unit) : drawing.heat ? withUnit(mean, unit) : `${withUnit(mean, unit)}, peak ${withUnit(peak, unit)}`;
    entry(series, short ? series.short : series.label, index => index == null ? resting : withUnit(series.values[index], unit));
  }
  if (edges.length) {
    const [high, low] = edges, label = drawing.heat ? "10–90% of nodes" : "least–most busy";
    entry(high, label, index => index == null ? "" : `${number(low.values[index])}–${withUnit(high.values[index], unit)}`, true);
  }
  return entries;
};
const describe = drawing => drawing.series.filter(s => !s.look).map(s => `${s.label}: mean ${withUnit(meanOf(s), drawing.chart.unit)}, peak ${withUnit(peakOf(s), drawing.chart.unit)}`).join("; ");
const valuesAt = (drawing, index) => drawing.series.map(s => `${s.label} ${withUnit(s.values[index], drawing.chart.unit)}`).join(", ");

const tableOf = drawing => {
  const unit = drawing.chart.unit, head = text => el("th", { scope: "col", class: "n" }, text);
  const heads = el("tr", {}, head("Time"), ...drawing.series.map(s => head(`${s.label}${unit ? ` (${unit})` : ""}`)));
  const rows = data.x.map((x, i) => el("tr", {}, el("th", { scope: "row", class: "n" }, time(x)), ...drawing.series.map(s => el("td", { class: "n" }, number(s.values[i])))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${drawing.title}: values, by time` }, el("table", {}, el("thead", {}, heads), el("tbody", {}, ...rows)));
};
const tableButton = (drawing, figure) => {
  const button = el("button", { type: "button", class: "as-table", "aria-expanded": "false", "aria-label": `${drawing.title}: show the values as a table` }, "table");
  let table = null;
  button.addEventListener("click", () => {
    if (table) { table.remove(); table = null; } else figure.append(table = tableOf(drawing));
    button.setAttribute("aria-expanded", String(!!table));
  });
  return button;
};

const keyboard = (plot, place, drawing) => {
  let index = 0;
  const go = to => {
    index = Math.max(0, Math.min(data.x.length - 1, to));
    plot.setCursor({ left: plot.valToPos(data.x[index], "x"), top: 10 });
    place.setAttribute("aria-valuenow", index);
    place.setAttribute("aria-valuetext", `${time(data.x[index])}: ${valuesAt(drawing, index)}`);
  };
  place.addEventListener("keydown", event => {
    const page = Math.max(1, Math.round(data.x.length / 10));
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, ArrowDown: index - 1, ArrowUp: index + 1, PageDown: index - page, PageUp: index + page, Home: 0, End: data.x.length - 1 }[event.key];
    if (event.key === "Escape") zoomOut();
    if (to == null) return;
    event.preventDefault();
    go(to);
  });
  place.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
};
const zoomOut = () => plots.forEach(({ plot }) => plot.setData(plot.data, true));

const drawOne = (drawing, parent) => {
  const legend = legendOf(drawing), unit = drawing.chart.unit, at = el("span", { class: "unit" });
  const figure = el("figure", { class: "chart" }), keys = el("div", { class: "keys" }, ...legend.map(entry => entry.node));
  const caption = el("figcaption", { title: drawing.chart.meaning }, el("b", {}, drawing.title), at, tableButton(drawing, figure), keys);
  const place = el("div", {
    class: "plot", tabindex: "0", role: "slider", "aria-label": `${drawing.title} over time. ${drawing.chart.meaning}`,
    "aria-valuemin": 0, "aria-valuemax": data.x.length - 1, "aria-valuenow": 0, "aria-valuetext": describe(drawing),
  });
  figure.append(caption, place);
  parent.append(figure);
  const width = figure.clientWidth;
  const show = u => {
    const idx = u.cursor.idx ?? null;
    at.textContent = idx == null ? unit : time(data.x[idx]);
    at.classList.toggle("now", idx != null);
    legend.forEach(entry => entry.show(idx));
  };
  const plot = new uPlot(optionsOf(drawing, width, show), [data.x, ...drawing.series.map(s => s.drawn || s.values)], place);
  show(plot);
  keyboard(plot, place, drawing);
  plots.push({ plot, figure });
  if (drawing.heat) {
    const label = el("span", { class: "key" });
    const heat = el("div", { class: "heat", "aria-hidden": "true" });
    keys.append(label);
    figure.append(heat);
    plots.push({ plot: heatPlot(drawing, width, heat, label), figure });
  }
};
const drawAll = () => {
  plots.forEach(({ plot }) => plot.destroy());
  plots = [];
  box.replaceChildren();
  for (const chart of data.charts) if (!chart.minor) drawingsOf(chart).forEach(drawing => drawOne(drawing, box));
  if (more) {
    minorBox.replaceChildren();
    if (more.open) drawMinor();
  }
};
const drawMinor = () => {
  for (const chart of data.charts) if (chart.minor) drawingsOf(chart).forEach(drawing => drawOne(drawing, minorBox));
};
const more = document.getElementById("more"), minorBox = document.getElementById("minor");
more?.addEventListener("toggle", () => { if (more.open && !minorBox.childElementCount) drawMinor(); });

drawAll();
chooser?.addEventListener("change", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
new ResizeObserver(() => {
  cancelAnimationFrame(rebuild);
  rebuild = requestAnimationFrame(() => plots.forEach(({ plot, figure }) => {
    if (plot.width !== figure.clientWidth) plot.setSize({ width: figure.clientWidth, height: plot.height });
  }));
}).observe(box);
})();
