/* The flame graph: an icicle of functions, by wall or CPU time, of the run or a part of it. */
(() => {
"use strict";
const data = JSON.parse(document.getElementById("flame-data").textContent);
const byId = id => document.getElementById(id);
const box = byId("flame"), said = byId("flame-said"), rowsBox = byId("flame-rows");
const by = byId("flame-by"), of = byId("flame-of"), find = byId("flame-find"), out = byId("flame-out");
const count = data.parents.length, ROW = 19, MOST_ROWS = 40, NARROWEST = .0008;
const children = Array.from({ length: count }, () => []), roots = [];
data.parents.forEach((parent, node) => (parent < 0 ? roots : children[parent]).push(node));
const functionOf = node => data.functions[data.names[node]];
const label = ([name, file, line]) => file && name !== file ? `${name} (${file}${line ? ":" + line : ""})` : name;
let own = [], cpu = [], total = [], whole = 0, samples = 0, focus = -1, span = null;

const { number, time } = perfFormat;
const seconds = value => value >= 1 ? time(value) : number(value * 1000) + " ms";
const percent = share => (100 * share).toFixed(share >= .0995 ? 0 : 1) + "%";
/* A share with its 95% interval by the number of samples: model/exactness.py has the law. */
const exactly = share => {
  const middle = (share * samples + 2) / (samples + 4), error = Math.min(1, 1.96 * Math.sqrt(middle * (1 - middle) / samples));
  return samples && error >= .005 ? `${(100 * share).toFixed(0)} ± ${(100 * error).toFixed(0)}%` : percent(share);
};

/* Self and total seconds of each node within the chosen part of the run. */
const add = () => {
  const place = +by.value, phase = data.phases[+of.value];
  const part = of.value === "span" ? span : of.value !== "" && phase ? [phase.start, phase.end] : [0, Infinity];
  const wall = new Float64Array(count);
  own = new Float64Array(count);
  cpu = new Float64Array(count);
  data.buckets.forEach((bucket, i) => {
    const begin = i * data.width_s, inside = Math.min(part[1], begin + data.width_s) - Math.max(part[0], begin);
    const share = Math.min(1, inside / data.width_s) / 1000;
    if (share > 0) for (let k = 0; k < bucket.length; k += 3) { wall[bucket[k]] += share * bucket[k + 1]; cpu[bucket[k]] += share * bucket[k + 2]; }
  });
  own = place ? cpu : wall;
  total = Float64Array.from(own);
  for (let node = count - 1; node >= 0; node--) if (data.parents[node] >= 0) total[data.parents[node]] += total[node];
  whole = roots.reduce((sum, node) => sum + total[node], 0);
  const all = data.buckets.reduce((sum, bucket) => { for (let k = 1 + place; k < bucket.length; k += 3) sum += bucket[k] / 1000; return sum; }, 0);
  samples = (data.equal_samples?.[place ? "cpu" : "wall"] || 0) * (all ? whole / all : 0);
  return wall;
};

const describe = node => `${label(functionOf(node))}: ${seconds(total[node])}, ${exactly(whole ? total[node] / whole : 0)} of all; itself ${seconds(own[node])}`;
const matches = node => find.value && functionOf(node).slice(0, 2).join(" ").toLowerCase().includes(find.value.toLowerCase());
const shade = ([name, file, , library]) => {
  if (!file) return "var(--panel)";
  let hash = 0;
  for (const c of file) hash = (hash * 31 + c.charCodeAt(0)) | 0;
  return `color-mix(in srgb, var(--c${Math.abs(hash) % 8}) ${library ? 16 : 38}%, var(--bg))`;
};

/* The boxes: those above the zoomed one are as wide as all, those below fill it. */
const draw = keep => {
  const boxes = [];
  let deepest = 0;
  const place = (node, left, width, depth) => {
    if (width < NARROWEST) return;
    deepest = Math.max(deepest, depth);
    boxes.push([node, left, width, depth]);
    let at = left;
    const scale = total[node] ? width / total[node] : 0;
    for (const child of [...children[node]].sort((a, b) => total[b] - total[a])) {
      place(child, at, total[child] * scale, depth + 1);
      at += total[child] * scale;
    }
  };
  if (focus < 0) {
    let at = 0;
    for (const root of [...roots].sort((a, b) => total[b] - total[a])) { place(root, at, whole ? total[root] / whole : 0, 0); at += whole ? total[root] / whole : 0; }
  } else {
    const above = [];
    for (let node = data.parents[focus]; node >= 0; node = data.parents[node]) above.unshift(node);
    above.forEach((node, depth) => boxes.push([node, 0, 1, depth]));
    place(focus, 0, 1, above.length);
  }
  box.style.height = (deepest + 1) * ROW + "px";
  box.replaceChildren(...boxes.map(([node, left, width, depth], i) => {
    const one = document.createElement("div");
    const [name] = functionOf(node);
    one.className = "fn" + (matches(node) ? " hit" : find.value ? " miss" : "");
    one.dataset.node = node;
    one.setAttribute("role", "treeitem");
    one.setAttribute("aria-level", depth + 1);
    one.setAttribute("aria-label", describe(node));
    one.title = describe(node);
    one.tabIndex = keep == null ? (i ? -1 : 0) : node === keep ? 0 : -1;
    one.style.left = 100 * left + "%";
    one.style.width = 100 * width + "%";
    one.style.top = depth * ROW + "px";
    one.style.background = shade(functionOf(node));
    if (width > .012) one.textContent = name;
    return one;
  }));
  out.hidden = focus < 0;
  const hits = new Set();
  let found = 0;
  for (let node = 0; node < count; node++) {
    if (data.parents[node] >= 0 && hits.has(data.parents[node])) hits.add(node);
    else if (matches(node)) { hits.add(node); found += total[node]; }
  }
  const what = by.value === "1" ? "CPU time" : "thread time";
  said.textContent = !whole ? `No ${what} in this part.` : find.value ? `“${find.value}” is in ${exactly(found / whole)} of ${seconds(whole)} of ${what}.` : `${seconds(whole)} of ${what}${data.samples ? `, ${data.samples === 1 ? "1 sample" : `${data.samples} samples`} of the run` : ""}${samples ? "; ±: 95% interval" : ""}.`;
};

/* A function on a stack several times counts once in its total. */
const list = wall => {
  const sums = new Map();
  for (let node = 0; node < count; node++) {
    const mine = data.names[node], [, file] = data.functions[mine];
    if (!file) continue;
    const row = sums.get(mine) || sums.set(mine, [0, 0, 0, 0]).get(mine);
    row[0] += own[node];
    row[2] += wall[node];
    row[3] += cpu[node];
    let above = data.parents[node];
    while (above >= 0 && data.names[above] !== mine) above = data.parents[above];
    if (above < 0) row[1] += total[node];
  }
  const rows = [...sums].filter(([, [self, all]]) => all > 0).sort(([, a], [, b]) => b[0] - a[0] || b[1] - a[1]).slice(0, MOST_ROWS);
  rowsBox.replaceChildren(...rows.map(([id, [self, all, passed, used]]) => {
    const [name, file, line] = data.functions[id], row = document.createElement("tr");
    const cell = (text, n, share) => {
      const one = document.createElement(n == null ? "th" : "td");
      if (n == null) one.scope = "row";
      if (n) one.className = "n" + (share == null ? "" : " share");
      if (share != null) one.style.setProperty("--share", 100 * share + "%");
      one.textContent = text;
      return one;
    };
    row.append(cell(name), cell(line ? `${file}:${line}` : file, 0), cell(exactly(self / whole), 1, self / whole), cell(exactly(all / whole), 1), cell(passed ? percent(Math.min(1, used / passed)) : "–", 1));
    return row;
  }));
};
const renew = () => { const wall = add(); if (focus >= 0 && !total[focus]) focus = -1; draw(); list(wall); };
const zoom = node => { focus = node; draw(node < 0 ? null : node); box.querySelector('[tabindex="0"]')?.focus({ preventScroll: true }); };

box.addEventListener("click", event => { const one = event.target.closest(".fn"); if (one) zoom(+one.dataset.node); });
box.addEventListener("keydown", event => {
  const one = event.target.closest(".fn");
  if (!one) return;
  const node = +one.dataset.node;
  const here = id => box.querySelector(`[data-node="${id}"]`);
  const beside = step => {
    const same = [...box.children].filter(other => other.style.top === one.style.top).sort((a, b) => parseFloat(a.style.left) - parseFloat(b.style.left));
    return same[same.indexOf(one) + step];
  };
  const widest = () => [...children[node]].sort((a, b) => total[b] - total[a]).map(here).find(Boolean);
  const to = { ArrowUp: () => here(data.parents[node]), ArrowDown: widest, ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) }[event.key];
  if (to) {
    const next = to();
    if (next) { one.tabIndex = -1; next.tabIndex = 0; next.focus(); said.textContent = next.title; }
  } else if (event.key === "Enter" || event.key === " ") zoom(node);
  else if (event.key === "Escape") zoom(-1);
  else return;
  event.preventDefault();
});
box.addEventListener("pointerover", event => { const one = event.target.closest(".fn"); if (one) said.textContent = one.title; });
out.addEventListener("click", () => zoom(-1));
by.addEventListener("change", renew);
of.addEventListener("change", renew);
find.addEventListener("input", () => draw());
/* The charts tell which part of the time they show. */
document.addEventListener("perf-span", event => {
  span = event.detail;
  const option = of.querySelector('[value="span"]');
  option.hidden = !span;
  if (span) { option.textContent = `${seconds(span[0])} to ${seconds(span[1])}, as zoomed`; of.value = "span"; } else if (of.value === "span") of.value = "";
  renew();
});
renew();
})();
