// How plots look, on the dashboard and on static pages: colours of both themes, fonts, axes, legends, and saved images.
export const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a900"];
export const DASHES = ["solid", "dash", "dot", "dashdot"];
export const OPTIONS = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const BRIGHT = { "#0072b2": "#4fb0ea", "#d55e00": "#ff8b3d", "#009e73": "#2fc79a", "#cc79a7": "#e59ac6", "#e69f00": "#f3b93e", "#56b4e9": "#9ad6f8", "#7f7f7f": "#a3abb6", "#b8a900": "#e2d34f", "#003f66": "#bfe3fa", "#c9dff0": "#23465f", "#444": "#a3abb6" };
const CLEAR = "rgba(0,0,0,0)";

export const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

// The colour and the dash of a series: with more than eight, colours come again with another dash
export function series(place) {
  const plain = PALETTE[place % PALETTE.length];
  return { color: dark() ? BRIGHT[plain] : plain, dash: DASHES[Math.floor(place / PALETTE.length) % DASHES.length] };
}

// A figure as JSON text, in colours that can be read on the ground of the page
export function recoloured(text) {
  return JSON.parse(dark() ? text.replace(/"(#[0-9a-f]{3,6})"/gi, (whole, each) => `"${BRIGHT[each.toLowerCase()] ?? each}"`) : text);
}

export function themed(layout = {}) {
  const { ink, soft, line, sheet } = colours(), narrow = innerWidth < 700;
  const all = {
    ...layout, title: undefined, height: undefined, paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, autosize: true,
    font: { color: ink, size: narrow ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: sheet, bordercolor: line, font: { color: ink, size: 12 } },
    margin: { l: narrow ? 44 : 52, r: 16, t: 12, b: layout.showlegend === false ? 44 : 64 },
    legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", xanchor: "left", font: { size: 11.5 } },
  };
  all.annotations = layout.annotations?.map(each => ({ bgcolor: sheet, ...each }));
  for (const key of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(name => /^[xy]axis/.test(name))]))
    all[key] = { zeroline: false, automargin: true, ...layout[key], gridcolor: line, linecolor: line, tickcolor: line, showline: true, mirror: false, ticks: "", tickfont: { color: soft, size: 11 },
                 title: { standoff: 6, ...(layout[key]?.title ?? {}), font: { color: soft, size: 11.5 } } };
  if (narrow) stacked(all);
  return all;
}

// On a phone, views side by side go one below the other
function stacked(layout) {
  if (!layout.xaxis2 || layout.xaxis2.visible === false) return;
  for (const [tail, part] of [["", [0.56, 1]], ["2", [0, 0.44]]]) {
    layout[`xaxis${tail}`] = { ...layout[`xaxis${tail}`], domain: [0, 1] };
    layout[`yaxis${tail}`] = { ...layout[`yaxis${tail}`], domain: part };
  }
}

// All figures of a page use the same; reading them makes the browser compute the whole page's layout
let known = null;
function colours() {
  const theme = `${dark()} ${document.documentElement.dataset.theme}`;
  if (known?.theme === theme) return known.values;
  const probe = document.body.appendChild(document.createElement("i"));
  const read = name => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
  const values = { ink: read("ink"), soft: read("soft"), line: read("line"), sheet: read("sheet") };
  probe.remove();
  known = { theme, values };
  return values;
}

export function drawFigure(place, text) {
  const { data, layout } = recoloured(text), named = data.filter(each => each.name && each.showlegend !== false).length;
  if (innerWidth < 700 && named > 6 && layout.showlegend !== false) place.style.height = `${240 + 17 * Math.ceil(named / 2)}px`; // room for the legend
  return Plotly.react(place, data.map(trace => (trace.type === "table" ? table(trace) : trace)), themed(layout), OPTIONS);
}

function table(trace) {
  const { ink, line } = colours(), plain = { fill: { color: CLEAR }, line: { color: line }, font: { color: ink } };
  return { ...trace, header: { ...trace.header, ...plain }, cells: { ...trace.cells, ...plain } };
}
