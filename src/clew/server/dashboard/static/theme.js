// Runs in the head, before anything is drawn, so that a page does not flash in the wrong colours.
(() => {
  const saved = localStorage.getItem("clew-theme");
  if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;
})();
