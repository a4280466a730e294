// The requests in a rectangle of a heat map: the query, which can be edited, and its rows.

import { element } from "./elements.js";
import { clock } from "./format.js";
import { queryLink } from "./panel.js";
import { ResultTable } from "./table.js";

const ROWS_KEPT_MAX = 200;

export class Selection {
  /**
   * @param {import("./panel.js").Context} context
   * @param {string} title
   */
  constructor(context, title) {
    this.context = context;
    this.title = title;
    this.root = element("div", { class: "selection", hidden: true });
    this.close = () => {};
  }

  /** The source with the requests of the chart: of a live one, those that are retained. */
  source() {
    const { live, source, status } = this.context;
    return live && source === undefined && status.recent ? "recent" : source;
  }

  /**
   * @param {string} q
   * @param {import("./heatmap.js").Rectangle} rectangle
   */
  show(q, { after, until, count }) {
    const editor = /** @type {HTMLTextAreaElement} */ (element("textarea", {
      spellcheck: "false", "aria-label": `CQL of the selection in ${this.title}`,
    }));
    editor.value = q;
    const result = element("div");
    const run = () => this.run(editor.value, result);
    const open = element("a", { class: "button", href: queryLink(q, this.source()) }, "Open in Query");
    editor.addEventListener("input", () => {
      open.setAttribute("href", queryLink(editor.value, this.source()));
    });
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    });
    this.root.hidden = false;
    this.root.replaceChildren(
      element("h3", {}, `${count} values, ${clock(after)} to ${clock(until)}`), editor,
      element("div", { class: "bar" }, element("button", { onclick: run }, "Run"), open,
        element("button", { onclick: () => this.hide() }, "Close")), result);
    run();
  }

  hide() {
    this.close();
    this.close = () => {};
    this.root.hidden = true;
    this.root.replaceChildren();
  }

  /**
   * @param {string} q
   * @param {HTMLElement} result
   */
  run(q, result) {
    this.close();
    const table = new ResultTable();
    const state = element("div", { class: "faint", role: "status" }, "reading");
    const error = element("div", { class: "error" });
    result.replaceChildren(state, error, table.root);
    /** @type {any[][]} */
    let kept = [];
    let rows = 0;
    const subscription = {
      q,
      source: this.source(),
      /** @param {import("./push.js").Frame} frame */
      onFrame: (frame) => {
        rows = frame.total;
        kept = frame.values.map((values, i) => [...(kept[i] ?? []), ...values].slice(0, ROWS_KEPT_MAX));
        const isShown = (/** @type {number} */ i) => i > 0 && frame.columns[i].name !== "weight";
        table.show(frame.columns.filter((_, i) => isShown(i)), kept.filter((_, i) => isShown(i)), false);
        state.textContent = `${rows} requests so far`;
      },
      /**
       * @param {string} reason
       * @param {string} message
       */
      onEnd: (reason, message) => {
        this.close = () => {};
        const shown = rows > ROWS_KEPT_MAX ? `; the first ${ROWS_KEPT_MAX} are shown` : "";
        state.textContent = `${rows} requests${shown}`;
        this.root.dataset.rows = String(rows);
        if (reason !== "end") error.textContent = message;
      },
    };
    delete this.root.dataset.rows;
    this.close = this.context.push.subscribe(subscription);
  }
}
