// Deliveries to a receiver and their attempts, of a session's destinations and of the organization's
// webhooks.
import { useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import type { Schemas } from "../api/client";
import { Age, Badge, Trouble } from "./basics";
import { clock, span } from "./format";

type Delivery = Schemas["Delivery"];

export interface DeliveryCalls {
  /** One delivery with all its attempts. */
  read(id: string, signal: AbortSignal): Promise<Delivery>;
  redeliver(id: string): Promise<unknown>;
  onChange(): void;
}

export function DeliveryTable(props: { list: Delivery[]; calls: DeliveryCalls; to?: (delivery: Delivery) => string }) {
  return (
    <div className="table-wrap" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Event</th>
            <th scope="col">Status</th>
            {props.to && <th scope="col">To</th>}
            <th scope="col" className="number">
              Attempts
            </th>
            <th scope="col">Response</th>
            <th scope="col">Changed</th>
            <th scope="col">
              <span className="visually-hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {props.list.map((delivery) => (
            <Line key={delivery.id} delivery={delivery} calls={props.calls} to={props.to?.(delivery)} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Line({ delivery, calls, to }: { delivery: Delivery; calls: DeliveryCalls; to?: string }) {
  const [open, setOpen] = useState(false);
  const again = useMutation({ mutationFn: () => calls.redeliver(delivery.id), onSuccess: calls.onChange });
  const name = `${delivery.type ?? "event"}${delivery.event_seq ? ` #${delivery.event_seq}` : ""}`;
  return (
    <>
      <tr>
        <td>
          <button type="button" className="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
            <span className="mono">{name}</span>
          </button>
          {!to && delivery.session && (
            <Link href={`/sessions/${delivery.session}`} className="small">
              session
            </Link>
          )}
        </td>
        <td data-label="Status">
          <Badge of={delivery.status} />
        </td>
        {to !== undefined && (
          <td data-label="To" className="mono">
            {to}
          </td>
        )}
        <td data-label="Attempts" className="number">
          {delivery.attempts}
        </td>
        <td data-label="Response">
          {delivery.response_code ?? ""} {delivery.error && <span className="quiet">{delivery.error}</span>}
          <Trouble error={again.error} />
        </td>
        <td data-label="Changed">
          <Age ts={delivery.updated_at} />
        </td>
        <td>
          <button type="button" disabled={again.isPending} onClick={() => again.mutate()}>
            Redeliver
          </button>
        </td>
      </tr>
      {open && (
        <tr>
          <td colSpan={to === undefined ? 6 : 7}>
            <Tries delivery={delivery} read={calls.read} />
          </td>
        </tr>
      )}
    </>
  );
}

function Tries({ delivery, read }: { delivery: Delivery; read: DeliveryCalls["read"] }) {
  const query = useQuery({
    // A new attempt changes `updated_at`, and with it the query key.
    queryKey: ["delivery", delivery.id, delivery.updated_at],
    queryFn: ({ signal }) => read(delivery.id, signal),
  });
  const log = query.data?.log ?? [];
  return (
    <>
      <Trouble error={query.error} />
      {query.isSuccess && log.length === 0 && <p className="quiet">No attempts yet.</p>}
      <ol className="tries" aria-label="Attempts">
        {log.map((one, at) => (
          <li key={at}>
            attempt {one.number} at <time dateTime={one.at}>{clock(one.at)}</time>: {one.response_code ?? "no response"} after{" "}
            {span(one.duration_ms)} {one.error && <span className="quiet">{one.error}</span>}
          </li>
        ))}
      </ol>
    </>
  );
}
