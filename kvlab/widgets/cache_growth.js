// CacheGrowth: draws `data` as it is at `step`. A control sets the model's step; the model's change draws, so that all
// views of one widget agree and Python sees every step.

const SVG_CELLS = 9000; // above this many, a canvas draws faster than SVG
const MAX_COLUMNS = 512;
const MAX_ROWS = 256;
const GRID = { width: 300, height: 256, left: 64, top: 16, bottom: 22 }; // px, at full size
const SPEEDS = [1, 2, 5, 20, 60]; // steps a second
const EMPTY = "rgba(128, 128, 128, 0.16)"; // visible on a light and on a dark page
const AGAIN = 4;

const count = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function add(parent, tag, attributes = {}, text = "") {
  const svg = tag === "svg" || parent.namespaceURI.endsWith("svg");
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

// How positions, layers and heads become columns and rows: one to one while they fit, several to one when not.
function layout(data) {
  const bin = Math.ceil(data.n_positions / MAX_COLUMNS);
  const columns = Math.ceil(data.n_positions / bin);
  const heads = data.n_layers * data.n_kv_heads <= MAX_ROWS ? data.n_kv_heads : 1;
  const layers = Math.min(data.n_layers, MAX_ROWS);
  const rowHeight = Math.max(1, Math.min(16, Math.floor(GRID.height / (layers * heads))));
  const gap = layers > 1 ? Math.max(1, Math.min(5, rowHeight / 2)) : 0;
  const said = [`${plural(data.n_layers, "layer")} x ${plural(data.n_kv_heads, "KV head")}.`];
  if (bin > 1) said.push(`${count(data.n_positions)} positions are drawn in ${columns} columns of ${bin}.`);
  if (heads < data.n_kv_heads) said.push(`One row stands for the ${data.n_kv_heads} KV heads of a layer.`);
  if (layers < data.n_layers) said.push(`The first ${layers} layers are drawn.`);
  return {
    bin, columns, heads, layers, rowHeight, gap,
    cell: Math.min(22, GRID.width / columns),
    pitch: heads * rowHeight + gap,
    canvas: columns * layers * heads * data.panels.length > SVG_CELLS,
    said: said.join(" "),
  };
}

// Both painters fill the columns from..to of one layer with one state.
function svgPainter(svg, grid, fills) {
  const cells = [];
  const line = Math.min(1, grid.cell / 4, grid.rowHeight / 4);
  for (let row = 0; row < grid.layers * grid.heads; row++) {
    const y = GRID.top + Math.floor(row / grid.heads) * grid.pitch + (row % grid.heads) * grid.rowHeight;
    cells.push(
      Array.from({ length: grid.columns }, (_, column) =>
        add(svg, "rect", {
          x: GRID.left + column * grid.cell, y, width: grid.cell - line, height: grid.rowHeight - line, fill: EMPTY,
        }),
      ),
    );
  }
  return (layer, from, to, state) => {
    for (let row = layer * grid.heads; row < (layer + 1) * grid.heads; row++)
      for (let column = from; column < to; column++) cells[row][column].setAttribute("fill", fills[state]);
  };
}

function canvasPainter(frame, grid, colors, size) {
  const scale = 2; // canvas pixels a CSS pixel
  const w = Math.max(1, Math.round(grid.cell * scale));
  const canvas = add(frame, "canvas", {
    "aria-hidden": "true",
    width: w * grid.columns,
    height: Math.ceil(grid.pitch * grid.layers * scale),
  });
  const share = (value, whole) => `${(100 * value) / whole}%`;
  canvas.style.left = share(GRID.left, size.width);
  canvas.style.top = share(GRID.top, size.height);
  canvas.style.width = share(grid.cell * grid.columns, size.width);
  canvas.style.height = share(grid.pitch * grid.layers, size.height);
  const context = canvas.getContext("2d");
  const fills = [...colors];
  fills[AGAIN] = context.createPattern(hatchTile(colors[AGAIN]), "repeat");
  const paint = (layer, from, to, state) => {
    const box = [from * w, layer * grid.pitch * scale, (to - from) * w, grid.heads * grid.rowHeight * scale];
    context.clearRect(...box);
    context.fillStyle = fills[state];
    context.fillRect(...box);
  };
  for (let layer = 0; layer < grid.layers; layer++) paint(layer, 0, grid.columns, 0);
  return paint;
}

function hatchTile(color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 16;
  const context = tile.getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 16, 16);
  context.strokeStyle = "white";
  context.lineWidth = 1.5;
  for (const x of [-16, 0, 16]) {
    context.moveTo(x - 1, 17);
    context.lineTo(x + 17, -1);
  }
  context.stroke();
  return tile;
}

function addHatch(svg, color) {
  const id = `kvlab-again-${Math.random().toString(36).slice(2)}`;
  const pattern = add(add(svg, "defs"), "pattern", { id, width: 7, height: 7, patternUnits: "userSpaceOnUse" });
  add(pattern, "rect", { width: 7, height: 7, fill: color });
  add(pattern, "path", { d: "M-1 8L8 -1M-1 1L1 -1M6 8L8 6", stroke: "white", "stroke-width": 0.9 });
  return `url(#${id})`;
}

