// The list of runs: completion of the filter, chosen columns, saved views, and actions on several runs.
import { send, showMessage } from "./act.js";

const words = JSON.parse(document.getElementById("words").textContent);
const box = document.getElementById("q"), menu = document.getElementById("completions");
const LAST = /[^\s()<>=!]*$/;
let at = -1;

function matches() {
  const part = box.value.slice(0, box.selectionStart).match(LAST)[0].toLowerCase();
  if (!part) return [];
  const rank = word => (word.startsWith(part) ? 0 : word.split(/[./:]/).some(each => each.startsWith(part)) ? 1 : 2);
  const fitting = words.filter(word => word.toLowerCase().includes(part) && word.toLowerCase() !== part);
  return fitting.sort((a, b) => rank(a.toLowerCase()) - rank(b.toLowerCase())).slice(0, 8);
}

function show() {
  const fitting = document.activeElement === box ? matches() : [];
  at = -1;
  menu.replaceChildren(...fitting.map((word, place) => {
    const item = document.createElement("li");
    item.textContent = word;
    item.id = `completion-${place}`;
    item.setAttribute("role", "option");
    return item;
  }));
  menu.hidden = !fitting.length;
  box.setAttribute("aria-expanded", String(!menu.hidden));
}

function complete(word) {
  const before = box.value.slice(0, box.selectionStart).replace(LAST, word), after = box.value.slice(box.selectionStart);
  box.value = before + (after || " ");
  box.setSelectionRange(before.length + 1, before.length + 1);
  menu.hidden = true;
  box.focus();
}

box.addEventListener("input", show);
box.addEventListener("blur", () => setTimeout(() => (menu.hidden = true), 150));
menu.addEventListener("mousedown", event => {
  event.preventDefault();
  if (event.target.matches("li")) complete(event.target.textContent);
});
box.addEventListener("keydown", event => {
  const items = [...menu.children];
  if (menu.hidden || !items.length) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    at = (at + (event.key === "ArrowDown" ? 1 : items.length - (at < 0 ? 0 : 1))) % items.length;
    items.forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
    box.setAttribute("aria-activedescendant", items[at].id);
    event.preventDefault();
  } else if (event.key === "Tab" || (event.key === "Enter" && at >= 0)) {
    complete(items[Math.max(at, 0)].textContent);
    event.preventDefault();
  } else if (event.key === "Escape") menu.hidden = true;
});

// fields that are empty are left out of the link
document.querySelector("[data-filter]").addEventListener("submit", event => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});

// chosen columns as chips: the arrow moves one to the left, the cross removes it
const columns = document.getElementById("columns"), chips = document.querySelector("[data-chosen]");
const chosen = columns.value.split(",").map(each => each.trim()).filter(Boolean);
function chipButton(label, title, names) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.title = title;
  button.setAttribute("aria-label", title);
  button.addEventListener("click", () => {
    columns.value = names.join(",");
    columns.form.requestSubmit();
  });
  return button;
}
chips.replaceChildren(...chosen.map((name, place) => {
  const chip = document.createElement("span"), rest = chosen.filter(each => each !== name);
  chip.className = "tag";
  if (place) chip.append(chipButton("←", `Move ${name} to the left`, [...rest.slice(0, place - 1), name, ...rest.slice(place - 1)]));
  chip.append(name, chipButton("×", `Remove ${name}`, rest));
  return chip;
}));

document.querySelector("[data-save-view]").addEventListener("click", async () => {
  const name = prompt("Name of the view");
  if (!name?.trim()) return;
  try {
    await send("/api/v1/views", { body: { name: name.trim(), query: location.search.slice(1) } });
    location.reload();
  } catch (error) {
    showMessage(error.message, true);
  }
});

const ticked = () => [...document.querySelectorAll("[data-pick] input[name=run]:checked")];
async function change(runs, body, text, undo) {
  try {
    await send("/api/v1/runs/changes", { body: { runs, ...body } });
    dispatchEvent(new Event("clew:refresh"));
    showMessage(text, false, undo && (() => change(runs, undo, "Restored.")));
  } catch (error) {
    showMessage(error.message, true);
  }
}
document.addEventListener("click", event => {
  const action = event.target.closest("[data-bulk]")?.dataset.bulk;
  if (!action) return;
  const boxes = ticked(), runs = boxes.map(each => Number(each.value)), count = `${runs.length} run${runs.length === 1 ? "" : "s"}`;
  if (!runs.length) return showMessage("Select runs first.", true);
  if (action === "tag") {
    const tag = prompt("Tag to add")?.trim();
    if (tag) change(runs, { add_tags: [tag] }, `${count} tagged.`);
    return;
  }
  for (const each of boxes) each.checked = false;
  if (action === "archive") change(runs, { archived: true }, `${count} archived.`, { archived: false });
  else if (action === "restore") change(runs, { archived: false }, `${count} restored.`, { archived: true });
  else if (action === "undelete") change(runs, { deleted: false }, `${count} restored.`, { deleted: true });
  else change(runs, { deleted: true }, `${count} deleted.`, { deleted: false });
});
document.addEventListener("change", event => {
  if (!event.target.matches("[data-pick-all]")) return;
  const boxes = document.querySelectorAll("[data-pick] input[name=run]");
  for (const each of boxes) each.checked = event.target.checked;
  boxes[0]?.dispatchEvent(new Event("change", { bubbles: true }));
});
