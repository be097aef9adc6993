// Tables that sort by the column whose heading is pressed.

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, k) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[k].dataset.key ?? row.cells[k].textContent;
      const rows = [...table.tBodies[0].rows];
      const empty = (x) => x === "–" || x === "";
      rows.sort((p, q) => {
        const x = key(p), y = key(q);
        if (empty(x) || empty(y)) return empty(x) - empty(y);
        const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y, "en", { numeric: true });
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
