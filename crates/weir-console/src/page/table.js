// A result as a table that is updated in place.

import { element } from "./elements.js";
import { shown, visible } from "./format.js";

const ROWS_SHOWN_MAX = 200;

export class ResultTable {
  constructor() {
    this.head = element("tr");
    this.body = /** @type {HTMLTableSectionElement} */ (element("tbody"));
    this.root = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Result" },
      element("table", {}, element("thead", {}, this.head), this.body));
    this.columns = "";
  }

  /**
   * @param {import("./arrow.js").Column[]} columns
   * @param {any[][]} values
   * @param {boolean} newestFirst
   */
  show(columns, values, newestFirst) {
    const names = columns.map((column) => column.name).join("\n");
    if (names !== this.columns) {
      this.columns = names;
      this.head.replaceChildren(...columns.map((column) =>
        element("th", { scope: "col", class: isNumber(column) ? "number" : "", title: column.doc },
          visible(column.name))));
    }
    const count = values.length === 0 ? 0 : values[0].length;
    const rows = Math.min(count, ROWS_SHOWN_MAX);
    while (this.body.rows.length > rows) this.body.deleteRow(-1);
    while (this.body.rows.length < rows) this.body.insertRow();
    for (let i = 0; i < rows; i += 1) {
      const source = newestFirst ? count - 1 - i : i;
      const row = this.body.rows[i];
      while (row.cells.length > columns.length) row.deleteCell(-1);
      while (row.cells.length < columns.length) row.insertCell();
      columns.forEach((column, at) => {
        const text = shown(values[at][source], column);
        const cell = row.cells[at];
        if (cell.textContent !== text) cell.textContent = text;
        cell.className = isNumber(column) ? "number" : "";
      });
    }
    return rows;
  }
}

/** @param {import("./arrow.js").Column} column */
export function isNumber(column) {
  return column.dictionary === null && (column.type === "int" || column.type === "float");
}
