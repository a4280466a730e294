// A panel: a title, a chart of a standing query, what was skipped, and the query.

import { element } from "./elements.js";
import { clock } from "./format.js";

/**
 * @typedef {{push: import("./push.js").Push, live: boolean, step: Step}} Context
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
      if (reason === "end") state.textContent += "; the recording has ended";
      else error.textContent = message;
      onEnd?.();
    },
  });
  const link = element("a", { href: `#query&${new URLSearchParams({ q })}` }, "open in Query");
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

/** The last instant of a frame. @param {import("./push.js").Frame} frame */
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

/** A text as a CQL literal. @param {string} text */
export function quoted(text) {
  return `'${text.replaceAll("'", "''")}'`;
}

/** The window of charts over time. @param {Context} context */
export function slides({ step }) {
  return `[range ${step.cql} slide ${step.cql}]`;
}