function addLabels(svg, data, grid) {
  const everyLayer = Math.max(1, Math.ceil(14 / grid.pitch));
  for (let layer = 0; layer < grid.layers; layer += everyLayer) {
    const y = GRID.top + layer * grid.pitch + Math.max(9, (grid.heads * grid.rowHeight) / 2 + 4);
    add(svg, "text", { x: GRID.left - 6, y, "text-anchor": "end" }, `layer ${layer}`);
  }
  const everyPosition = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e9].find(
    (n) => (n * grid.cell) / grid.bin >= 24 + 6 * (data.n_positions > 999) || n >= data.n_positions,
  );
  const y = GRID.top + grid.layers * grid.pitch + 14;
  for (let position = 0; position < data.n_positions; position += everyPosition) {
    const x = GRID.left + ((position + 0.5) / grid.bin) * grid.cell;
    add(svg, "text", { x, y, "text-anchor": "middle" }, count(position));
  }
  add(svg, "text", { x: GRID.left - 12, y, "text-anchor": "end" }, "position");
}

// The totals under a grid. Columns are as wide as their largest number, so that nothing moves while a run plays.
function addTable(root, data, panel) {
  const none = data.quantities.map(() => 0);
  const total = (step) => (step > 0 ? panel.totals[step - 1] : none);
  const columns = [
    ["this step", (step, i) => total(step)[i] - total(step - 1)[i]],
    ["so far", (step, i) => total(step)[i]],
  ];
  const widest = (value) => {
    let largest = 0;
    for (let step = 1; step <= panel.totals.length; step++)
      for (let i = 0; i < none.length; i++) largest = Math.max(largest, value(step, i));
    return count(largest).length;
  };
  const eachLayer = ["each layer", (step, i) => total(step)[i] / data.n_layers];
  const fits = 2 * widest(columns[1][1]) + widest(columns[0][1]) < 30;
  if (data.n_layers > 1 && panel.runs.length === 1 && fits) columns.push(eachLayer);

  const table = add(root, "table");
  const head = add(table, "tr");
  add(head, "td", {}, data.n_layers > 1 ? `sum of ${data.n_layers} layers` : "");
  for (const [words, value] of columns)
    add(head, "th", { scope: "col", style: `min-width: ${widest(value)}ch` }, words);
  const rows = data.quantities.map((words) => {
    const row = add(table, "tr");
    add(row, "th", { scope: "row" }, words);
    return columns.map(() => add(row, "td"));
  });
  return (step) =>
    rows.forEach((cells, i) => cells.forEach((cell, c) => (cell.textContent = count(columns[c][1](step, i)))));
}

