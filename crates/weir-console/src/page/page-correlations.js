// The disks whose load or latency moves together in the latest windows, as heat map, graph and
// table.

import { CoefficientGraph, CoefficientMatrix } from "./coefficients.js";
import { element } from "./elements.js";
import { visible } from "./format.js";
import { panel, quoted, valuesOf } from "./panel.js";
import { ResultTable } from "./table.js";

const METRICS = ["iops", "bytes", "inflight", "latency"];
/** The windows by their names in CQL; each slides by a second. */
const WINDOWS = ["20 s", "60 s", "5 min", "30 min"];
const DISK = ["vm", "vdisk", "pdisk"];
const PAIRS_MAX = 200;

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, parameters, context) {
  const metric = choice("metric", METRICS, parameters.get("metric") ?? "iops");
  const range = choice("window", WINDOWS, parameters.get("window") ?? "60 s");
  const content = element("div");
  let close = () => {};
  const run = () => {
    close();
    const shown = pairs(context, metric.value, range.value);
    close = shown.close;
    content.replaceChildren(shown.root);
  };
  const change = () => {
    const { source } = context;
    const state = new URLSearchParams({
      metric: metric.value, window: range.value, ...(source === undefined ? {} : { source }),
    });
    history.replaceState(null, "", `#correlations&${state}`);
    run();
  };
  metric.addEventListener("change", change);
  range.addEventListener("change", change);
  root.replaceChildren(element("h1", {}, "Correlations"),
    element("div", { class: "bar" }, element("label", { for: "metric" }, "Compare"), metric,
      element("label", { for: "window" }, "in the last"), range),
    content);
  run();
  return () => close();
}

/**
 * @param {string} id
 * @param {string[]} names
 * @param {string} chosen
 */
function choice(id, names, chosen) {
  const made = /** @type {HTMLSelectElement} */ (element("select", { id },
    ...names.map((name) => element("option", { value: name }, name))));
  made.value = names.includes(chosen) ? chosen : names[0];
  return made;
}

/**
 * @param {import("./panel.js").Context} context
 * @param {string} metric
 * @param {string} range
 */
function pairs(context, metric, range) {
  const matrix = new CoefficientMatrix("Coefficients");
  const graph = new CoefficientGraph("Graph");
  const table = new ResultTable();
  const names = context.status.monitor === null ? DISK : ["host", ...DISK];
  const of = (/** @type {string} */ side) => names.map((name) => `${side}_${name}`);
  return panel(context, {
    title: `Disks whose ${metric} correlates`,
    q: `select ${[...of("leader"), ...of("follower")].join(", ")}, lag, r, r_low, r_high, p, verdict\n`
      + `from correlations [range ${range} slide 1 s] where metric = ${quoted(metric)}\n`
      + `order by p limit ${PAIRS_MAX}`,
    content: element("div", {},
      element("div", { class: "sides" }, matrix.root, graph.root), table.root),
    onFrame: (frame) => {
      const column = (/** @type {string} */ name) => valuesOf(frame, name);
      const disk = (/** @type {string} */ side, /** @type {number} */ i) => visible(
        of(side).map((name) => column(name)[i]).filter((name) => name != null).join(" "));
      const found = Array.from({ length: frame.rows }, (_, i) => pair({
        leader: disk("leader", i), follower: disk("follower", i),
        lag: Number(column("lag")[i]), r: Number(column("r")[i]), verdict: String(column("verdict")[i]),
      }));
      matrix.show(found);
      graph.show(found);
      const kept = frame.columns.flatMap(({ name }, i) => (i > 0 && name !== "weight" ? [i] : []));
      table.show(kept.map((i) => frame.columns[i]), kept.map((i) => frame.values[i]), false);
    },
  });
}

/**
 * The arrow goes to the disk that changes later, or that is slowed.
 * @param {{leader: string, follower: string, lag: number, r: number, verdict: string}} row
 * @returns {import("./coefficients.js").Pair}
 */
function pair({ leader, follower, lag, r, verdict }) {
  const isReversed = verdict === "follower slows leader";
  const isOneWay = isReversed || verdict === "leader slows follower";
  const directed = isOneWay || (lag > 0 && verdict.startsWith("move"));
  return {
    from: isReversed ? follower : leader, to: isReversed ? leader : follower, coefficient: r, directed,
  };
}
