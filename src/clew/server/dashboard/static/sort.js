// Tables whose columns sort by a click on their head: numbers by their value (data-value), text as text. The order is in the link.
const parameter = table => `sort-${table.dataset.sortable}`;
const value = cell => cell.dataset.value ?? cell.textContent.trim();

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)], numbers = a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y);
  if (numbers) return x - y;
  if ((a === "") !== (b === "")) return a === "" ? 1 : -1; // without a value: last
  return a.localeCompare(b, "en", { numeric: true });
}

function sort(table, column, descending) {
  const heads = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows];
  if (!heads[column]) return;
  const sign = descending ? -1 : 1, empty = row => value(row.cells[column]) === "";
  rows.sort((a, b) => (empty(a) || empty(b) ? empty(a) - empty(b) : sign * compare(value(a.cells[column]), value(b.cells[column]))));
  table.tBodies[0].append(...rows);
  heads.forEach((head, at) => (at === column ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
}

function adopt() {
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.querySelector("button.sort")) return;
      const button = Object.assign(document.createElement("button"), { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending", query = new URLSearchParams(location.search);
        sort(table, column, descending);
        query.set(parameter(table), `${descending ? "-" : ""}${column}`);
        history.replaceState(null, "", `${location.pathname}?${query}${location.hash}`);
      });
    });
    const saved = new URLSearchParams(location.search).get(parameter(table));
    if (saved) sort(table, Math.abs(Number(saved)), saved.startsWith("-"));
  }
}
adopt();
addEventListener("clew:fresh", adopt);
