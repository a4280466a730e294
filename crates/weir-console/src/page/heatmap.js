// A heat map on a canvas: a column per instant, a row per bucket of a histogram; the colour is the
// number of values in the bucket, on a logarithmic scale.

import { colour, element, prepared } from "./elements.js";
import { clock, quantity } from "./format.js";
import { MARGIN, axes } from "./lines.js";

const HEIGHT = 200;
const COLUMNS_MAX = 600;

// Samples of a scale that gets steadily brighter, so that it needs no colour vision.
const SCALE = [[59, 28, 104], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
  [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];

/** @param {number} share between 0 and 1 */
function scaled(share) {
  const at = share * (SCALE.length - 1);
  const below = Math.min(Math.floor(at), SCALE.length - 2);
  const mix = SCALE[below].map((part, i) => Math.round(part + (at - below) * (SCALE[below + 1][i] - part)));
  return `rgb(${mix.join(",")})`;
}

export class HeatMap {
  /** @param {string} label @param {string} unit */
  constructor(label, unit) {
    this.label = label;
    this.unit = unit;
    /** @type {{at: number, cells: Map<number, number>}[]} */
    this.columns = [];
    this.cursor = { column: -1, bucket: 0 };
    this.canvas = element("canvas", {
      role: "img", tabindex: "0", "aria-label": label,
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.reading = element("div", { class: "faint", role: "status" }, "\u00a0");
    this.root = element("div", {}, this.canvas, this.reading);
  }

  clear() {
    this.columns = [];
  }

  /**
   * Adds a histogram: pairs of upper limit and count. Infinity holds the values above all limits.
   * @param {number} at
   * @param {[number, number][]} counts
   */
  add(at, counts) {
    const last = this.columns[this.columns.length - 1];
    const column = last?.at === at ? last : { at, cells: new Map() };
    if (column !== last) this.columns.push(column);
    for (const [limit, count] of counts) {
      column.cells.set(limit, (column.cells.get(limit) ?? 0) + count);
    }
    if (this.columns.length > COLUMNS_MAX) this.columns.shift();
  }

  /** The number of values. */
  total() {
    let total = 0;
    for (const { cells } of this.columns) for (const count of cells.values()) total += count;
    return total;
  }

  /** The buckets, by their upper limits; gaps between powers of two are filled. */
  buckets() {
    const limits = new Set(this.columns.flatMap(({ cells }) => [...cells.keys()]));
    const sorted = [...limits].sort((a, b) => a - b);
    const powers = sorted.filter((limit) => limit >= 1 && Number.isInteger(Math.log2(limit)));
    if (powers.length > 1 && powers.length === sorted.length) {
      for (let limit = powers[0]; limit < powers[powers.length - 1]; limit *= 2) limits.add(limit);
    }
    return [...limits].sort((a, b) => a - b);
  }

  draw() {
    const { context, width, height } = prepared(/** @type {HTMLCanvasElement} */ (this.canvas), HEIGHT);
    if (this.columns.length === 0) return;
    const buckets = this.buckets();
    if (buckets.length === 0) return;
    const [from, to] = [this.columns[0].at, this.columns[this.columns.length - 1].at];
    const gaps = this.columns.slice(1).map((column, i) => column.at - this.columns[i].at);
    const step = Math.max(1, Math.min(...gaps, to - from || 1));
    const slots = Math.min(COLUMNS_MAX, Math.round((to - from) / step) + 1);
    const [across, down] = [(width - MARGIN.left - 8) / slots, (height - MARGIN.bottom - 8) / buckets.length];
    const most = Math.max(1, ...this.columns.flatMap(({ cells }) => [...cells.values()]));
    const rows = new Map(buckets.map((limit, i) => [limit, i]));
    const y = (/** @type {number} */ row) => 8 + (buckets.length - 1 - row) * down;
    const every = Math.ceil(buckets.length / 6);
    const marks = buckets.flatMap((limit, i) =>
      (i % every === 0 ? [/** @type {[number, string]} */ ([y(i), this.limit(limit)])] : []));
    axes(context, width, height, from, to, marks);
    this.geometry = { from, step, across, down, buckets, height };
    for (const { at, cells } of this.columns) {
      const slot = Math.round((at - from) / step);
      for (const [limit, count] of cells) {
        if (count <= 0) continue;
        context.fillStyle = scaled(Math.log1p(count) / Math.log1p(most));
        context.fillRect(MARGIN.left + slot * across, y(rows.get(limit) ?? 0),
          Math.max(1, across - (across > 4 ? 1 : 0)), Math.max(1, down - 1));
      }
    }
    if (this.cursor.column >= 0) this.mark(context, y);
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.total()} values, `
      + `${clock(from)} to ${clock(to)}, up to ${this.limit(buckets[buckets.length - 1])}; `
      + "arrow keys read cells");
  }

  /** @param {CanvasRenderingContext2D} context @param {(row: number) => number} y */
  mark(context, y) {
    const { from, step, across, down } = /** @type {any} */ (this.geometry);
    const column = this.columns[Math.min(this.cursor.column, this.columns.length - 1)];
    context.strokeStyle = colour("text");
    context.strokeRect(MARGIN.left + Math.round((column.at - from) / step) * across,
      y(this.cursor.bucket), Math.max(2, across), Math.max(2, down));
  }

  /** @param {number} limit */
  limit(limit) {
    return limit === Infinity ? "more" : quantity(limit, this.unit);
  }

  /** Reads the cell below the pointer. @param {PointerEvent} event */
  point(event) {
    if (this.geometry === undefined) return;
    const { from, step, across, down, buckets } = this.geometry;
    const slot = Math.floor((event.offsetX - MARGIN.left) / across);
    const column = this.columns.findIndex(({ at }) => Math.round((at - from) / step) === slot);
    const bucket = buckets.length - 1 - Math.floor((event.offsetY - 8) / down);
    if (column >= 0 && bucket >= 0 && bucket < buckets.length) this.read(column, bucket);
  }

  /** Moves the cursor. @param {KeyboardEvent} event */
  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (move === undefined || this.geometry === undefined) return;
    event.preventDefault();
    const { column, bucket } = this.cursor;
    const start = column < 0 ? this.columns.length - 1 : column + move[0];
    this.read(Math.max(0, Math.min(this.columns.length - 1, start)),
      Math.max(0, Math.min(this.geometry.buckets.length - 1, bucket + move[1])));
    this.draw();
  }

  /** @param {number} column @param {number} bucket */
  read(column, bucket) {
    this.cursor = { column, bucket };
    const { buckets } = /** @type {any} */ (this.geometry);
    const { at, cells } = this.columns[column];
    const count = cells.get(buckets[bucket]) ?? 0;
    const above = bucket > 0 ? `${this.limit(buckets[bucket - 1])} to ` : "up to ";
    this.reading.textContent = `${clock(at)}: ${count} values of ${above}${this.limit(buckets[bucket])}`;
  }
}

/**
 * The pairs of a histogram's column.
 * @param {{value: string | null, count: number}[] | null} entries
 * @returns {[number, number][]}
 */
export function pairs(entries) {
  return (entries ?? []).map(({ value, count }) =>
    [value === null ? Infinity : Number(value), Number(count)]);
}

/** A histogram as bars of text and canvas, for a relation. */
export class Bars {
  /** @param {string} unit */
  constructor(unit) {
    this.unit = unit;
    this.body = element("tbody");
    this.root = element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "number" }, "up to"),
        element("th", { scope: "col", class: "number" }, "count"), element("th", { scope: "col" }, "share"))),
      this.body));
  }

  /** @param {[number, number][]} counts */
  show(counts) {
    const sorted = [...counts].sort((a, b) => a[0] - b[0]);
    const most = Math.max(1, ...sorted.map(([, count]) => count));
    this.body.replaceChildren(...sorted.map(([limit, count]) => {
      const text = limit === Infinity ? "more" : quantity(limit, this.unit);
      return element("tr", {}, element("td", { class: "number" }, text),
        element("td", { class: "number" }, String(count)),
        element("td", {}, element("meter", { min: 0, max: most, value: count })));
    }));
  }
}
