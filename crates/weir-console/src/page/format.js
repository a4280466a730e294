// Numbers with units, instants, and texts without control characters.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const TIMES = [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]];
const COUNTS = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]];

/** @param {number} value */
function rounded(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size < 0.01) return value.toPrecision(2);
  return value.toFixed(size >= 10 ? 1 : 2);
}

/**
 * A number in the unit of its column, scaled.
 * @param {number} value
 * @param {string} [unit]
 */
export function quantity(value, unit = "") {
  if (unit === "B" || unit === "bytes") {
    let power = 0;
    let scaled = value;
    while (Math.abs(scaled) >= 1024 && power < BINARY.length - 1) {
      scaled /= 1024;
      power += 1;
    }
    return `${rounded(scaled)} ${BINARY[power]}`;
  }
  if (unit === "ns") return scaledBy(value, TIMES);
  const text = scaledBy(value, COUNTS).trim();
  return unit ? `${text} ${unit}` : text;
}

/**
 * @param {number} value
 * @param {(string | number)[][]} scales
 */
function scaledBy(value, scales) {
  const size = Math.abs(value);
  const fits = scales.filter(([, factor]) => size >= Number(factor));
  const [name, factor] = fits[fits.length - 1] ?? scales[0];
  return `${rounded(value / Number(factor))} ${name}`;
}

/**
 * A text on one line, with control and direction characters visible.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Columns whose numbers are names or places, which are not rounded. */
const IDENTIFIERS = new Set(["pid", "tid", "inode", "req_id", "cpu", "sector", "vsector", "error"]);

/**
 * A value of a column as text.
 * @param {any} value
 * @param {{name?: string, type: string, unit?: string}} column
 */
export function shown(value, column) {
  if (value === null || value === undefined) return "";
  if (column.type === "timestamp") return instant(value);
  if (typeof value === "bigint" || IDENTIFIERS.has(column.name ?? "")) return visible(String(value));
  if (typeof value === "number") return quantity(value, column.unit);
  if (Array.isArray(value)) {
    return value.map((entry) => `${visible(entry.value ?? "NULL")}: ${entry.count}`).join(", ");
  }
  return visible(String(value));
}

/**
 * An instant in milliseconds since 1970, in local time.
 * @param {number} milliseconds
 */
export function instant(milliseconds) {
  const date = new Date(milliseconds);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  const fraction = String(date.getMilliseconds()).padStart(3, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}.${fraction}`;
}

/**
 * The time of day.
 * @param {number} milliseconds
 */
export function clock(milliseconds) {
  return instant(milliseconds).slice(11, 19);
}
