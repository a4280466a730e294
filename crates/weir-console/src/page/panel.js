// A panel: a title, a chart of a standing query, what was skipped, and the query.

import { element } from "./elements.js";
import { clock } from "./format.js";

/**
 * What a page shows: `source` names it for the server; without a name it is that of the command
 * line. `range` limits it to an interval, in milliseconds since 1970.
 * @typedef {{push: import("./push.js").Push, status: any, live: boolean, source?: string,
 *   step: Step, range: {after: number, until: number} | null}} Context
 * @typedef {{cql: string, label: string, seconds: number}} Step
 */

/**
 * A panel with the result of a query. `draw` receives each frame, and returns nothing.
 * @param {Context} context
 * @param {{title: string, q: string, content: HTMLElement,
 *   onFrame: (frame: import("./push.js").Frame) => void, onEnd?: () => void}} options
 * @returns {{root: HTMLElement, close: () => void}}
 */
export function panel(context, { title, q, content, onFrame, onEnd }) {
  const state = element("div", { class: "state", role: "status" }, "waiting for rows");
  const error = element("div", { class: "error" });
  let skipped = 0;
  let isOver = false;
  const close = context.push.subscribe({
    q,
    source: context.source,
    onFrame: (frame) => {
      skipped += frame.skipped;
      onFrame(frame);
      const parts = [`at ${clock(newest(frame))}`];
      if (frame.rows === 0) parts.splice(0, 1, "no rows yet");
      if (frame.isTruncated) parts.push(`the first ${frame.rows} of ${frame.total} rows`);
      if (skipped > 0) parts.push(`${skipped} skipped`);
      state.textContent = parts.join(", ");
    },
    onEnd: (reason, message) => {
      isOver = true;
      if (reason !== "end") error.textContent = message;
      else if (context.source === "recent") state.textContent += "; these are the retained requests";
      else state.textContent += "; the recording has ended";
      onEnd?.();
    },
  });
  const link = element("a", { href: queryLink(q, context.source) }, "open in Query");
  const root = element("section", { class: "panel", "aria-label": title },
    element("h2", {}, title), content, state, error,
    element("details", {}, element("summary", {}, "CQL"), element("pre", {}, q), link));
  return {
    root,
    close: () => {
      if (!isOver) close();
    },
  };
}

/**
 * The last instant of a frame.
 * @param {import("./push.js").Frame} frame
 */
function newest(frame) {
  const instants = frame.values[0] ?? [];
  return instants.length > 0 ? Number(instants[instants.length - 1]) : Date.now();
}

/**
 * The values of a column by name.
 * @param {import("./push.js").Frame} frame
 * @param {string} name
 * @returns {any[]}
 */
export function valuesOf(frame, name) {
  return frame.values[frame.columns.findIndex((column) => column.name === name)] ?? [];
}

/**
 * The unit of a column.
 * @param {import("./push.js").Frame} frame
 * @param {string} name
 */
export function unitOf(frame, name) {
  return frame.columns.find((column) => column.name === name)?.unit ?? "";
}

/**
 * A text as a CQL literal.
 * @param {string} text
 */
export function quoted(text) {
  return `'${text.replaceAll("'", "''")}'`;
}

/**
 * The window of charts over time.
 * @param {Context} context
 */
export function slides({ step }) {
  return `[range ${step.cql} slide ${step.cql}]`;
}

/**
 * An instant in milliseconds as a CQL literal.
 * @param {number} milliseconds
 */
export function literal(milliseconds) {
  return `timestamp '${new Date(milliseconds).toISOString()}'`;
}

/**
 * The condition of an interval; its end belongs to it.
 * @param {{after?: number, until?: number} | null} interval
 * @returns {string[]}
 */
export function within(interval) {
  const parts = [];
  if (interval?.after !== undefined) parts.push(`ts > ${literal(interval.after)}`);
  if (interval?.until !== undefined) parts.push(`ts <= ${literal(interval.until)}`);
  return parts;
}

/**
 * `where` and all conditions; nothing without one.
 * @param {...string} conditions
 */
export function where(...conditions) {
  const given = conditions.filter((one) => one !== "");
  return given.length > 0 ? ` where ${given.join(" and ")}` : "";
}

/**
 * The address of the query page with a query.
 * @param {string} q
 * @param {string} [source]
 */
export function queryLink(q, source) {
  return `#query&${new URLSearchParams({ q, ...(source ? { source } : {}) })}`;
}

/**
 * The address of a page with the source and the range of this one.
 * @param {Context} context
 * @param {string} name
 * @param {Record<string, string>} [parameters]
 */
export function pageLink(context, name, parameters = {}) {
  const { source, range } = context;
  const state = new URLSearchParams({
    ...(source ? { source } : {}),
    ...(range ? { after: String(range.after), until: String(range.until) } : {}),
    ...parameters,
  });
  return String(state) === "" ? `#${name}` : `#${name}&${state}`;
}

/**
 * Fetches JSON of the API; an error of the server is thrown with its message.
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function request(path, body) {
  const response = await fetch(path, body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const text = await response.text();
  const value = text === "" ? null : JSON.parse(text);
  if (!response.ok) throw new Error(value?.error?.message ?? response.statusText);
  return value;
}
