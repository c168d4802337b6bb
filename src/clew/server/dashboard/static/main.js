import "./act.js";
import "./live.js";
import "./log.js";
import "./sort.js";
import { flipTheme, help } from "./keys.js";

document.addEventListener("click", event => {
  if (event.target.closest("[data-theme-switch]")) flipTheme();
  if (event.target.closest("[data-help]")) help();
  const menu = event.target.closest("[data-menu]");
  if (menu) menu.setAttribute("aria-expanded", String(menu.closest(".side").toggleAttribute("data-open")));
});

function picked() {
  const form = document.querySelector("[data-pick]");
  if (!form) return;
  const count = form.querySelectorAll("input[name=run]:checked").length;
  form.querySelector("[data-picked]").textContent = count ? `${count} selected` : "Select two or more";
  form.querySelector(".picked button").disabled = count < 2;
  form.querySelector(".picked").toggleAttribute("data-some", count > 0);
}
document.addEventListener("change", event => event.target.name === "run" && picked());
addEventListener("clew:fresh", picked);
picked();

// on a phone rows of a table are cards: each cell shows the head of its column
function labelCells() {
  for (const table of document.querySelectorAll("table.cards")) {
    const heads = [...(table.tHead?.rows[0].cells ?? [])].map(each => (each.querySelector(".quiet") ? "" : each.dataset.name ?? each.textContent.replace(/[↑↓]/g, "").trim()));
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => ((cell.dataset.label = heads[at] ?? ""), cell.classList.toggle("none", cell.textContent.trim() === "–")));
      [...row.cells].find(cell => !cell.matches(".pick"))?.classList.add("first");
    }
  }
}
addEventListener("clew:fresh", labelCells);
labelCells();

setInterval(() => {
  const now = Date.now() / 1000;
  for (const place of document.querySelectorAll("time[data-ago]")) {
    const passed = now - Number(place.dataset.ago);
    const [step, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => passed >= size) ?? [1, "s"];
    place.textContent = passed < 5 ? "just now" : `${Math.round(passed / step)} ${unit} ago`;
  }
}, 5000);