// One run: its grid and its totals. Returns draw(step), which touches only the columns that change.
function addPanel(parent, data, panel, grid, colors) {
  const root = add(parent, "section", { class: "kvlab-panel" });
  add(root, "h4", {}, panel.title);
  const size = {
    width: GRID.left + grid.cell * grid.columns + 2,
    height: GRID.top + grid.pitch * grid.layers + GRID.bottom,
  };
  const frame = add(root, "div", { class: "kvlab-frame", style: `max-width: ${size.width}px` });
  const svg = add(frame, "svg", { viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" });
  addLabels(svg, data, grid);
  const newest = add(svg, "path", { d: "M-5 0h10l-5 8z", class: "kvlab-newest" });
  const fills = [...colors];
  if (!grid.canvas) fills[AGAIN] = addHatch(svg, colors[AGAIN]);
  const paint = grid.canvas ? canvasPainter(frame, grid, colors, size) : svgPainter(svg, grid, fills);
  const showTotals = addTable(root, data, panel);
  const layersOf = panel.runs.map(() => []); // the drawn layers of each kind
  panel.kinds.slice(0, grid.layers).forEach((kind, layer) => layersOf[kind].push(layer));
  const drawn = panel.runs.map(() => new Uint8Array(grid.columns));

  return (step) => {
    let end = 0;
    panel.runs.forEach((steps, kind) => {
      const next = new Uint8Array(grid.columns);
      for (const [from, to, state] of step > 0 ? steps[step - 1] : []) {
        next.fill(state, Math.floor(from / grid.bin), Math.ceil(to / grid.bin));
        end = Math.max(end, to);
      }
      const last = drawn[kind];
      for (let from = 0, to; from < grid.columns; from = to) {
        to = from + 1;
        if (next[from] === last[from]) continue;
        while (to < grid.columns && next[to] === next[from] && next[to] !== last[to]) to++;
        for (const layer of layersOf[kind]) paint(layer, from, to, next[from]);
      }
      drawn[kind] = next;
    });
    newest.setAttribute("transform", `translate(${GRID.left + ((end - 0.5) / grid.bin) * grid.cell} 3)`);
    newest.style.visibility = end ? "visible" : "hidden";
    showTotals(step);
  };
}

function say(data, step) {
  if (step === 0) return "Before the run: nothing is computed, nothing is stored.";
  const runs = data.panels.map(({ title, totals }) => {
    const [projected, again, stored, , read] = totals[step - 1].map((n, i) => n - (step > 1 ? totals[step - 2][i] : 0));
    const computed = `${plural(projected, "token")} projected, ${count(again)} of them again`;
    return `${title}: ${computed}; ${plural(stored, "row")} stored, ${count(read)} read.`;
  });
  return `Step ${count(step)} of ${count(data.names.length)}, ${data.names[step - 1]}. ${runs.join(" ")}`;
}

function render({ model, el }) {
  const data = model.get("data");
  const last = data.names.length;
  const grid = layout(data);
  const colors = [EMPTY];
  for (const [state, color] of data.legend) colors[state] = color;
  let timer = 0;

  const root = add(el, "div", { class: "kvlab-growth", role: "group", "aria-label": data.alt });
  const bar = add(root, "div", { class: "kvlab-bar" });
  const back = add(bar, "button", { type: "button", title: "one step back (left arrow)" }, "Back");
  const play = add(bar, "button", { type: "button", title: "play or pause (space)", class: "kvlab-play" }, "Play");
  const next = add(bar, "button", { type: "button", title: "one step on (right arrow)" }, "Step");
  const slider = add(bar, "input", { type: "range", min: 0, max: last, step: 1, "aria-label": "step" });
  const where = add(bar, "output", { "aria-hidden": "true" });
  where.style.minWidth = `${2 * String(count(last)).length + 4}ch`;
  const label = add(bar, "label", {}, "steps a second ");
  const speed = add(label, "select");
  for (const n of SPEEDS) add(speed, "option", { value: n }, n);
  speed.value = window.matchMedia("(prefers-reduced-motion: reduce)").matches ? 1 : 2;

  const report = add(root, "div", { class: "kvlab-report" });
  const status = add(report, "p", { role: "status" });
  add(report, "p", { "aria-hidden": "true" }, say(data, last)); // unseen: keeps the room of the last report
  const stage = add(root, "div", {
    class: "kvlab-stage", tabindex: 0, role: "group", "aria-label": "the run, step by step",
  });
  const panels = data.panels.map((panel) => addPanel(stage, data, panel, grid, colors));
  const legend = add(root, "p", { class: "kvlab-legend" });
  for (const [state, color, words] of data.legend) {
    const item = add(legend, "span", {}, words);
    const swatch = document.createElement("i");
    const hatch = `repeating-linear-gradient(135deg, ${color} 0 4px, white 4px 5px)`;
    swatch.style.background = state === AGAIN ? hatch : color;
    item.prepend(swatch);
  }
  add(root, "p", { class: "kvlab-note" }, grid.said);

  const step = () => model.get("step");
  function go(to) {
    const wanted = Math.max(0, Math.min(last, to));
    if (wanted === step()) return;
    model.set("step", wanted);
    model.save_changes();
  }
  function setPlaying(on) {
    window.clearInterval(timer);
    timer = on ? window.setInterval(() => (step() < last ? go(step() + 1) : setPlaying(false)), 1000 / speed.value) : 0;
    play.textContent = on ? "Pause" : "Play";
    status.setAttribute("aria-live", on ? "off" : "polite"); // no one can listen to sixty steps a second
  }
  function toggle() {
    if (!timer && step() === last) go(0);
    setPlaying(!timer);
  }
  function byHand(to) {
    if (timer) setPlaying(false);
    go(to);
  }
  function draw() {
    for (const drawPanel of panels) drawPanel(step());
    status.textContent = say(data, step());
    slider.value = step();
    slider.setAttribute("aria-valuetext", status.textContent);
    where.textContent = `${count(step())} / ${count(last)}`;
    back.setAttribute("aria-disabled", step() === 0);
    next.setAttribute("aria-disabled", step() === last);
  }

  // JupyterLab takes arrow keys from an output before they reach it, unless they are caught on the window first.
  const keys = {
    ArrowRight: () => byHand(step() + 1),
    ArrowLeft: () => byHand(step() - 1),
    ArrowUp: () => byHand(step() + 1),
    ArrowDown: () => byHand(step() - 1),
    Home: () => byHand(0),
    End: () => byHand(last),
    " ": toggle,
  };
  function onKey(event) {
    const target = event.composedPath()[0];
    if (!(target instanceof Node && el.contains(target))) return;
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const presses = target.tagName === "BUTTON" && (event.key === " " || event.key === "Enter");
    if (target.tagName === "SELECT" || presses) {
      if (event.key !== "Tab" && event.key !== "Escape") event.stopPropagation(); // the control's own key
      return;
    }
    if (!(event.key in keys)) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  }

  back.addEventListener("click", () => byHand(step() - 1));
  next.addEventListener("click", () => byHand(step() + 1));
  play.addEventListener("click", toggle);
  slider.addEventListener("input", () => byHand(Number(slider.value)));
  speed.addEventListener("change", () => timer && setPlaying(true));
  window.addEventListener("keydown", onKey, { capture: true });
  model.on("change:step", draw);
  draw();
  setPlaying(false);
  return () => {
    window.clearInterval(timer);
    window.removeEventListener("keydown", onKey, { capture: true });
    model.off("change:step", draw);
  };
}

export default { render };
