// The console: signs in, connects, and shows the page that the fragment of the address names.

import { element, isEditing } from "./elements.js";
import { visible } from "./format.js";
import * as disk from "./page-disk.js";
import * as overview from "./page-overview.js";
import * as query from "./page-query.js";
import { Push } from "./push.js";
import { decode } from "./arrow.js";

/** The steps of charts over a recording, in CQL, in words, and in seconds. */
const STEPS = [["10 ms", 0.01], ["100 ms", 0.1], ["1 s", 1], ["10 s", 10], ["1 min", 60], ["10 min", 600], ["1 h", 3600]];
const COLUMNS_WANTED = 300;

const PAGES = /** @type {Record<string, {show: typeof overview.show}>} */ ({ overview, disk, query });
const root = /** @type {HTMLElement} */ (document.getElementById("page"));
let close = () => {};

/** Trades the secret of the printed link for the cookie, and removes it from the address. */
async function signIn() {
  const secret = new URLSearchParams(location.hash.slice(1)).get("link");
  if (secret === null) return;
  history.replaceState(null, "", "#overview");
  await fetch("api/v1/session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ secret }),
  });
}

/** The step that gives a chart of the recording some hundred columns. */
async function recordingStep() {
  const parameters = new URLSearchParams({ q: "select min(ts) as a, max(ts) as b from IO", format: "arrow" });
  const response = await fetch(`api/v1/query?${parameters}`);
  const { values, columns } = decode(await response.arrayBuffer());
  const value = (/** @type {string} */ name) =>
    Number(values[columns.findIndex((column) => column.name === name)]?.[0] ?? 0);
  const seconds = (value("b") - value("a")) / 1000;
  const fits = STEPS.find(([, step]) => seconds / Number(step) <= COLUMNS_WANTED);
  return stepOf(fits ?? STEPS[STEPS.length - 1]);
}

/** @param {(string | number)[]} step */
function stepOf([cql, seconds]) {
  return { cql: String(cql), label: String(cql), seconds: Number(seconds) };
}

async function start() {
  await signIn();
  const response = await fetch("api/v1/status");
  const status = await response.json();
  if (!response.ok) {
    root.replaceChildren(element("h1", {}, "Not signed in"), element("p", { class: "error" }, status.error.message));
    return;
  }
  text("source", visible(status.options.join(" ") || "live"));
  const push = new Push((isConnected, state) => {
    text("connection", state);
    document.body.dataset.connected = String(isConnected);
  });
  const step = status.live ? stepOf(STEPS[2]) : await recordingStep().catch(() => stepOf(STEPS[2]));
  const context = { push, live: status.live, step };
  const route = () => {
    const [name, ...rest] = location.hash.slice(1).split("&");
    const known = Object.hasOwn(PAGES, name) ? name : "overview";
    close();
    for (const other of Object.keys(PAGES)) {
      const link = document.getElementById(`nav-${other}`);
      if (other === known) link?.setAttribute("aria-current", "page");
      else link?.removeAttribute("aria-current");
    }
    document.title = `weir ${known}`;
    close = PAGES[known].show(root, new URLSearchParams(rest.join("&")), context);
  };
  globalThis.addEventListener("hashchange", route);
  document.addEventListener("keydown", (event) => {
    if (isEditing(event.target) || event.ctrlKey || event.altKey || event.metaKey) return;
    const name = Object.keys(PAGES).find((page) => page[0] === event.key);
    if (name !== undefined) location.hash = `#${name}`;
  });
  route();
}

/** @param {string} id @param {string} content */
function text(id, content) {
  const place = document.getElementById(id);
  if (place !== null) place.textContent = content;
}

start().catch((error) => {
  root.replaceChildren(element("p", { class: "error" }, `the console cannot be reached: ${error.message}`));
});
