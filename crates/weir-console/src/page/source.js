// The source of a page, its interval, and the step of its charts.

import { decode } from "./arrow.js";
import { element } from "./elements.js";
import { clock } from "./format.js";
import { request } from "./panel.js";

/** The steps of charts over a recording, in CQL, in words, and in seconds. */
const STEPS = [["10 ms", 0.01], ["100 ms", 0.1], ["1 s", 1], ["10 s", 10], ["1 min", 60], ["10 min", 600], ["1 h", 3600]];
const COLUMNS_WANTED = 300;
const LIVE_STEP = STEPS[2];
/** The positions of the time axis. */
const POSITIONS = 1000;

/**
 * The intervals of recordings that were read.
 * @type {Map<string, Promise<Interval>>}
 */
const intervals = new Map();

/** @typedef {{begin: number, end: number}} Interval in milliseconds since 1970 */

/**
 * The interval of a source.
 * @param {string | undefined} source
 * @returns {Promise<Interval>}
 */
export function intervalOf(source) {
  const key = source ?? "";
  let found = intervals.get(key);
  if (found === undefined) {
    found = readInterval(source);
    // The retained requests change.
    if (source !== "recent") intervals.set(key, found);
    found.catch(() => intervals.delete(key));
  }
  return found;
}

/**
 * @param {string | undefined} source
 * @returns {Promise<Interval>}
 */
async function readInterval(source) {
  if (source === "recent") {
    const { since_ms: begin, until_ms: end } = await request("api/v1/recent");
    return { begin: begin ?? Date.now(), end: end ?? Date.now() };
  }
  const parameters = new URLSearchParams({
    q: "select min(ts) as a, max(ts) as b from IO", format: "arrow", ...(source ? { source } : {}),
  });
  const response = await fetch(`api/v1/query?${parameters}`);
  if (!response.ok) throw new Error((await response.json()).error.message);
  const { values, columns } = decode(await response.arrayBuffer());
  const value = (/** @type {string} */ name) =>
    Number(values[columns.findIndex((column) => column.name === name)]?.[0] ?? 0);
  return { begin: value("a"), end: value("b") };
}

/**
 * What a page shows of a source.
 * @param {import("./push.js").Push} push
 * @param {any} status
 * @param {string | undefined} source
 * @param {{after: number, until: number} | null} range
 * @returns {Promise<import("./panel.js").Context>}
 */
export async function sourceContext(push, status, source, range) {
  const live = status.live && source === undefined;
  const base = { push, status, live, source, range };
  if (live) return { ...base, step: stepOf(LIVE_STEP) };
  const { begin, end } = range === null
    ? await intervalOf(source).catch(() => ({ begin: 0, end: 0 })) : { begin: range.after, end: range.until };
  const fits = STEPS.find(([, step]) => (end - begin) / 1000 / Number(step) <= COLUMNS_WANTED);
  return { ...base, step: stepOf(end > begin ? fits ?? STEPS[STEPS.length - 1] : LIVE_STEP) };
}

/** @param {(string | number)[]} step */
function stepOf([cql, seconds]) {
  return { cql: String(cql), label: String(cql), seconds: Number(seconds) };
}

/**
 * A time axis to move on: two ends of the interval that the charts show.
 * @param {Interval} interval
 * @param {{after: number, until: number} | null} range
 * @param {(range: {after: number, until: number} | null) => void} onRange
 */
export function timeAxis({ begin, end }, range, onRange) {
  const span = Math.max(1, end - begin);
  // Whole steps of a second or less, so that an address is short and a chart's columns are whole.
  const unit = span > 60000 ? 1000 : 10;
  const [first, last] = [Math.floor(begin / unit) * unit, Math.ceil(end / unit) * unit];
  const position = (/** @type {number} */ at) => Math.round(((at - first) / (last - first)) * POSITIONS);
  const instantOf = (/** @type {string} */ value) =>
    first + Math.round(((Number(value) / POSITIONS) * (last - first)) / unit) * unit;
  const slider = (/** @type {string} */ label, /** @type {number} */ value) =>
    /** @type {HTMLInputElement} */ (element("input", {
      type: "range", min: 0, max: POSITIONS, value, "aria-label": label, oninput: () => read(), onchange: () => set(),
    }));
  const from = slider("From", position(range?.after ?? first));
  const to = slider("Until", position(range?.until ?? last));
  const reading = element("span", { class: "faint" });
  const ends = () => {
    const both = [instantOf(from.value), instantOf(to.value)].sort((a, b) => a - b);
    return { after: both[0], until: Math.max(both[1], both[0] + unit) };
  };
  const read = () => {
    const { after, until } = ends();
    reading.textContent = `${clock(after)} to ${clock(until)}`;
    for (const [input, at] of [[from, after], [to, until]]) {
      /** @type {HTMLInputElement} */ (input).setAttribute("aria-valuetext", clock(Number(at)));
    }
  };
  const set = () => {
    const { after, until } = ends();
    onRange(after <= first && until >= last ? null : { after, until });
  };
  const move = (/** @type {number} */ share) => {
    const { after, until } = ends();
    const length = until - after;
    const start = Math.max(first, Math.min(last - length, after + Math.round((share * length) / unit) * unit));
    onRange({ after: start, until: start + length });
  };
  read();
  return element("div", { class: "axis", role: "group", "aria-label": "Time axis" }, from, to, reading,
    element("button", { onclick: () => move(-0.5), "aria-label": "Earlier" }, "◀"),
    element("button", { onclick: () => move(0.5), "aria-label": "Later" }, "▶"),
    element("button", { onclick: () => onRange(null) }, "All"));
}
