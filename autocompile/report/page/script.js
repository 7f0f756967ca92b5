"use strict";
// Copies the code beside the button; without the clipboard's permission it selects the code.
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
}
// A column's title sorts the rows by it, a second time the other way; rows without a value stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const way = head.ariaSort === "ascending" ? -1 : 1;
    const isNumeric = body.querySelector(`td:nth-child(${column + 1})[data-key]`) !== null;
    const key = (row) => isNumeric
      ? Number(row.cells[column].dataset.key ?? NaN)
      : row.cells[column].textContent;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (!isNumeric) return way * x.localeCompare(y);
      return Number.isNaN(x) - Number.isNaN(y) || (Number.isNaN(x) ? 0 : way * (x - y));
    };
    for (const other of heads) other.ariaSort = null;
    head.ariaSort = way === 1 ? "ascending" : "descending";
    body.append(...[...body.rows].sort(order));
  }));
  // Shows the rows that have every word.
  const filter = document.getElementById("filter");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    document.querySelector("#trials output").value = count;
  });
}
