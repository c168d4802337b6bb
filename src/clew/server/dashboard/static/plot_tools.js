// The tools above plots. What they are set to is kept in the link, so that a link shows the same plots.
import { showMessage } from "./act.js";

const DEFAULTS = { x: "step", y: "auto", smooth: "0", metrics: "", group: "" };

export function setting(name) {
  return new URLSearchParams(location.search).get(name) ?? DEFAULTS[name];
}

function store(name, value) {
  const query = new URLSearchParams(location.search);
  value === DEFAULTS[name] || value === "" ? query.delete(name) : query.set(name, value);
  history.replaceState(null, "", location.pathname + (String(query) ? `?${query}` : "") + location.hash);
  for (const link of document.querySelectorAll("[data-keep-state]")) link.search = location.search;
}

// Calls `changed(name)` after every change of a tool.
export function bindTools(changed) {
  for (const tool of document.querySelectorAll("[data-tool]")) {
    const name = tool.dataset.tool, value = setting(name);
    if (tool.tagName !== "SELECT" || [...tool.options].some(each => each.value === value && !each.disabled)) tool.value = value;
    show(tool);
    tool.addEventListener("input", () => (store(name, tool.value), show(tool), changed(name)));
  }
  filterPlots();
  document.querySelector("[data-more-plots]")?.addEventListener("click", event => {
    event.target.closest("[data-limit]").dataset.limit = "";
    filterPlots();
  });
}

function show(tool) {
  const text = tool.parentElement.querySelector("output");
  if (text) text.textContent = Number(tool.value) ? Number(tool.value).toFixed(2) : "off";
}

// Shows the plots with a metric whose name contains all words of the filter; of very many only the first ones.
export function filterPlots() {
  const words = setting("metrics").toLowerCase().split(/\s+/).filter(Boolean), holder = document.querySelector("[data-limit]");
  const limit = words.length || !holder ? Infinity : Number(holder.dataset.limit) || Infinity;
  let count = 0, all = 0;
  for (const figure of document.querySelectorAll("figure[data-metrics]")) {
    const fits = words.every(word => figure.dataset.metrics.toLowerCase().includes(word));
    all += fits;
    figure.hidden = !fits || ++count > limit;
  }
  const note = document.querySelector("[data-plot-count]"), more = document.querySelector("[data-more-plots]");
  if (note) note.textContent = words.length ? `${count} of ${document.querySelectorAll("figure[data-metrics]").length} plots` : "";
  if (more) more.hidden = all <= limit;
}

function save(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function image(place, kind, name) {
  const width = place.clientWidth, height = place.clientHeight, { backgroundColor } = getComputedStyle(place.closest(".sheet"));
  const copy = { data: place.data, layout: { ...place.layout, paper_bgcolor: backgroundColor, width, height } };
  const address = await Plotly.toImage(copy, { format: "svg", width, height });
  const svg = decodeURIComponent(address.slice(address.indexOf(",") + 1));
  if (kind === "svg") return save(`${name}.svg`, new Blob([svg], { type: "image/svg+xml" }));
  const picture = Object.assign(new Image(), { src: address });
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob(blob => save(`${name}.png`, blob), "image/png");
}

const cell = value => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));

function csv(place) {
  const rows = [["series", place.layout.xaxis?.title?.text || "x", "y"]];
  for (const trace of place.data.filter(each => each.x && each.hoverinfo !== "skip"))
    trace.x.forEach((x, i) => rows.push([trace.name ?? "", x, trace.y[i]]));
  return rows.map(row => row.map(cell).join(",")).join("\n") + "\n";
}

document.addEventListener("click", async event => {
  const kind = event.target.closest("[data-save]")?.dataset.save;
  if (!kind) return;
  const figure = event.target.closest("figure"), place = figure.querySelector(".js-plotly-plot");
  event.target.closest("details").open = false;
  if (!place) return showMessage("The plot is not drawn yet.", true);
  const name = [...document.querySelectorAll("h1, h2")].filter(each => each.tagName === "H1" || figure.contains(each)).map(each => each.firstChild.textContent.trim()).join("-").replace(/[^\w.-]+/g, "-");
  try {
    kind === "csv" ? save(`${name}.csv`, new Blob([await (place.table?.() ?? csv(place))], { type: "text/csv" })) : await image(place, kind, name);
  } catch (error) {
    showMessage(`This browser cannot save the plot: ${error.message}`, true);
  }
});
