import "./act.js";
import "./live.js";
import "./log.js";
import { flipTheme, help } from "./keys.js";

document.addEventListener("click", event => {
  if (event.target.closest("[data-theme-switch]")) flipTheme();
  if (event.target.closest("[data-help]")) help();
});

function picked() {
  const form = document.querySelector("[data-pick]");
  if (!form) return;
  const count = form.querySelectorAll("input[name=run]:checked").length;
  form.querySelector("[data-picked]").textContent = count ? `${count} selected` : "Select two or more";
  form.querySelector(".picked button").disabled = count < 2;
}
document.addEventListener("change", event => event.target.name === "run" && picked());
addEventListener("clew:fresh", picked);
picked();

setInterval(() => {
  const now = Date.now() / 1000;
  for (const place of document.querySelectorAll("time[data-ago]")) {
    const passed = now - Number(place.dataset.ago);
    const [step, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => passed >= size) ?? [1, "s"];
    place.textContent = passed < 5 ? "just now" : `${Math.round(passed / step)} ${unit} ago`;
  }
}, 5000);
