// Two sources side by side: the same charts of each.

import { MEASURES, heat } from "./charts.js";
import { element } from "./elements.js";
import { visible } from "./format.js";
import { panel } from "./panel.js";
import { sourceContext } from "./source.js";
import { ResultTable } from "./table.js";

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, parameters, context) {
  const [a, b] = ["a", "b"].map((name) => parameters.get(name) ?? "");
  const sides = element("div", { class: "sides" });
  /** @type {{root: HTMLElement, close: () => void}[]} */
  const panels = [];
  let isClosed = false;
  root.replaceChildren(element("h1", {}, "Compare"), sides);
  for (const name of [a, b]) {
    const side = element("section", { "aria-label": title(name) }, element("h2", {}, title(name)));
    sides.append(side);
    sourceContext(context.push, context.status, name || undefined, null).then((of) => {
      if (isClosed) return;
      const own = chartsOf(of);
      panels.push(...own);
      side.append(...own.map((one) => one.root));
    }).catch((error) => side.append(element("p", { class: "error" }, error.message)));
  }
  return () => {
    isClosed = true;
    panels.forEach((one) => one.close());
  };
}

/** @param {string} name */
function title(name) {
  return visible(name === "" ? "source of the command line" : name.replace(/^recording:/, ""));
}

/** @param {import("./panel.js").Context} context */
function chartsOf(context) {
  const window = context.live ? " [range 10 s slide 1 s]" : "";
  const table = new ResultTable();
  const figures = panel(context, {
    title: "Requests by operation",
    q: "select op, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean, "
      + "quantile(latency, 0.5) as p50, quantile(latency, 0.99) as p99, max(latency) as longest "
      + `from IO${window} group by op order by op`,
    content: table.root,
    onFrame: (frame) => {
      const isShown = (/** @type {number} */ i) => i > 0 && frame.columns[i].name !== "weight";
      table.show(frame.columns.filter((_, i) => isShown(i)), frame.values.filter((_, i) => isShown(i)), false);
    },
  });
  const maps = MEASURES.slice(0, 2).flatMap((measure) => [["r", "reads"], ["w", "writes"]].map(([op, ops]) =>
    heat(context, measure, { title: `${measure.title} of ${ops}`, condition: `op = '${op}'` })));
  return [figures, ...maps];
}
