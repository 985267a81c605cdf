// Network of a session: what left its sandbox, and what was refused and why.
import { useMemo } from "react";
import type { Event } from "../api/follow";
import { Badge, Empty } from "../parts/basics";
import { count, words } from "../parts/format";
import type { Log } from "./log";

interface Decision {
  host: string;
  port: number;
  method: string;
  /** How an allowed request was sent, or why one was denied. */
  how: string;
  isAllowed: boolean;
  secrets: string[];
  requests: number;
}

/** Decisions of the egress proxy with their counts; those that were denied first. */
function decisions(events: Event[]): Decision[] {
  const found = new Map<string, Decision>();
  for (const event of events) {
    if (event.type !== "egress.allowed" && event.type !== "egress.denied") continue;
    const { host, port, method, count: requests } = event.body;
    const isAllowed = event.type === "egress.allowed";
    const how = isAllowed ? event.body.manner : event.body.reason;
    const secrets = isAllowed ? (event.body.secrets ?? []) : [];
    const key = JSON.stringify([host, port, method, how, isAllowed, secrets]);
    const before = found.get(key);
    if (before) before.requests += requests;
    else found.set(key, { host, port, method, how, isAllowed, secrets, requests });
  }
  const order = (one: Decision, other: Decision) => Number(one.isAllowed) - Number(other.isAllowed);
  return [...found.values()].sort((one, other) => order(one, other) || one.host.localeCompare(other.host));
}

export function Network({ log }: { log: Log }) {
  const { events, version } = log;
  // The list grows in place; its version says when.
  const list = useMemo(() => decisions(events), [events, version]);
  if (list.length === 0) {
    return (
      <Empty title="Nothing left the sandbox">
        <p>
          A sandbox reaches only the hosts that its environment allows. Each request that leaves it, and each that is
          refused, appears here with the reason.
        </p>
      </Empty>
    );
  }
  return (
    <div className="page">
      <div className="table-wrap" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Host</th>
              <th scope="col">Method</th>
              <th scope="col">Decision</th>
              <th scope="col">How, or why not</th>
              <th scope="col">Secrets</th>
              <th scope="col" className="number">
                Requests
              </th>
            </tr>
          </thead>
          <tbody>
            {list.map((one) => (
              <tr key={JSON.stringify(one)}>
                <td className="mono">{one.port === 443 ? one.host : `${one.host}:${one.port}`}</td>
                <td className="mono">{one.method}</td>
                <td>
                  <Badge of={one.isAllowed ? "allowed" : "denied"} />
                </td>
                <td>{words(one.how)}</td>
                <td className="mono">{one.secrets.join(", ")}</td>
                <td className="number">{count(one.requests)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
