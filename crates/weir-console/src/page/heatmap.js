// A heat map on a canvas: a column per instant, a row per bucket of a histogram; the colour is the
// number of values in the bucket, on a logarithmic scale. Lines over it are quantiles. A rectangle
// drawn on it selects the values in it.

import { colour, drawSeen, element, prepared } from "./elements.js";
import { clock, quantity } from "./format.js";
import { MARGIN, axes } from "./lines.js";

const HEIGHT = 200;
const COLUMNS_MAX = 600;
const TOP = 8;
/** A shorter movement of the pointer is a click. */
const DRAG_PIXELS = 4;

// Samples of a scale that gets steadily brighter, so that it needs no colour vision.
const SCALE = [[59, 28, 104], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
  [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];

/** The colour of a share between 0 and 1, as the bytes of a pixel. */
const PIXELS = new Uint32Array(256).map((_, i) => {
  const at = (i / 255) * (SCALE.length - 1);
  const below = Math.min(Math.floor(at), SCALE.length - 2);
  const [r, g, b] = SCALE[below].map((part, n) =>
    Math.round(part + (at - below) * (SCALE[below + 1][n] - part)));
  return (255 << 24) | (b << 16) | (g << 8) | r;
});

/**
 * A rectangle: the columns from the first to the last one, whose values are above `low` and at most
 * `high`; null without such a limit. A column at an instant has the values of the step before it.
 * @typedef {{after: number, until: number, low: number | null, high: number | null,
 *   count: number}} Rectangle
 * @typedef {{column: number, bucket: number}} Cell
 * @typedef {{at: number, cells: Map<number, number>, lines: (number | null)[]}} MapColumn
 */

export class HeatMap {
  /**
   * @param {string} label
   * @param {string} unit
   * @param {(rectangle: Rectangle) => void} [onSelect]
   */
  constructor(label, unit, onSelect) {
    this.label = label;
    this.unit = unit;
    this.onSelect = onSelect;
    /** @type {MapColumn[]} */
    this.columns = [];
    /** @type {Cell} */
    this.cursor = { column: -1, bucket: 0 };
    /**
     * The other corner of the rectangle.
     * @type {Cell | null}
     */
    this.corner = null;
    this.isDragging = false;
    this.step = 0;
    /**
     * The names of the lines.
     * @type {string[]}
     */
    this.names = [];
    this.canvas = element("canvas", {
      role: "img", tabindex: "0", "aria-label": label,
      onpointerdown: (/** @type {PointerEvent} */ event) => this.press(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerup: (/** @type {PointerEvent} */ event) => this.release(event),
      onpointercancel: () => { this.isDragging = false; },
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    this.image = document.createElement("canvas");
    this.reading = element("div", { class: "faint", role: "status" }, "\u00a0");
    this.root = element("div", {}, this.canvas, this.reading);
  }

  clear() {
    this.columns = [];
    this.corner = null;
    this.cursor = { column: -1, bucket: 0 };
  }

  /**
   * Adds a histogram: pairs of upper limit and count. Infinity holds the values above all limits.
   * @param {number} at
   * @param {[number, number][]} counts
   * @param {(number | null)[]} [lines]
   */
  add(at, counts, lines = []) {
    let place = this.columns.length;
    while (place > 0 && this.columns[place - 1].at > at) place -= 1;
    let column = this.columns[place - 1];
    if (column?.at !== at) {
      column = { at, cells: new Map(), lines };
      this.columns.splice(place, 0, column);
    }
    for (const [limit, count] of counts) {
      column.cells.set(limit, (column.cells.get(limit) ?? 0) + count);
    }
    if (this.columns.length > COLUMNS_MAX) {
      this.columns.shift();
      this.cursor.column = Math.max(-1, this.cursor.column - 1);
      if (this.corner !== null) this.corner.column = Math.max(0, this.corner.column - 1);
    }
  }

  /** The number of values. */
  total() {
    let total = 0;
    for (const { cells } of this.columns) for (const count of cells.values()) total += count;
    return total;
  }

  /** The buckets, by their upper limits; gaps between powers of two are filled. */
  buckets() {
    const limits = new Set();
    for (const { cells } of this.columns) for (const limit of cells.keys()) limits.add(limit);
    const sorted = [...limits].sort((a, b) => a - b);
    const powers = sorted.filter((limit) => limit >= 1 && Number.isInteger(Math.log2(limit)));
    if (powers.length > 1 && powers.length === sorted.length) {
      for (let limit = powers[0]; limit < powers[powers.length - 1]; limit *= 2) limits.add(limit);
    }
    return [...limits].sort((a, b) => a - b);
  }

  /** Draws it, at the latest when it is scrolled into the window. */
  draw() {
    const buckets = this.buckets();
    if (this.columns.length > 0 && buckets.length > 0) {
      const [first, last] = [this.columns[0].at, this.columns[this.columns.length - 1].at];
      this.canvas.setAttribute("aria-label", `${this.label}: ${this.total()} values, `
        + `${clock(first)} to ${clock(last)}, up to ${this.limit(buckets[buckets.length - 1])}; `
        + "arrow keys read cells, with Shift they select, Enter shows the selected requests");
    }
    drawSeen(this.canvas, () => this.drawNow());
  }

  drawNow() {
    const { context, width, height } = prepared(/** @type {HTMLCanvasElement} */ (this.canvas), HEIGHT);
    const buckets = this.buckets();
    if (this.columns.length === 0 || buckets.length === 0) return;
    const [from, to] = [this.columns[0].at, this.columns[this.columns.length - 1].at];
    let step = to - from || 1;
    for (let i = 1; i < this.columns.length; i += 1) {
      step = Math.min(step, this.columns[i].at - this.columns[i - 1].at);
    }
    if (this.step > 0) step = this.step;
    const slots = Math.min(4 * COLUMNS_MAX, Math.round((to - from) / step) + 1);
    const [wide, high] = [width - MARGIN.left - 8, height - MARGIN.bottom - TOP];
    const [across, down] = [wide / slots, high / buckets.length];
    this.geometry = { from, step, across, down, buckets };
    const every = Math.ceil(buckets.length / 6);
    const marks = buckets.flatMap((limit, i) =>
      (i % every === 0 ? [/** @type {[number, string]} */ ([this.y(i), this.tick(limit)])] : []));
    axes(context, width, height, from, to, marks);
    this.paint(slots, buckets);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, MARGIN.left, TOP, wide, high);
    this.drawLines(context);
    if (this.cursor.column >= 0) this.mark(context);
  }

  /**
   * Paints an image of one pixel per cell, which is then enlarged.
   * @param {number} slots
   * @param {number[]} buckets
   */
  paint(slots, buckets) {
    let most = 1;
    for (const { cells } of this.columns) for (const count of cells.values()) most = Math.max(most, count);
    const rows = new Map(buckets.map((limit, i) => [limit, buckets.length - 1 - i]));
    const data = new ImageData(slots, buckets.length);
    const pixels = new Uint32Array(data.data.buffer);
    const { from, step } = /** @type {any} */ (this.geometry);
    for (const { at, cells } of this.columns) {
      const slot = Math.round((at - from) / step);
      if (slot >= slots) continue;
      for (const [limit, count] of cells) {
        if (count <= 0) continue;
        const share = Math.log1p(count) / Math.log1p(most);
        pixels[(rows.get(limit) ?? 0) * slots + slot] = PIXELS[Math.round(share * 255)];
      }
    }
    if (this.image.width !== slots) this.image.width = slots;
    if (this.image.height !== buckets.length) this.image.height = buckets.length;
    /** @type {CanvasRenderingContext2D} */ (this.image.getContext("2d")).putImageData(data, 0, 0);
  }

  /**
   * The upper edge of a bucket.
   * @param {number} row
   */
  y(row) {
    const { down, buckets } = /** @type {any} */ (this.geometry);
    return TOP + (buckets.length - 1 - row) * down;
  }

  /**
   * The height of a value: between the limits of its bucket.
   * @param {number} value
   */
  height(value) {
    const { down, buckets } = /** @type {any} */ (this.geometry);
    const row = buckets.findIndex((/** @type {number} */ limit) => value <= limit);
    if (row < 0) return TOP;
    const upper = buckets[row];
    const lower = row > 0 ? buckets[row - 1] : upper / 2;
    const share = Number.isFinite(upper) && upper > lower ? (value - lower) / (upper - lower) : 1;
    return this.y(row) + (1 - Math.min(1, Math.max(0, share))) * down;
  }

  /** @param {CanvasRenderingContext2D} context */
  drawLines(context) {
    const { from, step, across } = /** @type {any} */ (this.geometry);
    this.names.forEach((_, line) => {
      for (const [width, style] of [[3, colour("ground")], [1.5, colour("text")]]) {
        context.strokeStyle = String(style);
        context.lineWidth = Number(width);
        context.setLineDash(line === 0 ? [] : [5, 3]);
        context.beginPath();
        let isOpen = false;
        for (const { at, lines } of this.columns) {
          const value = lines[line] ?? null;
          if (value === null) {
            isOpen = false;
            continue;
          }
          const x = MARGIN.left + (Math.round((at - from) / step) + 0.5) * across;
          if (isOpen) context.lineTo(x, this.height(value));
          else context.moveTo(x, this.height(value));
          isOpen = true;
        }
        context.stroke();
      }
    });
    context.setLineDash([]);
  }

  /**
   * Draws the rectangle, or the cursor.
   * @param {CanvasRenderingContext2D} context
   */
  mark(context) {
    const { from, step, across, down } = /** @type {any} */ (this.geometry);
    const [a, b] = [this.cursor, this.corner ?? this.cursor];
    const at = (/** @type {number} */ column) =>
      this.columns[Math.max(0, Math.min(column, this.columns.length - 1))].at;
    const slot = (/** @type {number} */ column) => Math.round((at(column) - from) / step);
    const [left, right] = [Math.min(a.column, b.column), Math.max(a.column, b.column)].map(slot);
    const [low, high] = [Math.min(a.bucket, b.bucket), Math.max(a.bucket, b.bucket)];
    context.lineWidth = 2;
    context.strokeStyle = colour("mark");
    context.strokeRect(MARGIN.left + left * across, this.y(high),
      Math.max(2, (right - left + 1) * across), Math.max(2, (high - low + 1) * down));
  }

  /** @param {number} limit */
  limit(limit) {
    return limit === Infinity ? "more" : quantity(limit, this.unit);
  }

  /**
   * A limit beside the axis, which has no room for the name of a unit.
   * @param {number} limit
   */
  tick(limit) {
    return limit === Infinity ? "more" : quantity(limit, this.unit === "sectors" ? "" : this.unit);
  }

  /**
   * The cell at the pointer.
   * @param {PointerEvent} event
   * @returns {Cell | null}
   */
  cell(event) {
    if (this.columns.length === 0) return null;
    if (this.geometry === undefined) this.drawNow();
    if (this.geometry === undefined) return null;
    const { from, step, across, down, buckets } = this.geometry;
    const slot = Math.floor((event.offsetX - MARGIN.left) / across);
    let column = -1;
    this.columns.forEach(({ at }, i) => {
      if (Math.round((at - from) / step) <= slot) column = i;
    });
    const bucket = buckets.length - 1 - Math.floor((event.offsetY - TOP) / down);
    const bounded = (/** @type {number} */ value, /** @type {number} */ most) =>
      Math.max(0, Math.min(most, value));
    return {
      column: bounded(column, this.columns.length - 1), bucket: bounded(bucket, buckets.length - 1),
    };
  }

  /** @param {PointerEvent} event */
  press(event) {
    const cell = this.cell(event);
    if (event.button !== 0 || cell === null || this.onSelect === undefined) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.isDragging = true;
    this.pressed = [event.offsetX, event.offsetY];
    this.corner = cell;
    this.cursor = { ...cell };
  }

  /**
   * Reads the cell below the pointer, or extends the rectangle to it.
   * @param {PointerEvent} event
   */
  point(event) {
    const cell = this.cell(event);
    if (cell === null) return;
    if (this.isDragging) this.read(cell, true);
    else if (this.corner === null) this.read(cell, false);
  }

  /** @param {PointerEvent} event */
  release(event) {
    if (!this.isDragging) return;
    this.isDragging = false;
    const [x, y] = this.pressed ?? [0, 0];
    if (Math.hypot(event.offsetX - x, event.offsetY - y) < DRAG_PIXELS) {
      this.corner = null;
      this.draw();
      return;
    }
    this.select();
  }

  /**
   * Moves the cursor, with Shift the corner of the rectangle.
   * @param {KeyboardEvent} event
   */
  key(event) {
    if (event.key === "Enter" && this.cursor.column >= 0) {
      this.select();
      return;
    }
    if (event.key === "Escape") {
      this.corner = null;
      this.draw();
      return;
    }
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (move === undefined || this.geometry === undefined) return;
    event.preventDefault();
    const { column, bucket } = this.cursor;
    if (event.shiftKey && column >= 0) this.corner ??= { column, bucket };
    if (!event.shiftKey) this.corner = null;
    const start = column < 0 ? this.columns.length - 1 : column + move[0];
    this.read({
      column: Math.max(0, Math.min(this.columns.length - 1, start)),
      bucket: Math.max(0, Math.min(this.geometry.buckets.length - 1, bucket + move[1])),
    }, event.shiftKey);
  }

  /**
   * The selected rectangle; of the cursor without one.
   * @returns {Rectangle}
   */
  rectangle() {
    const { step, buckets } = /** @type {any} */ (this.geometry);
    const [a, b] = [this.cursor, this.corner ?? this.cursor];
    const [first, last] = [Math.min(a.column, b.column), Math.max(a.column, b.column)];
    const [lowest, highest] = [Math.min(a.bucket, b.bucket), Math.max(a.bucket, b.bucket)];
    let count = 0;
    for (const { cells } of this.columns.slice(first, last + 1)) {
      for (let row = lowest; row <= highest; row += 1) count += cells.get(buckets[row]) ?? 0;
    }
    return {
      after: this.columns[first].at - step, until: this.columns[last].at, count,
      low: lowest > 0 ? buckets[lowest - 1] : null,
      high: Number.isFinite(buckets[highest]) ? buckets[highest] : null,
    };
  }

  select() {
    this.draw();
    this.onSelect?.(this.rectangle());
  }

  /**
   * @param {Cell} cell
   * @param {boolean} isRectangle
   */
  read(cell, isRectangle) {
    this.cursor = cell;
    const { buckets } = /** @type {any} */ (this.geometry);
    const { at, cells } = this.columns[cell.column];
    const { low, high, after, until, count } = this.rectangle();
    const limits = `${low === null ? "up to " : `${this.limit(low)} to `}${this.limit(high ?? Infinity)}`;
    this.reading.textContent = isRectangle
      ? `${clock(after)} to ${clock(until)}: ${count} values of ${limits}`
      : `${clock(at)}: ${cells.get(buckets[cell.bucket]) ?? 0} values of ${limits}`;
    this.draw();
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
        element("td", {}, element("meter", { min: 0, max: most, value: count, "aria-label": `${count} up to ${text}` })));
    }));
  }
}
