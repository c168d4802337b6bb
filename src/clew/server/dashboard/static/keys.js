// Keyboard shortcuts: go to a page, move between rows, search, help.
const places = { o: "/", r: "/runs", s: "/studies", j: "/jobs", d: "/datasets", b: "/benchmarks", a: "/accounts" };
let goPressed = 0;

const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")].filter(row => row.offsetParent);
const currentRow = () => document.querySelector("tr.here");

export function flipTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("clew-theme", root.dataset.theme);
  dispatchEvent(new Event("clew:theme"));
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const old = currentRow(), at = all.indexOf(old);
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  old?.classList.remove("here");
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
}

const acts = {
  "/": () => document.querySelector("[data-search]") ?? (location.href = "/runs?focus=1"),
  "?": () => help(),
  j: () => move(1),
  k: () => move(-1),
  n: () => (location.href = "/submit"),
  t: flipTheme,
  x: () => currentRow()?.querySelector("input[type=checkbox]")?.click(),
  Enter: () => currentRow()?.querySelector("a[href]")?.click(),
};

export function help() {
  const shown = document.getElementById("keys");
  shown?.open ? shown.close() : shown?.showModal();
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (Date.now() - goPressed < 1200 && places[event.key]) {
    location.href = places[event.key];
    return;
  }
  goPressed = event.key === "g" ? Date.now() : 0;
  if (event.key === "/") {
    event.preventDefault();
    const box = acts["/"]();
    box.focus?.(), box.select?.();
  } else acts[event.key]?.();
});

if (new URLSearchParams(location.search).has("focus")) document.querySelector("[data-search]")?.focus();
