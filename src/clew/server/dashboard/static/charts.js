// Plots: figures that are part of the page, and curves that are requested when they become visible.
// Plotly's script is large: data is requested while it loads
const ready = window.Plotly ? Promise.resolve() : new Promise(done => document.getElementById("plotly").addEventListener("load", done));
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a900"];
const BRIGHT = { "#0072b2": "#4fb0ea", "#d55e00": "#ff8b3d", "#009e73": "#2fc79a", "#cc79a7": "#e59ac6", "#e69f00": "#f3b93e", "#56b4e9": "#9ad6f8", "#7f7f7f": "#a3abb6", "#b8a900": "#e2d34f", "#003f66": "#bfe3fa", "#c9dff0": "#23465f" };
const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
const DASHES = ["solid", "dash", "dot", "dashdot"];
const POINTS = 800;

function colours() {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = name => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
  const values = { ink: read("ink"), soft: read("soft"), line: read("line"), sheet: read("sheet") };
  probe.remove();
  return values;
}

function themed(layout = {}) {
  const { ink, soft, line, sheet } = colours();
  const narrow = innerWidth < 700;
  const all = {
    ...layout, title: undefined, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { color: ink, size: narrow ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: sheet, bordercolor: line, font: { color: ink, size: 12 } },
    margin: { l: 52, r: 16, t: 12, b: layout.showlegend === false ? 44 : 64 },
    legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", xanchor: "left", font: { size: 11.5 } },
  };
  all.annotations = layout.annotations?.map(each => ({ bgcolor: sheet, ...each }));
  for (const key of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(name => /^[xy]axis/.test(name))]))
    all[key] = { zeroline: false, automargin: true, ...layout[key], gridcolor: line, linecolor: line, showline: true, mirror: false, ticks: "", tickfont: { color: soft, size: 11 },
                 title: { standoff: 6, ...(layout[key]?.title ?? {}), font: { color: soft, size: 11.5 } } };
  return all;
}

const OPTIONS = { displayModeBar: false, responsive: true, doubleClick: "reset" };

