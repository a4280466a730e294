// The recordings of the console's folder; each can be opened, and two of them compared.

import { element } from "./elements.js";
import { instant, quantity, visible } from "./format.js";
import { JsonTable } from "./json-table.js";
import { polled } from "./polled.js";

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, _parameters, context) {
  const title = element("h1", {}, "Recordings");
  if (!context.status.recordings) {
    root.replaceChildren(title, element("p", {}, "weir console --recordings DIR lists the recordings of a "
      + "folder; weir record -o DIR/NAME.parquet makes one."));
    return () => {};
  }
  const error = element("div", { class: "error", role: "status" });
  const table = new JsonTable("Recordings", "the folder has no recordings (*.parquet)");
  /** @type {Set<string>} */
  const chosen = new Set();
  const compare = element("a", { class: "button", id: "compare", "aria-disabled": "true" }, "Choose two to compare");
  const choose = (/** @type {string} */ name, /** @type {boolean} */ isChosen) => {
    if (isChosen) chosen.add(name);
    else chosen.delete(name);
    const [a, b] = chosen;
    if (chosen.size !== 2) {
      compare.removeAttribute("href");
      compare.setAttribute("aria-disabled", "true");
      compare.textContent = "Choose two to compare";
      return;
    }
    compare.setAttribute("href", `#compare&${new URLSearchParams({ a: `recording:${a}`, b: `recording:${b}` })}`);
    compare.removeAttribute("aria-disabled");
    compare.textContent = "Compare the chosen two";
  };
  const poll = polled("api/v1/recordings", 5000, error, (files) => {
    table.show(files.map((/** @type {any} */ file) => ({
      compare: element("input", {
        type: "checkbox", "aria-label": `Compare ${file.name}`, ...(chosen.has(file.name) ? { checked: "" } : {}),
        onchange: (/** @type {any} */ event) => choose(file.name, event.target.checked),
      }),
      recording: element("a", { href: `#overview&${new URLSearchParams({ source: `recording:${file.name}` })}` },
        visible(file.name)),
      size: quantity(file.bytes, "B"), written: instant(file.modified_ms).slice(0, 19),
    })));
  });
  root.replaceChildren(title, error, table.root, element("div", { class: "bar" }, compare));
  return () => poll.close();
}
