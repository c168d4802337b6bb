// Buttons and small forms that change something: JSON over the API, with the header that no other site can send.
export const HEADERS = { "X-Clew": "dashboard", Accept: "application/json" };

export function tell(text, bad = false) {
  document.querySelector(".told")?.remove();
  const box = document.createElement("div");
  box.className = bad ? "told bad" : "told";
  box.setAttribute("role", bad ? "alert" : "status");
  box.textContent = text;
  document.body.append(box);
  setTimeout(() => box.remove(), bad ? 9000 : 3500);
}

export async function send(url, { method = "POST", body } = {}) {
  const headers = body === undefined ? HEADERS : { ...HEADERS, "Content-Type": "application/json" };
  const answer = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401) location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error([told.error, told.do].filter(Boolean).join(" — ") || `the server answered ${answer.status}`);
  return told;
}

async function act(work, done) {
  try {
    const answer = await work();
    done?.(answer);
  } catch (error) {
    tell(error.message, true);
  }
}

const refresh = () => dispatchEvent(new Event("clew:refresh"));

document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined || button.dataset.copyFrom) {
    const text = button.dataset.copy ?? document.querySelector(button.dataset.copyFrom).textContent;
    navigator.clipboard?.writeText(text).then(() => tell("Copied."), () => tell("This browser does not let a page copy.", true));
  } else if (button.dataset.post) {
    if (button.dataset.sure && !confirm(button.dataset.sure)) return;
    button.disabled = true;
    act(() => send(button.dataset.post, { method: button.dataset.method }), () => tell("Done.")).finally(() => {
      button.disabled = false;
      button.dataset.method ? location.reload() : refresh();
    });
  }
});

document.addEventListener("submit", event => {
  const form = event.target;
  if (form.dataset.put) {
    event.preventDefault();
    const name = new FormData(form).get("name").trim();
    act(() => send(form.dataset.put + encodeURIComponent(name), { method: "PUT" }), () => location.reload());
  }
  if (!form.dataset.json) return;
  event.preventDefault();
  const given = new FormData(form), body = {};
  for (const name of new Set(given.keys())) {
    const box = form.elements[name];
    const many = box instanceof RadioNodeList || box.type === "checkbox";
    if (!many && given.get(name) === "") continue; // not said
    body[name] = many ? given.getAll(name) : box.type === "number" ? Number(given.get(name)) : given.get(name);
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
  const known = [...place.querySelectorAll("a.tag")].map(each => each.textContent);
  const tags = known.includes(word) ? known.filter(each => each !== word) : [...known, word];
  act(() => send(`/api/v1/runs/${encodeURIComponent(place.dataset.tags)}/tags`, { method: "PUT", body: { tags } }), () => location.reload());
});