function drawFigure(place) {
  const source = place.parentElement.querySelector("script[type='application/json']");
  const { data, layout } = JSON.parse(dark() ? source.textContent.replace(/#[0-9a-f]{6}/gi, each => BRIGHT[each.toLowerCase()] ?? each) : source.textContent);
  Plotly.react(place, data, themed(layout), OPTIONS);
}

// --- curves

class Curves {
  constructor(place) {
    this.place = place;
    this.spec = JSON.parse(place.dataset.curves);
    this.range = null;
    this.number = 0;
  }

  get axis() {
    return this.spec.axis || (document.querySelector("[data-axis]")?.value ?? "step");
  }

  async load() {
    const number = ++this.number;
    const answers = await Promise.all(this.spec.runs.map((run, r) => this.fetch(run, r)));
    if (number !== this.number) return; // a newer request was sent
    this.curves = answers.flat();
    if (!window.Plotly) this.sketch();
    await ready;
    if (number === this.number) this.draw();
  }

  async fetch(run, r) {
    const query = new URLSearchParams({ points: POINTS });
    for (const name of this.spec.names) query.append("name", name);
    if (this.axis === "time") query.set("axis", "time");
    if (this.range) {
      const start = this.axis === "time" ? run.started ?? 0 : 0;
      query.set("from", Math.floor(start + this.range[0]));
      query.set("to", Math.ceil(start + this.range[1]));
    }
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(run.id)}/curves?${query}`);
    const items = answer.ok ? (await answer.json()).items : [];
    return items.map(each => ({ ...each, run, r, n: this.spec.names.indexOf(each.name) })).sort((a, b) => a.n - b.n);
  }

  traces() {
    const several = this.spec.runs.length > 1, traces = [];
    for (const each of this.curves) {
      const place = several ? each.r : each.n, plain = PALETTE[place % PALETTE.length], colour = dark() ? BRIGHT[plain] : plain;
      // curves with the same colour have different dashes, and so have several metrics of several runs
      const dash = DASHES[(Math.floor(place / PALETTE.length) + (several ? each.n : 0)) % DASHES.length];
      const start = each.run.started ?? each.time[0] ?? 0;
      const x = this.axis === "time" ? each.time.map(moment => moment - start) : each.step, label = several ? (this.spec.names.length > 1 ? `${each.run.name} ${each.name}` : each.run.name) : each.name;
      const group = `${each.r}-${each.n}`, markers = x.length <= 40;
      if (each.bins) {
        const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: group };
        traces.push({ ...edge, y: each.min }, { ...edge, y: each.max, fill: "tonexty", fillcolor: colour + "33" });
      }
      traces.push({ type: "scatter", mode: markers ? "lines+markers" : "lines", x, y: each.last, name: safe(label), legendgroup: group,
                    line: { color: colour, width: 1.7, dash }, marker: { size: 5 }, hovertemplate: `%{y:.5g}<extra>${safe(label)}</extra>` });
    }
    return traces;
  }

  get log() {
    const low = Math.min(...this.curves.flatMap(each => each.min)), high = Math.max(...this.curves.flatMap(each => each.max));
    return this.spec.log && low > 0 && high / low > 3 ? high / low : 0;
  }

  // Draws the curves without axes until Plotly has loaded, which takes seconds on a slow machine
  sketch() {
    const value = this.log ? y => Math.log(y) : y => y;
    const lines = this.traces().filter(each => each.name).map(each => ({ ...each, pairs: each.x.map((x, i) => [x, each.y[i]]).filter(([, y]) => y !== null).map(([x, y]) => [x, value(y)]) }));
    const all = lines.flatMap(each => each.pairs), width = this.place.clientWidth - 68, height = this.place.clientHeight - 76;
    if (all.length < 2) return;
    const ends = at => all.reduce(([low, high], pair) => [Math.min(low, pair[at]), Math.max(high, pair[at])], [Infinity, -Infinity]);
    const scale = ([low, high], size) => each => (high > low ? (each - low) / (high - low) : 0.5) * size;
    const across = scale(ends(0), width), up = scale(ends(1), height * 0.92);
    const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    drawing.setAttribute("class", "sketch");
    for (const { pairs, line } of lines) {
      const path = drawing.appendChild(document.createElementNS(drawing.namespaceURI, "path"));
      path.setAttribute("d", "M" + pairs.map(([x, y]) => `${(52 + across(x)).toFixed(1)} ${(12 + height * 0.96 - up(y)).toFixed(1)}`).join("L"));
      path.setAttribute("stroke", line.color);
    }
    this.place.replaceChildren(drawing);
    this.place.parentElement.querySelector(".waiting").hidden = true;
  }

  draw() {
    this.place.querySelector(".sketch")?.remove();
    const traces = this.traces(), holder = this.place.parentElement, note = holder.querySelector(".waiting");
    note.hidden = traces.length > 0;
    note.textContent = "no points";
    const log = this.log;
    const values = this.curves.flatMap(each => [...each.min, ...each.max]).filter(each => each !== null);
    const only = values.length && values.every(each => each === values[0]) ? values[0] : 0; // Plotly would show a single value from -1 to 1
    const layout = themed({
      xaxis: { title: { text: this.axis === "time" ? "seconds" : "step" }, ...(this.range ? { range: this.range } : { autorange: true }) },
      yaxis: { type: log ? "log" : "linear", rangemode: this.spec.zero ? "tozero" : "normal", ...(only && !this.spec.zero ? { range: [Math.min(0, 2 * only), Math.max(0, 2 * only)] } : { autorange: true }), ...(log ? { dtick: log > 300 ? 1 : "D2", tickformat: "~g" } : {}) },
      showlegend: traces.filter(each => each.name).length > 1, hovermode: "x unified", uirevision: String(this.range),
    });
    Plotly.react(this.place, traces, layout, OPTIONS);
    const count = this.curves.reduce((sum, each) => sum + each.count, 0), drawn = this.curves.reduce((sum, each) => sum + each.last.length, 0);
    holder.querySelector(".more").textContent = drawn < count ? `${count.toLocaleString("en")} points · drag to zoom in` : "";
    if (!this.bound) this.bind();
  }

  bind() {
    this.bound = true;
    this.place.on("plotly_relayout", change => {
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (from !== undefined) this.range = [Number(from), Number(to)];
      else if (change["xaxis.autorange"] || change["xaxis.showspikes"] !== undefined) this.range = null;
      else return;
      this.load();
    });
  }
}

// Plotly interprets HTML tags in names: escape them
function safe(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const curves = new Map();
const watch = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    const each = curves.get(target);
    if (!each) continue;
    each.shown = isIntersecting;
    if (isIntersecting && (each.stale ?? true)) (each.stale = false), each.load();
  }
}, { rootMargin: "300px" });

function adopt() {
  for (const place of curves.keys()) if (!place.isConnected) curves.delete(place);
  for (const place of document.querySelectorAll("[data-curves]")) {
    if (curves.has(place)) continue;
    curves.set(place, new Curves(place));
    watch.observe(place);
  }
}
adopt();
addEventListener("clew:fresh", adopt);
ready.then(() => document.querySelectorAll("[data-figure]").forEach(drawFigure));

let last = 0, later = 0;
function update() {
  last = Date.now();
  for (const each of curves.values()) each.shown ? each.load() : (each.stale = true);
}
addEventListener("clew:points", () => {
  clearTimeout(later);
  later = setTimeout(update, Math.max(0, 1000 - (Date.now() - last)));
});
addEventListener("clew:fresh", () => ready.then(() => document.querySelectorAll("[data-figure]").forEach(drawFigure)));
function redraw() {
  for (const each of curves.values()) if (each.curves) each.draw();
  document.querySelectorAll("[data-figure]").forEach(drawFigure);
}
addEventListener("clew:theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.querySelector("[data-axis]")?.addEventListener("change", () => {
  for (const each of curves.values()) (each.range = null), each.shown ? each.load() : (each.stale = true);
});
