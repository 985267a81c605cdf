// List of environments: size, allowed hosts and secrets of sandboxes.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Trouble } from "../parts/basics";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";
import { writeRules } from "../parts/rules";
import { EnvironmentForm } from "./environment-form";

type Environment = Schemas["NamedEnvironment"];

export const ENVIRONMENTS = ["environments"];

export function useEnvironments() {
  return useList<Environment>(ENVIRONMENTS, (cursor, signal) =>
    take(api.GET("/v3/environments", { params: { query: { limit: 100, cursor } }, signal })),
  );
}

export function EnvironmentsPage() {
  const [open, setOpen] = useState<"new" | Environment>();
  const { query, list } = useEnvironments();
  const close = () => setOpen(undefined);
  return (
    <>
      <ListPage
        title="Environments"
        add="New environment"
        onAdd={() => setOpen("new")}
        of={{ query, list }}
        empty={
          <Empty title="No environments yet">
            <p>
              A sandbox has 2 CPUs, 2 GiB of memory and no network by default. An environment sets its size and the hosts
              that it may reach.
            </p>
            <p>
              A secret never enters a sandbox. The sandbox sees a placeholder, which the egress proxy replaces only in
              requests to the hosts that the secret is bound to.
            </p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((environment) => (
            <Card key={environment.id} environment={environment} onEdit={() => setOpen(environment)} />
          ))}
        </ul>
      </ListPage>
      {open && (
        <Dialog title={open === "new" ? "New environment" : `Edit ${open.name}`} onClose={close}>
          <EnvironmentForm environment={open === "new" ? undefined : open} onDone={close} />
        </Dialog>
      )}
    </>
  );
}

const BUILDS: Record<Schemas["EnvironmentBuildState"], string> = {
  building: "building",
  ready: "ready",
  failed: "build failed",
};

function Card({ environment, onEdit }: { environment: Environment; onEdit: () => void }) {
  const queries = useQueryClient();
  const remove = useMutation({
    mutationFn: () =>
      take(
        api.DELETE("/v3/environments/{environment_id}", { params: { path: { environment_id: environment.id } } }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ENVIRONMENTS }),
  });
  const { cpus, image, memory, network, lifecycle_hooks } = environment.config;
  const rules = writeRules(network?.allow ?? []);
  const size = [cpus != null && `${cpus} CPUs`, memory].filter(Boolean).join(", ") || "default size";
  return (
    <li>
      <strong>{environment.name}</strong>
      <span className="quiet">{size}</span>
      {image && <span className="quiet">image {image}</span>}
      {environment.build && <span className="quiet">{BUILDS[environment.build.state]}</span>}
      {lifecycle_hooks?.post_start && <span className="quiet">runs a start script</span>}
      {lifecycle_hooks?.post_clone && <span className="quiet">runs a clone script</span>}
      {environment.secrets.map((secret) => (
        <span key={secret.name} className="quiet">
          secret <span className="mono">{secret.name}</span> for {secret.hosts.join(", ")}
        </span>
      ))}
      <span className="quiet grow">
        <Age ts={environment.updated_at} />
      </span>
      <button type="button" onClick={onEdit}>
        Edit
      </button>
      <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      <p className="whole">
        {rules === "" ? <span className="quiet">no network</span> : <span className="mono lines">{rules}</span>}
      </p>
      <Trouble error={remove.error} />
    </li>
  );
}
