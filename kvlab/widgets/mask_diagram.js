// MaskDiagram: draws `data`, the masks as Python made them. Pointer and keys set `row` and `column`, sliders set
// `n_new` and `n_total`; the model's change draws, so that all views of one widget agree and Python sees every move.

const NONE = "0";
const BOX = { width: 300, height: 192, cell: 40 }; // px; a diagram with sliders always takes this much room
const SINGLE = { width: 300, height: 340, cell: 30 };
const EMPTY = "rgba(128, 128, 128, 0.16)"; // visible on a light and on a dark page
const WORDS = { 0: "hidden", 1: "visible", 2: "partly visible" };

function add(parent, tag, attributes = {}, text = "") {
  const svg = tag === "svg" || parent.namespaceURI.endsWith("svg");
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function layout(data) {
  const rows = data.panels[0].length;
  const columns = data.panels[0][0].length;
  const most = data.sliders ? BOX : SINGLE;
  const tokens = data.block[0] * data.block[1] === 1 ? data.tokens : [];
  const names = data.row_labels.map((at, i) => `${at} ${(tokens[columns - rows + i] ?? "").slice(0, 8)}`.trim());
  const longest = Math.max(...names.map((name) => name.length), data.sliders ? String(data.reach).length : 0);
  const cell = Math.min(most.cell, most.width / columns, most.height / rows);
  const top = 40 + (tokens.length ? 6.5 * Math.min(8, Math.max(...tokens.map((t) => t.length))) + 6 : 0);
  const left = Math.max(44, 6.6 * longest + 12);
  return {
    rows, columns, tokens, names, cell, top, left,
    width: left + (data.sliders ? BOX.width : cell * columns) + 2,
    height: top + (data.sliders ? BOX.height : cell * rows) + 2,
  };
}

function addNames(svg, data, grid) {
  const { cell, left, top } = grid;
  const every = (room, n) => [1, 2, 4, 8, 16, 32, 64].find((s) => s * cell >= room || s >= n);
  add(svg, "text", { x: left, y: 12, class: "kvlab-quiet" }, "key at position");
  add(svg, "text", { x: left - 8, y: top - 7, "text-anchor": "end", class: "kvlab-quiet" }, "query");
  for (let i = 0; i < grid.rows; i += every(12, grid.rows))
    add(svg, "text", { x: left - 8, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, grid.names[i]);
  const room = 7 * Math.max(...data.column_labels.map((label) => label.length)) + 4;
  for (let j = 0; j < grid.columns; j += every(room, grid.columns))
    room > 2 * cell // several to a label: it stands over the first of them
      ? add(svg, "text", { x: left + j * cell, y: top - 7 }, data.column_labels[j])
      : add(svg, "text", { x: left + (j + 0.5) * cell, y: top - 7, "text-anchor": "middle" }, data.column_labels[j]);
  grid.tokens.forEach((token, j) => {
    const [x, y] = [left + (j + 0.5) * cell + 4, top - 22];
    add(svg, "text", { x, y, transform: `rotate(-90 ${x} ${y})` }, token.slice(0, 8));
  });
}

// Cells that differ: framed and crossed, white on a filled cell; small ones struck through.
function addMarks(svg, data, cells, grid, color) {
  const { cell, left, top } = grid;
  let [frames, onEmpty, onFilled] = ["", "", ""];
  data.differs.forEach((row, i) =>
    [...row].forEach((differs, j) => {
      if (differs === NONE) return;
      const [x, y, arm] = [left + j * cell, top + i * cell, 0.36 * cell];
      const cross = cell < 12
        ? `M${x} ${y + cell / 2}h${cell}`
        : `M${x + 0.32 * cell} ${y + 0.32 * cell}l${arm} ${arm}m${-arm} 0l${arm} ${-arm}`;
      if (cell >= 12) frames += `M${x + 1.5} ${y + 1.5}h${cell - 3}v${cell - 3}h${3 - cell}z`;
      if (cells[i][j] === NONE) onEmpty += cross;
      else onFilled += cross;
    }),
  );
  const stroke = { fill: "none", "stroke-width": cell < 12 ? 1.2 : 2, "pointer-events": "none" };
  add(svg, "path", { d: frames + onEmpty, stroke: color, ...stroke });
  add(svg, "path", { d: onFilled, stroke: "white", ...stroke });
}

// One mask; `look(i, j)` is called with the drawn cell under the pointer. Returns focus(i, j).
function addPanel(parent, data, index, grid, colors, look) {
  const root = add(parent, "section", { class: "kvlab-panel" });
  add(root, "h4", {}, capital(data.titles[index]));
  const svg = add(root, "svg", {
    viewBox: `0 0 ${grid.width} ${grid.height}`, style: `max-width: ${grid.width}px`, "aria-hidden": "true",
  });
  const { cell, left, top } = grid;
  const line = cell >= 8 ? 1 : 0;
  addNames(svg, data, grid);
  data.panels[index].forEach((row, i) =>
    [...row].forEach((state, j) => {
      add(svg, "rect", {
        x: left + j * cell, y: top + i * cell, width: cell - line, height: cell - line, fill: colors[state],
      }).cell = [i, j];
    }),
  );
  addMarks(svg, data, data.panels[index], grid, colors.differs);
  const halo = add(svg, "rect", { width: cell + 1, height: cell + 1, class: "kvlab-halo" });
  const ring = add(svg, "rect", { width: cell + 1, height: cell + 1, class: "kvlab-ring" });
  // Not pointerover: a redraw under a pointer that rests would fire it, and undo what a key or Python has just set.
  for (const event of ["pointermove", "pointerdown"])
    svg.addEventListener(event, ({ target }) => target.cell && look(...target.cell));
  return (i, j) => {
    for (const box of [halo, ring]) {
      box.setAttribute("x", left + j * cell - 1);
      box.setAttribute("y", top + i * cell - 1);
    }
  };
}

function say(data, i, j) {
  const [given, expected] = data.panels.map((cells) => cells[i][j]);
  const key = `${data.column_labels[j].includes("-") ? "keys" : "key"} ${data.column_labels[j]}`;
  const token = data.block[0] * data.block[1] === 1 && data.tokens[j] ? ` (${data.tokens[j]})` : "";
  const should = given === expected ? "in part not as expected" : `expected ${WORDS[expected]}`;
  const wrong = data.differs[i][j] === NONE ? "" : `, ${should}`;
  return `${capital(data.rows[i])}. ${capital(key)}${token}: ${WORDS[given]}${wrong}.`;
}

function addSlider(parent, words, set, min = 1) {
  const label = add(parent, "label", {}, `${words} `);
  const input = add(label, "input", { type: "range", min, step: 1 });
  const shown = add(label, "output", { "aria-hidden": "true" }); // the slider itself speaks its value
  input.addEventListener("input", () => set(Number(input.value)));
  return (value, most) => {
    input.max = most;
    input.value = value;
    shown.textContent = value;
  };
}

function render({ model, el }) {
  const root = add(el, "div", { class: "kvlab-mask", role: "group" });
  const bar = add(root, "div", { class: "kvlab-bar" });
  const report = add(root, "div", { class: "kvlab-report" });
  const status = add(report, "p", { role: "status" });
  const room = add(report, "p", { "aria-hidden": "true" }); // unseen: keeps the room of the longest report
  const stage = add(root, "div", {
    class: "kvlab-stage", tabindex: 0, role: "application", "aria-roledescription": "mask diagram",
  });
  const summary = add(root, "p", { class: "kvlab-note" });
  const legend = add(root, "p", { class: "kvlab-legend" });
  let data, focus, sliders;

  function set(values) {
    const changed = Object.entries(values).filter(([name, value]) => model.get(name) !== value);
    for (const [name, value] of changed) model.set(name, value);
    if (changed.length) model.save_changes();
  }
  const look = (i, j) => set({ row: i * data.block[0], column: j * data.block[1] });
  const place = () => [
    Math.min(Math.floor(model.get("row") / data.block[0]), data.panels[0].length - 1),
    Math.min(Math.floor(model.get("column") / data.block[1]), data.panels[0][0].length - 1),
  ];

  function drawFocus() {
    if (data.problem) return;
    for (const show of focus) show(...place());
    status.textContent = say(data, ...place());
  }

  function drawSizes() {
    if (!sliders) return;
    sliders[0](model.get("n_new"), data.reach);
    sliders[1](model.get("n_total"), data.reach);
    Object.values(model.get("sizes")).forEach((size, i) => sliders[2 + i](size, Math.max(size, data.reach)));
  }

  function draw() {
    data = model.get("data");
    root.setAttribute("aria-label", data.problem || data.alt);
    for (const part of [stage, summary, legend]) part.style.visibility = data.problem ? "hidden" : "visible";
    if (data.sliders && !sliders)
      sliders = [
        addSlider(bar, "n_new", (n) => set({ n_new: n, n_total: Math.max(n, model.get("n_total")) })),
        addSlider(bar, "n_total", (n) => set({ n_total: n, n_new: Math.min(n, model.get("n_new")) })),
        ...Object.keys(data.sizes).map((name) =>
          addSlider(bar, name, (n) => set({ sizes: { ...model.get("sizes"), [name]: n } }), 0),
        ),
      ];
    drawSizes();
    if (data.problem) {
      status.textContent = data.problem;
      return;
    }
    const grid = layout(data);
    const colors = Object.fromEntries(Object.entries(data.legend).map(([state, [color]]) => [state, color]));
    colors[NONE] = EMPTY;
    stage.setAttribute("aria-label", data.alt);
    stage.replaceChildren();
    focus = data.panels.map((_, index) => addPanel(stage, data, index, grid, colors, look));
    legend.replaceChildren();
    const present = new Set(data.panels.flat().join(""));
    for (const [state, [, words]] of Object.entries(data.legend)) {
      if (state === "differs" ? !data.n_differ : !present.has(state)) continue;
      const swatch = document.createElement("i");
      swatch.style.background = state === "differs" ? "none" : colors[state];
      if (state === "differs") {
        const crossed = grid.cell >= 12;
        Object.assign(swatch.style, { border: `${crossed ? 2 : 0}px solid`, color: colors.differs });
        swatch.textContent = crossed ? "\u00d7" : "\u2014";
      }
      add(legend, "span", {}, words).prepend(swatch);
    }
    const [wrong, all] = [data.n_differ, data.n_new * data.n_total].map((n) => n.toLocaleString("en-US"));
    const said = data.panels.length > 1 ? [`${wrong} of ${all} cells differ.`] : [];
    if (data.block[0] * data.block[1] > 1)
      said.push(`Each drawn cell stands for ${data.block.join(" x ")} of the mask's (queries x keys).`);
    summary.textContent = said.join(" ");
    const rows = data.rows.map((_, i) => say(data, i, data.panels[0][0].length - 1));
    room.textContent = rows.reduce((a, b) => (b.length > a.length ? b : a));
    drawFocus();
  }

  // JupyterLab takes arrow keys from an output before they reach it, unless they are caught on the window first.
  function onKey(event) {
    const target = event.composedPath()[0];
    if (!(target instanceof Node && el.contains(target))) return;
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const jumps = { Home: [0, -1e9], End: [0, 1e9], PageUp: [-1e9, 0], PageDown: [1e9, 0] };
    const move = moves[event.key] ?? jumps[event.key];
    if (!move) return;
    event.stopPropagation();
    if (target.tagName === "INPUT" || data.problem) return; // a slider moves by its own keys
    event.preventDefault();
    const clamp = (value, size) => Math.max(0, Math.min(size - 1, value));
    const [i, j] = place();
    look(clamp(i + move[0], data.panels[0].length), clamp(j + move[1], data.panels[0][0].length));
  }

  window.addEventListener("keydown", onKey, { capture: true });
  const changes = { data: draw, n_new: drawSizes, n_total: drawSizes, sizes: drawSizes, row: drawFocus, column: drawFocus };
  for (const [name, redraw] of Object.entries(changes)) model.on(`change:${name}`, redraw);
  draw();
  return () => {
    window.removeEventListener("keydown", onKey, { capture: true });
    for (const [name, redraw] of Object.entries(changes)) model.off(`change:${name}`, redraw);
  };
}

export default { render };
