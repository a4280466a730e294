// Charts of requests over time: heat maps with quantile lines, whose rectangles are queries of the
// requests in them.

import { element } from "./elements.js";
import { HeatMap, pairs } from "./heatmap.js";
import { panel, slides, unitOf, valuesOf, where, within } from "./panel.js";
import { Selection } from "./selection.js";

/** The columns of requests that a selection shows. */
const COLUMNS = ["ts", "op", "vm", "vdisk", "pdisk", "comm", "pid", "sector", "bytes", "latency",
  "wait", "service", "in_flight", "seek", "interarrival"];
const ARRIVAL_COLUMNS = ["ts", "op", "vm", "vdisk", "pdisk", "comm", "pid", "sector", "bytes"];

/**
 * What a heat map counts. `source` makes the stream of a condition; `note` stands below the map.
 * @typedef {{column: string, title: string, unit: string, note: string, columns: string[],
 *   source: (condition: string) => string, isOfStream: boolean}} Measure
 */

/**
 * @param {string} column
 * @param {string} title
 * @param {string} unit
 * @param {string} note
 * @returns {Measure}
 */
function ofRequests(column, title, unit, note = "") {
  return { column, title, unit, note, columns: COLUMNS, source: () => "IO", isOfStream: true };
}

/**
 * The measures of a disk that are columns of each recording.
 * @type {Measure[]}
 */
export const MEASURES = [
  ofRequests("latency", "Latency", "ns", "lines: solid p50, dashed p99"),
  ofRequests("bytes", "Size", "B"),
  ofRequests("seek", "Seek distance", "sectors"),
  ofRequests("in_flight", "Queue depth", ""),
];

const INTERARRIVAL = "Inter-arrival time";

/**
 * The distances of requests, of recordings without column `interarrival`.
 * @type {Measure}
 */
const GAPS = {
  column: "gap", title: INTERARRIVAL, unit: "ns", note: "since the previous of these requests",
  columns: [...ARRIVAL_COLUMNS, "gap"],
  // The distance of requests when they arrive; `IO` has them when they are complete.
  source: (condition) => `(Istream(select ${ARRIVAL_COLUMNS.join(", ")}, `
    + `ts - lag(ts) over (order by ts) as gap from IOstream${where("type = 'Q'", condition)}))`,
  isOfStream: false,
};

/**
 * All measures of a disk.
 * @param {import("./panel.js").Context} context
 */
export function measuresOf(context) {
  // Live, it is counted where the requests are, without a row for each.
  const live = ofRequests("interarrival", INTERARRIVAL, "ns", "since any request of the device");
  return [...MEASURES, context.live ? live : GAPS];
}

/**
 * Subscribes to a chart over time: live rows, and what was retained before them.
 * @param {import("./panel.js").Context} context
 * @param {{title: string, query: (interval: string[]) => string, content: HTMLElement,
 *   clear: () => void, onRows: (frame: import("./push.js").Frame) => void, draw: () => void}} chart
 */
export function overTime(context, { title, query, content, clear, onRows, draw }) {
  let closeHistory = () => {};
  /** @param {number} first */
  const loadHistory = (first) => {
    closeHistory();
    const until = first - 1000 * context.step.seconds;
    closeHistory = context.push.subscribe({
      q: query(within({ until })),
      source: "recent",
      onFrame: (frame) => {
        onRows(frame);
        draw();
      },
      // Without retained requests the chart begins now.
      onEnd: () => { closeHistory = () => {}; },
    });
  };
  let isHistoryDue = false;
  const shown = panel(context, {
    title,
    q: query(within(context.range)),
    content,
    onFrame: (frame) => {
      if (frame.isSnapshot) {
        clear();
        isHistoryDue = context.live && context.status.recent && context.source === undefined;
      }
      onRows(frame);
      draw();
      if (isHistoryDue && frame.rows > 0) {
        isHistoryDue = false;
        loadHistory(Number(frame.values[0][0]));
      }
    },
  });
  return {
    root: shown.root,
    close: () => {
      closeHistory();
      shown.close();
    },
  };
}

/**
 * A heat map of a measure, for requests that meet a condition.
 * @param {import("./panel.js").Context} context
 * @param {Measure} measure
 * @param {{title: string, condition: string, select?: string}} options
 */
export function heat(context, measure, { title, condition }) {
  const { column } = measure;
  const selection = new Selection(context, title);
  const map = new HeatMap(`${title} over time`, measure.unit, (rectangle) =>
    selection.show(requestsIn(measure, condition, rectangle), rectangle));
  map.step = 1000 * context.step.seconds;
  map.names = column === "latency" ? ["p50", "p99"] : [];
  const lines = map.names.map((name) => `, quantile(latency, 0.${name.slice(1)}) as ${name}`).join("");
  const legend = measure.note === "" ? [] : [element("div", { class: "faint" }, measure.note)];
  const content = element("div", {}, map.root, ...legend, selection.root);
  return overTime(context, {
    title,
    query: (interval) => {
      const conditions = [condition, ...interval];
      const inside = measure.isOfStream ? where(...conditions) : "";
      const joined = conditions.filter((one) => one !== "").join(" and ");
      return `Rstream(select histogram(${column}) as ${column}${lines} from `
        + `${measure.source(joined)} ${slides(context)}${inside})`;
    },
    content,
    clear: () => map.clear(),
    onRows: (frame) => {
      map.unit = unitOf(frame, column) || map.unit;
      const quantiles = map.names.map((name) => valuesOf(frame, name));
      for (let i = 0; i < frame.rows; i += 1) {
        const of = quantiles.map((values) => (values[i] == null ? null : Number(values[i])));
        map.add(Number(valuesOf(frame, "instant")[i]), pairs(valuesOf(frame, column)[i]), of);
      }
    },
    draw: () => map.draw(),
  });
}

/**
 * The query of the requests in a rectangle.
 * @param {Measure} measure
 * @param {string} condition
 * @param {import("./heatmap.js").Rectangle} rectangle
 */
export function requestsIn(measure, condition, { after, until, low, high }) {
  const { column } = measure;
  const limits = [];
  if (low !== null) limits.push(`${column} > ${low}`);
  if (high !== null) limits.push(`${column} <= ${high}`);
  if (limits.length === 0) limits.push(`${column} is not null`);
  const interval = within({ after, until });
  const outside = measure.isOfStream ? [condition, ...interval, ...limits] : [...interval, ...limits];
  return `select ${measure.columns.join(", ")}\nfrom ${measure.source(condition)}\n`
    + where(...outside).trim().replaceAll(" and ", "\n  and ");
}
