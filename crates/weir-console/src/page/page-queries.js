// The queries of this console and of the fleet: who runs what where at which cost; end them.

import { element } from "./elements.js";
import { instant, quantity } from "./format.js";
import { queryLink, request } from "./panel.js";
import { JsonTable } from "./json-table.js";
import { polled } from "./polled.js";

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} _context
 */
export function show(root, _parameters, _context) {
  const error = element("div", { class: "error", role: "status" });
  /** @type {Map<string, {at: number, ms: number}>} */
  const before = new Map();
  /**
   * The share of a processor since the last reading.
   * @param {string} key
   * @param {number | null} ms
   */
  const share = (key, ms) => {
    if (ms === null || ms === undefined) return "";
    const [at, last] = [Date.now(), before.get(key)];
    before.set(key, { at, ms });
    return last === undefined ? "" : `${((100 * (ms - last.ms)) / Math.max(1, at - last.at)).toFixed(1)} %`;
  };
  const end = async (/** @type {object} */ body) => {
    try {
      await request("api/v1/queries/end", body);
      await poll.now();
    } catch (failure) {
      error.textContent = /** @type {Error} */ (failure).message;
    }
  };
  const own = new JsonTable("Queries of this console", "no query runs");
  const fleet = new JsonTable("Queries of the fleet", "no query runs");
  const processes = new JsonTable("Processes", "");
  const ofFleet = element("div", { hidden: true }, element("h2", {}, "Queries of the fleet"), fleet.root);
  const poll = polled("api/v1/queries", 2000, error, (answer) => {
    processes.show([
      ["console", answer.console], ["shared source", answer.shared],
    ].filter(([, cost]) => cost !== null).map(([name, cost]) => ({
      process: name, pid: cost.pid, processor: share(name, cost.cpu_ms), memory: quantity(cost.memory_bytes, "B"),
    })));
    own.show(answer.queries.map((/** @type {any} */ one) => ({
      query: element("a", { href: queryLink(one.q, one.source === "own" ? undefined : sourceName(one.source)) },
        one.name ?? one.q.slice(0, 120)),
      source: one.source, since: instant(one.started_ms).slice(0, 19),
      tabs: one.subscribers, standing: one.is_standing ? "yes" : "",
      "runs in": one.runs_in === "process" ? `process ${one.pid}` : one.runs_in,
      processor: share(`query ${one.id}`, one.cpu_ms),
      memory: one.memory_bytes === null ? "" : quantity(one.memory_bytes, "B"),
      rows: one.rows, changes: one.changes, read: quantity(one.bytes, "B"), end: one.end ?? "",
      "": element("button", { onclick: () => end({ id: one.id }), "aria-label": `End query ${one.id}` }, "End"),
    })));
    ofFleet.hidden = answer.fleet === null;
    if (answer.fleet !== null) {
      fleet.show(answer.fleet.map((/** @type {any} */ one) => ({
        ...one, "": element("button", { onclick: () => end({ fleet: one.name }), "aria-label": `Cancel ${one.name}` }, "Cancel"),
      })));
    }
  });
  root.replaceChildren(element("h1", {}, "Queries"),
    element("p", { class: "faint" }, "Live queries of requests run in the shared source, which reads the host once; "
      + "others are a process each."),
    error, own.root, ofFleet, element("h2", {}, "Processes"), processes.root);
  return () => poll.close();
}

/** @param {string} source */
function sourceName(source) {
  return source === "recent" ? source : `recording:${source}`;
}
