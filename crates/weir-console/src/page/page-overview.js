// The overview: the disks by load, their requests over time, and the latency of all of them.

import { element } from "./elements.js";
import { shown, visible } from "./format.js";
import { HeatMap, pairs } from "./heatmap.js";
import { LineChart } from "./lines.js";
import { panel, slides, valuesOf } from "./panel.js";

const DISK = ["vm", "vdisk", "pdisk"];
const FIGURES = ["requests", "bytes", "mean", "p99"];

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, _parameters, context) {
  const panels = [disks(context), requests(context), latency(context)];
  root.replaceChildren(element("h1", {}, "Overview"),
    element("div", { class: "grid" }, ...panels.map((one) => one.root)));
  return () => panels.forEach((one) => one.close());
}

/** @param {import("./panel.js").Context} context */
function disks(context) {
  const window = context.live ? "[range 10 s slide 1 s]" : "";
  const body = element("tbody");
  const heads = [...DISK, ...FIGURES].map((name) =>
    element("th", { scope: "col", class: FIGURES.includes(name) ? "number" : "" }, name));
  return panel(context, {
    title: context.live ? "Disks by load in the last 10 s" : "Disks by load",
    q: "select vm, vdisk, pdisk, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean, "
      + `quantile(latency, 0.99) as p99 from IO ${window} group by vm, vdisk, pdisk `
      + "order by requests desc limit 50",
    content: element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Disks by load" },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)),
    onFrame: (frame) => {
      const rows = Array.from({ length: frame.rows }, (_, i) => {
        const disk = DISK.map((name) => [name, valuesOf(frame, name)[i]]);
        const given = disk.filter(([, value]) => value !== null);
        const link = `#disk&${new URLSearchParams(given)}`;
        const names = disk.map(([name, value]) =>
          element("td", {}, value === null ? "" : name === "pdisk" || name === "vdisk"
            ? element("a", { href: link }, visible(value)) : visible(value)));
        const figures = FIGURES.map((name) => {
          const column = frame.columns.find((one) => one.name === name);
          const value = valuesOf(frame, name)[i];
          return element("td", { class: "number" }, column === undefined ? "" : shown(value, column));
        });
        return element("tr", {}, ...names, ...figures);
      });
      // The focus stays on the link of the same disk.
      const focused = document.activeElement?.getAttribute("href");
      body.replaceChildren(...rows);
      if (focused?.startsWith("#disk&")) {
        const same = [...body.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
        same?.focus();
      }
    },
  });
}

/** @param {import("./panel.js").Context} context */
function requests(context) {
  const chart = new LineChart("Requests of each disk over time", "");
  return panel(context, {
    title: `Requests per ${context.step.label}`,
    q: `Rstream(select vm, vdisk, pdisk, count(*) as requests from IO ${slides(context)} `
      + "group by vm, vdisk, pdisk)",
    content: chart.root,
    onFrame: (frame) => {
      if (frame.isSnapshot) chart.clear();
      for (let i = 0; i < frame.rows; i += 1) {
        const disk = DISK.map((name) => valuesOf(frame, name)[i]).filter((name) => name !== null);
        chart.add(disk.join(" "), valuesOf(frame, "instant")[i], Number(valuesOf(frame, "requests")[i]),
          context.step.seconds * 1000);
      }
      chart.draw();
    },
  });
}

/** @param {import("./panel.js").Context} context */
function latency(context) {
  const map = new HeatMap("Latency of all disks over time", "ns");
  return panel(context, {
    title: "Latency",
    q: `Rstream(select histogram(latency) as latency from IO ${slides(context)})`,
    content: map.root,
    onFrame: (frame) => {
      if (frame.isSnapshot) map.clear();
      for (let i = 0; i < frame.rows; i += 1) {
        map.add(valuesOf(frame, "instant")[i], pairs(valuesOf(frame, "latency")[i]));
      }
      map.draw();
    },
  });
}
