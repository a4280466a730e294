// Reads the Arrow IPC streams that weir writes (Arrow columnar format, "Encapsulated message
// format"; Flatbuffers, "Internals"). Types: bool, int64, float64, timestamp, binary, utf8,
// dictionaries of utf8, lists of structs. Buffers are not compressed.

const MESSAGE_SCHEMA = 1;
const MESSAGE_DICTIONARY = 2;
const MESSAGE_BATCH = 3;

const TYPE_NAMES = new Map([
  [2, "int"], [3, "float"], [4, "binary"], [5, "text"], [6, "bool"], [10, "timestamp"],
  [12, "list"], [13, "struct"],
]);

/** A table of a flatbuffer. */
class Table {
  /**
   * @param {DataView} view
   * @param {number} at
   */
  constructor(view, at) {
    this.view = view;
    this.at = at;
    this.vtable = at - view.getInt32(at, true);
  }

  /**
   * The position of field number `index`, 0 if absent.
   * @param {number} index
   */
  field(index) {
    const slot = 4 + 2 * index;
    if (slot >= this.view.getUint16(this.vtable, true)) return 0;
    const offset = this.view.getUint16(this.vtable + slot, true);
    return offset === 0 ? 0 : this.at + offset;
  }

  /** @param {number} index */
  byte(index) {
    const at = this.field(index);
    return at === 0 ? 0 : this.view.getUint8(at);
  }

  /** @param {number} index */
  short(index) {
    const at = this.field(index);
    return at === 0 ? 0 : this.view.getInt16(at, true);
  }

  /** @param {number} index */
  int(index) {
    const at = this.field(index);
    return at === 0 ? 0 : this.view.getInt32(at, true);
  }

  /** @param {number} index */
  long(index) {
    const at = this.field(index);
    return at === 0 ? 0 : Number(this.view.getBigInt64(at, true));
  }

  /** @param {number} index */
  table(index) {
    const at = this.field(index);
    return at === 0 ? null : new Table(this.view, at + this.view.getUint32(at, true));
  }

  /**
   * The start and length of a vector.
   * @param {number} index
   */
  vector(index) {
    const at = this.field(index);
    if (at === 0) return { at: 0, length: 0 };
    const start = at + this.view.getUint32(at, true);
    return { at: start + 4, length: this.view.getUint32(start, true) };
  }

  /** @param {number} index */
  tables(index) {
    const { at, length } = this.vector(index);
    return Array.from({ length }, (_, i) => {
      const place = at + 4 * i;
      return new Table(this.view, place + this.view.getUint32(place, true));
    });
  }

  /** @param {number} index */
  text(index) {
    const { at, length } = this.vector(index);
    return decoder.decode(new Uint8Array(this.view.buffer, this.view.byteOffset + at, length));
  }
}

const decoder = new TextDecoder();

/**
 * @typedef {{name: string, type: string, unit: string, doc: string, dictionary: number | null,
 *   width: number, children: Column[]}} Column
 */

/**
 * @param {Table} table
 * @returns {Column}
 */
function column(table) {
  const metadata = pairs(table, 6);
  const kind = table.table(3);
  const code = table.byte(2);
  const type = TYPE_NAMES.get(code);
  if (type === undefined) throw new Error(`a column has the unknown type ${code}`);
  const dictionary = table.table(4);
  return {
    name: table.text(0),
    type,
    unit: metadata.get("unit") ?? "",
    doc: metadata.get("doc") ?? "",
    dictionary: dictionary === null ? null : dictionary.long(0),
    width: type === "int" && kind !== null ? kind.int(0) : 64,
    children: table.tables(5).map(column),
  };
}

/**
 * The metadata at a field of a table.
 * @param {Table} table
 * @param {number} index
 */
function pairs(table, index) {
  return new Map(table.tables(index).map((pair) => [pair.text(0), pair.text(1)]));
}

/** The buffers and nodes of a record batch, in order. */
class BatchReader {
  /**
   * @param {Table} batch
   * @param {DataView} body
   * @param {Map<number, any[]>} dictionaries
   */
  constructor(batch, body, dictionaries) {
    this.batch = batch;
    this.body = body;
    this.dictionaries = dictionaries;
    this.node = 0;
    this.buffer = 0;
    if (batch.field(3) !== 0) throw new Error("compressed buffers are not supported");
  }

  /** The length of the next node. */
  nextLength() {
    const at = this.batch.vector(1).at + 16 * this.node;
    this.node += 1;
    return Number(this.batch.view.getBigInt64(at, true));
  }

