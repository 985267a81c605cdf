// Location of the router: path and query after `#`. The service never sees them, so every page is the same
// file and no API route is shadowed.
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

/** Location hook of the router. */
export function useHashPath(): [string, typeof navigate] {
  return [useSyncExternalStore(subscribe, path), navigate];
}
useHashPath.hrefs = (href: string) => `#${href}`;
useHashPath.searchHook = () => useSyncExternalStore(subscribe, query);
