// The alerts of this host: their states, and their changes since the page was opened. And the
// leases of limits.

import { element } from "./elements.js";
import { visible } from "./format.js";
import { JsonTable } from "./json-table.js";
import { showFleet } from "./page-alerts-fleet.js";
import { request } from "./panel.js";
import { polled } from "./polled.js";

const EVENTS_MAX = 200;

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, _parameters, context) {
  if (context.status.monitor !== null) return showFleet(root, context);
  const error = element("div", { class: "error", role: "status" });
  const states = new JsonTable("States of alerts", "no alert has fired since this page was opened");
  const events = new JsonTable("Changes of alerts", "none");
  const leaseError = element("div", { class: "error", role: "status" });
  const leases = new JsonTable("Leases", "no limit is set");
  const abort = new AbortController();
  /** @type {Map<string, any>} */
  const current = new Map();
  /** @type {any[]} */
  let recent = [];
  const onEvent = (/** @type {any} */ event) => {
    const row = {
      alert: event.alert, state: event.state, labels: words(event.labels), since: event.at,
      "fired at": event.fired_at, flaps: event.flaps, annotations: words(event.annotations),
    };
    const key = `${event.alert} ${JSON.stringify(event.labels)}`;
    if (event.state === "clear" || event.state === "inactive") current.delete(key);
    else current.set(key, row);
    recent = [{ at: event.at, alert: event.alert, from: event.from, to: event.state, labels: words(event.labels) }, ...recent]
      .slice(0, EVENTS_MAX);
    states.show([...current.values()]);
    events.show(recent);
  };
  states.show([]);
  events.show([]);
  if (context.live) {
    follow("api/v1/alerts", abort.signal, onEvent).catch((failure) => {
      if (!abort.signal.aborted) error.textContent = failure.message;
    });
  } else {
    error.textContent = "Alerts are watched on a live host; weir alert test runs rules on a recording.";
  }
  const undo = async (/** @type {any} */ id) => {
    try {
      await request("api/v1/leases/end", { id });
      await poll.now();
    } catch (failure) {
      leaseError.textContent = /** @type {Error} */ (failure).message;
    }
  };
  const poll = polled("api/v1/leases", 5000, leaseError, (rows) => leases.show(rows.map((/** @type {any} */ row) => ({
    ...row,
    ...(context.status.act
      ? { "": element("button", { onclick: () => undo(row.id), "aria-label": `End lease ${row.id}` }, "End") } : {}),
  }))));
  root.replaceChildren(element("h1", {}, "Alerts"), error, states.root,
    element("h2", {}, "Changes"), events.root,
    element("h2", {}, "Leases"), leaseError, leases.root);
  return () => {
    abort.abort();
    poll.close();
  };
}

/** @param {Record<string, any> | null} pairs */
function words(pairs) {
  return Object.entries(pairs ?? {}).map(([name, value]) => visible(`${name}=${value ?? ""}`)).join(", ");
}

/**
 * Reads a stream of JSON lines.
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {(line: any) => void} onLine
 */
async function follow(path, signal, onLine) {
  const response = await fetch(path, { signal });
  if (!response.ok || response.body === null) throw new Error((await response.json()).error.message);
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    lines.filter((line) => line !== "").forEach((line) => onLine(JSON.parse(line)));
  }
}
