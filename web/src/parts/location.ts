// Where one is: the part of the address after #, path and query. The service sees
// nothing of it, so every page is the same file and no route of the API is hidden.
import { useSyncExternalStore } from "react";

const subscribe = (changed: () => void) => {
  window.addEventListener("hashchange", changed);
  return () => window.removeEventListener("hashchange", changed);
};
const whole = () => window.location.hash.replace(/^#?\/?/, "/");
const path = () => whole().split("?")[0] ?? "/";
const query = () => whole().split("?")[1] ?? "";

function navigate(to: string, options: { replace?: boolean } = {}): void {
  if (options.replace) window.location.replace(`#${to}`);
  else window.location.hash = to;
}

/** The location trigger that the router is given. */
export function useHashPath(): [string, typeof navigate] {
  return [useSyncExternalStore(subscribe, path), navigate];
}
useHashPath.hrefs = (href: string) => `#${href}`;
useHashPath.searchTrigger = () => useSyncExternalStore(subscribe, query);
