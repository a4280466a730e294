// The fleet: its hosts with their agents, versions, clocks, losses and watermarks.

import { element } from "./elements.js";
import { JsonTable } from "./json-table.js";
import { polled } from "./polled.js";

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} _parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, _parameters, context) {
  const title = element("h1", {}, "Fleet");
  if (context.status.monitor === null) {
    root.replaceChildren(title, element("p", {}, "This console shows a single host. "
      + "weir console --monitor ADDRESS shows the hosts of a monitor."));
    return () => {};
  }
  const error = element("div", { class: "error", role: "status" });
  const table = new JsonTable("Hosts", "no host is connected");
  const poll = polled("api/v1/fleet", 2000, error, (hosts) => table.show(hosts));
  root.replaceChildren(title, error, table.root);
  return () => poll.close();
}
