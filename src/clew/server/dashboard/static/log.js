// A log that grows: new text is appended, and the page follows it unless the reader switched that off.
const place = document.querySelector("[data-log], [data-console]");
const follow = document.querySelector("[data-follow]");
const down = () => { if (!follow || follow.checked) place.scrollTop = place.scrollHeight; };

function followJob() {
  const source = new EventSource(place.dataset.log);
  source.addEventListener("log", event => {
    const part = JSON.parse(event.data);
    if (place.dataset.attempt && place.dataset.attempt !== String(part.attempt)) place.replaceChildren();
    else if (part.begin < Number(place.dataset.have ?? 0)) return; // sent again after a break
    place.dataset.attempt = part.attempt;
    place.dataset.have = part.next;
    place.append(part.text);
    down();
  });
  source.addEventListener("state", () => dispatchEvent(new Event("clew:refresh")));
  source.addEventListener("end", () => source.close());
}

async function followRun() {
  // the head of the page is live too: when it shows an end, the rest is requested once more
  const ended = !document.querySelector("h1 .state.running, h1 .state.created");
  try {
    const answer = await fetch(`${place.dataset.console}?after=${encodeURIComponent(place.dataset.next)}`, { headers: { "X-Clew": "dashboard" } });
    if (answer.ok) {
      const part = await answer.json();
      place.dataset.next = part.next;
      if (part.text) { place.append(part.text); down(); }
    }
  } catch { /* the server does not answer: try again */ }
  if (!ended) setTimeout(followRun, 2000);
}

if (place) {
  down();
  if (place.dataset.log) followJob();
  else followRun();
}
