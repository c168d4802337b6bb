// The submit form: after every change the server checks it as it would on submission, and returns the errors and the YAML.
import { HEADERS } from "./act.js";

const form = document.getElementById("submit"), yaml = document.getElementById("yaml");
let later = 0, number = 0;

for (const box of form.querySelectorAll("[data-reload]"))
  box.addEventListener("change", () => {
    location.href = "/submit?" + new URLSearchParams({ kind: form.elements.kind.value, recipe: form.elements.kind.value === "script" ? "own" : form.elements.recipe.value });
  });

function mark(fields) {
  for (const place of form.querySelectorAll("[data-field]")) {
    const waits = place.querySelector("input[required]")?.value === "" && !place.dataset.touched; // not filled in yet
    const error = waits ? "" : fields[place.dataset.field] ?? "", note = place.querySelector(".wrong");
    place.classList.toggle("wrong", Boolean(error));
    note.hidden = !error;
    note.textContent = error;
    if (error) for (let up = place.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    const box = place.querySelector("[data-default]");
    const value = box.type === "checkbox" ? String(box.checked) : box.value;
    place.classList.toggle("changed", value !== box.dataset.default);
  }
  for (const section of form.querySelectorAll("details.section")) {
    const count = section.querySelectorAll(".field.changed").length, tag = section.querySelector(":scope > summary .changed");
    tag.hidden = !count;
    tag.textContent = `${count} changed`;
  }
}

const files = document.getElementById("files");
files?.addEventListener("change", async () => {
  const texts = await Promise.all([...files.files].map(async file => [file.name, await file.text()]));
  for (const old of form.querySelectorAll("textarea[name^='file:']")) old.remove();
  for (const [name, text] of texts) {
    const box = document.createElement("textarea");
    box.hidden = true;
    box.name = `file:${name}`;
    box.value = text;
    form.append(box);
  }
  form.querySelector("[data-files]").textContent = texts.map(([name]) => name).join(", ");
  const job = form.elements["job.name"];
  if (!job.value && texts.length === 1) job.value = texts[0][0].replace(/\.[^.]*$/, "");
  check();
});

async function check() {
  const current = ++number, values = new URLSearchParams(new FormData(form));
  for (const name of [...values.keys()]) if (name.startsWith("file:")) values.set(name, ""); // only the names are checked
  const answer = await fetch("/submit/check", { method: "POST", headers: HEADERS, body: values });
  if (!answer.ok || current !== number) return;
  const { text, fields, error, line } = await answer.json();
  document.getElementById("line").textContent = line;
  document.querySelector("[data-line]").hidden = !line;
  yaml.value = text;
  yaml.rows = Math.min(32, Math.max(10, text.split("\n").length + 1));
  mark(fields);
  document.querySelector("[data-status]").textContent = error || (Object.keys(fields).length ? "not valid yet" : "only what differs from the defaults");
}

form.addEventListener("input", event => {
  event.target.closest("[data-field]")?.setAttribute("data-touched", "yes");
  clearTimeout(later);
  later = setTimeout(check, 250);
});
check();
