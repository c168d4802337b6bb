// Curves: requested when they become visible, thinned out by the server, drawn over steps, epochs, time or samples.
import { DASHES, OPTIONS, series, themed } from "./plot_theme.js";
import { setting } from "./plot_tools.js";
import { grouped, smoothed } from "./curve_maths.js";

const POINTS = 800, TABLE_POINTS = 5000;
const TITLES = { step: "step", epoch: "epoch", time: "seconds", samples: "samples" };

// Plotly interprets HTML tags in names: escape them
export function safe(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

export class Curves {
  constructor(place, ready) {
    this.place = place;
    this.ready = ready;
    this.spec = JSON.parse(place.dataset.curves);
    this.range = null;
    this.number = 0;
    place.table = () => this.table();
  }

  get axis() {
    const axis = this.spec.axis || setting("x");
    return axis in TITLES && this.spec.runs.every(run => this.scale(run, axis)) ? axis : "step";
  }

  // Factor from steps to the axis; 0 if a run does not have it
  scale(run, axis) {
    return { step: 1, time: 1, epoch: run.steps_per_epoch && 1 / run.steps_per_epoch, samples: run.samples_per_step }[axis] || 0;
  }

  async load() {
    const number = ++this.number;
    const answers = await Promise.all(this.spec.runs.map((run, r) => this.fetch(run, r)));
    if (number !== this.number) return; // a newer request was sent
    this.curves = answers.flat();
    if (!window.Plotly) this.sketch();
    await this.ready;
    if (number === this.number) this.draw();
  }

  async fetch(run, r, points = POINTS) {
    const query = new URLSearchParams({ points }), timed = this.axis === "time";
    for (const name of this.spec.names) query.append("name", name);
    if (timed) query.set("axis", "time");
    if (this.range) {
      const start = timed ? run.started ?? 0 : 0, scale = this.scale(run, this.axis);
      query.set("from", Math.floor(start + this.range[0] / scale));
      query.set("to", Math.ceil(start + this.range[1] / scale));
    }
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(run.id)}/curves?${query}`);
    const items = answer.ok ? (await answer.json()).items : [];
    return items.map(each => ({ ...each, run, r, n: this.spec.names.indexOf(each.name) })).sort((a, b) => a.n - b.n);
  }

  positions(each) {
    const start = each.run.started ?? each.time[0] ?? 0, scale = this.scale(each.run, this.axis);
    return this.axis === "time" ? each.time.map(moment => moment - start) : each.step.map(step => step * scale);
  }

  label(each) {
    if (this.spec.runs.length === 1) return each.name;
    return this.spec.names.length > 1 ? `${each.run.name} ${each.name}` : each.run.name;
  }

  traces() {
    const group = setting("group"), several = this.spec.runs.length > 1;
    if (group && several) return grouped(this.curves.map(each => ({ ...each, x: this.positions(each), group: `${group} = ${each.run.settings?.[group] ?? "–"}` }))).flatMap((band, place) => this.band(band, place));
    return this.curves.flatMap(each => this.curve(each, several ? each.r : each.n, several ? each.n : 0));
  }

  curve(each, place, dashes) {
    const { color, dash: own } = series(place), dash = dashes ? DASHES[dashes % DASHES.length] : own, x = this.positions(each);
    const label = safe(this.label(each)), legendgroup = `${each.r}-${each.n}`, weight = Number(setting("smooth")), traces = [];
    const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup };
    if (each.bins && !weight) traces.push({ ...edge, y: each.min }, { ...edge, y: each.max, fill: "tonexty", fillcolor: color + "33" });
    if (weight) traces.push({ ...edge, y: each.last, line: { color, width: 1, dash }, opacity: 0.28 });
    const y = weight ? smoothed(each.last, weight) : each.last;
    traces.push({ type: "scatter", mode: x.length <= 40 ? "lines+markers" : "lines", x, y, name: label, legendgroup, line: { color, width: 1.7, dash }, marker: { size: 5 }, hovertemplate: `%{y:.5g}<extra>${label}</extra>` });
    return traces;
  }

  band({ name, x, mean, low, high, count }, place) {
    const { color, dash } = series(place), label = safe(`${name} (${count})`), legendgroup = `g${place}`;
    const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup };
    return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: color + "2b" },
            { type: "scatter", mode: "lines", x, y: mean, name: label, legendgroup, line: { color, width: 2, dash }, hovertemplate: `%{y:.5g}<extra>${label}</extra>` }];
  }

  // How many times larger the largest value is, if the axis is logarithmic; else 0
  get log() {
    const low = Math.min(...this.curves.flatMap(each => each.min.filter(value => value !== null))), high = Math.max(...this.curves.flatMap(each => each.max));
    const choice = setting("y"), fits = low > 0 && high > low;
    return fits && choice !== "linear" && (choice === "log" || (this.spec.log && high / low > 3)) ? high / low : 0;
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
    Plotly.react(this.place, traces, this.layout(traces), OPTIONS);
    const count = this.curves.reduce((sum, each) => sum + each.count, 0), drawn = this.curves.reduce((sum, each) => sum + each.last.length, 0);
    holder.querySelector(".more").textContent = drawn < count ? `${count.toLocaleString("en")} points · drag to zoom in` : "";
    if (!this.bound) this.bind();
  }

  layout(traces) {
    const log = this.log, values = this.curves.flatMap(each => [...each.min, ...each.max]).filter(each => each !== null);
    const only = values.length && values.every(each => each === values[0]) ? values[0] : 0; // Plotly would show a single value from -1 to 1
    const spike = { showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: "#7f7f7f" };
    return themed({
      xaxis: { ...spike, title: { text: TITLES[this.axis] }, ...(this.range ? { range: this.range } : { autorange: true }) },
      yaxis: { type: log ? "log" : "linear", rangemode: this.spec.zero ? "tozero" : "normal", ...(only && !this.spec.zero && !log ? { range: [Math.min(0, 2 * only), Math.max(0, 2 * only)] } : { autorange: true }), ...(log ? { dtick: log > 300 ? 1 : "D2", tickformat: "~g" } : {}) },
      showlegend: traces.filter(each => each.name).length > 1, hovermode: "x unified", uirevision: `${this.range} ${this.axis}`,
    });
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

  // All points as CSV, as far as the server sends them, with every axis
  async table() {
    const answers = await Promise.all(this.spec.runs.map((run, r) => this.fetch(run, r, TABLE_POINTS)));
    const rows = answers.flat().flatMap(each => each.step.map((step, i) => [each.run.name, each.name, step, each.time[i], each.last[i] ?? ""]));
    const cell = value => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    return [["run", "metric", "step", "time", "value"], ...rows].map(row => row.map(each => cell(String(each))).join(",")).join("\n") + "\n";
  }
}
