// List filters, stored in the address: a filtered list can be shared, and Back returns to it.
import { useSearchParams } from "wouter";

export function useFilters<Name extends string>(): [(name: Name) => string | undefined, (name: Name, value: string) => void] {
  const [search, setSearch] = useSearchParams();
  const choose = (name: Name, value: string) =>
    setSearch(
      (search) => {
        if (value) search.set(name, value);
        else search.delete(name);
        return search;
      },
      { replace: true },
    );
  return [(name) => search.get(name) || undefined, choose];
}
