// Scatter plot and parallel coordinates of runs. Dragging along an axis selects runs in both; a click removes it.
import { OPTIONS, themed, series } from "./plot_theme.js";
import { safe } from "./curves.js";

const place = document.querySelector("[data-explore]");
const { columns, runs } = JSON.parse(place.querySelector("script").textContent);
const SVG = "http://www.w3.org/2000/svg", HEIGHT = 300, TOP = 34, BOTTOM = 16;
const query = () => new URLSearchParams(location.search);
const columnOf = name => columns.find(each => each.name === name);
const brushes = new Map((query().get("brush") ?? "").split(";").filter(Boolean).map(part => {
  const [name, low, high] = part.split("|");
  return [name, [Number(low), Number(high)]];
}));

function remember(name, value) {
  const all = query();
  value ? all.set(name, value) : all.delete(name);
  history.replaceState(null, "", `${location.pathname}?${all}`);
}

// The position of a value on its axis, from 0 to 1; null if the run does not have it
function position(column, value) {
  if (value === null || value === undefined) return null;
  if (column.choices) return column.choices.length > 1 ? column.choices.indexOf(String(value)) / (column.choices.length - 1) : 0.5;
  const scale = column.log ? Math.log : each => each, [low, high] = [column.low, column.high].map(scale);
  return high > low ? (scale(value) - low) / (high - low) : 0.5;
}

const chosen = run => [...brushes].every(([name, [low, high]]) => {
  const column = columnOf(name), at = column ? position(column, run.values[columns.indexOf(column)]) : 0.5;
  return at !== null && at >= low && at <= high;
});

function node(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return parent ? parent.appendChild(made) : made;
}

function ticks(column) {
  if (column.choices) return column.choices.map(each => [position(column, each), each]);
  const values = [0, 0.25, 0.5, 0.75, 1].map(share => (column.log ? column.low * (column.high / column.low) ** share : column.low + share * (column.high - column.low)));
  return values.map((value, at) => [at / 4, Number(value.toPrecision(3)).toString()]);
}

const axes = () => columns.filter(each => each.shown);

function drawParallel() {
  const holder = place.querySelector("[data-parallel]"), shown = axes(), width = Math.max(holder.clientWidth, 110 * shown.length);
  const step = (width - 110) / Math.max(shown.length - 1, 1), across = at => 30 + at * step, up = share => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const drawing = node("svg", { width, height: HEIGHT, class: "parallel", role: "img", "aria-label": "Parallel coordinates of the runs" });
  const goal = shown.at(-1);
  for (const run of [...runs].sort((a, b) => chosen(a) - chosen(b))) {
    const points = shown.map((column, at) => [across(at), position(column, run.values[columns.indexOf(column)])]);
    const parts = points.map(([x, y]) => (y === null ? null : `${x.toFixed(1)} ${up(y).toFixed(1)}`)).filter(Boolean);
    const line = node("path", { d: `M${parts.join("L")}`, class: chosen(run) ? "on" : "off", "data-run": run.id }, drawing);
    const value = goal && position(goal, run.values[columns.indexOf(goal)]);
    line.style.setProperty("--share", `${Math.round(100 * (value ?? 0))}%`);
    node("title", {}, line).textContent = run.name;
  }
  shown.forEach((column, at) => {
    const x = across(at), group = node("g", { "data-column": column.name }, drawing);
    node("line", { x1: x, x2: x, y1: up(1), y2: up(0), class: "axis" }, group);
    for (const [share, text] of ticks(column)) node("text", { x: x + 5, y: up(share) + 3 }, group).textContent = text.length > 12 ? text.slice(0, 11) + "…" : text;
    const name = node("text", { x, y: 14, class: "name", "text-anchor": at === 0 ? "start" : at === shown.length - 1 ? "start" : "middle" }, group);
    name.textContent = column.name.replace(/^.*\.(?=[^.]*$)/, "");
    node("title", {}, name).textContent = column.name;
    const brush = brushes.get(column.name);
    if (brush) node("rect", { x: x - 8, width: 16, y: up(brush[1]), height: Math.max(up(brush[0]) - up(brush[1]), 2), class: "brush" }, group);
    node("rect", { x: x - 14, width: 28, y: TOP - 8, height: HEIGHT - TOP, class: "grip" }, group);
  });
  holder.replaceChildren(drawing);
}

