// Draws the curves and bars of every figure without axes, before Plotly is read: a reader sees all of them at once.
{
  const SVG = "http://www.w3.org/2000/svg";
  const ARRAYS = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  const decoded = value => (value?.bdata ? [...new ARRAYS[value.dtype](Uint8Array.from(atob(value.bdata), each => each.charCodeAt(0)).buffer)] : Array.isArray(value) ? value : []);
  const drawable = trace => trace.visible !== "legendonly" && (trace.type === "bar" || (trace.type ?? "scatter") === "scatter");

  // Texts become places, and values of a logarithmic axis their logarithms
  function numbers(values, axis) {
    if (values.some(each => typeof each === "string")) return values.map((_, place) => place);
    return axis?.type === "log" ? values.map(each => (each > 0 ? Math.log(each) : NaN)) : values.map(each => each ?? NaN);
  }

  function scale(values, size) {
    const low = Math.min(...values), high = Math.max(...values);
    return value => (high > low ? (value - low) / (high - low) : 0.5) * size;
  }

  // One view of a figure: the traces that share two axes, in their part of the place
  function view(drawing, traces, xaxis, yaxis, width, height) {
    const [left, right] = xaxis.domain ?? [0, 1], [bottom, top] = yaxis.domain ?? [0, 1];
    const curves = traces.map(trace => ({ trace, x: numbers(decoded(trace.x), xaxis), y: numbers(decoded(trace.y), yaxis) }));
    const points = curves.flatMap(({ x, y }) => x.map((each, i) => [each, y[i]])).filter(pair => pair.every(Number.isFinite));
    if (!points.length || points.length > 20000) return;
    const across = scale(points.map(pair => pair[0]), width * (right - left) * 0.94), up = scale(points.map(pair => pair[1]), height * (top - bottom) * 0.92);
    const at = (x, y) => `${(52 + width * (left + 0.02) + across(x)).toFixed(1)} ${(12 + height * (0.98 - bottom) - up(y)).toFixed(1)}`;
    for (const { trace, x, y } of curves) {
      const path = drawing.appendChild(document.createElementNS(SVG, "path")), colour = trace.line?.color ?? trace.marker?.color;
      const seen = x.map((each, i) => [each, y[i]]).filter(pair => pair.every(Number.isFinite)).map(pair => at(...pair));
      const dots = trace.type === "bar" || trace.mode === "markers";
      path.setAttribute("d", dots ? seen.map(each => `M${each}h${trace.type === "bar" ? 8 : 2}`).join("") : seen.length ? `M${seen.join("L")}` : "");
      path.setAttribute("stroke", typeof colour === "string" ? colour : "#0072b2");
    }
  }

  function sketch(place, { data, layout }) {
    const drawing = place.appendChild(document.createElementNS(SVG, "svg")), views = {};
    drawing.setAttribute("class", "sketch");
    drawing.setAttribute("aria-hidden", "true");
    for (const trace of data.filter(drawable)) (views[`${trace.xaxis ?? "x"} ${trace.yaxis ?? "y"}`] ??= []).push(trace);
    for (const [axes, traces] of Object.entries(views)) {
      const [xaxis, yaxis] = axes.split(" ").map(name => layout[name[0] + "axis" + name.slice(1)] ?? {});
      view(drawing, traces, xaxis, yaxis, place.clientWidth - 68, place.clientHeight - 76);
    }
  }

  const figures = JSON.parse(document.getElementById("figures").textContent);
  for (const place of document.querySelectorAll("[data-figure]")) sketch(place, figures[place.dataset.figure]);
}
