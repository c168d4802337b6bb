// Plots of a page: figures that are part of it, and curves that are requested when they become visible.
import { Curves } from "./curves.js";
import { drawFigure } from "./plot_theme.js";
import { bindTools, filterPlots } from "./plot_tools.js";

// Plotly's script is large: data is requested while it loads
const ready = window.Plotly ? Promise.resolve() : new Promise(done => document.getElementById("plotly").addEventListener("load", done));
const curves = new Map();

const drawFigures = () => document.querySelectorAll("[data-figure]").forEach(place => drawFigure(place, place.parentElement.querySelector("script[type='application/json']").textContent));

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
    curves.set(place, new Curves(place, ready));
    watch.observe(place);
    ready.then(() => follow(place));
  }
  filterPlots();
}

// One cursor for all plots: where the reader points in one plot, the others show their values
let pointing = false;
function others(place) {
  return [...curves].filter(([each, { shown, axis }]) => each !== place && shown && each.data && axis === curves.get(place)?.axis).map(([each]) => each);
}
function follow(place) {
  place.addEventListener("mouseleave", () => others(place).forEach(each => Plotly.Fx.unhover(each)));
  const bind = () => place.on?.("plotly_hover", event => {
    if (pointing || !event.points.length) return;
    pointing = true;
    try {
      for (const each of others(place)) Plotly.Fx.hover(each, { xval: event.points[0].x }, "xy");
    } finally {
      pointing = false;
    }
  });
  place.on ? bind() : new MutationObserver((_, seen) => place.on && (seen.disconnect(), bind())).observe(place, { childList: true, attributes: true });
}

function update(reset = false) {
  for (const each of curves.values()) {
    if (reset) each.range = null;
    each.shown ? each.load() : (each.stale = true);
  }
}

function redraw() {
  for (const each of curves.values()) if (each.curves) each.draw();
  drawFigures();
}

let last = 0, later = 0;
adopt();
ready.then(drawFigures);
bindTools(name => {
  if (name === "metrics") filterPlots();
  else if (name === "x") update(true);
  else for (const each of curves.values()) if (each.curves && window.Plotly) each.draw();
});
addEventListener("clew:fresh", () => (adopt(), ready.then(drawFigures)));
addEventListener("clew:points", () => {
  clearTimeout(later);
  later = setTimeout(() => ((last = Date.now()), update()), Math.max(0, 1000 - (Date.now() - last)));
});
addEventListener("clew:theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
