// The overview: the disks by load, their requests over time, the latency of all of them, the levels
// of their requests where IOpath is observed, and the VMs.

import { MEASURES, heat, overTime } from "./charts.js";
import { element } from "./elements.js";
import { shown, visible } from "./format.js";
import { LineChart } from "./lines.js";
import { pageLink, panel, slides, valuesOf, where, within } from "./panel.js";
import { ResultTable } from "./table.js";

const DISK = ["vm", "vdisk", "pdisk"];
const FIGURES = ["requests", "bytes", "mean", "p99"];

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, _parameters, context) {
  const panels = [disks(context), requests(context),
    heat(context, MEASURES[0], { title: "Latency of all disks", condition: "" }), vms(context)];
  if (context.status.monitor !== null && context.source === undefined) panels.push(hosts(context));
  const grid = element("div", { class: "grid" }, ...panels.map((one) => one.root));
  // The levels need further probes, which are attached on request only.
  const levels = element("button", {
    id: "levels",
    onclick: () => {
      levels.remove();
      const shown = levelSplit(context);
      panels.push(shown);
      grid.append(shown.root);
    },
  }, "Show the levels of requests");
  root.replaceChildren(element("h1", {}, "Overview"), grid, element("div", { class: "bar" }, levels));
  return () => panels.forEach((one) => one.close());
}

/**
 * The window of a table of the present.
 * @param {import("./panel.js").Context} context
 */
export function lately(context) {
  return context.live && context.source === undefined ? " [range 10 s slide 1 s]" : "";
}

/** @param {import("./panel.js").Context} context */
function disks(context) {
  const body = element("tbody");
  const heads = [...DISK, ...FIGURES].map((name) =>
    element("th", { scope: "col", class: FIGURES.includes(name) ? "number" : "" }, name));
  return panel(context, {
    title: lately(context) ? "Disks by load in the last 10 s" : "Disks by load",
    q: "select vm, vdisk, pdisk, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean, "
      + `quantile(latency, 0.99) as p99 from IO${lately(context)}${where(...within(context.range))} `
      + "group by vm, vdisk, pdisk order by requests desc limit 50",
    content: element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Disks by load" },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)),
    onFrame: (frame) => {
      const rows = Array.from({ length: frame.rows }, (_, i) => {
        const disk = DISK.map((name) => [name, valuesOf(frame, name)[i]]);
        const link = pageLink(context, "disk", Object.fromEntries(disk.filter(([, value]) => value !== null)));
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
  return overTime(context, {
    title: `Requests per ${context.step.label}`,
    query: (interval) => `Rstream(select vm, vdisk, pdisk, count(*) as requests from IO ${slides(context)}`
      + `${where(...interval)} group by vm, vdisk, pdisk)`,
    content: chart.root,
    clear: () => chart.clear(),
    onRows: (frame) => {
      for (let i = 0; i < frame.rows; i += 1) {
        const disk = DISK.map((name) => valuesOf(frame, name)[i]).filter((name) => name !== null);
        chart.add(disk.join(" "), valuesOf(frame, "instant")[i], Number(valuesOf(frame, "requests")[i]),
          context.step.seconds * 1000);
      }
    },
    draw: () => chart.draw(),
  });
}

/** @param {import("./panel.js").Context} context */
function vms(context) {
  return rowsOf(context, lately(context) ? "VMs by load in the last 10 s" : "VMs by load",
    "select vm, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean, "
    + `quantile(latency, 0.99) as p99 from IO${lately(context)}`
    + `${where("vm is not null", ...within(context.range))} group by vm order by requests desc limit 50`);
}

/** @param {import("./panel.js").Context} context */
function hosts(context) {
  return rowsOf(context, "Hosts by load in the last 10 s",
    `select host, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean from IO${lately(context)} `
    + "group by host order by requests desc limit 50");
}

/**
 * The time at each level of a request.
 * @param {import("./panel.js").Context} context
 */
function levelSplit(context) {
  return rowsOf(context, "Levels of requests",
    "select pdisk, op, count(*) as bios, avg(file) as file_system, avg(block_wait) as block_layer, "
    + `avg(device) as device, avg(completion) as completion, avg(latency) as latency from IOpath${lately(context)}${where(...within(context.range))} `
    + "group by pdisk, op order by bios desc limit 50");
}

/**
 * A table of a relation.
 * @param {import("./panel.js").Context} context
 * @param {string} title
 * @param {string} q
 */
export function rowsOf(context, title, q) {
  const table = new ResultTable();
  return panel(context, {
    title, q, content: table.root,
    onFrame: (frame) => {
      const isShown = (/** @type {number} */ i) => i > 0 && frame.columns[i].name !== "weight";
      table.show(frame.columns.filter((_, i) => isShown(i)), frame.values.filter((_, i) => isShown(i)), false);
    },
  });
}
