// A disk: latency and size heat maps over time, reads and writes apart.

import { element } from "./elements.js";
import { visible } from "./format.js";
import { HeatMap, pairs } from "./heatmap.js";
import { panel, quoted, slides, unitOf, valuesOf } from "./panel.js";

const DISK = ["vm", "vdisk", "pdisk"];
const OPS = [["r", "reads"], ["w", "writes"]];
const MEASURES = [["latency", "Latency"], ["bytes", "Size"]];

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, parameters, context) {
  const disk = DISK.filter((name) => parameters.has(name));
  if (disk.length === 0) {
    root.replaceChildren(element("h1", {}, "Disk"),
      element("p", {}, "Choose a disk in the ", element("a", { href: "#overview" }, "overview"), "."));
    return () => {};
  }
  const names = disk.map((name) => parameters.get(name) ?? "");
  // A part that the overview's link omits is NULL there: the disk is of no VM, for example.
  const test = (/** @type {string} */ name) => {
    const value = parameters.get(name);
    return value === null ? `${name} is null` : `${name} = ${quoted(value)}`;
  };
  const condition = DISK.map(test).join(" and ");
  const panels = MEASURES.flatMap(([column, title]) =>
    OPS.map(([op, ops]) => heat(context, column, `${title} of ${ops}`, `op = '${op}' and ${condition}`)));
  root.replaceChildren(element("h1", {}, visible(names.join(" "))),
    element("div", { class: "grid" }, ...panels.map((one) => one.root)));
  return () => panels.forEach((one) => one.close());
}

/**
 * @param {import("./panel.js").Context} context
 * @param {string} column
 * @param {string} title
 * @param {string} condition
 */
function heat(context, column, title, condition) {
  const map = new HeatMap(`${title} over time`, column === "latency" ? "ns" : "B");
  return panel(context, {
    title,
    q: `Rstream(select histogram(${column}) as ${column} from IO ${slides(context)} where ${condition})`,
    content: map.root,
    onFrame: (frame) => {
      if (frame.isSnapshot) map.clear();
      map.unit = unitOf(frame, column) || map.unit;
      for (let i = 0; i < frame.rows; i += 1) {
        map.add(valuesOf(frame, "instant")[i], pairs(valuesOf(frame, column)[i]));
      }
      map.draw();
    },
  });
}
