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
/* As core.format.number: three significant digits, whole from a hundred on. */
const number = value => {
  if (value == null || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const decimals = Math.max(0, Math.min(2 - Math.floor(Math.log10(Math.abs(value))), 6));
  const [whole, rest] = value.toFixed(decimals).split(".");
  const part = (rest || "").replace(/0+$/, "");
  return whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") + (part ? "." + part : "");
};
const withUnit = (value, unit) => value == null ? "–" : number(value) + (unit === "%" ? "%" : unit ? " " + unit : "");
const two = value => String(value).padStart(2, "0");
const time = (seconds, long = seconds >= 120) => {
  if (!long) return number(seconds) + " s";
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

globalThis.perfFormat = { number, time };

/* ---- files to keep ---- */
/* MLflow's artifact pane shows the page in a sandbox that downloads nothing. */
const canSave = location.protocol !== "blob:";
const save = (name, address) => el("a", { download: name.replace(/[^\w.-]+/g, "_"), href: address }).click();
const saveCsv = (name, rows) => {
  /* A spreadsheet takes a cell that begins so for a formula; numbers stay as they are. */
  const guard = text => /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
  const quote = text => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  save(name + ".csv", "data:text/csv;charset=utf-8," + encodeURIComponent(rows.map(row => row.map(cell => quote(guard(String(cell ?? "")))).join(",")).join("\n") + "\n"));
};
const textOf = cell => cell.dataset.v || cell.textContent.trim();
for (const button of document.querySelectorAll("button[data-csv]")) {
  const table = document.getElementById(button.dataset.csv);
  button.hidden = !canSave;
  button.addEventListener("click", () => saveCsv(button.dataset.csv, [...table.rows].map(row => [...row.cells].map(textOf))));
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

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
const byId = id => document.getElementById(id);
/* A run has one set of curves; a comparison has one for each step. */
const sets = [JSON.parse(holder.textContent)].flat();
let data = sets[0];
const box = byId("charts"), chooser = byId("node"), aligner = byId("align"), more = byId("more"), minorBox = byId("minor");
const many = Object.keys(data.spread).length > 0;
const HEIGHT = 132, HEAT = 130, AXIS = 46;
let plots = [], rebuild = 0, zoom = null;
const hidden = new Set();

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
/* Without a node: of the first node that has a limit then, so that the line ends with the last node. */
const limitOf = (chart, node) => {
  const curve = chart.curves.find(c => c.role === "limit"), limits = data.values[curve?.key] || [];
  const known = limits.filter(Boolean), all = known.length ? data.x.map((_, i) => known.find(v => v[i] != null)?.[i] ?? null) : null;
  const values = node == null ? all : limits[node];
  return values ? [{ label: "limit", values, css: "--bad", look: "limit" }] : [];
};
const isOff = (chart, label) => hidden.has(`${chart.name}|${label}`);
const stackOf = (chart, node) => {
  const series = [], bands = [], peaks = [];
  let below = null, lower = 0;
  for (const curve of chart.curves.filter(c => c.role === "line" || c.role === "rest")) {
    const values = data.values[curve.key]?.[node], peak = data.values[curve.key + "_max"]?.[node];
    if (!values) continue;
    if (isOff(chart, curve.label)) {
      series.push({ label: curve.label, values, colour: series.length, css: curve.role === "rest" ? "--line" : null });
      continue;
    }
    const under = below, index = series.length, css = curve.role === "rest" ? "--line" : null;
    const drawn = under ? values.map((v, i) => v == null || under[i] == null ? null : v + under[i]) : values;
    series.push({ label: curve.label, values, drawn, peak, colour: index, css, fill: under ? null : .45 });
    if (under) bands.push({ series: [index + 1, lower], alpha: css ? .4 : .45, colour: index, css });
    else if (peak) peaks.push({ label: curve.label + " peak", values: peak, colour: index, look: "peak" });
    below = drawn;
    lower = index + 1;
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
  return [{ chart, title: chart.title, series: series.length ? [...series, ...limitOf(chart, node)] : [], bands }];
};
const titled = (chart, curve) => linesOf(chart).length > 1 ? `${chart.title.split(":")[0]}: ${curve.label}` : chart.title;
/* The places of a run on the baseline's time: between equal phases it runs as fast as the baseline. */
const alignedOf = (values, anchors) => data.x.map(x => {
  if (x > data.end) return null;
  let i = 1;
  while (i < anchors.length - 1 && anchors[i][1] < x) i++;
  const [[own0, base0], [own1, base1]] = [anchors[i - 1], anchors[i]];
  const own = own0 + (own1 - own0) * (x - base0) / (base1 - base0);
  return values[Math.round((own - data.x[0]) / (data.x[data.x.length - 1] - data.x[0]) * (data.x.length - 1))] ?? null;
});
const isAligned = () => !!(aligner?.value && data.anchors);
const overlaid = chart => ownLinesOf(chart).map(curve => {
  const series = data.nodes.flatMap((name, node) => {
    const values = data.values[curve.key]?.[node], peak = data.values[curve.key + "_max"]?.[node];
    const label = data.names?.[node] || "node " + name;
    return values ? [{ label, short: data.names ? label : String(name), values: isAligned() ? alignedOf(values, data.anchors[node]) : values, peak, colour: node }] : [];
  });
  return { chart, title: titled(chart, curve), bands: [], series: series.length && curve.key.startsWith("job_") ? [...series, ...limitOf(chart)] : series };
});
const spreadOf = (chart, node) => ownLinesOf(chart).filter(curve => data.spread[curve.key]).map(curve => {
  const spread = data.spread[curve.key];
  const series = [
    { label: "90% of the nodes below", values: spread.high, colour: 0, look: "edge" },
    { label: "10% of the nodes below", values: spread.low, colour: 0, look: "edge" },
    { label: "highest", values: spread.max, colour: 1, thin: true },
    { label: "median", values: spread.median, colour: 0 },
  ];
  if (node != null && spread.cells) series.push({ label: `node ${data.nodes[node]}`, values: nodeRow(curve.key, node), colour: 4 });
  return { chart, title: titled(chart, curve), series, bands: [{ series: [1, 2], alpha: .2, colour: 0 }], spread: true, heat: spread.cells ? curve.key : null };
});
/* Sizes in the unit that suits the largest one: an axis of "0, 0, 0" says nothing. */
const UNITS = [["kB", 1024], ["MB", 1], ["GB", 1 / 1024], ["TB", 1 / 1024 ** 2]];
const rescale = drawing => {
  const [, size, rate] = /^(MB)(.*)$/.exec(drawing.chart.unit) || [];
  drawing.unit = drawing.chart.unit;
  drawing.factor = 1;
  const top = Math.max(0, ...drawing.series.filter(s => s.look !== "limit").map(peakOf));
  if (!size || !top) return drawing;
  const [unit, factor] = UNITS.find(([, f]) => top * f < 1024 && top * f >= .5) || (top < 1 ? UNITS[0] : UNITS[3]);
  const times = list => list && list.map(v => v == null ? null : v * factor);
  drawing.unit = unit + rate;
  drawing.factor = factor;
  drawing.series = drawing.series.map(s => ({ ...s, values: times(s.values), peak: times(s.peak), drawn: times(s.drawn) }));
  return drawing;
};
/* A limit may be far above the curves: it has the unit that suits itself, as in the tiles. */
const sized = (value, unit) => {
  const own = UNITS.find(([name]) => name === unit);
  if (!own || value == null) return withUnit(value, unit);
  const size = value / own[1], [name, factor] = UNITS.find(([, f]) => size * f < 1024) || UNITS[3];
  return withUnit(size * factor, name);
};
const drawingsOf = chart => {
  const node = chooser && chooser.value !== "" ? +chooser.value : null;
  const one = data.nodes.length === 1 && !data.names ? 0 : node;
  const drawings = many ? spreadOf(chart, node) : one != null ? ofOneNode(chart, one) : overlaid(chart);
  return drawings.filter(d => d.series.length && (drawings.length === 1 || d.series.some(peakOf))).map(rescale);
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
/* From the ninth line on colours repeat, dashed. */
const DASHES = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]];
const cursor = () => ({ sync: { key: "run", scales: ["x", null] }, drag: { x: true, y: false }, y: false, points: { size: 5 } });

/* ---- phases: bands on all curves, with their names; and the part of the time that is zoomed ---- */
const drawPhases = (u, named) => {
  const phases = isAligned() ? data.bands : data.phases || [];
  if (!phases.length) return;
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${10 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  phases.forEach((phase, i) => {
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
const out = byId("zoom-out");
const tellSpan = (u, key) => {
  const { min, max } = u.scales.x, first = data.x[0], last = data.x[data.x.length - 1];
  if (key !== "x" || min == null) return;
  Object.assign(u.root.parentElement.dataset, { from: number(min), to: number(max) });
  const part = min <= first && max >= last ? null : [Math.max(0, min), max];
  zoom = part;
  if (out) out.hidden = !part;
  if (JSON.stringify(part) === told) return; // as the other charts have said
  const isFirst = told === "" && !part;
  told = JSON.stringify(part);
  if (!isFirst) document.dispatchEvent(new CustomEvent("perf-span", { detail: part }));
};

/* A limit far above the curves is not drawn: they would lie flat on the axis. */
const topOf = (drawing, high) => {
  const used = Math.max(0, ...drawing.series.filter(s => s.look !== "limit" && !isOff(drawing.chart, s.label)).map(s => Math.max(peakOf({ values: s.drawn || s.values }) || 0, peakOf(s) || 0)));
  return (high > 4 * used && used ? used : high || 1) * 1.08;
};
const optionsOf = (drawing, width, onCursor) => {
  const top = drawing.chart.top;
  return {
    ...common(width), height: HEIGHT, cursor: cursor(),
    scales: { x: { time: false }, y: { range: (u, low, high) => [Math.min(0, low ?? 0), top ?? topOf(drawing, high)] } },
    axes: [timeAxis(), { ...axisBase(), size: AXIS, gap: 4, space: 26, values: (_, ticks) => ticks.map(number) }],
    series: [{}, ...drawing.series.map(s => {
      const dash = s.look === "limit" ? [5, 4] : undefined, fill = s.fill ? fade(colourOf(s), s.fill) : undefined;
      return { label: s.label, show: !isOff(drawing.chart, s.label.replace(/ peak$/, "")), stroke: colourOf(s), width: s.look || s.thin ? 1 : 1.5, dash: dash || DASHES[Math.floor(s.colour / 8)], fill, points: { show: s.values.length < 3 } };
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
    label.textContent = `node ${data.nodes[best]}: ${value < 0 ? "–" : withUnit(value / 254 * spread.scale * drawing.factor, drawing.unit)}`;
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
/* Legend entries: buttons that hide their curve; { node, show(index) }, index null while no time is pointed at. */
const legendOf = (drawing, redraw) => {
  const { unit, chart } = drawing, short = drawing.series[0].short != null, entries = [];
  const entry = (series, label, text, area) => {
    const value = el("span"), off = isOff(chart, series.label);
    const node = el("button", { type: "button", class: "key", "aria-pressed": String(!off) }, swatch(series, area), label + " ", value);
    node.addEventListener("click", () => {
      hidden[off ? "delete" : "add"](`${chart.name}|${series.label}`);
      redraw(label);
    });
    entries.push({ node, label, show: index => { value.textContent = text(index); } });
  };
  const edges = drawing.series.filter(s => s.look === "edge");
  for (const series of drawing.series) {
    if (series.look && series.look !== "limit") continue;
    const peak = peakOf(series), mean = meanOf(series);
    const show = series.look ? sized : withUnit;
    const resting = series.look ? show(series.values.findLast(v => v != null), unit) : short || drawing.spread && !series.thin ? withUnit(mean, unit) : series.thin ? withUnit(peak, unit) : `${unit === "%" ? withUnit(mean, unit) : number(mean)}, peak ${withUnit(peak, unit)}`;
    entry(series, short && !series.look ? series.short : series.label, index => index == null ? resting : show(series.values[index], unit));
  }
  if (edges.length) {
    const [high, low] = edges, label = drawing.spread ? "10–90% of nodes" : "least–most busy";
    entry(high, label, index => index == null ? `${number(meanOf(low))}–${withUnit(meanOf(high), unit)}` : `${number(low.values[index])}–${withUnit(high.values[index], unit)}`, true);
  }
  return entries;
};
const describe = drawing => drawing.series.filter(s => !s.look).map(s => `${s.label}: mean ${withUnit(meanOf(s), drawing.unit)}, peak ${withUnit(peakOf(s), drawing.unit)}`).join("; ");
const valuesAt = (drawing, index) => drawing.series.map(s => `${s.label} ${withUnit(s.values[index], drawing.unit)}`).join(", ");

const tableOf = drawing => {
  const unit = drawing.unit, head = text => el("th", { scope: "col", class: "n" }, text);
  const heads = el("tr", {}, head("Time"), ...drawing.series.map(s => head(`${s.label}${unit ? ` (${unit})` : ""}`)));
  const rows = data.x.map((x, i) => el("tr", {}, el("th", { scope: "row", class: "n" }, time(x)), ...drawing.series.map(s => el("td", { class: "n" }, number(s.values[i])))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${drawing.title}: values, by time` }, el("table", {}, el("thead", {}, heads), el("tbody", {}, ...rows)));
};
const smallButton = (text, label, act) => {
  const button = el("button", { type: "button", class: "as-table", "aria-label": label }, text);
  button.addEventListener("click", () => act(button));
  return button;
};
const tableButton = (drawing, figure) => {
  let table = null;
  const button = smallButton("table", `${drawing.title}: show the values as a table`, () => {
    if (table) { table.remove(); table = null; } else figure.append(table = tableOf(drawing));
    button.setAttribute("aria-expanded", String(!!table));
  });
  button.setAttribute("aria-expanded", "false");
  return button;
};
const csvOf = drawing => [
  ["seconds", ...drawing.series.map(s => `${s.label}${drawing.unit ? ` (${drawing.unit})` : ""}`)],
  ...data.x.map((x, i) => [x, ...drawing.series.map(s => s.values[i])]),
];
const pictureOf = (drawing, plot) => {
  const from = plot.ctx.canvas, ratio = devicePixelRatio || 1, top = 40 * ratio;
  const canvas = el("canvas", { width: from.width, height: from.height + top }), ctx = canvas.getContext("2d");
  ctx.fillStyle = colour("--bg");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(from, 0, top);
  ctx.fillStyle = colour("--ink");
  ctx.font = `600 ${13 * ratio}px system-ui, sans-serif`;
  ctx.fillText(`${drawing.title}${drawing.unit ? ` (${drawing.unit})` : ""}`, 8 * ratio, 16 * ratio);
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  let left = 8 * ratio;
  for (const series of drawing.series.filter(s => !s.look || s.look === "limit")) {
    ctx.fillStyle = colourOf(series);
    ctx.fillRect(left, 28 * ratio, 12 * ratio, 3 * ratio);
    ctx.fillStyle = colour("--soft");
    ctx.fillText(series.label, left += 16 * ratio, 32 * ratio);
    left += ctx.measureText(series.label).width + 12 * ratio;
  }
  return canvas.toDataURL("image/png");
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
const zoomTo = range => plots.forEach(({ plot }) => range ? plot.setScale("x", { min: range[0], max: range[1] }) : plot.setData(plot.data, true));
const zoomOut = () => zoomTo(null);

/* uPlot knows the mouse alone: a finger that moves sideways zooms, one that taps shows the values. */
const touch = plot => {
  let start = null;
  const at = event => Math.max(0, Math.min(plot.over.clientWidth, event.clientX - plot.over.getBoundingClientRect().left));
  plot.over.addEventListener("pointerdown", event => { if (event.pointerType !== "mouse") start = at(event); });
  plot.over.addEventListener("pointermove", event => {
    if (start == null || event.pointerType === "mouse") return;
    const left = at(event);
    plot.setSelect({ left: Math.min(start, left), width: Math.abs(left - start), top: 0, height: plot.over.clientHeight }, false);
  });
  plot.over.addEventListener("pointercancel", () => { start = null; plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); });
  plot.over.addEventListener("pointerup", event => {
    if (start == null || event.pointerType === "mouse") return;
    const [left, right] = [start, at(event)].sort((a, b) => a - b);
    start = null;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (right - left > 12) zoomTo([plot.posToVal(left, "x"), plot.posToVal(right, "x")]);
    else plot.setCursor({ left, top: 10 });
  });
};

const drawOne = (drawing, parent, instead) => {
  const { chart, unit } = drawing, at = el("span", { class: "unit" }), figure = el("figure", { class: "chart" });
  const legend = legendOf(drawing, label => {
    plots.filter(one => one.figure === figure).forEach(({ plot }) => plot.destroy());
    plots = plots.filter(one => one.figure !== figure);
    const fresh = drawOne(drawingsOf(chart).find(one => one.title === drawing.title), parent, figure);
    fresh.legend.find(entry => entry.label === label)?.node.focus();
  });
  const keys = el("div", { class: "keys" }, ...legend.map(entry => entry.node));
  const files = canSave ? [
    smallButton("CSV", `${drawing.title}: save the values as CSV`, () => saveCsv(drawing.title, csvOf(drawing))),
    smallButton("PNG", `${drawing.title}: save the chart as PNG`, () => save(drawing.title + ".png", pictureOf(drawing, plot))),
  ] : [];
  const caption = el("figcaption", { title: chart.meaning }, el("b", {}, drawing.title), at, el("span", { class: "tools" }, tableButton(drawing, figure), ...files), keys);
  const place = el("div", {
    class: "plot", tabindex: "0", role: "slider", "aria-label": `${drawing.title} over time. ${chart.meaning}`,
    "aria-valuemin": 0, "aria-valuemax": data.x.length - 1, "aria-valuenow": 0, "aria-valuetext": describe(drawing),
  });
  figure.append(caption, place);
  if (instead) instead.replaceWith(figure); else parent.append(figure);
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
  touch(plot);
  plots.push({ plot, figure, caption });
  if (drawing.heat) {
    const label = el("span", { class: "key pointed" }), ramp = el("span", { class: "key" }, "0 ", el("i", { class: "ramp" }), ` ${withUnit(data.spread[drawing.heat].scale * drawing.factor, unit)}, a row per node`);
    const heat = el("div", { class: "heat", "aria-hidden": "true" });
    keys.append(ramp, label);
    figure.append(heat);
    plots.push({ plot: heatPlot(drawing, width, heat, label), figure });
  }
  // Values that change while the pointer moves must not move the charts.
  keys.style.height = keys.offsetHeight + "px";
  if (zoom) plot.setScale("x", { min: zoom[0], max: zoom[1] });
  return { legend };
};
const drawAll = () => {
  const part = zoom;
  plots.forEach(({ plot }) => plot.destroy());
  plots = [];
  box.replaceChildren();
  zoom = part;
  if (aligner) byId("align-by").hidden = !data.anchors;
  for (const chart of data.charts) if (!chart.minor) drawingsOf(chart).forEach(drawing => drawOne(drawing, box));
  if (more) {
    more.hidden = !data.charts.some(chart => chart.minor);
    minorBox.replaceChildren();
    if (more.open) drawMinor();
  }
};
const drawMinor = () => {
  for (const chart of data.charts) if (chart.minor) drawingsOf(chart).forEach(drawing => drawOne(drawing, minorBox));
};
more?.addEventListener("toggle", () => { if (more.open && !minorBox.childElementCount) drawMinor(); });

drawAll();
chooser?.addEventListener("change", drawAll);
aligner?.addEventListener("change", drawAll);
out?.addEventListener("click", zoomOut);
byId("set")?.addEventListener("change", event => { data = sets[+event.target.value]; zoom = null; hidden.clear(); drawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
new ResizeObserver(() => {
  cancelAnimationFrame(rebuild);
  rebuild = requestAnimationFrame(() => plots.forEach(({ plot, figure }) => {
    if (plot.width === figure.clientWidth) return;
    plot.setSize({ width: figure.clientWidth, height: plot.height });
    const keys = figure.querySelector(".keys");
    keys.style.height = "";
    keys.style.height = keys.offsetHeight + "px";
  }));
}).observe(box);
})();
