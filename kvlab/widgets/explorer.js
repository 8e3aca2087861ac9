// Explorer: shows the scene that Python drew. A control, a key or the pointer sets a trait; Python draws the new scene,
// and its change is shown, so that all views of one widget agree and the picture is always Python's.

const PLAY_MS = 1000; // a step, while it plays
const TONES = {
  ink: "var(--jp-ui-font-color1, #1a1a1a)",
  quiet: "var(--jp-ui-font-color2, #616161)",
  empty: "rgba(128, 128, 128, 0.16)", // visible on a light and on a dark page
  line: "rgba(128, 128, 128, 0.55)",
  paper: "var(--jp-layout-color0, #ffffff)",
};

function add(parent, tag, attributes = {}, text = "") {
  const svg = tag === "svg" || parent.namespaceURI.endsWith("svg");
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (svg && (name === "fill" || name === "stroke")) node.style[name] = TONES[value] ?? value;
    else node.setAttribute(name, value);
  }
  node.textContent = text;
  parent.append(node);
  return node;
}

// One control: its elements, made once, and show(control), which sets them to the model's value.
function addControl(bar, first, move, setTo, toggle) {
  const { name, kind } = first;
  if (kind === "keys") return { show() {} };
  const label = document.createElement("label");
  add(label, "span", {}, first.label);
  if (kind === "select") {
    const select = add(label, "select");
    select.addEventListener("change", () => setTo(name, select.selectedIndex));
    bar.append(label);
    return {
      show(control, at) {
        select.replaceChildren();
        for (const words of control.shown) add(select, "option", {}, words);
        select.selectedIndex = at;
      },
    };
  }
  const buttons = {};
  if (kind === "play") {
    const make = (words, title) => add(bar, "button", { type: "button", title }, words);
    buttons.back = make("Back", "one step back (left arrow)");
    buttons.play = make("Play", "play or pause (space)");
    buttons.next = make("Step", "one step on (right arrow)");
    buttons.play.className = "kvlab-play";
    buttons.back.addEventListener("click", () => move(name, -1));
    buttons.next.addEventListener("click", () => move(name, 1));
    buttons.play.addEventListener("click", toggle);
  }
  bar.append(label);
  const input = add(label, "input", { type: "range", min: 0, step: 1 });
  const shown = add(label, "output", { "aria-hidden": "true" }); // the slider itself speaks its value
  input.addEventListener("input", () => setTo(name, Number(input.value)));
  return {
    playing(on) {
      if (buttons.play) buttons.play.textContent = on ? "Pause" : "Play";
    },
    show(control, at, words) {
      input.max = control.options.length - 1;
      input.value = at;
      input.setAttribute("aria-valuetext", words);
      shown.textContent = words;
      shown.style.minWidth = `${Math.max(...control.shown.map((w) => w.length))}ch`;
      if (!buttons.back) return;
      buttons.back.setAttribute("aria-disabled", at === 0);
      buttons.next.setAttribute("aria-disabled", at === control.options.length - 1);
    },
  };
}

function render({ model, el }) {
  const root = add(el, "div", { class: "kvlab-explorer", role: "group" });
  const bar = add(root, "div", { class: "kvlab-bar" });
  const stage = add(root, "div", { class: "kvlab-stage", tabindex: 0, role: "application" });
  const svg = add(stage, "svg", { "aria-hidden": "true" });
  const status = add(root, "p", { role: "status" });
  let data = model.get("data");
  let timer = 0;
  const find = (name) => data.controls.find((control) => control.name === name);
  const index = ({ name, options }) => {
    const value = model.get(name);
    const exact = options.indexOf(value);
    if (exact >= 0 || typeof value !== "number") return Math.max(0, exact);
    return Math.max(0, options.filter((option) => option <= value).length - 1);
  };

  function setTo(name, wanted) {
    const { options } = find(name);
    const value = options[Math.max(0, Math.min(options.length - 1, wanted))];
    if (value === model.get(name)) return;
    model.set(name, value);
    model.save_changes();
  }
  const move = (name, by) => {
    if (timer) setPlaying(false);
    setTo(name, index(find(name)) + by);
  };
  const player = data.controls.find(({ kind }) => kind === "play");
  function setPlaying(on) {
    window.clearInterval(timer);
    timer = on ? window.setInterval(playOn, PLAY_MS) : 0;
    for (const control of controls) control.playing?.(on);
  }
  function playOn() {
    const control = find(player.name);
    if (index(control) < control.options.length - 1) setTo(player.name, index(control) + 1);
    else setPlaying(false);
  }
  function toggle() {
    if (!timer && index(find(player.name)) === find(player.name).options.length - 1) setTo(player.name, 0);
    setPlaying(!timer);
  }
  const controls = data.controls.map((control) => addControl(bar, control, move, setTo, toggle));

  function draw() {
    data = model.get("data");
    const [width, height] = data.size;
    root.setAttribute("aria-label", data.title);
    stage.setAttribute("aria-label", data.alt);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.maxWidth = `${width}px`;
    svg.replaceChildren();
    for (const [tag, attributes, text] of data.shapes) add(svg, tag, attributes, text);
    if (data.ring) {
      const [x, y, w, h] = data.ring;
      const box = { x: x - 2, y: y - 2, width: w + 4, height: h + 4, rx: 2, fill: "none" };
      add(svg, "rect", { ...box, stroke: "paper", "stroke-width": 5 });
      add(svg, "rect", { ...box, stroke: "ink", "stroke-width": 2, class: "kvlab-ring" });
    }
    for (const [x, y, w, h, name, at] of data.places) {
      add(svg, "rect", { x, y, width: w, height: h, fill: "transparent", class: "kvlab-place" }).sets = [name, at];
    }
    data.controls.forEach((control, i) => {
      const at = index(control);
      const off = control.options[at] === model.get(control.name) ? control.shown[at] : control.at;
      controls[i].show(control, at, off);
    });
    status.textContent = data.said;
  }

  // Not pointerover: a redraw under a pointer that rests would fire it, and undo what a key or Python has just set.
  for (const event of ["pointermove", "pointerdown"])
    svg.addEventListener(event, ({ target }) => target.sets && setTo(...target.sets));

  // The arrow keys move the first control that the stage drives, up and down the second, where there are two.
  // JupyterLab takes them from an output before they reach it, unless they are caught on the window first.
  function onKey(event) {
    const target = event.composedPath()[0];
    if (!(target instanceof Node && el.contains(target))) return;
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (target !== stage) {
      if (event.key !== "Tab" && event.key !== "Escape") event.stopPropagation(); // the control's own key
      return;
    }
    const [across, down] = [data.arrows[0], data.arrows[1] ?? data.arrows[0]];
    const moves = {
      ArrowLeft: [across, -1], ArrowRight: [across, 1], ArrowDown: [down, -1], ArrowUp: [down, 1],
      Home: [across, -1e9], End: [across, 1e9],
    };
    if (event.key === " " && player) toggle();
    else if (event.key in moves) move(...moves[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  window.addEventListener("keydown", onKey, { capture: true });
  model.on("change:data", draw);
  draw();
  return () => {
    window.clearInterval(timer);
    window.removeEventListener("keydown", onKey, { capture: true });
    model.off("change:data", draw);
  };
}

export default { render };
