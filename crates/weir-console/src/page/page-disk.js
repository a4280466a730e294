// A disk: heat maps over time, reads and writes apart; who uses it, and its characterisation.

import { heat, measuresOf } from "./charts.js";
import { element } from "./elements.js";
import { quantity, visible } from "./format.js";
import { limitForm } from "./limit.js";
import { pageLink, panel, quoted, request, where, within } from "./panel.js";
import { ResultTable } from "./table.js";

const DISK = ["vm", "vdisk", "pdisk"];
const OPS = [["r", "reads"], ["w", "writes"]];
const FIGURES_MAX = 400;

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, parameters, context) {
  const disk = DISK.filter((name) => parameters.has(name));
  if (disk.length === 0) {
    const overview = element("a", { href: pageLink(context, "overview") }, "overview");
    root.replaceChildren(element("h1", {}, "Disk"),
      element("p", {}, "Choose a disk in the ", overview, "."));
    return () => {};
  }
  const names = disk.map((name) => parameters.get(name) ?? "");
  // A part that the overview's link omits is NULL there: the disk is of no VM, for example.
  const test = (/** @type {string} */ name) => {
    const value = parameters.get(name);
    return value === null ? `${name} is null` : `${name} = ${quoted(value)}`;
  };
  const condition = DISK.map(test).join(" and ");
  const maps = measuresOf(context).flatMap((measure) => OPS.map(([op, ops]) =>
    heat(context, measure, { title: `${measure.title} of ${ops}`, condition: `op = '${op}' and ${condition}` })));
  const sharers = users(context, parameters.get("pdisk"));
  const panels = [...maps, ...(sharers === null ? [] : [sharers])];
  root.replaceChildren(element("h1", {}, visible(names.join(" "))),
    characterisation(context, parameters),
    limitForm(context, parameters.get("vm"), parameters.get("vdisk")),
    element("div", { class: "grid" }, ...panels.map((one) => one.root)));
  return () => panels.forEach((one) => one.close());
}

/**
 * Who shares the device.
 * @param {import("./panel.js").Context} context
 * @param {string | null} pdisk
 */
function users(context, pdisk) {
  if (pdisk === null) return null;
  const window = context.live ? " [range 10 s slide 1 s]" : "";
  const table = new ResultTable();
  return panel(context, {
    title: "Users of the device",
    q: "select vm, vdisk, comm, count(*) as requests, sum(bytes) as bytes, avg(latency) as mean, "
      + `quantile(latency, 0.99) as p99 from IO${window}`
      + `${where(`pdisk = ${quoted(pdisk)}`, ...within(context.range))} `
      + "group by vm, vdisk, comm order by requests desc limit 30",
    content: table.root,
    onFrame: (frame) => {
      const isShown = (/** @type {number} */ i) => i > 0 && frame.columns[i].name !== "weight";
      table.show(frame.columns.filter((_, i) => isShown(i)), frame.values.filter((_, i) => isShown(i)), false);
    },
  });
}

/**
 * @param {import("./panel.js").Context} context
 * @param {URLSearchParams} parameters
 */
function characterisation(context, parameters) {
  const result = element("div", { role: "status", "aria-live": "polite" });
  const label = context.live ? "Characterise the next 10 s" : "Characterise";
  const run = async () => {
    result.replaceChildren(context.live ? "observing the disk for 10 s" : "reading the recording");
    const vm = parameters.get("vm");
    const disk = parameters.get("vdisk") ?? parameters.get("pdisk") ?? "";
    const query = new URLSearchParams({
      disk, ...(vm === null ? {} : { vm }), ...(context.source ? { source: context.source } : {}),
    });
    try {
      result.replaceChildren(...report(await request(`api/v1/characterise?${query}`)));
    } catch (error) {
      result.replaceChildren(element("div", { class: "error" }, /** @type {Error} */ (error).message));
    }
  };
  return element("div", {}, element("div", { class: "bar" },
    element("button", { id: "characterise", onclick: run }, label)), result);
}

/**
 * The advice with its evidence, and the figures.
 * @param {any} answer
 */
function report(answer) {
  const profiles = answer.profiles ?? [];
  if (profiles.length === 0) return ["no requests of this disk"];
  return profiles.flatMap((/** @type {any} */ profile) => {
    const advice = (profile.advice ?? []).map((/** @type {any} */ one) => {
      const evidence = (one.evidence ?? []).map((/** @type {any} */ part) => `${part.name} ${number(part.value)}`);
      return element("li", {}, `${visible(one.text)} (${one.confidence}) `,
        element("span", { class: "faint" }, visible(evidence.join(", "))));
    });
    const rows = Object.entries(profile).filter(([name]) => name !== "advice")
      .flatMap(([name, value]) => flat(name, value)).slice(0, FIGURES_MAX);
    return [element("h2", {}, "What its workload advises"),
      advice.length > 0 ? element("ul", {}, ...advice) : element("p", {}, "no advice"),
      element("details", {}, element("summary", {}, "All figures"),
        element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Figures" },
          element("table", {}, element("tbody", {}, ...rows.map(([name, value]) =>
            element("tr", {}, element("th", { scope: "row" }, visible(name)), element("td", {}, visible(value))))))))];
  });
}

/** @param {any} value */
function number(value) {
  return typeof value === "number" ? quantity(value) : String(value);
}

/**
 * The figures in a value; long lists are those of plots.
 * @param {string} name
 * @param {any} value
 * @returns {[string, string][]}
 */
function flat(name, value) {
  if (Array.isArray(value)) return value.length > 0 && value.length <= 16 ? [[name, JSON.stringify(value)]] : [];
  if (value === null || typeof value !== "object") return value === null ? [] : [[name, number(value)]];
  return Object.entries(value).flatMap(([part, inner]) => flat(`${name}.${part}`, inner));
}
