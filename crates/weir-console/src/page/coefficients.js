// Coefficients of correlation on canvases: a matrix of shades, and a graph with the series on a
// circle.

import { colour, drawSeen, element, prepared } from "./elements.js";

/**
 * A pair of series: the first one changes first if it is `directed`.
 * @typedef {{from: string, to: string, coefficient: number, directed: boolean}} Pair
 */

const CELL_MAX = 28;
const FONT = "12px system-ui, sans-serif";
/** Longer names are cut at their beginning, since names of disks differ at their end. */
const NAME_CHARACTERS = 28;
/** More series are not drawn: the names would overlap. */
const SERIES_MAX = 40;
// Two hues that the colour-blind can tell apart; stronger coefficients are less transparent.
const POSITIVE = "213, 94, 0";
const NEGATIVE = "0, 114, 178";

/** @param {number} coefficient */
function shade(coefficient) {
  const hue = coefficient < 0 ? NEGATIVE : POSITIVE;
  return `rgba(${hue}, ${Math.min(1, Math.abs(coefficient)) ** 2})`;
}

/** @param {string} name */
function short(name) {
  const characters = [...name];
  return characters.length > NAME_CHARACTERS
    ? `…${characters.slice(1 - NAME_CHARACTERS).join("")}` : name;
}

/**
 * The names of the series, in the order of the pairs.
 * @param {Pair[]} pairs
 */
function seriesOf(pairs) {
  return [...new Set(pairs.flatMap(({ from, to }) => [from, to]))];
}

class Chart {
  /** @param {string} label */
  constructor(label) {
    this.label = label;
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img", "aria-label": label }));
    this.note = element("div", { class: "faint" }, "orange: together, blue: oppositely");
    this.root = element("div", {}, this.canvas, this.note);
  }

  /** @param {Pair[]} pairs */
  show(pairs) {
    const names = seriesOf(pairs).slice(0, SERIES_MAX);
    const at = new Map(names.map((name, i) => [name, i]));
    const shown = pairs.filter(({ from, to }) => at.has(from) && at.has(to));
    const left = pairs.length - shown.length;
    this.note.textContent = "orange: together, blue: oppositely"
      + (left > 0 ? `; ${left} pairs are not drawn` : "");
    const described = shown.map(({ from, to, coefficient }) => `${from} and ${to} ${coefficient.toFixed(2)}`);
    this.canvas.setAttribute("aria-label",
      `${this.label}: ${described.join(", ") || "no pair"}`);
    drawSeen(this.canvas, () => this.draw(names, at, shown));
  }

  /**
   * @param {string[]} _names
   * @param {Map<string, number>} _at
   * @param {Pair[]} _pairs
   */
  draw(_names, _at, _pairs) {}
}

/** A cell for each two series; an empty one is a pair without a coefficient. */
export class CoefficientMatrix extends Chart {
  /**
   * @param {string[]} names
   * @param {Map<string, number>} at
   * @param {Pair[]} pairs
   */
  draw(names, at, pairs) {
    const { context, width } = prepared(this.canvas, 24 + CELL_MAX * Math.max(1, names.length));
    context.font = FONT;
    const texts = names.map((name, i) => `${i + 1} ${short(name)}`);
    const left = Math.max(0, ...texts.map((text) => context.measureText(text).width)) + 8;
    const cell = Math.max(4, Math.min(CELL_MAX, (width - left) / Math.max(1, names.length)));
    texts.forEach((text, i) => {
      const middle = (i + 0.5) * cell;
      context.fillStyle = colour("text");
      context.textAlign = "right";
      context.fillText(text, left - 6, middle + 4);
      context.textAlign = "center";
      if (cell > 14) context.fillText(String(i + 1), left + middle, names.length * cell + 16);
      context.fillStyle = colour("line");
      context.fillRect(left + i * cell, i * cell, cell - 1, cell - 1);
    });
    for (const { from, to, coefficient } of pairs) {
      const [i, j] = [at.get(from) ?? 0, at.get(to) ?? 0];
      context.fillStyle = shade(coefficient);
      context.fillRect(left + i * cell, j * cell, cell - 1, cell - 1);
      context.fillRect(left + j * cell, i * cell, cell - 1, cell - 1);
    }
  }
}

/** The series on a circle, and a line for each pair, with an arrow if it is directed. */
export class CoefficientGraph extends Chart {
  /**
   * @param {string[]} names
   * @param {Map<string, number>} at
   * @param {Pair[]} pairs
   */
  draw(names, at, pairs) {
    const radius = Math.max(70, (names.length * 24) / (2 * Math.PI));
    const { context, width } = prepared(this.canvas, 2 * radius + 60);
    const place = (/** @type {number} */ i, /** @type {number} */ distance) => {
      const angle = 2 * Math.PI * (i / names.length - 0.25);
      return [width / 2 + distance * Math.cos(angle), radius + 30 + distance * Math.sin(angle)];
    };
    context.font = FONT;
    context.lineWidth = 2;
    for (const { from, to, coefficient, directed } of pairs) {
      const [fromX, fromY] = place(at.get(from) ?? 0, radius - 6);
      const [toX, toY] = place(at.get(to) ?? 0, radius - 6);
      context.strokeStyle = shade(coefficient);
      context.beginPath();
      context.moveTo(fromX, fromY);
      context.lineTo(toX, toY);
      const length = Math.hypot(toX - fromX, toY - fromY);
      if (directed && length > 0) {
        const [dx, dy] = [(toX - fromX) / length, (toY - fromY) / length];
        for (const side of [-5, 5]) {
          context.moveTo(toX, toY);
          context.lineTo(toX - 12 * dx - side * dy, toY - 12 * dy + side * dx);
        }
      }
      context.stroke();
    }
    context.fillStyle = colour("text");
    names.forEach((name, i) => {
      const [x, y] = place(i, radius);
      context.fillRect(x - 4, y - 4, 8, 8);
      const [textX, textY] = place(i, radius + 12);
      const beside = textX - width / 2;
      context.textAlign = beside > 1 ? "left" : beside < -1 ? "right" : "center";
      const room = Math.abs(beside) > 1 ? width / 2 - Math.abs(beside) : width;
      context.fillText(short(name), textX, textY + 4, room);
    });
  }
}
