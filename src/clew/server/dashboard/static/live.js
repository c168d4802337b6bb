// Live parts of a page: the page is requested again, and the parts that changed are replaced.
const contents = new Map();
let busy = false;

function keepState(old, fresh) {
  // what the reader did stays: ticked boxes, the selected row, drawn plots
  for (const box of old.querySelectorAll("input[type=checkbox]:checked"))
    fresh.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  const row = old.querySelector("tr.here a[href]")?.getAttribute("href");
  if (row) fresh.querySelector(`tr a[href="${CSS.escape(row)}"]`)?.closest("tr").classList.add("here");
  for (const place of fresh.querySelectorAll("[data-curves]")) {
    const same = old.querySelector(`[data-curves="${CSS.escape(place.dataset.curves)}"]`);
    if (same) place.closest("figure").replaceWith(same.closest("figure"));
  }
  const drawn = old.querySelectorAll("[data-figure]");
  fresh.querySelectorAll("[data-figure]").forEach((place, at) => drawn[at] && place.replaceWith(drawn[at]));
}

export async function refresh() {
  const places = [...document.querySelectorAll("[data-live]")];
  if (!places.length || busy || places.some(place => place.contains(document.activeElement?.closest("input:not([type=checkbox]), select")))) return;
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Clew": "dashboard" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const place of places) {
      const fresh = page.getElementById(place.id);
      if (!fresh || contents.get(place.id) === fresh.innerHTML) continue;
      contents.set(place.id, fresh.innerHTML);
      place.dataset.every = fresh.dataset.every ?? "";
      keepState(place, fresh);
      place.replaceChildren(...fresh.childNodes);
    }
    dispatchEvent(new Event("clew:fresh"));
  } catch { /* the server does not answer: try again at the next refresh */
  } finally {
    busy = false;
  }
}

function pace() {
  return Math.min(...[...document.querySelectorAll("[data-live]")].map(place => Number(place.dataset.every) || Infinity));
}

function loop() {
  const seconds = pace();
  setTimeout(async () => {
    if (!document.hidden && Number.isFinite(pace())) await refresh();
    loop();
  }, 1000 * (Number.isFinite(seconds) ? seconds : 15));
}

let scheduled = 0;
export function soon(milliseconds = 1000) {
  if (!scheduled) scheduled = setTimeout(() => { scheduled = 0; refresh(); }, milliseconds);
}

addEventListener("clew:refresh", () => refresh());
loop();

const stream = document.querySelector("[data-events]");
if (stream) {
  const source = new EventSource(stream.dataset.events);
  source.addEventListener("points", event => {
    dispatchEvent(new CustomEvent("clew:points", { detail: event.data }));
    soon(2000);
  });
  source.addEventListener("run", () => soon(500));
}
