// The alerts that run at a monitor: their instances, what they do on hosts, and silences.

import { element } from "./elements.js";
import { JsonTable } from "./json-table.js";
import { rowsOf } from "./page-overview.js";
import { request } from "./panel.js";
import { polled } from "./polled.js";

const TIMES = ["1h", "8h", "24h", "168h"];

/**
 * @param {HTMLElement} root
 * @param {import("./panel.js").Context} context
 */
export function showFleet(root, context) {
  const error = element("div", { class: "error", role: "status" });
  const alerts = new JsonTable("Alerts of the monitor", "no alert runs at the monitor");
  const silences = new JsonTable("Silences", "no silences");
  const send = async (/** @type {string} */ path, /** @type {object} */ body) => {
    try {
      await request(path, body);
      await Promise.all([ofAlerts.now(), ofSilences.now()]);
    } catch (failure) {
      error.textContent = /** @type {Error} */ (failure).message;
    }
  };
  const ofAlerts = polled("api/v1/fleet/alerts", 2000, error, (rows) => alerts.show(rows.map((/** @type {any} */ row) => {
    const count = (/** @type {string} */ state) => row.instances.filter((/** @type {any} */ one) => one.state === state).length;
    return {
      alert: row.name, firing: count("firing"), pending: count("pending"), unknown: count("unknown"),
      acts: row.acts ? "yes" : "", "placed by": row.placed_by ?? "the file of the monitor",
      "": row.placed_by === null ? "" : element("button", {
        onclick: () => send("api/v1/fleet/alerts/remove", { name: row.name }), "aria-label": `Remove alert ${row.name}`,
      }, "Remove"),
    };
  })));
  const ofSilences = polled("api/v1/fleet/silences", 5000, error, (rows) => silences.show(rows.map((/** @type {any} */ row) => ({
    alert: row.alert ?? "all", labels: Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join(" "),
    ends: row.ends, comment: row.comment,
    "": element("button", { onclick: () => send("api/v1/fleet/silences/end", { id: row.id }), "aria-label": `End silence ${row.id}` }, "End"),
  }))));
  const panels = [
    rowsOf(context, "Instances that are not clear", "select host, alert, instance, state, severity, summary, fired_at, flaps, silenced from alert_states"),
    rowsOf(context, "Changes in the last hour", "select ts, instance, from_state, state, summary from alerts [range 1 h] order by ts desc limit 200"),
    rowsOf(context, "Leases of the hosts", "select host, vm, disk, before, setting, ends, alert from leases"),
  ];
  root.replaceChildren(element("h1", {}, "Alerts"), error, alerts.root,
    element("div", { class: "grid" }, ...panels.map((one) => one.root)),
    element("h2", {}, "Silences"), silenceForm(send), silences.root);
  return () => {
    ofAlerts.close();
    ofSilences.close();
    panels.forEach((one) => one.close());
  };
}

/**
 * The form that adds a silence.
 * @param {(path: string, body: object) => Promise<void>} send
 */
function silenceForm(send) {
  const field = (/** @type {string} */ name, /** @type {string} */ placeholder) =>
    /** @type {HTMLInputElement} */ (element("input", { id: `silence-${name}`, type: "text", placeholder }));
  const [alert, labels, comment] = [field("alert", "slow_disk"), field("labels", "host=node7 vdisk=vda"), field("comment", "")];
  const time = /** @type {HTMLSelectElement} */ (element("select", { id: "silence-for" },
    ...TIMES.map((name) => element("option", { value: name }, name))));
  const body = () => ({
    ...(alert.value === "" ? {} : { alert: alert.value }),
    labels: Object.fromEntries(labels.value.split(" ").filter((pair) => pair !== "").map((pair) => {
      const [name, ...rest] = pair.split("=");
      return [name, rest.join("=")];
    })),
    for: time.value, comment: comment.value,
  });
  return element("details", { id: "silence" }, element("summary", {}, "Add a silence"),
    element("div", { class: "bar" },
      element("label", { for: "silence-alert" }, "Alert"), alert,
      element("label", { for: "silence-labels" }, "labels"), labels,
      element("label", { for: "silence-for" }, "for"), time,
      element("label", { for: "silence-comment" }, "comment"), comment,
      element("button", { id: "silence-add", onclick: () => send("api/v1/fleet/silences", body()) }, "Silence")));
}
