// The WebSocket of this tab: subscriptions with credit, and reconnection.

import { decode } from "./arrow.js";

const HEADER_BYTES = 32;
const SNAPSHOT = 1;
const TRUNCATED = 2;
const RETRY_MILLISECONDS_MAX = 10000;

/**
 * @typedef {{columns: import("./arrow.js").Column[], metadata: Map<string, string>, rows: number,
 *   values: any[][], isSnapshot: boolean, isTruncated: boolean, skipped: number,
 *   total: number}} Frame
 * @typedef {{q: string, source?: string, onFrame: (frame: Frame) => void,
 *   onEnd: (reason: string, message: string) => void}} Subscription
 */

export class Push {
  /** @param {(isConnected: boolean, text: string) => void} onState */
  constructor(onState) {
    this.onState = onState;
    /** @type {Map<number, Subscription>} */
    this.subscriptions = new Map();
    this.nextId = 1;
    this.retryMilliseconds = 250;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.since = Date.now();
    this.connect();
    // A laptop that wakes up does not wait for the next retry.
    globalThis.addEventListener("online", () => this.connect());
  }

  connect() {
    if (this.socket !== null) return;
    const url = new URL("api/v1/push", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    url.hash = "";
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.addEventListener("open", () => {
      this.retryMilliseconds = 250;
      this.onState(true, "connected");
      for (const [id, { q, source }] of this.subscriptions) this.send({ type: "subscribe", id, q, source });
    });
    socket.addEventListener("message", (event) => this.receive(event.data));
    socket.addEventListener("close", () => {
      if (this.socket !== socket) return;
      this.socket = null;
      const at = new Date().toLocaleTimeString("en-GB");
      this.onState(false, `not connected since ${at}; results are those of then`);
      setTimeout(() => this.connect(), this.retryMilliseconds);
      this.retryMilliseconds = Math.min(2 * this.retryMilliseconds, RETRY_MILLISECONDS_MAX);
    });
  }

  /** @param {object} message */
  send(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  /**
   * Runs a query; returns the function that ends it.
   * @param {Subscription} subscription
   */
  subscribe(subscription) {
    const id = this.nextId;
    this.nextId += 1;
    this.subscriptions.set(id, subscription);
    this.send({ type: "subscribe", id, q: subscription.q, source: subscription.source });
    return () => {
      if (this.subscriptions.delete(id)) this.send({ type: "unsubscribe", id });
    };
  }

  /** @param {string | ArrayBuffer} data */
  receive(data) {
    if (typeof data === "string") {
      const message = JSON.parse(data);
      const subscription = this.subscriptions.get(message.id);
      if (message.type === "end" && subscription !== undefined) {
        this.subscriptions.delete(message.id);
        subscription.onEnd(message.reason, message.message);
      }
      return;
    }
    const head = new DataView(data, 0, HEADER_BYTES);
    const id = head.getUint32(0, true);
    const flags = head.getUint32(4, true);
    const sequence = Number(head.getBigUint64(8, true));
    const subscription = this.subscriptions.get(id);
    if (subscription !== undefined) {
      subscription.onFrame({
        ...decode(data, HEADER_BYTES),
        isSnapshot: (flags & SNAPSHOT) !== 0,
        isTruncated: (flags & TRUNCATED) !== 0,
        skipped: Number(head.getBigUint64(16, true)),
        total: Number(head.getBigUint64(24, true)),
      });
    }
    // The credit returns once the frame is drawn, so a slow tab receives fewer frames.
    requestDrawn(() => this.send({ type: "ack", id, sequence }));
  }
}

/**
 * After the next drawing; a hidden tab does not draw.
 * @param {() => void} then
 */
function requestDrawn(then) {
  if (document.hidden) setTimeout(then, 1000);
  else requestAnimationFrame(then);
}
