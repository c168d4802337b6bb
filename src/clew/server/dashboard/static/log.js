// A log as it is written: new text at the end, scrolled to unless the reader looks elsewhere.
const place = document.querySelector("[data-log]");
if (place) {
  const follow = document.querySelector("[data-follow]");
  const down = () => { if (!follow || follow.checked) place.scrollTop = place.scrollHeight; };
  down();
  const source = new EventSource(place.dataset.log);
  source.addEventListener("log", event => {
    const piece = JSON.parse(event.data);
    if (place.dataset.attempt && place.dataset.attempt !== String(piece.attempt)) place.replaceChildren();
    else if (piece.begin < Number(place.dataset.have ?? 0)) return; // sent again after a break
    place.dataset.attempt = piece.attempt;
    place.dataset.have = piece.next;
    place.append(piece.text);
    down();
  });
  source.addEventListener("state", () => dispatchEvent(new Event("clew:refresh")));
  source.addEventListener("end", () => source.close());
}
