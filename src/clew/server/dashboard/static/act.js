// Buttons and small forms that change something. They send JSON to the API, with a header that other sites cannot send.
export const HEADERS = { "X-Clew": "dashboard", Accept: "application/json" };

// A short message at the edge of the page; with `undo`, a button that calls it.
export function showMessage(text, bad = false, undo = undefined) {
  document.querySelector(".message")?.remove();
  const box = document.createElement("div");
  box.className = bad ? "message bad" : "message";
  box.setAttribute("role", bad ? "alert" : "status");
  box.textContent = text;
  if (undo) box.append(" ", Object.assign(document.createElement("button"), { type: "button", textContent: "Undo", onclick: undo }));
  document.body.append(box);
  setTimeout(() => box.remove(), undo ? 20000 : bad ? 9000 : 3500);
}

export async function send(url, { method = "POST", body } = {}) {
  const headers = body === undefined ? HEADERS : { ...HEADERS, "Content-Type": "application/json" };
  const answer = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error([data.error, data.hint].filter(Boolean).join(" — ") || `the server answered ${answer.status}`);
  return data;
}

async function act(work, done) {
  try {
    const answer = await work();
    done?.(answer);
  } catch (error) {
    showMessage(error.message, true);
  }
}

const refresh = () => dispatchEvent(new Event("clew:refresh"));

document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined || button.dataset.copyFrom) {
    const text = button.dataset.copy ?? document.querySelector(button.dataset.copyFrom).textContent;
    navigator.clipboard?.writeText(text).then(() => showMessage("Copied."), () => showMessage("This browser does not allow copying.", true));
  } else if (button.dataset.post) {
    if (button.dataset.sure && !confirm(button.dataset.sure)) return;
    button.disabled = true;
    act(() => send(button.dataset.post, { method: button.dataset.method }), () => showMessage("Done.")).finally(() => {
      button.disabled = false;
      button.dataset.method ? location.reload() : refresh();
    });
  }
});

document.addEventListener("click", event => {
  const button = event.target.closest("[data-patch]");
  if (!button) return;
  act(() => send(button.closest("form").dataset.edit, { method: "PATCH", body: JSON.parse(button.dataset.patch) }), () => location.reload());
});

document.addEventListener("submit", event => {
  const form = event.target;
  if (form.dataset.edit) {
    event.preventDefault();
    act(() => send(form.dataset.edit, { method: "PATCH", body: Object.fromEntries(new FormData(form)) }), () => location.reload());
  }
  if (form.dataset.put) {
    event.preventDefault();
    const name = new FormData(form).get("name").trim();
    act(() => send(form.dataset.put + encodeURIComponent(name), { method: "PUT" }), () => location.reload());
  }
  if (!form.dataset.json) return;
  event.preventDefault();
  const values = new FormData(form), body = {};
  for (const name of new Set(values.keys())) {
    const box = form.elements[name];
    const multiple = box instanceof RadioNodeList || box.type === "checkbox";
    if (!multiple && values.get(name) === "") continue; // left empty
    body[name] = multiple ? values.getAll(name) : box.type === "number" ? Number(values.get(name)) : values.get(name);
  }
  act(() => send(form.dataset.json, { body }), answer => {
    if (!form.dataset.show) return location.reload();
    const note = document.createElement("div");
    note.className = "note good";
    note.append("Shown once, keep it safe: ", Object.assign(document.createElement("code"), { textContent: answer[form.dataset.show] }));
    form.before(note);
    form.reset();
  });
});

document.addEventListener("change", event => {
  if (event.target.matches("[data-send]")) event.target.form.requestSubmit();
});

document.addEventListener("keydown", event => {
  const box = event.target;
  if (event.key !== "Enter" || !box.matches?.("[data-add-tag]") || !box.value.trim()) return;
  const place = box.closest("[data-tags]"), word = box.value.trim();
  const current = [...place.querySelectorAll("a.tag")].map(each => each.textContent);
  const tags = current.includes(word) ? current.filter(each => each !== word) : [...current, word];
  act(() => send(`/api/v1/runs/${encodeURIComponent(place.dataset.tags)}/tags`, { method: "PUT", body: { tags } }), () => location.reload());
});
