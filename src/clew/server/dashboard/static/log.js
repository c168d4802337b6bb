// A log that grows: new text is appended, and the page follows it unless the reader switched that off.
const place = document.querySelector("[data-log]");
if (place) {
  const follow = document.querySelector("[data-follow]");
  const down = () => { if (!follow || follow.checked) place.scrollTop = place.scrollHeight; };
  down();
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
