// In the head, before anything is drawn: a page never flashes in the wrong colours.
(() => {
  const kept = localStorage.getItem("clew-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
