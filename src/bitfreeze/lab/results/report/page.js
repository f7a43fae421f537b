"use strict";
// cividis, at even distances
const STOPS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const data = JSON.parse(document.getElementById("data").textContent);
const el = (id) => document.getElementById(id);

function make(tag, text, parent) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const k = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[k].map((low, c) => Math.round(low + (STOPS[k + 1][c] - low) * (place - k)));
}

async function unpack(run, tensor) {
  // the layout is that of explorer.py
  if (tensor.planes) return tensor.planes;
  const packed = Uint8Array.from(atob(tensor.bytes), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  const tasks = run.tasks.length, cells = tensor.rows.length * tensor.cols.length, size = tasks * cells;
  let at = 0;
  const next = (kind) => { const view = new kind(bytes, at, size); at += size; return view; };
  const bits = next(Uint8Array), gain = next(Int8Array), offset = run.values ? next(Int8Array) : null;
  const planes = [0, 1, 2, 3].map(() => next(Uint8Array));
  const centre = new Int32Array(size);
  for (let k = 0; k < size; k++) {
    const change = planes[0][k] | (planes[1][k] << 8) | (planes[2][k] << 16) | (planes[3][k] << 24);
    centre[k] = change + (k < cells ? 0 : centre[k - cells]);
  }
  tensor.planes = { bits, gain, offset, centre, cells, top: Math.max(1, bits.reduce((a, b) => Math.max(a, b), 0)) };
  return tensor.planes;
}

const at = { run: 0, tensor: 0, task: 0, row: 0, col: 0 };
const currentRun = () => data.runs[at.run];
const currentTensor = () => currentRun().tensors[at.tensor];
const flat = (tensor) => tensor.rows[at.row] + tensor.cols[at.col];

function placeName(tensor, index) {
  const found = [];
  for (const size of [...tensor.shape].reverse()) { found.unshift(index % size); index = Math.floor(index / size); }
  return `${tensor.name}[${found.join(", ")}]`;
}

function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name, k) => new Option(name, k, false, k === chosen)));
}

function pickRun(k) {
  at.run = k;
  const run = currentRun();
  at.tensor = Math.min(at.tensor, run.tensors.length - 1);
  at.task = run.tasks.length - 1;
  fill(el("pick-tensor"), run.tensors.map((t) => `${t.name} (${t.shape.join(" x ")})`), at.tensor);
  el("pick-task").max = run.tasks.length;
  el("pick-task").value = at.task + 1;
}

async function show() {
  const run = currentRun(), tensor = currentTensor();
  const planes = await unpack(run, tensor);
  if (tensor !== currentTensor()) return; // another was picked meanwhile
  at.row = Math.min(at.row, tensor.rows.length - 1);
  at.col = Math.min(at.col, tensor.cols.length - 1);
  el("task-name").textContent = `${at.task + 1}: ${run.tasks[at.task]}`;
  drawMap(run, tensor, planes);
  showCell(run, tensor, planes);
}

function drawMap(run, tensor, planes) {
  const canvas = el("map"), rows = tensor.rows.length, cols = tensor.cols.length;
  const size = Math.max(1, Math.floor(512 / Math.max(rows, cols)));
  canvas.width = cols * size;
  canvas.height = rows * size;
  const pen = canvas.getContext("2d");
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) {
    if (tensor.rows[r] + tensor.cols[c] >= tensor.count) continue;
    const bits = planes.bits[at.task * planes.cells + r * cols + c];
    pen.fillStyle = `rgb(${colour(bits / planes.top).join()})`;
    pen.fillRect(c * size, r * size, size, size);
  }
  pen.lineWidth = Math.max(1, size / 6);
  for (const [style, grow] of [["#000", 1], ["#fff", 0]]) {
    pen.strokeStyle = style;
    pen.strokeRect(at.col * size - grow, at.row * size - grow, size + 2 * grow, size + 2 * grow);
  }
  el("scale-bar").style.background = `linear-gradient(90deg, ${STOPS.map((s) => `rgb(${s.join()})`).join()})`;
  el("scale-top").textContent = `${planes.top} bits of ${run.depth}`;
  const shown = Math.min(tensor.count, planes.cells), mean = tensor.means[at.task];
  const part = shown < tensor.count ? `${shown.toLocaleString("en")} of ${tensor.count.toLocaleString("en")} parameters
    are shown, evenly spaced` : `All ${tensor.count.toLocaleString("en")} parameters are shown`;
  el("map-note").textContent = `${part}. Mean of all: ${mean} frozen bits.`;
  canvas.setAttribute("aria-label", `Frozen bits of ${tensor.name} after task ${at.task + 1}: mean ${mean}`);
}

