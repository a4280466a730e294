// A table of JSON objects: a column for each name. Values that are elements are shown as they are.

import { element } from "./elements.js";
import { visible } from "./format.js";

export class JsonTable {
  /**
   * @param {string} label
   * @param {string} empty
   */
  constructor(label, empty) {
    this.empty = empty;
    this.root = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label });
  }

  /** @param {Record<string, any>[]} rows */
  show(rows) {
    if (rows.length === 0) {
      this.root.replaceChildren(element("p", { class: "faint" }, this.empty));
      return;
    }
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const isNumber = (/** @type {string} */ name) => rows.every((row) => row[name] == null || typeof row[name] === "number");
    const kind = (/** @type {string} */ name) => (isNumber(name) ? "number" : "");
    const focused = document.activeElement?.getAttribute("aria-label");
    this.root.replaceChildren(element("table", {},
      element("thead", {}, element("tr", {}, ...names.map((name) =>
        element("th", { scope: "col", class: kind(name) }, name === "" ? "action" : visible(name))))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...names.map((name) =>
        element("td", { class: kind(name) }, row[name] instanceof Node ? row[name] : text(row[name]))))))));
    // The focus stays on the button of the same row.
    if (focused !== null && focused !== undefined && focused !== "") {
      const same = [...this.root.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused);
      same?.focus();
    }
  }
}

/**
 * @param {any} value
 * @returns {string}
 */
function text(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return visible(JSON.stringify(value));
  return visible(String(value));
}
