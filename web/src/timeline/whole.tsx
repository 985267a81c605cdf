// A large body that the log stores separately; read on demand.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { takePath } from "../api/client";
import { Loading, Trouble } from "../parts/basics";
import { Json } from "../parts/text";

export function WholeBody({ path }: { path: string }) {
  const [wanted, setWanted] = useState(false);
  const query = useQuery({ queryKey: ["body", path], queryFn: () => takePath(path), enabled: wanted, staleTime: Infinity });
  if (query.data) return <Json value={query.data} label="Whole body" />;
  if (query.error) return <Trouble error={query.error} retry={() => query.refetch()} />;
  if (wanted) return <Loading />;
  return (
    <button type="button" className="plain small" onClick={() => setWanted(true)}>
      Truncated. Show all
    </button>
  );
}
