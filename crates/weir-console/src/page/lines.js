// A line chart on a canvas: one line per series over time, bounded in points and series.

import { colour, drawSeen, element, prepared } from "./elements.js";
import { clock, quantity, visible } from "./format.js";

const HEIGHT = 180;
const LEFT = 64;
const BOTTOM = 20;
const POINTS_MAX = 1200;
const SERIES_MAX = 8;

// Okabe and Ito's colours, which the colour-blind can tell apart, and a pattern for each.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a00", "#888888"];
const DASHES = [[], [6, 3], [2, 2], [8, 2, 2, 2], [], [6, 3], [2, 2], [8, 2, 2, 2]];

export class LineChart {
  /**
   * @param {string} label
   * @param {string} unit
   */
  constructor(label, unit) {
    this.label = label;
    this.unit = unit;
    /** @type {Map<string, {at: number, value: number}[]>} */
    this.series = new Map();
    this.others = 0;
    this.step = Infinity;
    this.canvas = element("canvas", { role: "img", "aria-label": label });
    this.legend = element("div", { class: "faint" });
    this.root = element("div", {}, this.canvas, this.legend);
  }

  clear() {
    this.series.clear();
  }

  /**
   * Adds a point; the oldest one of a long series is removed. A series of counts with a `step` is
   * zero where it has no point.
   * @param {string} name
   * @param {number} at
   * @param {number} value
   * @param {number} step
   */
  add(name, at, value, step = Infinity) {
    this.step = step;
    let points = this.series.get(name);
    if (points === undefined) {
      if (this.series.size === SERIES_MAX) {
        this.others += 1;
        return;
      }
      points = [];
      this.series.set(name, points);
    }
    let place = points.length;
    while (place > 0 && points[place - 1].at > at) place -= 1;
    points.splice(place, 0, { at, value });
    points.splice(0, points.length - POINTS_MAX);
  }

  /**
   * The points, with zeros in the gaps.
   * @param {{at: number, value: number}[]} points
   */
  filled(points) {
    return points.flatMap((point, i) => {
      const last = points[i - 1];
      if (last === undefined || point.at - last.at <= 1.5 * this.step) return [point];
      return [{ at: last.at + this.step, value: 0 }, { at: point.at - this.step, value: 0 }, point];
    });
  }

  /** Draws it, at the latest when it is scrolled into the window. */
  draw() {
    drawSeen(this.canvas, () => this.drawNow());
  }

  drawNow() {
    const { context, width, height } = prepared(/** @type {HTMLCanvasElement} */ (this.canvas), HEIGHT);
    const all = [...this.series.values()].flat();
    if (all.length === 0) return;
    const [from, to] = all.reduce(([low, high], { at }) => [Math.min(low, at), Math.max(high, at)],
      [Infinity, -Infinity]);
    const top = all.reduce((most, { value }) => Math.max(most, value), Number.MIN_VALUE);
    const x = (/** @type {number} */ at) => LEFT + ((at - from) / Math.max(1, to - from)) * (width - LEFT - 8);
    const y = (/** @type {number} */ value) => 8 + (1 - value / top) * (height - BOTTOM - 8);
    axes(context, width, height, from, to, [[y(0), "0"], [y(top), quantity(top, this.unit)]]);
    [...this.series.values()].forEach((points, i) => {
      context.strokeStyle = COLOURS[i];
      context.fillStyle = COLOURS[i];
      context.setLineDash(DASHES[i]);
      context.lineWidth = 1.5;
      context.beginPath();
      this.filled(points).forEach(({ at, value }) => context.lineTo(x(at), y(value)));
      context.stroke();
      if (points.length === 1) context.fillRect(x(points[0].at) - 2, y(points[0].value) - 2, 4, 4);
    });
    context.setLineDash([]);
    const last = [...this.series].map(([name, points], i) => {
      const mark = element("span", { "aria-hidden": "true" }, "━ ");
      mark.style.color = COLOURS[i];
      const value = quantity(points[points.length - 1].value, this.unit);
      return element("span", {}, mark, `${visible(name)} ${value}  `);
    });
    const others = this.others > 0 ? ["further series are not drawn"] : [];
    this.legend.replaceChildren(...last, ...others);
    this.canvas.setAttribute("aria-label",
      `${this.label}, ${clock(from)} to ${clock(to)}, at most ${quantity(top, this.unit)}`);
  }
}

/**
 * The axes: instants below, labels of values on the left.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {number} from
 * @param {number} to
 * @param {[number, string][]} marks
 */
export function axes(context, width, height, from, to, marks) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colour("faint");
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const [at, text] of marks) {
    context.beginPath();
    context.moveTo(LEFT - 3, at);
    context.lineTo(width - 8, at);
    context.stroke();
    context.fillText(text, LEFT - 6, at);
  }
  context.textBaseline = "bottom";
  context.textAlign = "left";
  context.fillText(clock(from), LEFT, height);
  context.textAlign = "right";
  context.fillText(clock(to), width - 8, height);
}

export const MARGIN = { left: LEFT, bottom: BOTTOM };