  /** The next buffer. */
  nextBuffer() {
    const at = this.batch.vector(2).at + 16 * this.buffer;
    this.buffer += 1;
    const offset = Number(this.batch.view.getBigInt64(at, true));
    const length = Number(this.batch.view.getBigInt64(at + 8, true));
    return new DataView(this.body.buffer, this.body.byteOffset + offset, length);
  }

  /**
   * The values of the next column.
   * @param {Column} column
   * @returns {any[]}
   */
  values(column) {
    const length = this.nextLength();
    const validity = this.nextBuffer();
    const isNull = (/** @type {number} */ row) =>
      validity.byteLength > 0 && (validity.getUint8(row >> 3) & (1 << (row & 7))) === 0;
    const each = (/** @type {(row: number) => any} */ value) =>
      Array.from({ length }, (_, row) => (isNull(row) ? null : value(row)));
    if (column.dictionary !== null) {
      const keys = this.nextBuffer();
      const texts = this.dictionaries.get(column.dictionary) ?? [];
      return each((row) => texts[keys.getInt32(4 * row, true)]);
    }
    if (column.type === "list") {
      const offsets = this.nextBuffer();
      const items = this.values(column.children[0]);
      return each((row) =>
        items.slice(offsets.getInt32(4 * row, true), offsets.getInt32(4 * row + 4, true)));
    }
    if (column.type === "struct") {
      const parts = column.children.map((child) => this.values(child));
      return each((row) =>
        Object.fromEntries(column.children.map((child, i) => [child.name, parts[i][row]])));
    }
    if (column.type === "text" || column.type === "binary") {
      const offsets = this.nextBuffer();
      const data = this.nextBuffer();
      return each((row) => {
        const start = offsets.getInt32(4 * row, true);
        const size = offsets.getInt32(4 * row + 4, true) - start;
        return decoder.decode(new Uint8Array(data.buffer, data.byteOffset + start, size));
      });
    }
    const data = this.nextBuffer();
    if (column.type === "bool") {
      return each((row) => (data.getUint8(row >> 3) & (1 << (row & 7))) !== 0);
    }
    if (column.type === "float") return each((row) => data.getFloat64(8 * row, true));
    if (column.width === 32) return each((row) => data.getInt32(4 * row, true));
    const divisor = column.type === "timestamp" ? 1000000n : 1n;
    const wide = (/** @type {number} */ row) => data.getBigInt64(8 * row, true) / divisor;
    return each((row) => exact(wide(row)));
  }
}

/**
 * An integer as a number where that is exact.
 * @param {bigint} value
 */
function exact(value) {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/**
 * Decodes a stream. Timestamps are in milliseconds since 1970.
 * @param {ArrayBuffer} buffer
 * @param {number} [start]
 * @returns {{columns: Column[], metadata: Map<string, string>, rows: number, values: any[][]}}
 */
export function decode(buffer, start = 0) {
  const view = new DataView(buffer);
  /** @type {Column[]} */
  let columns = [];
  let metadata = new Map();
  /** @type {Map<number, any[]>} */
  const dictionaries = new Map();
  /** @type {any[][]} */
  let values = [];
  let rows = 0;
  let at = start;
  while (at + 8 <= buffer.byteLength) {
    // A continuation mark, then the size of the message; 0 is the end.
    const size = view.getUint32(at + 4, true);
    if (view.getUint32(at, true) !== 0xffffffff) throw new Error("not an Arrow stream");
    if (size === 0) break;
    const head = new DataView(buffer, at + 8, size);
    const message = new Table(head, head.getUint32(0, true));
    const content = /** @type {Table} */ (message.table(2));
    const body = new DataView(buffer, at + 8 + size, message.long(3));
    at += 8 + size + message.long(3);
    switch (message.byte(1)) {
      case MESSAGE_SCHEMA:
        columns = content.tables(1).map(column);
        metadata = pairs(content, 2);
        values = columns.map(() => []);
        break;
      case MESSAGE_DICTIONARY: {
        const data = /** @type {Table} */ (content.table(1));
        const text = { name: "", type: "text", unit: "", doc: "", dictionary: null, width: 64, children: [] };
        const texts = new BatchReader(data, body, dictionaries).values(text);
        const id = content.long(0);
        const isDelta = content.byte(2) !== 0;
        dictionaries.set(id, isDelta ? [...(dictionaries.get(id) ?? []), ...texts] : texts);
        break;
      }
      case MESSAGE_BATCH: {
        const reader = new BatchReader(content, body, dictionaries);
        columns.forEach((one, i) => {
          for (const value of reader.values(one)) values[i].push(value);
        });
        rows += content.long(0);
        break;
      }
      default:
        throw new Error("an unknown Arrow message");
    }
  }
  return { columns, metadata, rows, values };
}