let start = null;
const share = event => {
  const box = place.querySelector("svg.parallel").getBoundingClientRect();
  return Math.min(1, Math.max(0, (HEIGHT - BOTTOM - (event.clientY - box.top)) / (HEIGHT - TOP - BOTTOM)));
};
function brush(event, done) {
  if (!start) return;
  const end = share(event), [low, high] = [Math.min(start.at, end), Math.max(start.at, end)];
  high - low < 0.02 ? done && brushes.delete(start.name) : brushes.set(start.name, [low, high]);
  if (done) {
    start = null;
    remember("brush", [...brushes].map(([name, ends]) => [name, ...ends.map(each => each.toFixed(3))].join("|")).join(";"));
    drawScatter();
  }
  drawParallel();
  summarise();
}
place.addEventListener("pointerdown", event => {
  const column = event.target.closest("[data-column]")?.dataset.column;
  if (column) (start = { name: column, at: share(event) }), event.preventDefault();
});
addEventListener("pointermove", event => brush(event, false));
addEventListener("pointerup", event => brush(event, true));

function drawScatter() {
  if (!window.Plotly) return;
  const [x, y, colour] = ["sx", "sy", "sc"].map(name => columnOf(place.querySelector(`[data-scatter-axis="${name}"]`).value));
  const value = (run, column) => run.values[columns.indexOf(column)];
  const groups = colour?.choices ?? [null];
  const traces = groups.map((group, at) => {
    const members = runs.filter(run => value(run, x) !== null && value(run, y) !== null && (group === null || String(value(run, colour)) === group));
    const shade = colour && !colour.choices ? { color: members.map(run => value(run, colour)), colorscale: [[0, "#56b4e9"], [0.5, "#b4aa98"], [1, "#d55e00"]], showscale: true, colorbar: { thickness: 10, outlinewidth: 0 } } : { color: series(at).color };
    return { type: "scatter", mode: "markers", x: members.map(run => value(run, x)), y: members.map(run => value(run, y)), customdata: members.map(run => run.id), text: members.map(run => safe(run.name)),
             name: group === null ? "" : safe(group), hovertemplate: "%{text}<br>%{x}, %{y}<extra></extra>", marker: { size: 8, ...shade, opacity: members.map(run => (chosen(run) ? 0.9 : 0.12)) } };
  });
  const axis = column => ({ title: { text: safe(column.name) }, type: column.choices ? "category" : column.log ? "log" : "linear", ...(column.log ? { dtick: column.high / column.low > 300 ? 1 : "D2", tickformat: "~g" } : {}) });
  const drawn = place.querySelector("[data-scatter]");
  Plotly.react(drawn, traces, themed({ xaxis: axis(x), yaxis: axis(y), showlegend: groups.length > 1, hovermode: "closest" }), OPTIONS);
  if (!drawn.dataset.bound) drawn.on("plotly_click", event => (location.href = `/runs/${event.points[0].customdata}`));
  drawn.dataset.bound = "yes";
}

function summarise() {
  const selected = runs.filter(chosen), link = place.querySelector("[data-compare]");
  place.querySelector("[data-count]").textContent = brushes.size ? `${selected.length} of ${runs.length} runs selected` : `${runs.length} runs`;
  const some = selected.slice(0, 20);
  link.hidden = some.length < 2 || (!brushes.size && location.pathname === "/compare");
  link.href = "/compare?" + new URLSearchParams(some.map(run => ["run", run.id]));
  link.textContent = `Compare ${selected.length > 20 ? "the first 20" : `these ${some.length}`}`;
}

for (const box of place.querySelectorAll("[data-scatter-axis]")) {
  const saved = query().get(box.dataset.scatterAxis);
  if (saved && [...box.options].some(each => each.value === saved)) box.value = saved;
  box.addEventListener("change", () => (remember(box.dataset.scatterAxis, box.value), drawScatter()));
}
const hidden = new Set((query().get("without") ?? "").split(",").filter(Boolean));
for (const box of place.querySelectorAll("[data-axis-box]")) {
  const column = columnOf(box.value);
  if (hidden.has(box.value)) column.shown = false;
  box.checked = column.shown;
  box.addEventListener("change", () => {
    column.shown = box.checked;
    if (!box.checked) brushes.delete(column.name);
    remember("without", [...place.querySelectorAll("[data-axis-box]")].filter(each => !each.checked && each.defaultChecked).map(each => each.value).join(","));
    drawParallel(), summarise();
  });
}
const ready = window.Plotly ? Promise.resolve() : new Promise(done => document.getElementById("plotly").addEventListener("load", done));
drawParallel(), summarise(), ready.then(drawScatter);
new ResizeObserver(() => drawParallel()).observe(place.querySelector("[data-parallel]"));
addEventListener("clew:theme", drawScatter);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawScatter);
