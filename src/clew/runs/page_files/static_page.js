// Draws the figures of a static page: those near the window first, then the others one by one. Until then they are sketches.
const figures = JSON.parse(document.getElementById("figures").textContent);
const places = [...document.querySelectorAll("[data-figure]")], drawn = new Set();
const draw = place => (drawn.add(place), place.querySelector(".sketch")?.remove(), drawFigure(place, JSON.stringify(figures[place.dataset.figure])));
function visible(place) {
  const { top, bottom } = place.getBoundingClientRect();
  return top < innerHeight + 300 && bottom > -300;
}
const drawVisible = () => places.filter(place => !drawn.has(place) && visible(place)).forEach(draw);
const later = work => setTimeout(work, 0); // between two plots the page can be scrolled
function drawNext() {
  const place = places.find(each => !drawn.has(each));
  if (place) draw(place), later(drawNext);
}
const again = () => drawn.forEach(draw);
drawVisible();
later(drawNext);
addEventListener("scroll", drawVisible, { passive: true });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
matchMedia("(max-width: 700px)").addEventListener("change", again);
addEventListener("beforeprint", () => places.forEach(place => drawn.has(place) || draw(place)));
// the place, not the window: it also changes with a scroll bar, a font, a print
const differs = (place, size) => Math.abs(place._fullLayout.width - size.width) > 1 || Math.abs(place._fullLayout.height - size.height) > 1;
const watch = new ResizeObserver(seen => seen.forEach(({ target, contentRect }) => drawn.has(target) && differs(target, contentRect) && Plotly.Plots.resize(target)));
places.forEach(place => watch.observe(place));
