// The console: signs in, connects, and shows the page that the fragment of the address names, of the
// source and the range that it names.

import { element, isEditing } from "./elements.js";
import { visible } from "./format.js";
import * as alerts from "./page-alerts.js";
import * as compare from "./page-compare.js";
import * as correlations from "./page-correlations.js";
import * as disk from "./page-disk.js";
import * as fleet from "./page-fleet.js";
import * as overview from "./page-overview.js";
import * as queries from "./page-queries.js";
import * as query from "./page-query.js";
import * as recordings from "./page-recordings.js";
import { request } from "./panel.js";
import { Push } from "./push.js";
import { intervalOf, sourceContext, timeAxis } from "./source.js";

const PAGES = /** @type {Record<string, {show: typeof overview.show}>} */ (
  { overview, disk, query, queries, correlations, recordings, compare, fleet, alerts });
/** The pages that may have a time axis. */
const WITH_AXIS = ["overview", "disk"];
/** The pages that are shown of the source of the present page. */
const OF_SOURCE = ["overview", "correlations"];
/** The key of each page. */
const KEYS = /** @type {Record<string, string>} */ (
  { o: "overview", d: "disk", q: "query", e: "queries", c: "correlations", r: "recordings", f: "fleet", a: "alerts" });
const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const bar = /** @type {HTMLElement} */ (document.getElementById("axis"));
let close = () => {};
let routes = 0;

/** Trades the secret of the printed link for the cookie, and removes it from the address. */
async function signIn() {
  const secret = new URLSearchParams(location.hash.slice(1)).get("link");
  if (secret === null) return;
  history.replaceState(null, "", "#overview");
  await fetch("api/v1/session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ secret }),
  });
}

/**
 * The interval in the fragment.
 * @param {URLSearchParams} parameters
 */
function rangeOf(parameters) {
  const [after, until] = ["after", "until"].map((name) => Number(parameters.get(name) ?? NaN));
  return Number.isFinite(after) && Number.isFinite(until) && after < until ? { after, until } : null;
}

/**
 * The address with another interval.
 * @param {{after: number, until: number} | null} range
 */
function moveTo(range) {
  const [name, ...rest] = location.hash.slice(1).split("&");
  const parameters = new URLSearchParams(rest.join("&"));
  for (const [key, value] of Object.entries(range ?? { after: null, until: null })) {
    if (value === null) parameters.delete(key);
    else parameters.set(key, String(value));
  }
  location.hash = String(parameters) === "" ? `#${name}` : `#${name}&${parameters}`;
}

/**
 * @param {Push} push
 * @param {any} status
 */
async function route(push, status) {
  routes += 1;
  const own = routes;
  const [name, ...rest] = location.hash.slice(1).split("&");
  const known = Object.hasOwn(PAGES, name) ? name : "overview";
  const parameters = new URLSearchParams(rest.join("&"));
  const source = parameters.get("source") || undefined;
  close();
  close = () => {};
  for (const other of Object.keys(PAGES)) {
    const link = document.getElementById(`nav-${other}`);
    if (other === known) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
    const kept = OF_SOURCE.includes(other) ? source : undefined;
    link?.setAttribute("href", kept ? `#${other}&${new URLSearchParams({ source: kept })}` : `#${other}`);
  }
  document.title = `weir ${known}`;
  text("source", sourceLabel(status, source));
  const context = await sourceContext(push, status, source, rangeOf(parameters));
  if (own !== routes) return;
  bar.replaceChildren();
  close = PAGES[known].show(root, parameters, context);
  if (WITH_AXIS.includes(known) && !context.live) {
    const interval = await intervalOf(source);
    if (own === routes && interval.end > interval.begin) {
      bar.replaceChildren(timeAxis(interval, context.range, moveTo));
    }
  }
}

/**
 * @param {any} status
 * @param {string | undefined} source
 */
function sourceLabel(status, source) {
  if (status.only_vm !== null) return visible(`VM ${status.only_vm} ${source ?? ""}`);
  if (source !== undefined) return visible(source);
  if (status.monitor !== null) return visible(`fleet ${status.monitor}`);
  return visible(status.options.join(" ") || "live");
}

async function start() {
  await signIn();
  const status = await request("api/v1/status").catch((error) => {
    root.replaceChildren(element("h1", {}, "Not signed in"), element("p", { class: "error" }, error.message));
    return null;
  });
  if (status === null) return;
  // A console of one VM has neither alerts nor leases.
  if (status.only_vm !== null) document.getElementById("nav-alerts")?.remove();
  const push = new Push((isConnected, state) => {
    text("connection", state);
    document.body.dataset.connected = String(isConnected);
  });
  const show = () => route(push, status).catch((error) => {
    root.replaceChildren(element("p", { class: "error" }, error.message));
  });
  globalThis.addEventListener("hashchange", show);
  document.addEventListener("keydown", (event) => {
    if (isEditing(event.target) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (Object.hasOwn(KEYS, event.key)) location.hash = `#${KEYS[event.key]}`;
  });
  await show();
}

/**
 * @param {string} id
 * @param {string} content
 */
function text(id, content) {
  const place = document.getElementById(id);
  if (place !== null) place.textContent = content;
}

start().catch((error) => {
  root.replaceChildren(element("p", { class: "error" }, `the console cannot be reached: ${error.message}`));
});