function showCell(run, tensor, planes) {
  const box = el("cell"), index = flat(tensor);
  box.replaceChildren();
  if (index >= tensor.count) return;
  make("h3", placeName(tensor, index), box);
  const wide = make("div", undefined, box);
  wide.className = "wide";
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", "The parameter after each task");
  const table = make("table", undefined, wide), head = make("tr", undefined, make("thead", undefined, table));
  const names = ["task", "bits", "gain", "where", "interval", run.values ? "value" : "centre"];
  for (const name of names) make("th", name, head).scope = "col";
  const body = make("tbody", undefined, table), unit = tensor.bound * 2 ** -run.depth;
  let before = { low: -tensor.bound, high: tensor.bound };
  run.tasks.forEach((task, t) => {
    const k = t * planes.cells + at.row * tensor.cols.length + at.col;
    const bits = planes.bits[k], centre = planes.centre[k] * unit, radius = tensor.bound * 2 ** -bits;
    const now = { low: centre - radius, high: centre + radius };
    const value = run.values ? centre + (radius * planes.offset[k]) / 127 : centre;
    const digits = Math.min(8, Math.max(3, Math.ceil(-Math.log10(radius)) + 2));
    const row = make("tr", undefined, body);
    make("td", `${t + 1}: ${task}`, row);
    make("td", bits, row);
    make("td", (planes.gain[k] / 8).toFixed(1), row);
    const track = make("div", undefined, make("td", undefined, row)), span = before.high - before.low;
    track.className = "track";
    const share = (x) => Math.min(100, Math.max(0, (100 * (x - before.low)) / span));
    const bar = make("i", undefined, track);
    bar.style.left = `${share(now.low)}%`;
    bar.style.width = `${share(now.high) - share(now.low)}%`;
    make("b", undefined, track).style.left = `${share(value)}%`;
    make("td", `${now.low.toFixed(digits)} to ${now.high.toFixed(digits)}`, row);
    make("td", value.toFixed(digits), row);
    before = now;
  });
  make("p", `Where: the interval within the one before it, and in it a mark for the ${run.values ? "value" : "centre"}. Gain to the
    nearest eighth of a bit.`, box).className = "quiet";
}

function startExplorer() {
  fill(el("pick-run"), data.runs.map((run) => run.title), 0);
  pickRun(0);
  el("pick-run").addEventListener("change", (e) => { pickRun(Number(e.target.value)); show(); });
  el("pick-tensor").addEventListener("change", (e) => { at.tensor = Number(e.target.value); show(); });
  el("pick-task").addEventListener("input", (e) => { at.task = Number(e.target.value) - 1; show(); });
  el("explore").addEventListener("submit", (e) => e.preventDefault());
  const canvas = el("map");
  const point = (e) => {
    const box = canvas.getBoundingClientRect(), tensor = currentTensor();
    const inside = (x, n) => Math.min(n - 1, Math.max(0, Math.floor(x * n)));
    at.col = inside((e.clientX - box.left) / box.width, tensor.cols.length);
    at.row = inside((e.clientY - box.top) / box.height, tensor.rows.length);
    show();
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    const tensor = currentTensor();
    at.row = Math.min(tensor.rows.length - 1, Math.max(0, at.row + step[0]));
    at.col = Math.min(tensor.cols.length - 1, Math.max(0, at.col + step[1]));
    show();
  });
  show();
}

// the live part, where a server is behind the page

function curve(svg, points, second) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const last = Math.max(1, points.length - 1);
  line.setAttribute("points", points.map((y, k) => `${(100 * k) / last},${58 - 56 * y}`).join(" "));
  if (second) line.setAttribute("class", "second");
  svg.append(line);
}

function showRun(run, box) {
  const card = make("div", undefined, box);
  card.className = "run";
  make("h3", run.title, card);
  make("p", [run.state, run.at, run.left].filter(Boolean).join(" · "), card).className = "quiet";
  const bar = make("progress", undefined, card);
  bar.max = 1;
  bar.value = run.progress;
  bar.setAttribute("aria-label", `Progress of ${run.title}`);
  if (run.train_loss.length > 1) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 100 60");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    const shown = (losses) => losses[losses.length - 1].toPrecision(3), both = run.valid_loss.length > 1;
    const words = `loss of this task ${shown(run.train_loss)} (line)` +
      (both ? `, validation ${shown(run.valid_loss)} (dashed)` : "");
    svg.setAttribute("aria-label", words);
    const all = [...run.train_loss, ...run.valid_loss], low = Math.min(0, ...all), span = Math.max(1e-9, ...all) - low;
    curve(svg, run.train_loss.map((y) => (y - low) / span), false);
    if (both) curve(svg, run.valid_loss.map((y) => (y - low) / span), true);
    card.append(svg);
    make("p", words, card).className = "quiet";
  }
  if (run.accuracy.length) make("p", `on each task so far: ${run.accuracy.map((a) => a.toFixed(2)).join(" ")}`, card);
}

async function look() {
  const box = el("live");
  try {
    const now = await (await fetch("live.json", { cache: "no-store" })).json();
    if (now.page !== data.live) location.reload();
    box.replaceChildren();
    make("h2", now.runs.length ? "Going on" : "No run is going on", box);
    now.runs.forEach((run) => showRun(run, box));
    (now.left_out || []).forEach((sentence) => make("p", sentence, box));
  } catch (error) {
    box.replaceChildren();
    make("p", "The server does not answer: bitfreeze watch has ended, or is busy.", box);
  }
  setTimeout(look, 2000);
}

if (data.runs.length) startExplorer();
if (data.live) look();
