//! `weir console --monitor`: the page of a fleet, with the rights of the client's token.

use serde_json::json;

use super::access::guarded;
use super::processes::Monitor;
use crate::console::Console;

const COUNT: &str = "select count(*) from IO [range 1 s slide 1 s]";

/// A console with the token of a client.
fn console(monitor: &Monitor, client: &str) -> Console {
    let token = monitor.home.path().join(client);
    let token = token.to_str().unwrap();
    Console::start(&["--monitor", &monitor.address, "--token-file", token])
}

#[test]
fn the_console_of_a_fleet_has_the_rights_of_its_token() {
    let monitor = guarded();
    let placer = console(&monitor, "placer");
    let status = placer.get("/api/v1/status").json();
    assert_eq!(
        (&status["monitor"], &status["recent"]),
        (&json!(monitor.address), &json!(false))
    );
    assert_eq!(placer.get("/api/v1/fleet").json(), json!([]));
    let body = json!({ "q": COUNT, "name": "load" });
    let made = placer.post("/api/v1/queries", &body);
    assert_eq!(made.status, 201, "{}", made.body);
    let listed = placer.get("/api/v1/queries").json();
    assert_eq!(listed["fleet"][0]["name"], "load", "{listed}");
    assert_eq!(listed["shared"], json!(null));

    let reader = console(&monitor, "reader");
    let seen = reader.get("/api/v1/queries").json();
    assert_eq!(seen["fleet"][0]["name"], "load", "{seen}");
    let refused = reader.post("/api/v1/queries", &json!({ "q": COUNT, "name": "other" }));
    assert!(
        refused.status >= 400 && refused.body.contains("not permitted"),
        "{}",
        refused.body
    );
    let refused = reader.post("/api/v1/queries/end", &json!({ "fleet": "load" }));
    assert!(refused.status >= 400, "{}", refused.body);
    let refused = reader.query(COUNT, "&for=1s");
    assert!(
        refused.status >= 400 && refused.body.contains("not permitted"),
        "{}",
        refused.body
    );
    assert_eq!(reader.get("/api/v1/leases").status, 200);

    let ended = placer.post("/api/v1/queries/end", &json!({ "fleet": "load" }));
    assert_eq!(ended.status, 204, "{}", ended.body);
    assert_eq!(placer.get("/api/v1/queries").json()["fleet"], json!([]));

    let wrong = console(&monitor, "wrong");
    let refused = wrong.get("/api/v1/fleet");
    assert!(
        refused.status >= 400 && refused.body.contains("unknown token"),
        "{}",
        refused.body
    );
}

#[test]
fn the_alerts_and_silences_of_a_monitor_are_those_of_its_commands() {
    let monitor = guarded();
    let placer = console(&monitor, "placer");
    assert_eq!(placer.get("/api/v1/fleet/alerts").json(), json!([]));
    let token = monitor.home.path().join("placer").display().to_string();
    let place = [
        "alert",
        "place",
        "--rule",
        "agent_gone",
        "--token-file",
        &token,
    ];
    monitor.run(&place).fine();
    let listed = placer.get("/api/v1/fleet/alerts").json();
    assert_eq!(listed[0]["name"], "agent_gone", "{listed}");
    assert_eq!(listed[0]["placed_by"], "placer");

    let silence = json!({
        "alert": "agent_gone", "labels": { "host": "--all" }, "for": "2h", "comment": "<b>reboot</b>",
    });
    let reader = console(&monitor, "reader");
    let refused = reader.post("/api/v1/fleet/silences", &silence);
    assert!(refused.body.contains("not permitted"), "{}", refused.body);
    let added = placer.post("/api/v1/fleet/silences", &silence);
    assert_eq!(added.status, 201, "{}", added.body);
    let silences = reader.get("/api/v1/fleet/silences").json();
    assert_eq!(silences[0]["id"], added.json()["id"]);
    assert_eq!(silences[0]["labels"], json!({ "host": "--all" }));
    assert_eq!(silences[0]["comment"], "<b>reboot</b>");
    let end = json!({ "id": added.json()["id"] });
    assert_eq!(placer.post("/api/v1/fleet/silences/end", &end).status, 204);
    assert_eq!(reader.get("/api/v1/fleet/silences").json(), json!([]));

    let remove = json!({ "name": "agent_gone" });
    assert!(reader.post("/api/v1/fleet/alerts/remove", &remove).status >= 400);
    assert_eq!(
        placer.post("/api/v1/fleet/alerts/remove", &remove).status,
        204
    );
    assert_eq!(placer.get("/api/v1/fleet/alerts").json(), json!([]));
    // Errors are those of the commands.
    let again = placer.post("/api/v1/fleet/alerts/remove", &remove);
    assert!(
        again.body.contains("there is no alert `agent_gone`"),
        "{}",
        again.body
    );
    let host = Console::start(&["--from", "samples/none.parquet"]);
    let refused = host.get("/api/v1/fleet/alerts");
    assert!(
        refused.status == 400 && refused.body.contains("not a fleet"),
        "{}",
        refused.body
    );
}
